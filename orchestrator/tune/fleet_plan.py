"""Plans of a search on several machines, and what all of them may cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.machines.targets import Target
from orchestrator.money.caps import Budget
from orchestrator.runs.job.prepare import Prepared, RunRequest, prepare
from orchestrator.runs.services import Services
from orchestrator.runs.source.api import Source
from orchestrator.tune.fleet_rules import check_apart, member_job


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
    ``source``. Its budget is divided evenly. Raises UsageError: two of them are the same; BudgetError: one could cost
    more than its share, or all together more than is left."""
    check_apart([wanted.target, *others])
    share = wanted.budget_usd / (1 + len(others)) if wanted.budget_usd is not None else None
    wanted = replace(wanted, budget_usd=share)
    search = prepare(services, place.root, place.project, place.budget, wanted, source)
    members = [_plan_member(services, place, search, wanted, host) for host in others]
    plans = Plans(search, members)
    if place.budget.holds_over_runs:
        from orchestrator.runs.cost.spending import check_caps

        real = [one.saved for one in plans.all if one.saved.target.kind != "sandbox"]
        check_caps(services, place.budget, sum(saved.worst_case_usd for saved in real))
    return plans


def _plan_member(
    services: Services, place: FleetPlanner, search: Prepared, wanted: RunRequest, host: Target
) -> Prepared:
    """The plan of one member of ``search``, which is what is ``wanted``."""
    plan = search.saved.plan
    (tuning,) = (step.tune for step in plan.steps if step.tune is not None)
    member = RunRequest(
        member_job(plan, host.name, wanted.job.env), host, wanted.settings, budget_usd=wanted.budget_usd,
        stop_at_budget=wanted.stop_at_budget, tunings={"member": tuning},
    )  # fmt: skip
    prepared = prepare(services, place.root, place.project, place.budget, member, search.source)
    return replace(prepared, saved=prepared.saved.model_copy(update={"fleet_of": plan.run_id}))
