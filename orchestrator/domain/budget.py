"""What a run may cost: the caps of ``[budget]``, prices, and the worst case of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from fcctl_remote import wire
    from orchestrator.domain.target import Target

#: On-demand price of one L4 machine (g2-standard-4) as FlashCore's author pays it, in dollars an hour.
L4_USD_PER_HOUR = 0.75

Usd = Annotated[float, Field(gt=0)]


class Budget(BaseModel):
    """Caps in dollars; an absent cap does not bind."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    per_run_usd: Usd | None = None
    per_day_usd: Usd | None = None
    per_month_usd: Usd | None = None
    project_usd: Usd | None = None
    #: Price of an hour on a billed machine whose target names none.
    usd_per_hour: Annotated[float, Field(ge=0)] | None = None


def usd_per_hour(target: Target, budget: Budget) -> float:
    """The price of an hour on ``target``: its own, else the budget's, else 0 (an L4's for a cloud machine).

    ``local`` and ``sandbox`` cost nothing unless they say so themselves.
    """
    if target.usd_per_hour is not None:
        return target.usd_per_hour
    if target.kind in ("local", "sandbox"):
        return 0.0
    if budget.usd_per_hour is not None:
        return budget.usd_per_hour
    return L4_USD_PER_HOUR if target.kind == "gcp" else 0.0


def worst_case_minutes(steps: Iterable[wire.StepSpec], max_minutes: float | None = None) -> float:
    """Wall clock of a run in which every step uses its whole timeout in every attempt, cut off at ``max_minutes``."""
    minutes = sum(step.timeout_s * (step.retries + 1) for step in steps) / 60
    return minutes if max_minutes is None else min(minutes, max_minutes)


def worst_case_usd(minutes: float, rate: float) -> float:
    """Dollars for ``minutes`` at ``rate`` dollars an hour."""
    return minutes / 60 * rate
