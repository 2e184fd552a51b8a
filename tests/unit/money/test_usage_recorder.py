"""What a cloud says of a target's machine is written down, once, whoever asked."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.clock import SystemClock
from orchestrator.base.errors import FcctlError
from orchestrator.machines.cloud import BillableResource, Disk, Machine, Operation
from orchestrator.machines.targets import GcpTarget
from orchestrator.money import book
from orchestrator.money.book import SpendingBook
from orchestrator.money.usage_recorder import UsageRecorder, usage_of
from orchestrator.providers.registry import RecordingClouds
from tests.support.budgets import listed
from tests.support.small_disk import largest_file
from tests.support.spending import book_in

T = 1_800_000_000.0
TARGET = GcpTarget(name="l4", project="my-project", instance="vm", zones=["us-west1-c"], usd_per_hour=0.72)
STOP = Operation("op", "us-west1-c", "stop", "vm", "DONE", started=T + 595, finished=T + 600, target_id="7")


def machine(**changes: Any) -> Machine:
    values = {"project": "my-project", "zone": "us-west1-c", "name": "vm", "id": "7", "status": "RUNNING", "started": T}
    return Machine(**{**values, **changes})


OFF = machine(status="TERMINATED", stopped=T + 600)


class Cloud:
    """Has the target's machine and another one."""

    there = (machine(), machine(name="other", id="8"))

    def machine(self, zone: str, name: str) -> Machine | None:
        return next((one for one in self.there if (one.zone, one.name) == (zone, name)), None)

    def machines(self, labels: object) -> tuple[list[Machine], list[str]]:
        return list(self.there), []

    def operations(self, zone: str, name: str) -> list[Operation]:
        return [STOP]

    def disks(self, machine: Machine) -> list[BillableResource]:
        names = [disk.name for disk in machine.disks]
        return [
            BillableResource("disk", "my-project", machine.zone, name, 200, "pd-ssd", created=T - 9) for name in names
        ]

    def zones(self) -> list[str]:
        return ["us-west1-c"]


@pytest.fixture
def file(tmp_path: Path) -> SpendingBook:
    return book_in(tmp_path)


@pytest.fixture
def recorder(file: SpendingBook) -> UsageRecorder:
    return UsageRecorder(file, SystemClock(), listed())


@pytest.fixture
def watched(recorder: UsageRecorder) -> Any:
    clouds: Any = type("Clouds", (), {"open": lambda *_: Cloud()})()
    return RecordingClouds(lambda: clouds, lambda: recorder).open(TARGET)


def names(file: SpendingBook) -> list[str]:
    return [record.name for record in file.usage()]


def test_whoever_looks_at_the_target_s_machine_has_it_written_down(watched: Any, file: SpendingBook) -> None:
    assert watched.machine("us-west1-c", "vm") == machine()
    assert names(file) == ["vm"]
    assert file.usage()[0].stopped is None


def test_so_does_whoever_lists_machines_and_of_others_there_is_nothing(watched: Any, file: SpendingBook) -> None:
    assert watched.machine("us-west1-a", "vm") is None
    assert watched.machine("us-west1-c", "other") == Cloud.there[1]
    assert watched.operations("us-west1-c", "other") == [STOP]
    assert watched.zones() == ["us-west1-c"]
    assert names(file) == []
    assert watched.machines({}) == (list(Cloud.there), [])
    assert names(file) == ["vm"]


def test_the_type_and_the_age_of_a_disk_are_those_of_its_own_entry(watched: Any, file: SpendingBook) -> None:
    """Else a disk costs what the target says that it is, and not what it is."""
    with_disk = machine(disks=(Disk("vm", "boot", True, 200, True),), created=T - 5)
    assert [one.type for one in watched.disks(with_disk)] == ["pd-ssd"]
    (word,) = file.resources()
    assert (word.type, word.gb, word.created, word.by_machine) == ("pd-ssd", 200, T - 9, False)
    assert word.usd_per_month == pytest.approx(200 * 0.17)
    watched.disks(machine(name="other", disks=(Disk("other", "boot", True, 10, True),)))
    assert len(file.resources()) == 1, "another machine's is no affair of ours"


def test_what_was_done_to_the_machine_ends_the_record_of_its_start(watched: Any, file: SpendingBook) -> None:
    watched.machine("us-west1-c", "vm")
    assert watched.operations("us-west1-c", "vm") == [STOP]
    assert [(record.started, record.stopped) for record in file.usage()] == [(T, None), (T, T + 600)]


