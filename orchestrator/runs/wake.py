"""Turn a machine on again only to fetch what a run left on its disk."""

from __future__ import annotations

from orchestrator.results.records import RunRecord
from orchestrator.runs.cost.waking import waking_s
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.reopen import resumed
from orchestrator.runs.services import Services


def fetch(services: Services, run_id: str, planned: SavedPlan | None = None) -> RunRecord:
    """Wake the machine of a run that waits for it, bring the run home, and let the machine go again.

    Args:
        planned: the run's plan with the price that its machine has now; None: as it was planned.
    """
    with resumed(services, run_id) as driver:
        if driver.waits:
            planned = planned or driver.saved
            driver.wake(waking_s(planned), planned)
        record = driver.finish()
    if record is None:
        raise RuntimeError("a run that is waited for has an end")
    return record
