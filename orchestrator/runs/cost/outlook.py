"""The money of a workspace: spent, reserved and free per cap, and the month's forecast. View model of ``cost budget``,
``ps``, ``top``, dashboard and cap notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.money import ledger as books
from orchestrator.money.calendar import end_of_month, start_of_day, start_of_month
from orchestrator.money.caps import Budget
from orchestrator.money.ledger import Line, UsageRecord
from orchestrator.money.reservations import remaining
from orchestrator.money.totals import LedgerNote, Spending, remarks
from orchestrator.money.totals import spent as sums
from orchestrator.runs.cost.open_reservations import OpenReservation, described
from orchestrator.runs.cost.spending import lines, reservations
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
    #: Lines of the book of spending that cannot be read.
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
    power = books.latest(one for _, one in state.of("power", UsageRecord))
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
