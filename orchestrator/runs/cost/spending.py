"""The money of a workspace: what is spent, what is reserved, and the one function that every start asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.base.errors import BudgetError, ConflictError, FcctlError
from orchestrator.leases.session_rules import attributed, ended, record_so_far, underway
from orchestrator.money import ledger as books
from orchestrator.money.book import State
from orchestrator.money.caps import Budget, dollars
from orchestrator.money.ledger import Line, RunUsage, UsageRecord
from orchestrator.money.reservations import Reservation, Reserved, Scope, is_off, remaining
from orchestrator.money.totals import Spending
from orchestrator.money.totals import spent as sums
from orchestrator.runs.cost.owners import reservation, settle_reservations, still_reserved, unbooked_runs
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.results.store.active import FileActiveRun


@dataclass(frozen=True)
class CapBalance:
    """What is spent and reserved of the caps of day, month and project, dollars."""

    spent: Spending
    reserved: Sequence[Reserved]
    budget: Budget

    @property
    def reserved_usd(self) -> float:
        return sum(one.usd for one in self.reserved)

    def left(self) -> list[tuple[str, float]]:
        """What is free of each cap, with what is reserved taken as spent."""
        return [(window, cap - self.spent.of(window) - self.reserved_usd) for window, _, cap in self.budget.over_runs]

    def refuse(self, worst_usd: float) -> None:
        """Raises BudgetError, with what is spent, reserved and free, if ``worst_usd`` more could break a cap."""
        for name, key, cap in self.budget.over_runs:
            spent = self.spent.of(name)
            if worst_usd <= 0 or spent + self.reserved_usd + worst_usd <= cap + 1e-9:
                continue
            free, also = max(0.0, cap - spent - self.reserved_usd), ""
            if self.reserved_usd >= 0.005:
                what = [one.reservation.owner_id for one in self.reserved if one.usd > 0]
                others = f" and {len(what) - 2} more" if len(what) > 2 else ""
                also = f", {dollars(self.reserved_usd)} reserved for {', '.join(what[:2])}{others}"
            raise BudgetError(
                f"this may cost {dollars(worst_usd)}, but only {dollars(free)} of the {name}'s cap of {dollars(cap)}"
                f" are left",
                cause=f"${spent:.2f} spent (fcctl cost ledger --by {'day' if name == 'day' else 'month'}){also}",
                hint="to see reservations: fcctl cost budget; run fewer steps with --steps, lower their timeouts, or"
                f" raise [budget] {key}",
            )


def reserve(services: Services, wanted: Reservation, *, replaces: Iterable[str] = ()) -> None:
    """Checks the caps and reserves what a start may cost at most, in one step, in place of the reservations
    ``replaces``. Every start calls it first. Raises BudgetError if it could break a cap, ConflictError if its
    schedule's firing is over, FcctlError if the book cannot be written."""
    if services.budget.holds_over_runs or services.spending.state().open():
        settle_reservations(services)
        _reserve_missing(services)
    with services.spending.changing() as change:
        instead = {wanted.reservation_id, *replaces}
        firing = change.state.firings().get(wanted.firing) if wanted.firing else None
        if firing is not None and firing.ended:
            raise ConflictError(
                "this run's schedule firing has already ended: fcctl starts nothing",
                cause="the fcctl process of the firing was killed, and the schedule's monthly cost was counted"
                " without this run",
                hint=f"start the job by hand, or wait for the next firing: fcctl schedule ls ({firing.schedule})",
            )
        if services.budget.holds_over_runs and not wanted.emulated:
            account_of(services, without=instead).refuse(wanted.usd)
        if wanted.started is None:
            known = [s.started for s in change.state.starts() if (s.project, s.name) == wanted.machine]
            wanted = wanted.model_copy(update={"newer_than": max(known, default=0.0)})
        open_ = change.state.open()
        for name in instead - {wanted.reservation_id}:
            if name in open_:
                change.release(open_[name])
        change.reserve(wanted)


def _reserve_missing(services: Services) -> None:
    from orchestrator.runs.cost.rebuild import unreserved

    if missing := unreserved(services, services.spending.state()):
        names = ", ".join(one.owner_id for one in missing)
        services.observer.note(
            f"the ledger lacks what is reserved for {names}: fcctl adds it; see also: fcctl cost rebuild"
        )
        with services.spending.changing() as change:
            for one in missing:
                change.reserve(one)


def set_aside(services: Services, active: FileActiveRun, saved: SavedPlan, *, replaces: Iterable[str] = ()) -> None:
    """Reserves what the run may cost, in place of the reservations ``replaces``; a session's run is part of the
    session's reservation. Raises BudgetError if it could break a cap; the run is discarded then."""
    if saved.worst_case_usd <= 0 or (saved.session is not None and not _starts_by_itself(services, saved)):
        return
    usd = saved.model_copy(update={"session": None}).worst_case_usd
    wanted = reservation(services, "run", saved.plan.run_id, saved.target, usd)
    try:
        reserve(services, wanted, replaces=replaces)
    except BaseException:
        active.discard()
        with suppress(FcctlError), services.spending.changing() as change:
            if wanted.reservation_id in change.state.open():  # Ctrl-C came after it was written
                change.release(wanted)
        raise


def _starts_by_itself(services: Services, saved: SavedPlan) -> bool:
    """Whether the run was planned for a session of another workspace that is over by now: it turns the machine on."""
    open_ = services.spending.state().open().values()
    return saved.session_abroad and not any(one.owner_id == saved.session for one in open_)


