"""Power cuts under real processes: fcctl, agent, tmux, supervisor and a step, recorded by a library in LD_PRELOAD."""

from __future__ import annotations

import filecmp
import functools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.power_cut.process_scenarios import DOCUMENT, SCENARIOS, Detached, FirstRun, Prune, Scenario, Scheduled
from tests.power_cut.processes import Recording, play_processes, recording
from tests.power_cut.recorded import replaying, why_not

pytestmark = pytest.mark.full
Recorded = Callable[[type[Scenario]], Recording]

#: Moments at which the power fails, in each scenario.
STATES = 22
#: A step in a heartbeat.
PASSED = b'"greet","status":"passed"'


@pytest.fixture(autouse=True)
def recorder() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def recorded() -> Iterator[Recorded]:
    """Of each scenario the recording that the first test makes which asks for it."""
    with ExitStack() as stack:
        yield functools.cache(lambda scenario: stack.enter_context(recording(scenario())))


def on_one_worker(scenario: type[Scenario], *more: str) -> Any:
    return pytest.param(scenario, *more, marks=pytest.mark.group(scenario.__name__))


@pytest.mark.parametrize("scenario", [*map(on_one_worker, SCENARIOS)], ids=lambda scenario: scenario.__name__)
def test_commands_recover_from_what_is_left(scenario: type[Scenario], recorded: Recorded) -> None:
    found = list(play_processes(recorded(scenario), STATES))
    assert list(filter(None, found)) == []
    assert len(found) >= 20


@pytest.mark.group(FirstRun.__name__)
def test_what_a_passed_step_left_is_on_disk_before_its_run_says_so(recorded: Recorded) -> None:
    """A resumed run builds on it."""
    left: list[list[bytes]] = []
    said = False
    made = recorded(FirstRun)
    with made.replay() as replay:
        for at, record in enumerate(made.records):
            replay.apply(record)
            said = said or PASSED in record.data
            if "/outcome.json" in f"{record.path} {record.other}":
                break
            for tree in replay.disk.crash_states(60, str(at)) if said else ():
                if any(PASSED in node.data for name, node in tree.items() if name.endswith("/heartbeat.json")):
                    out = [node.data for name, node in tree.items() if re.search(r"\.fcctl/runs/.*/out/m\.json$", name)]
                    left.append(out)
    assert len(left) > 10
    assert {*map(tuple, left)} == {(json.dumps(DOCUMENT).encode(),)}


@pytest.mark.parametrize(
    ("scenario", "ignored"),
    [
        on_one_worker(Detached, "/active/"),
        on_one_worker(Detached, r"/active/.*/journal\.jsonl$"),
        on_one_worker(Detached, r"\.partial"),
        on_one_worker(Detached, "/results/runs$"),
        on_one_worker(Detached, r"/\.fcctl/runs/"),
        on_one_worker(Prune, "/results/runs$"),
        on_one_worker(Scheduled, "/schedules"),
    ],
)
def test_a_sync_that_had_no_effect_is_noticed(scenario: type[Scenario], ignored: str, recorded: Recorded) -> None:
    assert any(play_processes(recorded(scenario), 0, ignored))


def test_a_replay_leaves_what_the_processes_left() -> None:
    with recording(Detached()) as made:
        with replaying(made.before) as replay:
            replay.apply_all(made.records)
        assert differences(made.place.base / "root", made.before) == []


def differences(one: Path, other: Path) -> list[str]:
    found: list[str] = []
    folders = [filecmp.dircmp(one, other, ignore=[])]
    for folder in folders:
        names = folder.left_only + folder.right_only + folder.funny_files
        _, differ, wrong = filecmp.cmpfiles(folder.left, folder.right, folder.common_files, shallow=False)
        found += [f"{folder.left}/{name}" for name in [*names, *differ, *wrong] if not name.endswith("-shm")]
        folders += folder.subdirs.values()
    return found
