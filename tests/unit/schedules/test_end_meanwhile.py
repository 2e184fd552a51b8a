"""A firing that ends while its schedule is being looked at has ended, and was not interrupted."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from orchestrator.money.caps import Budget
from orchestrator.schedules.due import Firing, Schedule
from orchestrator.schedules.fire import Scheduler
from orchestrator.schedules.firings import FiringRecords
from tests.support.spending import book_in

PLAN = Schedule.model_validate({"job": "bench", "cron": "0 12 * * *", "timezone": "UTC"})
NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC).timestamp()
BEGAN = Firing(outcome="started", due=NOON, at=NOON, key=PLAN.key)
ENDED = Firing(outcome="finished", due=NOON, at=NOON + 600, key=PLAN.key, status="passed")


class Ends(FiringRecords):
    """Its firing writes down how it ended, and lets go, just before somebody asks whether it is at work."""

    def at_work(self, name: str) -> bool:
        self.append(name, (ENDED,))
        return super().at_work(name)


class Later:
    """Ten minutes after noon."""

    def now(self) -> float:
        return NOON + 600

    monotonic = elapsed = now

    def sleep(self, seconds: float) -> None:
        raise AssertionError(seconds)


def test_it_is_not_called_interrupted(tmp_path: Path) -> None:
    records = Ends(tmp_path)
    records.append("often", (BEGAN,))
    assert Scheduler({"often": PLAN}, records, book_in(tmp_path), Budget(), Later()).tick(lambda *_: None) == []
    assert [firing.outcome for firing in records.read("often")] == ["started", "finished"]
