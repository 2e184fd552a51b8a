"""Schedules at work: what is due now, and one firing from its start to its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from orchestrator.base.clock import Clock
from orchestrator.money.caps import Budget
from orchestrator.schedules.due import Firing, Schedule, decide, read_past, refusal_by_month, spent_in_month, upcoming
from orchestrator.schedules.firings import FiringRecords

#: A firing that was begun this recently may not have taken its lock yet.
STARTING_S = 120.0

Launch = Callable[[str, Firing], None]
#: Runs the job of a schedule to its end; the run's record as JSON, or the error's.
RunJob = Callable[[Schedule, float | None], Mapping[str, Any]]


def tick(
    schedules: Mapping[str, Schedule], book: FiringRecords, budget: Budget, clock: Clock, launch: Launch
) -> list[tuple[str, Firing]]:
    """Decide on everything that is due, record it, then launch what is to be started.

    The record is written before the launch: a computer that dies in between has a firing that is reported as
    interrupted, never one that runs twice. Two ticks at once decide once.
    """
    decided: list[tuple[str, Firing]] = []
    with book.deciding() as alone:
        if not alone:
            return []
        for name, schedule in schedules.items():
            if not schedule.enabled:
                continue
            for firing in _decide(name, schedule, book, budget, clock):
                decided.append((name, firing))
                if firing.outcome == "started":
                    launch(name, firing)
    return decided


def _decide(name: str, schedule: Schedule, book: FiringRecords, budget: Budget, clock: Clock) -> tuple[Firing, ...]:
    now = datetime.fromtimestamp(clock.now(), UTC)
    at_work = book.at_work(name)  # first: one that ends in between has written its end before it lets go
    record = book.read(name)
    past = read_past(schedule, record)
    open_ = past.unfinished
    running = at_work or (open_ is not None and clock.now() - open_.at < STARTING_S)
    lost: tuple[Firing, ...] = ()
    if open_ is not None and not running:
        reason = "the process that followed it is gone; its run is picked up by the next command (fcctl ps)"
        lost = (Firing(outcome="interrupted", due=open_.due, at=clock.now(), key=open_.key, reason=reason),)
    firings = decide(schedule, past, now, running=running, refusal=_refusal(schedule, record, now, budget)).firings
    if lost or firings:
        book.append(name, (*lost, *firings))
    return (*lost, *firings)


def _refusal(schedule: Schedule, record: list[Firing], now: datetime, budget: Budget) -> str | None:
    if schedule.per_month_usd is None:
        return None
    per_run = schedule.budget_usd or budget.per_run_usd
    if per_run is None:
        return "per_month_usd needs a budget for each run: set budget_usd here or [budget] per_run_usd"
    return refusal_by_month(schedule, record, now, budget.zone, per_run)


def fire(name: str, schedule: Schedule, due: float, book: FiringRecords, clock: Clock, run_job: RunJob) -> Firing:
    """Run one firing that :func:`tick` launched, and record its end whatever that is."""
    with book.firing(name) as alone:
        if not alone:
            firing = Firing(
                outcome="finished", due=due, at=clock.now(), key=schedule.key, usd=0.0, status="overlap",
                reason="another firing of this schedule was still at work",
            )  # fmt: skip
        else:
            firing = _ended(schedule, due, run_job(schedule, schedule.budget_usd), clock.now())
        book.append(name, (firing,))
    return firing


def _ended(schedule: Schedule, due: float, answer: Mapping[str, Any], now: float) -> Firing:
    error, cost = answer.get("error"), answer.get("cost")
    usd = cost.get("usd") if isinstance(cost, Mapping) else None
    if isinstance(error, Mapping):
        reason = ": ".join(str(error[key]) for key in ("message", "cause") if error.get(key))
        code = error.get("exit_code")
        return Firing(
            outcome="finished", due=due, at=now, key=schedule.key, status="error", reason=reason, usd=usd,
            exit_code=code if isinstance(code, int) else 1,
        )  # fmt: skip
    return Firing(
        outcome="finished",
        due=due,
        at=now,
        key=schedule.key,
        run_id=answer.get("run_id"),
        status=answer.get("status"),
        exit_code=answer.get("exit_code"),
        usd=usd,
    )


@dataclass(frozen=True)
class Standing:
    """How a schedule stands, for ``fcctl schedule ls``."""

    name: str
    schedule: Schedule
    next: list[datetime]  # in the schedule's zone
    last: Firing | None
    spent_this_month_usd: float
    running: bool


def standings(
    schedules: Mapping[str, Schedule], book: FiringRecords, clock: Clock, local: tzinfo, count: int = 3
) -> list[Standing]:
    """Args: local: whose months the schedules' money is counted in."""
    now = datetime.fromtimestamp(clock.now(), UTC)
    found = []
    for name, schedule in schedules.items():
        record = book.read(name)
        last = next((f for f in reversed(record) if f.outcome != "watching"), None)
        times = upcoming(schedule, now, count) if schedule.enabled else []
        spent = spent_in_month(schedule, record, now, local)
        found.append(Standing(name, schedule, times, last, spent, book.at_work(name)))
    return found
