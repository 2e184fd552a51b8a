"""Power cuts under real processes: fcctl, agent, tmux, supervisor and a step, recorded by a library in LD_PRELOAD."""

from __future__ import annotations

import filecmp
import json
import re
from pathlib import Path

import pytest

from tests.power_cut.process_scenarios import DOCUMENT, SCENARIOS, Detached, FirstRun, Prune, Scenario, Scheduled
from tests.power_cut.processes import play_processes, recording
from tests.power_cut.recorded import replaying, why_not

pytestmark = pytest.mark.full

#: Moments at which the power fails, in each scenario.
STATES = 22
#: A step in a heartbeat.
PASSED = b'"greet","status":"passed"'


@pytest.fixture(autouse=True)
def recorder() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_commands_recover_from_what_is_left(scenario: type[Scenario]) -> None:
    with recording(scenario()) as made:
        result = play_processes(made, STATES)
    assert result.violations == []
    assert result.states >= 20


def test_what_a_passed_step_left_is_on_disk_before_its_run_says_so() -> None:
    """A resumed run builds on it."""
    left: list[list[bytes]] = []
    said = False
    with recording(FirstRun()) as made, replaying(made.before) as replay:
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
        (Detached, "/active/"),
        (Detached, r"/active/.*/journal\.jsonl$"),
        (Detached, r"\.partial"),
        (Detached, "/results/runs$"),
        (Detached, r"/\.fcctl/runs/"),
        (Prune, "/results/runs$"),
        (Scheduled, "/schedules"),
    ],
)
def test_a_sync_that_had_no_effect_is_noticed(scenario: type[Scenario], ignored: str) -> None:
    with recording(scenario()) as made:
        assert play_processes(made, 0, ignored).violations != []


def test_a_replay_leaves_what_the_processes_left() -> None:
    with recording(Detached()) as made:
        with replaying(made.before) as replay:
            for record in made.records:
                replay.apply(record)
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
