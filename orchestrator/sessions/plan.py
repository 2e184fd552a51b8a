"""What a session may cost, before anything is started."""

from __future__ import annotations

from orchestrator.base import run_id as ids
from orchestrator.base.errors import BudgetError, ConfigError, UsageError
from orchestrator.leases.session_rules import SavedSession
from orchestrator.machines.targets import Target
from orchestrator.money.caps import LEAST_S, Budget, dollars
from orchestrator.money.prices.rates import hourly_plan
from orchestrator.runs.services import Services


def plan_session(
    services: Services,
    budget: Budget,
    target: Target,
    budget_usd: float | None,
    max_hours: float | None,
    idle_minutes: float,
    workspace: str,
) -> SavedSession:
    """Returns the plan of a session; ``budget_usd`` is ``per_session_usd`` by default. Raises UsageError without a
    budget, ConfigError if fcctl does not start this machine or not for so long, BudgetError if the budget buys too
    little or breaks a cap."""
    machine = target.cloud
    if machine is None:
        raise ConfigError(
            f"{target.name} cannot have a session: fcctl does not start or stop this machine",
            hint="run jobs on it without a session; sessions are for targets of kind gcp and sandbox",
        )
    if max_hours is not None and max_hours * 60 > machine.max_run_minutes:
        raise ConfigError(
            f"--max-hours {max_hours:g} is too long: {target.name} may run {machine.max_run_minutes / 60:g} hours at"
            f" most",
            hint=f"use a lower --max-hours, or raise max_run_minutes of [targets.{target.name}]",
        )
    usd = _budget(budget, budget_usd)
    now = services.clock.now()
    saved = SavedSession(
        session_id=ids.new("session", target.name, now),
        created=now,
        workspace=workspace,
        target=target,
        budget_usd=usd,
        max_hours=max_hours,
        idle_minutes=idle_minutes,
        **hourly_plan(target, budget).model_dump(),
    )
    if saved.fence_s < LEAST_S:
        raise BudgetError(
            f"{dollars(usd)} pays for {saved.fence_s} seconds of {target.name}, too few to start a session",
            cause=f"the highest price is ${saved.worst_rate:.2f} an hour, plus the late-stop allowance and the"
            f" cloud's minimum charge",
            hint="raise --budget",
        )
    if target.kind != "sandbox" and budget.holds_over_runs:
        from orchestrator.runs.cost.spending import check_caps

        check_caps(services, budget, saved.worst_case_usd)
    return saved


def _budget(budget: Budget, wanted: float | None) -> float:
    """Returns dollars. Raises UsageError without a budget, BudgetError above the cap of a session."""
    cap = budget.per_session_usd
    usd = cap if wanted is None else wanted
    if usd is None:
        raise UsageError(
            "the session has no budget",
            hint="add --budget USD, or set per_session_usd of [budget] in fcctl.toml",
        )
    if cap is not None and usd > cap:
        raise BudgetError(
            f"a budget of ${usd:.2f} is above the cap of a session: ${cap:.2f} (per_session_usd of [budget])",
            hint=f"use --budget {cap:g}, or raise per_session_usd",
        )
    return usd
