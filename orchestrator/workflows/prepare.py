"""Everything a run needs before its first side effect: job, target, source, plan."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.domain import run_id as ids
from orchestrator.domain.budget import Budget, usd_by_place, usd_per_hour, worst_usd_per_hour
from orchestrator.domain.job import Job
from orchestrator.domain.plan import controller_steps, make_plan
from orchestrator.domain.records import SourceRecord
from orchestrator.domain.saved_plan import SavedPlan
from orchestrator.domain.target import Target
from orchestrator.errors import BudgetError
from orchestrator.ports import Services, Source


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for."""

    job: Job
    target: Target
    settings: Mapping[str, str]
    steps: str | None = None


@dataclass(frozen=True)
class Prepared:
    saved: SavedPlan
    source: Source
    #: What the job itself says that a run of it may cost, dollars.
    job_cap_usd: float | None = None


def prepare(services: Services, root: Path, project: str, budget: Budget, wanted: Wanted) -> Prepared:
    """Read the source and make the plan of one run. Nothing has happened yet when this returns.

    Raises:
        UsageError: a setting or a step range that the job does not know.
        BudgetError: the run could cost more than it may, or than is left of the day, the month or the project.
    """
    services.observer.phase("source", "reading")
    source = services.source.read(root)
    now = services.clock.now()
    plan = make_plan(
        wanted.job,
        wanted.target,
        source,
        wanted.settings,
        wanted.steps,
        ids.new(wanted.job.job, wanted.target.name, now),
        now,
        workspace=tree_name(project, root),
    )
    record = SourceRecord(tree_sha256=source.tree_sha256, git_commit=source.git_commit, dirty=source.dirty)
    saved = SavedPlan(
        plan=plan,
        target=wanted.target,
        source=record,
        before_wake=controller_steps(wanted.job, wanted.settings, wanted.steps),
        settings=dict(wanted.settings),
        usd_per_hour=usd_per_hour(wanted.target, budget),
        usd_by_place=usd_by_place(wanted.target, budget),
        worst_usd_per_hour=worst_usd_per_hour(wanted.target, budget),
    )
    _check_cap(saved, wanted.job, budget)
    if saved.target.kind != "sandbox" and budget.holds_over_runs:
        from orchestrator.workflows.ledger import check_caps

        check_caps(services, budget, saved.worst_case_usd)
    return Prepared(saved, source, wanted.job.budget.usd)


def _check_cap(saved: SavedPlan, job: Job, budget: Budget) -> None:
    caps = [cap for cap in (budget.per_run_usd, job.budget.usd) if cap is not None]
    worst = saved.worst_case_usd
    if caps and worst > min(caps):
        raise BudgetError(
            f"{job.job} on {saved.target.name} could cost ${worst:.2f}, and a run may cost ${min(caps):.2f}",
            cause=_why(saved),
            hint="lower the steps' timeouts or `budget: {minutes: N}` of the job, take fewer with --steps, or raise"
            " per_run_usd of [budget] in fcctl.toml",
        )


def _why(saved: SavedPlan) -> str:
    """What the worst case is made of."""
    steps = f"its steps may take {saved.worst_case_minutes:.0f} minutes"
    rate = saved.usd_per_hour if saved.worst_usd_per_hour is None else saved.worst_usd_per_hour
    if saved.fence_s is not None:
        steps += f", with boot and transfers the cloud lets the machine run for {saved.fence_s / 60:.0f}"
    return f"{steps}, at ${rate:.2f} an hour"


def tree_name(project: str, root: Path) -> str:
    """The name of the tree on the host: two checkouts of one project, or two laptops, do not share one."""
    place = f"{socket.gethostname()}\0{root.resolve()}"
    return f"{ids.slug(project)[:40]}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