def set_aside_start(services: Services, saved: SavedPlan) -> None:
    """Reserves what a run of another workspace's session may cost that turns the machine on itself, in place of the
    session's reservation: that ends when its workspace notices that the machine went off. Called before the request.
    Raises BudgetError."""
    open_ = services.spending.state().open()
    if any(one.owner_id == saved.plan.run_id for one in open_.values()):
        return
    usd = saved.model_copy(update={"session": None}).worst_case_usd
    theirs = [name for name, one in open_.items() if one.owner == "session" and one.owner_id == saved.session]
    reserve(services, reservation(services, "run", saved.plan.run_id, saved.target, usd), replaces=theirs)


def set_aside_wake(services: Services, saved: SavedPlan, usd: float) -> str:
    """Reserves the cost of waking the run's machine once more; returns the reservation's id. Raises BudgetError."""
    wanted = reservation(services, "wake", saved.plan.run_id, saved.target, usd, suffix=".wake")
    reserve(services, wanted)
    return wanted.reservation_id


def check_caps(services: Services, budget: Budget, worst_usd: float) -> None:
    """Raises BudgetError if ``worst_usd`` more could break a cap of the day, month or project; reserves nothing."""
    if worst_usd > 0 and budget.holds_over_runs:
        account_of(services, budget).refuse(worst_usd)


def account_of(services: Services, budget: Budget | None = None, *, without: Iterable[str] = ()) -> CapBalance:
    """Returns the balance of ``budget``'s caps, or the workspace's, without the reservations ``without``."""
    now, found = services.clock.now(), lines(services, until_now=True)
    left = set(without)
    open_ = [one for one in reservations(services) if one.reservation_id not in left]
    return CapBalance(sums(found, now, services.budget.zone), remaining(open_, found), budget or services.budget)


def remaining_budget(services: Services, budget: Budget) -> list[tuple[str, float]]:
    """What is left of the day's, the month's and the project's cap, dollars, with what is reserved taken as spent."""
    return account_of(services, budget).left() if budget.holds_over_runs else []


def spent_without(services: Services, run_id: str) -> Spending:
    """What was spent today, this month and ever by all but one run."""
    others = [line for line in lines(services, until_now=True) if line.run_id != run_id]
    return sums(others, services.clock.now(), services.budget.zone)


def lines(services: Services, *, until_now: bool = False) -> list[Line]:
    """Returns the ledger of this project and its machines, oldest first. With ``until_now``, a machine that was on when
    last seen counts as on since then."""
    state = services.spending.state()
    usages, scope = _usages(services, state)
    power = [one for line, one in state.of("power", UsageRecord)
             if scope.has(line.project, line.results, (one.project, one.name))]  # fmt: skip
    found = books.ledger(usages, _still_on(services, power) if until_now else power)
    open_ = (record_so_far(one, services.clock.now()) for one in underway(services.sessions))
    found = attributed(found, [*ended(services.sessions), *open_])
    standing, static = _standing(services, state, scope)
    found = [line for line in found if line.what != books.ADDRESS or not _within(line, static)] + standing
    return sorted(found, key=lambda line: (line.start, line.run_id or ""))


def _usages(services: Services, state: State) -> tuple[list[RunUsage], Scope]:
    """What the runs cost, and the scope with their machines: the book's, and those of runs that it does not know."""
    scope, booked = services.spending.scope, state.runs()
    own = [usage for line, usage in booked.values()
           if scope.has(line.project, line.results, _machine(usage))]  # fmt: skip
    own += unbooked_runs(services)
    machines = {machine for usage in own if (machine := _machine(usage)) is not None}
    return own, replace(scope, machines=scope.machines | machines)


def _machine(usage: RunUsage) -> tuple[str, str] | None:
    return (usage.machine.project, usage.machine.name) if usage.machine is not None else None


def _standing(services: Services, state: State, scope: Scope) -> tuple[list[Line], list[tuple[str, float, float]]]:
    """Disks, snapshots and static addresses; and when the targets' machines had a static address."""
    if not state.raw.get("resource"):
        return [], []
    from orchestrator.money.billable import ResourceRecord, standing_lines, with_static_address

    words = state.of("resource", ResourceRecord)
    ours = {one.key for line, one in words if scope.has(line.project, line.results, (one.project, one.name))}
    own = [one for _, one in words if one.key in ours]
    return standing_lines(own, services.clock.now(), services.budget.zone), with_static_address(own)


def _within(line: Line, times: Iterable[tuple[str, float, float]]) -> bool:
    """Whether the target of the line had it at one of the times."""
    return any(target == line.target and since < line.start + line.seconds and line.start < until
               for target, since, until in times)  # fmt: skip


def _still_on(services: Services, power: list[UsageRecord]) -> list[UsageRecord]:
    """Extends machines that were on when last seen until now, or until their deadline."""
    now = services.clock.now()
    on = [s for s in books.latest(power) if s.stopped is None]
    return [*power, *(s.model_copy(update={"seen": min(now, s.latest_end)}) for s in on)]


def reservations(services: Services) -> list[Reservation]:
    """The open ones that count against this workspace's caps, as the records of their owners have them now."""
    state = services.spending.state()
    scope = services.spending.scope
    open_ = [one for one in state.open().values() if scope.has(one.project, one.results, one.machine)]
    power = state.starts()
    return [one for one in still_reserved(services, open_) if not is_off(one, power, services.clock.now())]
