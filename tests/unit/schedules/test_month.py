"""The month of a schedule whose firings are killed, refused, or forgotten by whoever deletes their record."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.money.book import SpendingBook
from orchestrator.money.caps import Budget
from orchestrator.money.firings import firing_id, spent_in_month
from orchestrator.schedules.due import Firing, Schedule
from orchestrator.schedules.fire import FiringRecords, Scheduler
from tests.support.spending import book_in, reservation

NOON, HOUR = datetime(2026, 11, 20, 12, 0, tzinfo=UTC).timestamp(), 3600.0
PLAN = Schedule.model_validate(
    {"job": "bench", "cron": "0 * * * *", "timezone": "UTC", "budget_usd": 1.0, "per_month_usd": 3.0}
)
KEY = PLAN.key


class Month:
    """A schedule that is due each hour, for whoever ticks."""

    def __init__(self, folder: Path) -> None:
        self.results, self.now = folder / "ws" / "results", NOON
        self.records = FiringRecords(self.results)
        self.book: SpendingBook = book_in(folder / "state", results=self.results)
        self.launched: list[float] = []

    def tick(self, hours: float = 1.0) -> list[str]:
        self.now += hours * HOUR
        decided = self._scheduler().tick(self._launch)
        return [firing.outcome for _, firing in decided]

    def _scheduler(self) -> Scheduler:
        return Scheduler({"nightly": PLAN}, self.records, self.book, Budget(), self._clock())

    def _clock(self) -> Any:
        return SimpleNamespace(now=lambda: self.now)

    def _launch(self, _: str, firing: Firing) -> None:
        self.launched.append(firing.due)

    def reserved(self, usd: float = 1.0) -> None:
        """The run of the firing that was just launched has begun."""
        due = self.launched[-1]
        name = firing_id(self.book.scope, "nightly", due)
        with self.book.changing() as change:
            change.reserve(reservation(f"run-{due:.0f}", usd, firing=name))

    def ended(self, **answer: Any) -> None:
        self._scheduler().fire("nightly", self.launched[-1], lambda *_: answer)

    def spent(self) -> float:
        return spent_in_month(self.book.state(), self.book.scope, "nightly", self.now, UTC)


@pytest.fixture
def month(tmp_path: Path) -> Month:
    made = Month(tmp_path)
    assert made.tick(0) == ["watching"]
    return made


def test_of_forty_seven_firings_that_are_killed_the_month_s_cap_starts_three(month: Month) -> None:
    """Each may have cost its budget: nobody knows what became of its run."""
    for _ in range(47):
        before = len(month.launched)
        month.tick()
        if len(month.launched) > before:
            month.reserved()
    assert len(month.launched) == 3
    assert month.spent() == 3.0
    assert [firing.outcome for firing in month.records.read("nightly") if firing.outcome == "interrupted"] == [
        "interrupted"
    ] * 3


def test_of_those_that_end_in_an_error_after_their_run_began_too(month: Month) -> None:
    for _ in range(47):
        if "started" in month.tick():
            month.reserved()
            month.ended(error={"message": "the link broke", "exit_code": 6})
    assert len(month.launched) == 3


def test_those_that_never_began_to_cost_start_each_time(month: Month) -> None:
    for _ in range(10):
        assert month.tick()[-1] == "started"
        month.ended(error={"message": "no such job", "exit_code": 3})
    assert (len(month.launched), month.spent()) == (10, 0.0)


def test_the_next_month_begins_with_nothing_spent(month: Month) -> None:
    for _ in range(4):
        month.tick()
        month.reserved()
    assert month.tick() == ["refused"]
    assert month.tick(24 * 14)[-1] == "started"


# ---------------------------------------------------------------------------------------------------------- refusals
def test_a_refusal_that_is_repeated_is_one_line_with_a_count(month: Month) -> None:
    for _ in range(3):
        month.tick()
        month.reserved()
    month.tick()
    lines = len(month.records.read("nightly"))
    for _ in range(20):
        assert month.tick() == ["refused"]
    record = month.records.read("nightly")
    assert len(record) == lines
    assert (record[-1].outcome, record[-1].count, record[-1].due) == ("refused", 21, month.now)
    assert record[-1].reason == "$3.00 of this month's $3.00 is spent, and one firing may cost $1.00"


def test_a_count_that_a_crash_tore_is_written_anew(tmp_path: Path) -> None:
    records = FiringRecords(tmp_path)
    line = Firing(outcome="refused", due=1.0, at=1.0, key=KEY, reason="the month is spent")
    records.append("nightly", (line,))
    path = tmp_path / "schedules" / "nightly.jsonl"
    with path.open("ab") as torn:
        torn.write(b'{"outcome": "refu')
    records.append("nightly", (line,))
    assert sum(one.count for one in records.read("nightly")) == 2


def test_after_five_mebibytes_of_refusals_the_month_is_known(month: Month) -> None:
    """As an earlier version left a record: a line each minute. It read the last 4 MiB of them."""
    spent = (
        Firing(outcome=outcome, due=NOON + n, at=NOON + n, key=KEY, usd=usd)  # type: ignore[arg-type]
        for n in range(3)
        for outcome, usd in (("started", None), ("finished", 1.0))
    )
    month.records.append("nightly", tuple(spent))
    refused = json.dumps({"outcome": "refused", "due": NOON, "at": NOON, "key": KEY, "reason": "x" * 160}) + "\n"
    with (month.results / "schedules" / "nightly.jsonl").open("a") as file:
        file.write(refused * (5 * 2**20 // len(refused)))
    assert month.tick() == ["refused"]
    assert month.launched == []
    began = time.process_time()
    assert month.tick() == ["refused"]
    assert time.process_time() - began < 5
    assert month.records.read("nightly")[-1].count == 2


# ---------------------------------------------------------------------------------------------------------- deletions
def test_whoever_deletes_the_record_gets_nothing_back(month: Month) -> None:
    for usd in (1.0, 0.75, 1.0):
        month.tick()
        month.reserved()
        month.ended(run_id="r", status="passed", exit_code=0, cost={"usd": usd})
        due = month.launched[-1]
        with month.book.changing() as change:
            change.release(change.state.open()[f"run-{due:.0f}"])
    assert month.spent() == 2.75
    shutil.rmtree(month.results)
    month.records = FiringRecords(month.results)
    assert month.tick() == ["watching"]
    assert month.tick() == ["refused"]
    assert month.records.read("nightly")[-1].reason == (
        "$2.75 of this month's $3.00 is spent, and one firing may cost $1.00"
    )


def test_a_record_of_an_earlier_version_is_read_before_it_can_be_deleted(month: Month) -> None:
    """Each firing counts what its record says, and its budget where that says nothing."""
    lines = [("started", 1.0, None), ("finished", 1.0, 0.25), ("started", 2.0, None), ("interrupted", 2.0, None)]
    month.records.append(
        "nightly",
        tuple(Firing(outcome=o, due=NOON + due, at=NOON, key=KEY, usd=usd) for o, due, usd in lines),  # type: ignore[arg-type]
    )
    assert month.tick() == ["started"]
    assert month.spent() == 0.25 + 1.0 + 1.0
    shutil.rmtree(month.results)
    assert month.spent() == 2.25
