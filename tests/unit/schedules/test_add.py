"""A schedule is written down only if it can ever be due and could ever be paid for."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.base.errors import BudgetError, ConflictError, UsageError
from orchestrator.machines.targets import SshTarget
from orchestrator.runs.job.job import parse
from orchestrator.schedules.due import Schedule
from orchestrator.schedules.fire import checked
from tests.support.budgets import listed

JOB = parse("job: bench\nenv: {SIZE: '1'}\nsteps:\n  - {id: one, run: make, activity: bench}\n", "bench.yaml").job


BUDGET = "a firing's budget"


def new(name: str = "nightly", rate: float = 0.6, per_run_usd: float | None = None, **values: Any) -> Schedule:
    target = SshTarget(name="box", host="h", usd_per_hour=rate)
    asked = {"job": "bench", "on": "box", "cron": "0 2 * * *", **values}
    return checked(name, asked, ["weekly"], listed(per_run_usd=per_run_usd), target, JOB, {})


@pytest.mark.parametrize(
    ("values", "message", "hint"),
    [
        ({"cron": "0 2 * *"}, "--cron: a cron expression has 5 fields", '--cron "0 2 * * 1-5"'),
        ({"timezone": "Mars/Pluto"}, "--timezone: unknown time zone", "--timezone UTC"),
        ({"budget_usd": 0}, "--budget: expected a number above 0, found 0", "fcctl schedule add --help"),
        ({"per_month_usd": -1}, "--per-month: expected a number above 0, found -1", "--help"),
        ({"catch_up_minutes": 7 * 24 * 60 + 1}, "--catch-up: expected at most 10080", "--help"),
        ({"settings": {"SIZ": "2"}}, "--set SIZ", "'SIZE'"),
        ({"name": "Bad Name"}, "'Bad Name' is not a valid schedule name", "at most 24"),
        # At $0.60 an hour a minute is a cent.
        ({"budget_usd": 0.0099}, f"{BUDGET} of $0.0099 is less than one minute on 'box' costs", "--budget 0.10"),
        ({"per_run_usd": 0.0099}, f"{BUDGET} of $0.0099 is less than", "--budget 0.10"),
        ({"rate": 0.006, "budget_usd": 0.00001}, "is less than one minute on 'box' costs", "--budget 0.01"),
        ({"per_month_usd": 5}, "a cap for the month also needs a cap for each run", "add --budget USD"),
        (
            {"per_month_usd": 5, "budget_usd": 5.01},
            "one may cost $5.01, but a whole month only $5",
            "--budget 5 or less",
        ),
        (
            {"per_run_usd": 2, "budget_usd": 4},
            f"{BUDGET} of $4 is above the cap of a run",
            "2 or less, or raise per_run_usd",
        ),
    ],
)
def test_what_means_nothing_or_could_never_be_paid_for_is_refused(
    values: dict[str, Any], message: str, hint: str
) -> None:
    option = message.startswith(("--", "'Bad"))
    with pytest.raises(UsageError if option else BudgetError) as refused:
        new(**values)
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")


def test_two_of_one_name() -> None:
    with pytest.raises(ConflictError, match="'weekly' already"):
        new("weekly")


@pytest.mark.parametrize(
    "values",
    [
        {"budget_usd": 0.01},
        {"per_run_usd": 0.01},
        {"per_month_usd": 5, "budget_usd": 5},
        {"per_month_usd": 5, "per_run_usd": 5},
        {"per_run_usd": 5, "budget_usd": 5},
        {"rate": 0.0},
        {"settings": {"SIZE": "2"}},
    ],
)
def test_what_fits_is_taken(values: dict[str, Any]) -> None:
    assert new(**values).job == "bench"
