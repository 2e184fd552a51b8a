"""``fcctl cost plan``: dollars before anything is started, with what earlier runs of the job took."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from orchestrator.base.errors import FcctlError, UsageError
from orchestrator.machines.targets import Target
from orchestrator.money import estimate as reckoning
from orchestrator.money.caps import EGRESS_USD_PER_GIB, Budget
from orchestrator.money.estimate import CostPlan, Past
from orchestrator.results.store_api import Store
from orchestrator.runs.job.job import Job
from orchestrator.runs.job.plan import slice_steps

#: Earlier runs that count, the newest first.
RUNS_BEFORE = 10
#: Earlier runs whose size counts for egress, the newest first.
EGRESS_RUNS = 5


def cost_plan(store: Store, job: Job, target: Target, budget: Budget, steps_range: str | None = None) -> CostPlan:
    """Returns the cost plan of ``job`` on ``target``; asks no machine and no cloud. Raises UsageError for an unknown
    step, ConfigError without a price or if the steps exceed the target's limit."""
    steps = [step for step in slice_steps(job.steps, steps_range) if step.where == "host"]
    if not steps:
        raise UsageError(f"no step of '{job.job}' is left to run on the machine", hint=f"fcctl jobs show {job.job}")
    wanted = {step.id for step in steps}
    return reckoning.cost_plan(
        job.job,
        target,
        budget,
        [(step.activity, step.spec()) for step in steps],
        max_minutes=job.budget.minutes,
        job_cap_usd=job.budget.usd,
        past=list(_past(store, job.job, target.name, wanted)),
        egress_usd=known_egress_usd(store, job.job),
    )


def _past(store: Store, job: str, target: str, steps: set[str]) -> Iterator[Past]:
    """What runs of these steps took that passed; a run of other steps says nothing about these."""
    for row in store.rows(limit=RUNS_BEFORE, job=job, target=target, status="passed"):
        record = store.get(row.run_id)
        if {step.id for step in record.steps} >= steps and record.cost.breakdown:
            yield {line.activity: line.seconds for line in record.cost.breakdown}


def known_egress_usd(store: Store, job: str) -> float:
    """Dollars for fetching as much as the largest of the last runs of ``job`` left here; 0 where none is known."""
    largest = 0
    for row in store.rows(limit=EGRESS_RUNS, job=job):
        with suppress(FcctlError, OSError):  # just pruned
            largest = max(largest, store.size(row.run_id))
    return largest / 1024**3 * EGRESS_USD_PER_GIB