class SetClock(SystemClock):
    at = T

    def now(self) -> float:
        return self.at


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Another process has the book's lock for longer than anybody waits."""
    with (folder / book.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("is_locked", [False, True], ids=["full disk", "locked"])
def test_a_book_that_cannot_be_written_keeps_no_machine_from_being_stopped_and_every_one_from_being_started(
    is_locked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(book, "PATIENCE_S", 0.0)
    monkeypatch.setattr(book, "IMPATIENCE_S", 0.0)
    trouble, file = locked(tmp_path) if is_locked else largest_file(0), book_in(tmp_path)
    done: list[str] = []
    notes: list[str] = []

    class Changing(Cloud):
        def __getattr__(self, name: str) -> Any:
            return lambda *_: done.append(name)

    clouds: Any = type("Clouds", (), {"open": lambda *_: Changing()})()
    recorder = UsageRecorder(file, SystemClock(), listed(), notes.append)
    watched: Any = RecordingClouds(lambda: clouds, lambda: recorder).open(TARGET)
    with trouble:
        for _ in range(2):
            assert watched.machine("us-west1-c", "vm") == machine()
            assert watched.operations("us-west1-c", "vm") == [STOP]
        watched.stop(machine(), "request")
        for change, what in ((watched.start, ["it"]), (watched.create, ["zone", "spec"])):
            with pytest.raises(FcctlError, match="the ledger"):
                change(*what, "request")
    assert (done, len(notes), names(file)) == (["stop"], 1, [])
    assert "fcctl hosts audit" in notes[0]
    watched.machine("us-west1-c", "vm")
    assert names(file) == ["vm"], "which was not written before"
    watched.start(machine(), "request")
    assert done == ["stop", "start"]


@pytest.mark.parametrize("change", [{"project": "q"}, {"zone": "us-west1-a"}, {"name": "other"}])
def test_and_not_that_of_another_machine(recorder: UsageRecorder, file: SpendingBook, change: dict[str, str]) -> None:
    file.add_usage(usage_of(TARGET, machine(**change), listed(), T))
    recorder.record_operations(TARGET, "us-west1-c", [STOP])
    assert len(file.usage()) == 1


def test_each_is_written_once(recorder: UsageRecorder, file: SpendingBook) -> None:
    recorder.record_machine(TARGET, machine(started=None))  # it was never on
    assert file.usage() == []
    for seen in (machine(), machine(), machine(deadline=T + 3600), OFF, OFF):
        recorder.record_machine(TARGET, seen)
    assert [(record.stopped, record.fence) for record in file.usage()] == [
        (None, None), (None, T + 3600), (T + 600, None),
    ]  # fmt: skip
    UsageRecorder(file, SystemClock(), listed()).record_machine(TARGET, OFF)
    assert len(file.usage()) == 3
    UsageRecorder(file, SystemClock(), listed()).record_machine(TARGET, machine(started=T + 9000))
    assert len(file.usage()) == 4


def test_the_stop_of_a_start_that_never_ran_does_not_end_the_start_before(
    recorder: UsageRecorder, file: SpendingBook
) -> None:
    for seen in (machine(), machine(status="STAGING", stopped=T + 600), machine(status="TERMINATED", stopped=T + 9000)):
        recorder.record_machine(TARGET, seen)
    assert [record.stopped for record in file.usage()] == [None, T + 600]


@pytest.mark.parametrize(
    ("seen", "stopped"),
    [
        (OFF, T + 600),
        (machine(status="STAGING", stopped=T + 600), T + 600),  # its next start
        (machine(status="TERMINATED", stopped=T), T),
        (machine(status="TERMINATED", stopped=T - 60), None),  # of the start before
        (machine(status="TERMINATED"), None),
        (machine(status="STOPPING", stopped=T + 600), None),  # it is billed until it is off
    ],
)
def test_when_a_machine_is_off_by_its_own_account(seen: Machine, stopped: float | None) -> None:
    record = usage_of(TARGET, seen, listed(), T + 700)
    assert (record.started, record.stopped, record.seen, record.usd_per_hour) == (T, stopped, T + 700, 0.72)


def test_a_machine_that_is_going_off_keeps_its_deadline(file: SpendingBook) -> None:
    """Ctrl-C in ``hosts down`` leaves it so in the ledger: it is on no longer than until then."""
    limited = machine(max_run_s=3600, deadline=T + 3600)
    for seen in (limited, machine(status="STOPPING", max_run_s=3600), machine(status="STOPPING")):
        UsageRecorder(file, SystemClock(), listed()).record_machine(TARGET, seen)
    assert [one.fence for one in file.usage()] == [T + 3600, T + 3600, None]


def test_a_machine_that_is_off_at_an_unknown_time_was_on_until_it_was_seen_off(file: SpendingBook) -> None:
    clock = SetClock()
    for now, seen in enumerate([machine(), machine(status="TERMINATED"), machine(status="TERMINATED")]):
        clock.at = T + 600 * (now + 1)
        UsageRecorder(file, clock, listed()).record_machine(TARGET, seen)
    assert [(one.stopped, one.bound) for one in file.usage()] == [(None, False), (T + 1200, True)]
    UsageRecorder(file, clock, listed()).record_operations(TARGET, "us-west1-c", [STOP])
    assert [(one.stopped, one.bound) for one in file.state().starts()] == [(T + 600, False)]
    later = machine(started=T + 9000, deadline=T + 9900)
    for seen in (later, machine(status="TERMINATED", started=T + 9000)):
        clock.at = T + 90_000
        UsageRecorder(file, clock, listed()).record_machine(TARGET, seen)
    assert file.state().starts()[-1].stopped == T + 9930, "its deadline and the late-stop allowance"


def test_a_start_keeps_the_price_that_it_had(recorder: UsageRecorder, file: SpendingBook) -> None:
    """Its machine was resized since, or the target has another price by now."""
    recorder.record_machine(TARGET, machine())
    recorder.record_machine(TARGET.model_copy(update={"usd_per_hour": 7.2}), OFF)
    (start,) = file.state().starts()
    assert (start.stopped, start.usd_per_hour) == (T + 600, 0.72)
    later = machine(started=T + 900)
    recorder.record_machine(TARGET.model_copy(update={"usd_per_hour": 7.2}), later)
    assert [one.usd_per_hour for one in file.state().starts()] == [0.72, 7.2]


def test_a_start_that_had_no_price_gets_one(recorder: UsageRecorder, file: SpendingBook) -> None:
    file.add_usage(usage_of(TARGET, machine(), listed(), T).model_copy(update={"usd_per_hour": None}))
    recorder.record_machine(TARGET, OFF)
    (start,) = file.state().starts()
    assert start.usd_per_hour == 0.72
