"""Planted bugs of money and of what it left: each breaks one thing that the caps, the schedules of firings, the pruning
or the collecting promise."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.money.caps import Budget
from orchestrator.runs.cost import budget_guard, spending
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.services import Services
from tests.simulation.mutants import Mutant


# --------------------------------------------------------------------------------------------------------------- caps
def month_not_asked(patch: pytest.MonkeyPatch) -> None:
    """A start is not held to the month's cap."""
    check = spending.check_caps

    def without_month(services: Services, budget: Budget, *args: Any) -> None:
        check(services, budget.model_copy(update={"per_month_usd": None}), *args)

    patch.setattr(spending, "check_caps", without_month)


def guard_without_day(patch: pytest.MonkeyPatch) -> None:
    """The budget guard does not look at the day's cap."""
    caps_of = budget_guard.books_caps
    patch.setattr(budget_guard, "books_caps", lambda budget: [cap for cap in caps_of(budget) if cap.over != "day"])


def underway_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What runs that are not complete may still cost is left out."""
    patch.setattr(spending, "_underway", lambda _: 0.0)


def worst_case_halved(patch: pytest.MonkeyPatch) -> None:
    """The worst case that is named before the start is half of what the machine's limit allows."""
    whole = SavedPlan.worst_case_usd.fget  # type: ignore[attr-defined]
    patch.setattr(SavedPlan, "worst_case_usd", property(lambda saved: whole(saved) / 2))


MONEY_MUTANTS = [
    Mutant("the month is not asked", month_not_asked, "the month's cap is $"),
    Mutant("the guard without the day", guard_without_day, "the day's cap is spent"),
    Mutant("what is underway is forgotten", underway_forgotten, "the "),
    Mutant("the worst case halved", worst_case_halved, "$"),
]
