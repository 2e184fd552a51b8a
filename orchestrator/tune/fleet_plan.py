"""Plans of a search on several machines, what all of them may cost, and ``fcctl tune --resume`` for one that lost its
fcctl or its first machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.base.errors import ConflictError, HostUnreachable, LinkLost, MachineStopped, UsageError
from orchestrator.machines.targets import Target
from orchestrator.money.caps import Budget
from orchestrator.runs.job.prepare import Prepared, RunRequest, prepare
from orchestrator.runs.job.saved_plan import Fleet, SavedPlan, plan_at_home, read_saved, searches_of
from orchestrator.runs.lifecycle import Action, decide, fold
from orchestrator.runs.reopen import resumed, saved_plan
from orchestrator.runs.resume_run import Price, as_planned, resume_run
from orchestrator.runs.run import Detached, Finished
from orchestrator.runs.services import Services
from orchestrator.runs.source.api import Source
from orchestrator.tune.fleet_rules import MEMBER, check_apart, member_job


@dataclass(frozen=True)
class FleetPlanner:
    """The workspace of the plans, and its caps."""

    root: Path
    project: str
    budget: Budget


@dataclass(frozen=True)
class Plans:
    search: Prepared
    members: Sequence[Prepared]

    @property
    def all(self) -> list[Prepared]:
        return [self.search, *self.members]

    @property
    def worst_case_usd(self) -> float:
        return sum(prepared.saved.worst_case_usd for prepared in self.all)


def plan(
    services: Services, place: FleetPlanner, wanted: RunRequest, others: Sequence[Target], source: Source | None = None
) -> Plans:
    """The plans of a search on ``wanted.target`` and of its members on ``others``; of the working tree without a
    ``source``. Its budget is divided evenly. Raises
    UsageError: two of them are the same; BudgetError: one could cost more than its share, or all together more than is
    left."""
    check_apart([wanted.target, *others])
    share = wanted.budget_usd / (1 + len(others)) if wanted.budget_usd is not None else None
    wanted = replace(wanted, budget_usd=share)
    search = prepare(services, place.root, place.project, place.budget, wanted, source)
    fleet = Fleet(
        members=list(others), env=dict(wanted.job.env), settings=dict(wanted.settings), budget_usd=share,
        stop_at_budget=wanted.stop_at_budget,
    )  # fmt: skip
    search = replace(search, saved=search.saved.model_copy(update={"fleet": fleet}))
    members = [plan_member(services, place, search.saved, search.source, host) for host in others]
    plans = Plans(search, members)
    check_together(services, place, plans.all)
    return plans


def check_together(services: Services, place: FleetPlanner, anew: Sequence[Prepared]) -> None:
    """Raises BudgetError if all new runs together could cost more than is left of the caps."""
    if place.budget.holds_over_runs:
        from orchestrator.runs.cost.spending import check_caps

        real = [p.saved for p in anew if p.saved.target.kind != "sandbox"]
        check_caps(services, place.budget, sum(saved.worst_case_usd for saved in real))


def plan_member(
    services: Services, place: FleetPlanner, search: SavedPlan, source: Source, host: Target, usd: float | None = None
) -> Prepared:
    """The plan of one member of ``search``, which is stopped at ``usd``, if that is given."""
    fleet, (step,) = search.fleet, search.plan.steps
    if fleet is None or step.tune is None:
        raise ValueError(f"{search.plan.run_id} is not a search over several machines")
    wanted = RunRequest(
        member_job(search.plan, host.name, fleet.env), host, fleet.settings,
        budget_usd=fleet.budget_usd if usd is None else usd, stop_at_budget=fleet.stop_at_budget or usd is not None,
        tunings={"member": step.tune},
    )  # fmt: skip
    prepared = prepare(services, place.root, place.project, place.budget, wanted, source)
    return replace(prepared, saved=prepared.saved.model_copy(update={"fleet_of": search.plan.run_id}))


def left_behind(services: Services, search: SavedPlan) -> dict[str, list[str]]:
    """The runs of a search's members, active and complete, by target, oldest first."""
    store, helped = services.store, searches_of(search.to_json())
    complete = [row.run_id for row in store.rows(job=MEMBER) if row.run_id[:16] >= min(helped)[:16]]
    runs: dict[str, list[str]] = {}
    for run_id in sorted({*complete, *store.active()}):
        plan = store.plan_of(run_id) or plan_at_home(store, run_id)
        if plan.get("fleet_of") in helped:
            runs.setdefault(str(plan.get("target", {}).get("name")), []).append(run_id)
    return runs


