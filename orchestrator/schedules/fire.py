"""Schedules at work: what is due now, and one firing from its start to its record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from orchestrator.base.clock import Clock
from orchestrator.base.errors import FcctlError
from orchestrator.money import firings as counted
from orchestrator.money.book import FiringCost, SpendingBook
from orchestrator.money.caps import Budget
from orchestrator.schedules.due import Firing, Schedule, decide, read_past, upcoming
from orchestrator.schedules.firings import FiringRecords

#: A firing that was begun this recently may not have taken its lock yet.
STARTING_S = 120.0

Launch = Callable[[str, Firing], None]
#: Runs the job of a schedule to its end, for the firing of that id; the run's record as JSON, or the error's.
RunJob = Callable[[Schedule, str], Mapping[str, Any]]


def tick(
    schedules: Mapping[str, Schedule],
    book: FiringRecords,
    spending: SpendingBook,
    budget: Budget,
    clock: Clock,
    launch: Launch,
) -> list[tuple[str, Firing]]:
    """Decides what is due, records it, then launches it. A crash in between leaves an interrupted firing, never two;
    two ticks at once decide once."""
    decided: list[tuple[str, Firing]] = []
    with book.deciding() as alone:
        if not alone:
            return []
        for name, schedule in schedules.items():
            if not schedule.enabled:
                continue
            for firing in _decide(name, schedule, book, spending, budget, clock):
                decided.append((name, firing))
                if firing.outcome == "started":
                    launch(name, firing)
    return decided


def _decide(
    name: str, schedule: Schedule, book: FiringRecords, spending: SpendingBook, budget: Budget, clock: Clock
) -> tuple[Firing, ...]:
    now = datetime.fromtimestamp(clock.now(), UTC)
    at_work = book.at_work(name)  # first: one that ends in between has recorded its end before it releases the lock
    record = book.read(name)
    past = read_past(schedule, record)
    open_ = past.unfinished
    running = at_work or (open_ is not None and clock.now() - open_.at < STARTING_S)
    lost: tuple[Firing, ...] = ()
    if open_ is not None and not running:
        reason = "the process that followed it is gone; its run is picked up by the next command (fcctl ps)"
        lost = (Firing(outcome="interrupted", due=open_.due, at=clock.now(), key=open_.key, reason=reason),)
    firings = tuple(
        _within_caps(name, schedule, firing, book, spending, budget) if firing.outcome == "started" else firing
        for firing in decide(schedule, past, now, running=running).firings
    )
    for firing in lost:
        _count_end(spending, name, firing)
    if lost or firings:
        book.append(name, (*lost, *firings))
    return (*lost, *firings)


def _within_caps(
    name: str, schedule: Schedule, firing: Firing, book: FiringRecords, spending: SpendingBook, budget: Budget
) -> Firing:
    """``firing``, counted in the month of its schedule; or refused, if the month's cap does not allow it."""
    per_run = schedule.budget_usd or budget.per_run_usd
    if per_run is None and schedule.per_month_usd is not None:
        refusal: str | None = "per_month_usd needs a budget for each run: set budget_usd here or [budget] per_run_usd"
    else:
        usd = per_run or 0.0
        try:
            counted.import_record(spending, name, lambda: _costs(name, book.read(name, whole=True), spending, usd))
            refusal = counted.start(spending, name, firing.due, usd, cap=schedule.per_month_usd, zone=budget.zone)
        except FcctlError as error:  # what is not counted does not start
            refusal = f"{error.message}: {error.cause}"
    return firing if refusal is None else firing.model_copy(update={"outcome": "refused", "reason": refusal})


def _count_end(spending: SpendingBook, name: str, firing: Firing) -> None:
    """If that cannot be written, the firing still counts its budget."""
    with suppress(FcctlError):
        counted.end(spending, name, firing.due, firing.usd)


def _costs(name: str, record: Sequence[Firing], spending: SpendingBook, budget_usd: float) -> list[FiringCost]:
    """The firings of a record: each with its cost, or with its budget if that is not known."""
    found: dict[float, FiringCost] = {}
    for firing in record:
        if firing.outcome == "started" or (firing.outcome == "finished" and firing.usd is not None):
            usd = budget_usd if firing.usd is None else firing.usd
            ended = firing.outcome == "finished"
            found[firing.due] = counted.cost_of(spending.scope, name, firing.due, usd, ended=ended)
    return list(found.values())


def fire(
    name: str,
    schedule: Schedule,
    due: float,
    book: FiringRecords,
    spending: SpendingBook,
    clock: Clock,
    run_job: RunJob,
) -> Firing:
    """Run one firing that :func:`tick` launched, and record its end whatever that is."""
    with book.firing(name) as alone:
        if not alone:
            firing = Firing(
                outcome="finished", due=due, at=clock.now(), key=schedule.key, usd=0.0, status="overlap",
                reason="another firing of this schedule was still at work",
            )  # fmt: skip
        else:
            answer = run_job(schedule, counted.firing_id(spending.scope, name, due))
            firing = _ended(schedule, due, answer, clock.now())
        book.append(name, (firing,))
        if alone:
            _count_end(spending, name, firing)
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
class ScheduleStatus:
    """The status of a schedule, for ``fcctl schedule ls``."""

    name: str
    schedule: Schedule
    next: list[datetime]  # in the schedule's zone
    last: Firing | None
    spent_this_month_usd: float
    running: bool


def standings(
    schedules: Mapping[str, Schedule],
    book: FiringRecords,
    spending: SpendingBook,
    clock: Clock,
    local: tzinfo,
    count: int = 3,
) -> list[ScheduleStatus]:
    """Args: local: whose months the schedules' money is counted in."""
    now = datetime.fromtimestamp(clock.now(), UTC)
    found = []
    for name, schedule in schedules.items():
        record = book.read(name)
        last = next((f for f in reversed(record) if f.outcome != "watching"), None)
        times = upcoming(schedule, now, count) if schedule.enabled else []
        spent = counted.spent_in_month(spending.state(), spending.scope, name, now.timestamp(), local)
        found.append(ScheduleStatus(name, schedule, times, last, spent, book.at_work(name)))
    return found
