"""The books of a workspace: what its runs and its machines cost, and what is left of the caps."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from orchestrator.base.errors import BudgetError, FcctlError
from orchestrator.leases.session_rules import Machine, SavedSession, SessionRecord, attributed, machine_of
from orchestrator.machines.targets import GcpTarget
from orchestrator.money import ledger as books
from orchestrator.money.caps import FENCE_LATENESS_S, Budget, dollars
from orchestrator.money.ledger import Line, Sighting, Spent
from orchestrator.results.records import RunRecord
from orchestrator.results.store_api import Store
from orchestrator.runs.job.saved_plan import SavedPlan, plan_at_home
from orchestrator.runs.services import Services


def lines(services: Services, *, until_now: bool = False) -> list[Line]:
    """All that was ever billed here, machines and what stands without them, oldest first.

    Args:
        until_now: count a machine that was on when it was last seen as on since then: the caps take it for spent.
    """
    sightings = services.sightings.all()
    found = books.ledger(_records(services.store), _still_on(services, sightings) if until_now else sightings)
    found = attributed(found, [*services.sessions.ended(), *_open_sessions(services)])
    things = services.sightings.holdings()
    if things:
        from orchestrator.money.billable import standing_lines

        found += standing_lines(things, services.clock.now(), services.money_zone)
    return sorted(found, key=lambda line: (line.start, line.run_id or ""))


def _still_on(services: Services, sightings: list[Sighting]) -> list[Sighting]:
    """The same, with each machine that was on when last seen taken as on until now, or until its limit. A machine of an
    active run or session is left as it is: that run or session is counted with its worst case."""
    now = services.clock.now()
    plans = [services.store.plan_of(run_id) for run_id in services.store.active()]
    used = [(plan or {}).get("target") or {} for plan in plans]
    names = {(target.get("project"), target.get("instance")) for target in used}
    names |= {(saved.target.project, saved.target.instance) for saved, _ in _sessions(services)
              if isinstance(saved.target, GcpTarget)}  # fmt: skip
    on = [s for s in books.latest(sightings) if s.stopped is None and (s.project, s.name) not in names]
    limits = [(s, now if s.fence is None else min(now, s.fence + FENCE_LATENESS_S)) for s in on]
    return [*sightings, *(s.model_copy(update={"seen": until}) for s, until in limits if until > s.seen)]


def _open_sessions(services: Services) -> Iterator[SessionRecord]:
    """The sessions that are not over, as if they ended now."""
    now = services.clock.now()
    for saved, machine in _sessions(services):
        if machine is not None:
            yield SessionRecord(
                session_id=saved.session_id, target=saved.target.name, how="stopped", reason="open",
                created=saved.created, ended=now, instance_id=machine.instance_id, started=machine.started,
            )  # fmt: skip


def _sessions(services: Services) -> Iterator[tuple[SavedSession, Machine | None]]:
    for session_id in services.sessions.open():
        try:
            saved = SavedSession.model_validate(services.sessions.plan_of(session_id))
        except ValidationError:
            continue
        yield saved, machine_of(services.sessions.journal_of(session_id))


def _records(store: Store) -> Iterator[RunRecord]:
    for row in store.rows():
        try:
            yield store.get(row.run_id)
        except FcctlError:
            continue  # damaged or just pruned; listings say so


def check_caps(services: Services, budget: Budget, worst_usd: float) -> None:
    """Refuse what could break a cap of the day, the month or the project.

    Runs that are not complete count with their worst case: they may still cost that.

    Raises:
        BudgetError: with what is spent, what is left, and what this could cost.
    """
    caps = (budget.per_day_usd, budget.per_month_usd, budget.project_usd)
    if worst_usd <= 0 or all(cap is None for cap in caps):
        return
    spent = books.spent(lines(services, until_now=True), services.clock.now(), services.money_zone)
    underway = _underway(services)
    for cap, used, name in zip(caps, _used(spent), ("day", "month", "project"), strict=True):
        if cap is not None and used + underway + worst_usd > cap + 1e-9:
            left = max(0.0, cap - used - underway)
            also = f", and runs underway may cost ${underway:.2f}" if underway else ""
            raise BudgetError(
                f"this could cost {dollars(worst_usd)}, and {dollars(left)} are left of the {name}'s {dollars(cap)}",
                cause=f"${used:.2f} are spent (fcctl cost ledger --by {'day' if name == 'day' else 'month'}){also}",
                hint=_hint(name),
            )


def left_of_caps(services: Services, budget: Budget) -> list[tuple[str, float]]:
    """What is left of the day's, the month's and the project's cap, dollars, with what is underway taken as spent."""
    if not budget.holds_over_runs:
        return []
    spent = books.spent(lines(services, until_now=True), services.clock.now(), services.money_zone)
    underway = _underway(services)
    caps = (budget.per_day_usd, budget.per_month_usd, budget.project_usd)
    return [
        (name, cap - used - underway)
        for cap, used, name in zip(caps, _used(spent), ("day", "month", "project"), strict=True)
        if cap is not None
    ]


def spent_without(services: Services, run_id: str) -> Spent:
    """What was spent today, this month and ever by all but one run."""
    others = [line for line in lines(services, until_now=True) if line.run_id != run_id]
    return books.spent(others, services.clock.now(), services.money_zone)


def _underway(services: Services) -> float:
    """Dollars that runs which are not complete, sessions that are not over, and machines that could not be stopped may
    cost, each at its worst."""
    store, total = services.store, 0.0
    for run_id in store.active():
        try:
            saved = SavedPlan.model_validate(store.plan_of(run_id))
        except ValidationError:
            continue  # `fcctl ps` says so
        if saved.target.kind != "sandbox" and (saved.session is None or saved.session_abroad):
            total += saved.worst_case_usd
    return total + sum(_rest_of_sessions(services)) + sum(_left_on(services))


def _left_on(services: Services) -> Iterator[float]:
    """Dollars, for each machine that could not be stopped after its run: the run's worst case without the cost that
    its record has. The machine may run until its limit, and the record may have been written before that."""
    store = services.store
    for run_id, debt in store.owed().items():
        if "left" in debt or not store.is_complete(run_id):
            continue  # handed on to a run, which counts it; or counted as underway
        try:
            saved, cost = SavedPlan.model_validate(plan_at_home(store, run_id)), store.get(run_id).cost
        except (ValidationError, FcctlError):
            continue
        if saved.target.kind != "sandbox" and saved.session is None:
            yield max(0.0, saved.worst_case_usd - cost.usd)


def _rest_of_sessions(services: Services) -> Iterator[float]:
    """What each open session may cost beyond what the books have of it already."""
    for saved, machine in _sessions(services):
        if saved.target.kind == "sandbox":
            continue
        booked = 0.0
        if machine is not None and machine.started is not None:
            name = f"{machine.name} ({machine.instance_id})"
            of_it = [line for line in lines(services) if line.machine == name and line.start >= machine.started - 1.0]
            booked = sum(line.usd for line in of_it)
        yield max(0.0, saved.worst_case_usd - booked)


def _used(spent: Spent) -> tuple[float, float, float]:
    return spent.day, spent.month, spent.project


def _hint(name: str) -> str:
    key = {"day": "per_day_usd", "month": "per_month_usd", "project": "project_usd"}[name]
    return f"take fewer steps with --steps, lower their timeouts, or raise [budget] {key}"
