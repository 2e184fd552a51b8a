"""Turn a machine on again only to fetch what a run left on its disk."""

from __future__ import annotations

from orchestrator.results.records import RunRecord
from orchestrator.runs.cost.set_aside import set_aside_wake
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.reopen import resumed
from orchestrator.runs.services import Services


def fetch(services: Services, run_id: str, planned: SavedPlan | None = None) -> RunRecord:
    """Starts the machine of a run that waits for it, collects the run and releases the machine. ``planned`` has the
    machine's current price. Raises BudgetError if the caps do not allow it."""
    with resumed(services, run_id) as driver:
        if driver.waits:
            planned = planned or driver.saved
            set_aside_wake(services, planned, planned.wake_usd)
            driver.wake(planned.wake_s, planned)
        record = driver.finish()
    if record is None:
        raise RuntimeError("a run that is waited for has an end")
    return record
