"""Turn a machine on again only to fetch what a run left on its disk."""

from __future__ import annotations

from orchestrator.base.errors import ConflictError
from orchestrator.money.caps import TRANSFER_MARGIN_S, as_gcp, fenced_worst_case_usd
from orchestrator.results.records import RunRecord
from orchestrator.runs.cost.set_aside import set_aside_wake
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.reopen import resumed
from orchestrator.runs.services import Services


def waking_s(saved: SavedPlan) -> int:
    """Fence 1 of such a start, seconds: boot and fetching.

    Raises:
        ConflictError: the run's machine is not one that fcctl turns on.
    """
    machine = as_gcp(saved.target)
    if machine is None:
        raise ConflictError(
            f"{saved.target.name} is not a machine that fcctl turns on", hint="turn it on, then: fcctl pull-results"
        )
    return int(min(machine.max_run_minutes * 60, machine.wake_timeout_s + TRANSFER_MARGIN_S))


def waking_usd(saved: SavedPlan) -> float:
    """The most such a start can cost, dollars."""
    return fenced_worst_case_usd(waking_s(saved), saved.worst_rate) + saved.egress_usd


def fetch(services: Services, run_id: str, planned: SavedPlan | None = None) -> RunRecord:
    """Wake the machine of a run that waits for it, bring the run home, and let the machine go again.

    Args:
        planned: the run's plan with the price that its machine has now; None: as it was planned.

    Raises:
        BudgetError: what that may cost does not fit the caps; nothing was started.
    """
    with resumed(services, run_id) as driver:
        if driver.waits:
            planned = planned or driver.saved
            set_aside_wake(services, planned, waking_usd(planned))
            driver.wake(waking_s(planned), planned)
        record = driver.finish()
    if record is None:
        raise RuntimeError("a run that is waited for has an end")
    return record
