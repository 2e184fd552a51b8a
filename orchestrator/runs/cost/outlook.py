"""What is spent and reserved now: caps, forecast, machines that are on, and notices of caps that are nearly spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from orchestrator.base.clock import iso
from orchestrator.base.journal import newest
from orchestrator.leases.session_rules import open_on
from orchestrator.money import ledger as books
from orchestrator.money.caps import Budget
from orchestrator.money.ledger import Line, UsageRecord
from orchestrator.money.reservations import is_past_deadline, remaining
from orchestrator.money.totals import LedgerNote, Spending, end_of_month, remarks, start_of_day, start_of_month
from orchestrator.money.totals import spent as sums
from orchestrator.runs.cost.owners import OpenReservation, command_in, described, store_in
from orchestrator.runs.cost.spending import lines, reservations
from orchestrator.runs.lifecycle import fold
from orchestrator.runs.notices import of_cap
from orchestrator.runs.services import Services

DAY_S = 86400.0


@dataclass(frozen=True)
class CapRow:
    """One cap, dollars; None: not set, or nothing is counted of it (what one run or one session may cost)."""

    name: str
    cap: float | None
    spent: float | None = None
    #: Of what is spent, that for disks, snapshots and addresses.
    standing: float | None = None
    reserved: float | None = None

    @property
    def free(self) -> float | None:
        """What may still be planned."""
        if self.cap is None or self.spent is None:
            return None
        return max(0.0, self.cap - self.spent - (self.reserved or 0.0))


@dataclass(frozen=True)
class Forecast:
    """The month's cost at its end, dollars, at the average of this month."""

    #: The end of the month, epoch seconds, and how many days are left.
    until: float
    days_left: float
    spent: float
    reserved: float
    #: Machines' average of this month, and the disks, snapshots and addresses of now.
    machines_per_day: float
    standing_per_day: float

    @property
    def machines(self) -> float:
        return self.machines_per_day * self.days_left

    @property
    def standing(self) -> float:
        return self.standing_per_day * self.days_left

    @property
    def total(self) -> float:
        return self.spent + self.reserved + self.machines + self.standing


@dataclass(frozen=True)
class Outlook:
    """All of it, at one moment, epoch seconds."""

    now: float
    budget: Budget
    caps: tuple[CapRow, ...]
    reservations: tuple[OpenReservation, ...]
    forecast: Forecast
    remarks: tuple[LedgerNote, ...]
    #: Today, this month and ever, with what is active and not booked yet.
    until_now: Spending
    #: Lines of the ledger that cannot be read.
    damaged: int

    @property
    def reserved(self) -> float:
        """What may still be spent of what is reserved, dollars."""
        return sum(one.usd for one in self.reservations)

    @property
    def reserved_beyond_now(self) -> float:
        """The same without what the active has cost so far."""
        return sum(max(0.0, one.usd - one.beyond_usd) for one in self.reservations)


def outlook(services: Services) -> Outlook:
    """Computes it from book, runs and sessions; asks no cloud."""
    now, budget, state = services.clock.now(), services.budget, services.spending.state()
    found = lines(services, until_now=True)
    power = state.starts()
    open_ = tuple(described(services, one, power) for one in remaining(reservations(services), found))
    spent = sums(found, now, budget.zone)
    standing = sums([line for line in found if line.stands], now, budget.zone)
    return Outlook(
        now, budget, _caps(budget, spent, standing, sum(one.usd for one in open_)), open_,
        _forecast(budget, found, spent, standing, sum(one.usd for one in open_), now), tuple(remarks(found)),
        _until_now(budget, spent, open_, now), len(state.damaged),
    )  # fmt: skip


def _caps(budget: Budget, spent: Spending, standing: Spending, reserved: float) -> tuple[CapRow, ...]:
    return (
        CapRow("per run", budget.per_run_usd),
        CapRow("per session", budget.per_session_usd),
        CapRow("today", budget.per_day_usd, spent.day, standing.day, reserved),
        CapRow("this month", budget.per_month_usd, spent.month, standing.month, reserved),
        CapRow("project", budget.project_usd, spent.project, standing.project, reserved),
    )


def _forecast(
    budget: Budget, found: Sequence[Line], spent: Spending, standing: Spending, reserved: float, now: float
) -> Forecast:
    """A month that has just begun is taken as one day old: an hour is no average."""
    until = end_of_month(now, budget.zone)
    days = max(1.0, (now - start_of_month(now, budget.zone)) / DAY_S)
    per_day = max(0.0, spent.month - standing.month) / days
    return Forecast(until, (until - now) / DAY_S, spent.month, reserved, per_day, _standing_per_day(found, now))


def _standing_per_day(found: Sequence[Line], now: float) -> float:
    """Dollars per day of the resources that exist now: their ledger lines end now."""
    return sum(
        line.usd / line.seconds * DAY_S
        for line in found
        if line.stands and not line.emulated and line.seconds > 0 and line.start + line.seconds >= now - 1.0
    )


def _until_now(budget: Budget, spent: Spending, open_: Sequence[OpenReservation], now: float) -> Spending:
    day, month = start_of_day(now, budget.zone), start_of_month(now, budget.zone)
    return Spending(
        spent.day + sum(_since(one, day, now) for one in open_),
        spent.month + sum(_since(one, month, now) for one in open_),
        spent.project + sum(one.beyond_usd for one in open_),
    )


