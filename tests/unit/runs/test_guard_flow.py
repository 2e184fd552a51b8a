"""The live guard says each thing once, and tells the host to end the run before the cap is reached."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_remote import wire
from orchestrator.app import SystemClock
from orchestrator.base.errors import DiskError, HostFault
from orchestrator.base.journal import FileJournal
from orchestrator.machines.targets import SshTarget
from orchestrator.money.caps import Budget, Cap, Window
from orchestrator.money.totals import Spending
from orchestrator.results.records import SourceRecord
from orchestrator.runs.cost import outlook
from orchestrator.runs.cost import spending as ledger
from orchestrator.runs.cost.budget_guard import Guard
from orchestrator.runs.job.saved_plan import SavedPlan

RUN = "20261121t081530z-j-t-3fa9c1"
BUDGET = (Cap(name="--budget", usd=100),)


class World:
    """Time, notes and a host, as far as the guard sees them."""

    def __init__(self, folder: Path, *caps: Cap, stop_at: float | None = None) -> None:
        self.time = 1000.0
        self.jumped = 0.0  # by how much somebody set this computer's clock
        self.notes: list[str] = []
        self.cancelled: list[tuple[str, str]] = []
        plan = wire.RunPlan(RUN, "j", "t", "w", "0" * 64, [wire.StepSpec("a", "x")])
        self.saved = SavedPlan(
            plan=plan, target=SshTarget(name="t", host="h"), source=SourceRecord(tree_sha256="0" * 64),
            usd_per_hour=3600.0, caps=list(caps), stop_at_usd=stop_at,
        )  # fmt: skip
        clock = SimpleNamespace(
            now=lambda: self.time + self.jumped, monotonic=lambda: self.time, elapsed=lambda: self.time
        )
        self.services: Any = SimpleNamespace(
            clock=clock, observer=SimpleNamespace(note=self.notes.append), budget=Budget()
        )
        self.journal = FileJournal(folder / "journal.jsonl", self.services.clock)
        self.journal.append("submitted")
        self.follow()

    def follow(self) -> None:
        link: Any = SimpleNamespace(call=lambda action: action(self))
        self.guard = Guard(self.services, link, self.saved, self.journal, self.journal.append)

    def follow_as_another_process(self) -> None:
        """The next one, after whoever had the run was killed."""
        self.journal.close()
        self.journal = FileJournal(self.journal._path, self.services.clock)
        self.follow()

    def close(self) -> None:
        self.journal.close()

    def cancel(self, run_id: str, reason: str, status: str, grace_s: float) -> None:
        assert self.journal.entries()[-1].kind == "over_budget", "on disk before the host is told"
        assert grace_s > 0
        self.cancelled.append((run_id, status))

    def watch(self, seconds: int) -> None:
        for _ in range(seconds):
            self.time += 1
            self.guard.look()


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made = []

    def build(*caps: Cap) -> World:
        """With these caps, or a budget of $100."""
        made.append(World(tmp_path, *(caps or BUDGET), stop_at=None if caps else BUDGET[0].usd))
        return made[-1]

    yield build
    for world in made:
        world.close()


def test_it_warns_once_and_ends_once(make: Make) -> None:
    world = make()  # a dollar a second
    world.watch(79)
    assert world.notes == []
    world.watch(8)
    assert world.notes == ["$81.00 of the cap of $100.00 (--budget) are spent"]
    assert world.cancelled == []
    world.watch(60)
    assert world.cancelled == [(RUN, "over_budget")]
    assert len(world.notes) == 2
    assert "$91.00" in world.notes[1]


def test_what_others_spend_counts_against_the_day(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"day": 10.0}
    monkeypatch.setattr(ledger, "spent_without", lambda *_: Spending(spent["day"], 0.0, 0.0))
    world = make(Cap(name="per_day_usd of [budget]", usd=1000, over="day"))
    world.watch(100)
    assert (world.notes, world.cancelled) == ([], [])
    spent["day"] = 860.0
    world.watch(70)
    assert world.cancelled == [(RUN, "over_budget")]


@pytest.mark.parametrize("window", ["day", "month", "project"])
def test_books_that_cannot_be_read_are_those_of_nobody(
    make: Make, monkeypatch: pytest.MonkeyPatch, window: Window
) -> None:
    """All that this run may cost is reserved."""

    def unreadable(*_: object) -> Spending:
        raise DiskError("could not read the ledger")

    monkeypatch.setattr(ledger, "spent_without", unreadable)
    world = make(Cap(name="a cap", usd=100, over=window))
    world.watch(100)
    assert [note[:6] for note in world.notes] == ["$81.00", "$91.00"]


def test_notices_that_cannot_be_sent_are_said_once_and_left_to_the_next_command(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "spent_without", lambda *_: Spending(0.0, 0.0, 0.0))
    for failure, said in ((DiskError("the disk is full"), "the disk is full"), (OSError(5, "no"), "[Errno 5] no"),
                          (["the hook failed"], "the hook failed")):  # fmt: skip
        answers: list[Any] = [[], failure]

        def send(_: object, answers: list[Any] = answers) -> list[str]:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return list(answer)

        monkeypatch.setattr(outlook, "send_cap_notices", send)
        world = make(Cap(name="a cap", usd=10_000, over="day"))
        world.watch(200)
        assert (world.notes, answers) == ([said], [])
        world.close()
        world.journal._path.unlink()


@pytest.mark.parametrize("fault", ["not_found", "internal"])
def test_a_run_that_the_host_does_not_know_has_ended(make: Make, fault: str) -> None:
    world = make()

    def refuses(*_: object, **__: object) -> None:
        raise HostFault("no", fault=fault)

    world.cancel = refuses  # type: ignore[method-assign]
    if fault == "not_found":
        world.watch(200)
    else:
        with pytest.raises(HostFault):
            world.watch(200)
    assert world.notes[-1].endswith("fcctl stops the run")


def test_of_a_run_that_began_yesterday_the_day_s_cap_counts_what_it_cost_since_midnight(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "spent_without", lambda *_: Spending(0.0, 0.0, 0.0))
    world = make(Cap(name="per_day_usd of [budget]", usd=100, over="day"))
    world.time = 86400.0
    world.watch(79)
    assert (world.notes, world.cancelled) == ([], [])
    world.watch(21)
    assert world.cancelled == [(RUN, "over_budget")]


@pytest.mark.parametrize("jump", [86400.0, -86400.0])
@pytest.mark.parametrize("written_here", [True, False], ids=["its own run", "one that another fcctl began"])
def test_a_clock_that_is_set_neither_ends_a_run_nor_prolongs_it(make: Make, jump: float, written_here: bool) -> None:
    world = make()
    if not written_here:
        world.follow_as_another_process()
    world.watch(30)
    world.jumped = jump
    world.watch(40)
    assert (world.notes, world.cancelled) == ([], [])
    world.watch(30)
    assert world.cancelled == [(RUN, "over_budget")]
    assert world.notes[1].startswith("$91.00 of")


def test_a_clock_that_was_set_before_the_guard_began_changes_nothing_of_its_own_run(make: Make) -> None:
    world = make()
    world.jumped = 3600.0
    world.watch(70)
    assert world.cancelled == []


def test_what_the_laptop_slept_counts(make: Make) -> None:
    world = make()
    world.watch(10)
    world.time += 300  # no look in between
    world.watch(3)
    assert world.cancelled == [(RUN, "over_budget")]


def test_the_clock_that_nobody_sets_goes_on_while_the_computer_sleeps() -> None:
    """CLOCK_MONOTONIC does so on macOS, and stops on Linux, which has another one for that."""
    reading = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC
    before = time.clock_gettime(reading)
    assert before <= SystemClock().elapsed() <= time.clock_gettime(reading)