def plans_of(
    services: Services, place: FleetPlanner, run_id: str, source: Source | None = None
) -> tuple[Plans, dict[str, list[str]]]:
    """The plans of the search ``run_id`` and of its members, and the members' runs, by target, oldest first: the last
    continues, if it is active. Without a ``source`` new members get the working tree. Raises UsageError: it is no
    search on several machines, or the source has changed; ConflictError: it has ended, or another fcctl follows it;
    BudgetError: the new runs could cost more than is left of a cap."""
    is_complete = services.store.is_complete(run_id)
    if is_complete and not (record := services.store.get(run_id)).was_cut_off:
        raise ConflictError(
            f"run {run_id} has ended: {record.status}", hint=f"see its report: fcctl results report {run_id}"
        )
    saved = read_saved(services.store, run_id)
    if saved is None or saved.fleet is None:
        raise UsageError(f"run {run_id} is not a search on several machines", hint=f"follow it: fcctl attach {run_id}")
    source = source or services.source.read(place.root)
    if source.tree_sha256 != saved.source.tree_sha256:
        raise UsageError(
            f"the source differs from the source of {run_id}",
            cause="files changed after the search started, and times of different source cannot be compared",
            hint=f"restore the files, or name their commit: fcctl tune --resume {run_id} --rev"
            f" {(saved.source.git_commit or 'COMMIT')[:12]}; or finish the search on its present machine only:"
            f" fcctl attach {run_id}",
        )
    if not is_complete:
        with resumed(services, run_id, patience_s=0.0):
            pass  # nobody else leads its machines
    left = left_behind(services, saved)
    members = [_member(services, place, saved, source, host, left.get(host.name, [])) for host in saved.fleet.members]
    check_together(services, place, [m for m in members if not services.store.plan_of(m.saved.plan.run_id)])
    return Plans(Prepared(saved, source), members), left


def _member(
    services: Services, place: FleetPlanner, search: SavedPlan, source: Source, host: Target, left: Sequence[str]
) -> Prepared:
    """An active run as it was planned, else a new plan."""
    there = saved_plan(services, left[-1]) if left else None
    return Prepared(there, source) if there is not None else plan_member(services, place, search, source, host)


def continue_search(
    services: Services, run_id: str, agree: Callable[[SavedPlan], None], price: Price = as_planned
) -> Finished | None:
    """Follow the search to its end; if its machine was stopped or lost, run the rest there. ``price``: the plan of a
    start with the present price of its machine. Raises Detached: Ctrl-C; the search stays active; FcctlError: as
    ``fcctl attach`` and ``fcctl run --resume``."""
    store = services.store
    if not store.is_complete(run_id) and decide(fold(store.journal_of(run_id)), "resume") is not Action.WAIT:
        finished = _followed(services, run_id)
        if finished is not None:
            return finished
    return resume_run(services, run_id, agree, price=price)


def _followed(services: Services, run_id: str) -> Finished | None:
    """None if its machine was stopped, which the journal did not say before."""
    try:
        with resumed(services, run_id) as driver:
            try:
                record = driver.finish(wait=False)
            except MachineStopped:
                return None
            return Finished(record or driver.finish(), driver)
    except KeyboardInterrupt:
        raise Detached(run_id) from None
    except (HostUnreachable, LinkLost) as lost:
        first = f"{lost.hint}; then" if lost.hint else "the search continues without this connection; follow it again"
        hint = f"{first}: fcctl tune --resume {run_id}"
        raise LinkLost(lost.message, cause=lost.cause, hint=hint) from lost
