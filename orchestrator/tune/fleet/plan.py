"""Plans of a search on several machines, and what all of them may cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.machines.targets import Target
from orchestrator.money.caps import Budget
from orchestrator.runs.job.prepare import Prepared, RunRequest, prepare
from orchestrator.runs.job.saved_plan import Fleet, SavedPlan, plan_at_home, searches_of
from orchestrator.runs.services import Services
from orchestrator.runs.source.api import Source
from orchestrator.tune.fleet.rules import MEMBER, check_apart, member_job


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
