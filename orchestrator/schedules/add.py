"""What a new schedule must be before it is written down."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from orchestrator.base import models
from orchestrator.base.errors import BudgetError, ConflictError, UsageError
from orchestrator.machines.targets import Name, Target
from orchestrator.money.caps import Budget
from orchestrator.money.prices.rates import usd_per_hour
from orchestrator.runs.job.files import StepSearch
from orchestrator.runs.job.job import Job
from orchestrator.runs.job.plan import check_settings, check_variants
from orchestrator.schedules.due import Schedule, upcoming

_HINTS = {
    "cron": 'minute hour day-of-month month day-of-week: --cron "0 2 * * 1-5"',
    "timezone": "use a name of the time zone database: --timezone UTC, --timezone Europe/Berlin (default: this"
    " computer's)",
}


def checked(
    name: str,
    values: Mapping[str, Any],
    present: Collection[str],
    budget: Budget,
    target: Target,
    job: Job,
    searches: Mapping[str, StepSearch],
) -> Schedule:
    """Returns the schedule that ``values`` describe. Raises ConflictError if the name is ``present``, UsageError for a
    wrong cron line, zone, setting or variant, BudgetError for a cap that allows no firing."""
    if name in present:
        hint = f"fcctl schedule rm {name}, or choose another name"
        raise ConflictError(f"the schedule '{name}' already exists", hint=hint)
    new = _valid(name, values)
    check_settings(job, new.settings)
    check_variants(job, job.steps, new.settings, searches)
    _check_caps(new, budget, target)
    return new


def _valid(name: str, values: Mapping[str, Any]) -> Schedule:
    from pydantic import TypeAdapter

    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        raise UsageError(
            f"'{name}' is not a valid schedule name",
            hint="use at most 24 characters: a-z, 0-9, and hyphens inside the name",
        ) from None
    try:
        return Schedule.model_validate(dict(values))
    except ValidationError as e:
        first = e.errors()[0]
        key = str(first["loc"][0])
        option = {"budget_usd": "--budget", "per_month_usd": "--per-month", "catch_up_minutes": "--catch-up"}
        said = f"{option.get(key, f'--{key}')}: {models.reason(first)}"
        raise UsageError(said, hint=_HINTS.get(key, "fcctl schedule add --help")) from None


def _check_caps(new: Schedule, budget: Budget, target: Target) -> None:
    rate = usd_per_hour(target, budget)
    per_run = new.budget_usd or budget.per_run_usd
    minute = rate / 60
    if per_run is not None and per_run < minute:
        raise BudgetError(
            f"a firing's budget of ${per_run:g} is less than one minute on '{target.name}' costs",
            cause=f"a minute costs ${minute:.4f}, and the cloud bills at least one minute",
            hint=f"for ten minutes: --budget {max(0.01, minute * 10):.2f}",
        )
    if new.per_month_usd is None:
        return
    if per_run is None:
        raise BudgetError(
            "a cap for the month also needs a cap for each run",
            cause="before a firing starts, fcctl compares its cap with the rest of the month's cap",
            hint="add --budget USD, or set [budget] per_run_usd",
        )
    if per_run > new.per_month_usd:
        raise BudgetError(
            f"no firing could start: one may cost ${per_run:g}, but a whole month only ${new.per_month_usd:g}",
            hint=f"use --budget {new.per_month_usd:g} or less",
        )


def first_times(schedule: Schedule, now: float) -> list[datetime]:
    """The next three times."""
    return upcoming(schedule, datetime.fromtimestamp(now, UTC), 3)