def _since(one: OpenReservation, start: float, now: float) -> float:
    """Of what a reservation's machine has cost beyond what is booked, that since ``start``."""
    if one.usd_per_hour <= 0:
        return one.beyond_usd
    return min(one.beyond_usd, one.usd_per_hour * (now - start) / 3600)


@dataclass(frozen=True)
class MachineOn:
    """One machine. Times are epoch seconds by the cloud's clock."""

    target: str
    name: str
    #: None: no price is known.
    usd_per_hour: float | None
    started: float
    #: When the cloud showed it last.
    seen: float
    #: When the cloud stops it; None: never, as far as is known.
    until: float | None
    #: The command that stops it.
    stop: str

    def usd(self, now: float) -> float | None:
        """What it has cost since it was started."""
        return None if self.usd_per_hour is None else max(0.0, now - self.started) / 3600 * self.usd_per_hour

    def as_json(self, now: float) -> dict[str, Any]:
        return {
            "target": self.target, "name": self.name, "usd_per_hour": self.usd_per_hour, "usd": self.usd(now),
            "started": iso(self.started), "seen": iso(self.seen), "until": iso(self.until), "stop": self.stop,
        }  # fmt: skip


def machines_on(services: Services) -> list[MachineOn]:
    """The machines that were on when last seen and are not past their deadline, the oldest start first."""
    state, scope, now = services.spending.state(), services.spending.scope, services.clock.now()
    told = [(line, word) for line, word in state.of("power", UsageRecord)
            if not word.emulated and scope.has(line.project, line.results, (word.project, word.name))]  # fmt: skip
    by = {id(word): line for line, word in told}
    last = {word.instance_id: word for word in books.latest(word for _, word in told)}
    return [
        MachineOn(one.target, one.name, one.usd_per_hour, one.started, one.seen, one.fence, stop)
        for one in last.values()
        if one.stopped is None and not is_past_deadline(one.fence, now)
        for stop in [_stop(services, one, by[id(one)].results)]
    ]


def _stop(services: Services, word: UsageRecord, results: str) -> str:
    """The session that keeps it, else the run that is on it, else the machine itself is stopped."""
    session = open_on(services.sessions, word.instance_id, word.started)
    if session is not None:
        return session.how_to_stop
    store = store_in(services, results)
    for run_id in store.active():
        entries = store.journal_of(run_id)
        is_on_it = newest(entries, "acquired").get("instance_id") == word.instance_id
        if is_on_it and fold(entries).machine in ("held", "leaving"):
            return command_in(services, results, f"cancel {run_id}")
    return command_in(services, results, f"hosts down {word.target}")


@dataclass(frozen=True)
class MoneyNow:
    today_usd: float = 0.0
    #: The day's cap; None: none is set.
    day_cap_usd: float | None = None
    machines: tuple[MachineOn, ...] = ()

    @property
    def usd_per_hour(self) -> float:
        """Of the machines that are on."""
        return sum(one.usd_per_hour or 0.0 for one in self.machines)

    def as_json(self, now: float) -> dict[str, Any]:
        return {
            "machines": [one.as_json(now) for one in self.machines],
            "today": {"usd": round(self.today_usd, 6), "cap_usd": self.day_cap_usd},
        }


def money_now(services: Services) -> MoneyNow:
    """Reads it from this computer only. Today's dollars are those of ``cost budget``."""
    today = outlook(services).until_now.day
    return MoneyNow(today, services.budget.per_day_usd, tuple(machines_on(services)))


PERCENTS = (100, 80, 50)


def send_cap_notices(services: Services) -> list[str]:
    """Notifies as ``[notify]`` says, of the highest part of each cap that is spent; returns one line per failure."""
    if not (services.budget.holds_over_runs and services.notifier.wants("budget")):
        return []
    found, problems = outlook(services), []
    now, dates = datetime.fromtimestamp(found.now, found.budget.zone), {"day": "%Y-%m-%d", "month": "%Y-%m"}
    for name, _, cap in found.budget.over_runs:
        spent = found.until_now.of(name)
        reached = [percent for percent in PERCENTS if spent >= cap * percent / 100 - 1e-9]
        of = f"of ${cap:g} of the {name} {now.strftime(dates.get(name, ''))}".rstrip()
        keys = [f"{services.spending.scope.project}: {percent} % {of}" for percent in reached]
        if not keys or not _claim(services, keys):
            continue
        failures = services.notifier.send(of_cap(name, reached[0], cap, spent, found.reserved_beyond_now))
        if failures:
            with services.spending.changing() as change:
                change.add("notice", {"key": keys[0], "state": "failed", "at": services.clock.now()})
        problems += failures
    return problems


def _claim(services: Services, keys: Sequence[str]) -> bool:
    """Whether this process is to send the first; then the others, smaller parts of the same cap, are not sent any
    more."""
    with services.spending.changing() as change:
        known = {str(line.data.get("key")): str(line.data.get("state")) for line in change.state.lines("notice")}
        if known.get(keys[0], "failed") != "failed":
            return False
        for key in keys:
            change.add("notice", {"key": key, "state": "sent", "at": services.clock.now()})
    return True
