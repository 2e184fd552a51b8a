"""When a run that has not ended will have: what it waits for, what earlier runs took, and its steps' timeouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.base.sanitize import clean
from orchestrator.runs.job.saved_plan import read_saved
from orchestrator.runs.reopen import ActiveState
from orchestrator.runs.services import Services

#: Earlier runs that count, the newest first.
RUNS_BEFORE = 10


@dataclass(frozen=True)
class Remaining:
    """A run that is queued or running. Times are seconds from now; of a queued one, from when it begins."""

    run_id: str
    target: str
    queued: bool
    #: The run that has the machine.
    behind: str | None = None
    #: ``bench 4/5``.
    step: str | None = None
    #: The median of earlier runs that passed; None: without one, or if it takes longer.
    expected_s: float | None = None
    #: Until the timeouts of its steps are over; None: its host did not say how far it is.
    at_most_s: float | None = None


def remaining(services: Services, states: Sequence[ActiveState]) -> list[Remaining]:
    """Of the runs that are queued or running, by whomever they are followed."""
    return [_of(services, state) for state in states if state.state in ("queued", "running", "followed")]


def _of(services: Services, state: ActiveState) -> Remaining:
    summary, now = state.summary, services.clock.now()
    if summary is None:
        return Remaining(state.run_id, state.target, queued=state.state == "queued")
    queued = summary.status == "queued"
    expected_s = _usual_s(services, state)
    if expected_s is not None and not queued:
        expected_s -= now - summary.created
    return Remaining(
        state.run_id,
        state.target,
        queued,
        clean(summary.behind, 63) if summary.behind else None,
        f"{clean(summary.step, 24)} {summary.step_index + 1}/{summary.step_count}" if summary.step else None,
        expected_s if expected_s is not None and expected_s > 0 else None,
        _at_most_s(services, state, now),
    )


def _usual_s(services: Services, state: ActiveState) -> float | None:
    """What earlier runs of the job on the target took, those that passed."""
    rows = services.store.rows(limit=RUNS_BEFORE, job=state.job, target=state.target, status="passed")
    return median(row.duration_s for row in rows) if rows else None


def _at_most_s(services: Services, state: ActiveState, now: float) -> float | None:
    """The timeouts of the steps that are left, less what the current one has used."""
    summary, saved = state.summary, read_saved(services.store, state.run_id)
    if summary is None or saved is None:
        return None
    spans = [step.timeout_s * (step.retries + 1) for step in saved.plan.steps]
    used = sum(spans[: summary.step_index])
    if summary.step_started is not None and summary.step_index < len(spans):
        used += min(max(0.0, now - summary.step_started), spans[summary.step_index])
    return max(0.0, min(sum(spans), saved.worst_case_minutes * 60) - used)
