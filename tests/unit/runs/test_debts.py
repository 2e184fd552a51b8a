"""A machine that could not be stopped costs the commands that come later no patience."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.errors import CloudError
from orchestrator.machines.cloud import Machine
from orchestrator.money.book import SpendingBook
from orchestrator.results.store.store import FileStore
from orchestrator.runs.machine import pending_releases as debts
from orchestrator.runs.machine.left_on import MachinesLeftOn
from tests.support.small_disk import largest_file
from tests.support.spending import book_in, reservation
from tests.support.stores import make_id
from tests.support.waiting import GUARD_S, wait_for


def tries() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fcctl-releases"]


@dataclass
class Stage:
    """As much of the services as a debt needs; time is moved by hand, and by waiting."""

    store: FileStore
    spending: SpendingBook
    clock: Any = None
    observer: Any = None
    now: float = 1_800_000_000.0
    left_on: MachinesLeftOn = field(default_factory=MachinesLeftOn)
    notes: list[str] = field(default_factory=list)
    #: Set while the cloud answers.
    speaks: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        if self.clock is None:
            stage = self
            self.speaks.set()

            def sleep(seconds: float) -> None:
                """A try that the cloud answers is over by then, however busy this computer is."""
                stage.now += seconds
                for thread in tries():
                    thread.join(GUARD_S if stage.speaks.is_set() else 0.001)

            self.clock = SimpleNamespace(now=lambda: stage.now, monotonic=lambda: stage.now, sleep=sleep)
            self.observer = SimpleNamespace(note=self.notes.append)


class Cloud:
    """What a try meets: it is paid, refused, or not answered before it ``speaks``."""

    def __init__(self, speaks: threading.Event) -> None:
        self.tries = 0
        self.error: CloudError | None = None
        self.speaks = speaks

    def is_paid(self, *_: object) -> bool:
        self.tries += 1
        assert self.speaks.wait()
        if self.error is not None:
            raise self.error
        return True


@pytest.fixture
def stage(tmp_path: Path) -> Any:
    made = Stage(FileStore(tmp_path / "results", SimpleNamespace(now=lambda: 0.0)), book_in(tmp_path / "state"))
    run_id = make_id()
    made.store.add_pending_release(run_id, {"target": {}, "holds": []})
    with made.spending.changing() as change:
        change.reserve(reservation("kept:7:1", owner="kept", owner_id=run_id))
        change.reserve(reservation("kept:8:1", owner="kept", owner_id=make_id()))
    return made


@pytest.fixture
def cloud(stage: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    made = Cloud(stage.speaks)
    monkeypatch.setattr(debts, "_is_released", made.is_paid)
    yield made
    made.speaks.set()
    for thread in tries():
        thread.join()


def test_a_cloud_that_does_not_answer_is_waited_for_a_moment(stage: Any, cloud: Cloud) -> None:
    cloud.speaks.clear()
    began = stage.now
    debts.retry_releases(stage, "moment")
    assert stage.now - began < 1.0
    wait_for(lambda: cloud.tries == 1)
    assert ["may still be on" in note and "pull-results" in note for note in stage.notes] == [True]
    for _ in range(5):
        stage.now += 60
        debts.retry_releases(stage, "moment")
        debts.retry_releases(stage, "due")
    assert cloud.tries == 1, "not again for ten minutes"
    assert "tried 5 min ago" in stage.notes[-1]
    stage.now += 600
    debts.retry_releases(stage, "moment")
    wait_for(lambda: cloud.tries == 2)


def test_one_that_answers_at_once_is_heard(stage: Any, cloud: Cloud) -> None:
    debts.retry_releases(stage, "moment")
    assert (cloud.tries, stage.store.pending_releases(), stage.notes) == (1, {}, [])
    assert list(stage.spending.state().open()) == ["kept:8:1"], "what it might still have cost is not reserved any more"


def test_one_that_cannot_be_read_says_nothing_of_its_machine(stage: Any) -> None:
    (run_id,) = stage.store.pending_releases()
    stage.store.add_pending_release(run_id, {"target": "of another version"})
    debts.retry_releases(stage)
    assert "unreadable" in stage.notes[0]
    assert list(stage.store.pending_releases()) == []
    assert len(stage.spending.state().open()) == 2, "it may be on"


def test_pull_results_always_tries(stage: Any, cloud: Cloud) -> None:
    cloud.error = CloudError("no answer")
    for _ in range(3):
        debts.retry_releases(stage, "all")
    assert cloud.tries == 3
    assert len(stage.notes) == 3
    stage.now += 60
    debts.retry_releases(stage, "moment")
    assert stage.notes[-1].endswith("(no answer), tried 1 min ago; to try again to stop it: fcctl pull-results")
    cloud.error = None
    debts.retry_releases(stage, "due")
    assert stage.store.pending_releases() != {}, "tried lately"
    assert len(stage.spending.state().open()) == 2
    debts.retry_releases(stage)
    assert stage.store.pending_releases() == {}


def test_a_clock_that_was_set_back_delays_nothing(stage: Any, cloud: Cloud) -> None:
    cloud.error = CloudError("no answer")
    debts.retry_releases(stage)
    stage.now -= 86400
    debts.retry_releases(stage, "due")
    assert cloud.tries == 2


# ---------------------------------------------------------------------------- who has found the machine on meanwhile
OWING, OTHER = "20261121t081530z-j-vm-3fa9c1", "20261121t081531z-j-vm-3fa9c2"
BEGAN = 1795248931.0  # when OTHER did


@pytest.mark.parametrize(
    ("label", "known", "left", "later_s", "comes"),
    [
        (OTHER, (), 0.0, 60.0, True),
        (OTHER, (), 0.0, -60.0, True),
        (OTHER, (), 0.0, debts.COMING_S + 1, False),
        (OTHER, (), BEGAN + 3600.0, 3700.0, True),
        (OTHER, (), BEGAN + 3600.0, 3600.0 + debts.COMING_S + 1, False),
        (OTHER, (OTHER,), 0.0, 60.0, False),
        (OWING, (), 0.0, 60.0, False),
        ("up-by-hand", (), 0.0, 60.0, False),
    ],
    ids=[
        "it has just begun", "by a clock that is ahead", "it did not come", "it waited long, and was left the machine",
        "and did not come", "it was there", "nobody came", "no run",
    ],
)  # fmt: skip
def test_a_run_that_has_found_it_on_has_some_time_to_come_to_it(
    label: str, known: tuple[str, ...], left: float, later_s: float, comes: bool
) -> None:
    machine = Machine("p", "us-west1-c", "vm", "7", "RUNNING", labels={"fcctl-run": label})
    seen = debts.waiting_runs(machine, {OWING, *known}, lambda _: False)
    assert debts._waiting_run(seen, {"left": left}, BEGAN + later_s) == (label if comes else None)
    over = debts.waiting_runs(machine, {OWING, *known}, label.__eq__)
    assert debts._waiting_run(over, {"left": left}, BEGAN + later_s) is None, "that run is complete here"


@pytest.mark.parametrize("effort", ["all", "moment"])
def test_a_full_disk_keeps_no_machine_from_being_stopped(stage: Any, cloud: Cloud, effort: Any) -> None:
    with largest_file(0):
        debts.retry_releases(stage, effort)
    assert cloud.tries == 1
    assert stage.store.pending_releases() == {}


def test_nor_does_it_turn_a_refusal_into_another_error(stage: Any, cloud: Cloud) -> None:
    cloud.error = CloudError("no answer")
    with largest_file(0):
        debts.retry_releases(stage)
    assert ": no answer" in stage.notes[0]
    assert len(stage.store.pending_releases()) == 1
