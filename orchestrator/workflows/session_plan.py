"""What a session may cost, before anything is started."""

from __future__ import annotations

from orchestrator.domain import run_id as ids
from orchestrator.domain.budget import Budget, as_gcp, usd_by_place, usd_per_hour, worst_usd_per_hour
from orchestrator.domain.guard import LEAST_S
from orchestrator.domain.session import SavedSession
from orchestrator.domain.target import Target
from orchestrator.errors import BudgetError, ConfigError
from orchestrator.ports import Services


def plan_session(
    services: Services,
    budget: Budget,
    target: Target,
    budget_usd: float,
    max_hours: float | None,
    idle_minutes: float,
    workspace: str,
) -> SavedSession:
    """Reckon what the budget buys.

    Raises:
        ConfigError: the target's machine is not one that fcctl starts and stops, or may not be on for so long.
        BudgetError: the budget buys no more than a moment, or is more than is left of a cap of the configuration.
    """
    machine = as_gcp(target)
    if machine is None:
        raise ConfigError(
            f"{target.name} is a machine that fcctl neither starts nor stops: a session would cost and end nothing",
            hint="runs on it need no session; sessions are for targets of kind gcp and sandbox",
        )
    if max_hours is not None and max_hours * 60 > machine.max_run_minutes:
        raise ConfigError(
            f"{target.name} runs {machine.max_run_minutes / 60:g} hours at most, not {max_hours:g}",
            hint=f"fewer --max-hours, or raise max_run_minutes of [targets.{target.name}]",
        )
    now = services.clock.now()
    saved = SavedSession(
        session_id=ids.new("session", target.name, now),
        created=now,
        workspace=workspace,
        target=target,
        budget_usd=budget_usd,
        max_hours=max_hours,
        idle_minutes=idle_minutes,
        usd_per_hour=usd_per_hour(target, budget),
        usd_by_place=usd_by_place(target, budget),
        worst_usd_per_hour=worst_usd_per_hour(target, budget),
    )
    if saved.fence_s < LEAST_S:
        raise BudgetError(
            f"${budget_usd:.2f} buys {saved.fence_s} seconds of {target.name}, which is too little to begin with",
            cause=f"${saved.worst_usd_per_hour:.2f} an hour at worst, with the cloud's lateness and its minimum",
            hint="raise --budget",
        )
    if target.kind != "sandbox" and budget.holds_over_runs:
        from orchestrator.workflows.ledger import check_caps

        check_caps(services, budget, saved.worst_case_usd)
    return saved
