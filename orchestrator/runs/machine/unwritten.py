"""What is said of results that find no room on this computer, and stay on the disk of their machine."""

from __future__ import annotations

from orchestrator.base.errors import DiskError
from orchestrator.money.caps import as_gcp, dollars
from orchestrator.results.records import RunRecord
from orchestrator.runs.job.saved_plan import SavedPlan


def on_its_disk(full: DiskError, saved: SavedPlan, record: RunRecord, *, off: bool) -> DiskError:
    """Returns ``full`` with the run's status and cost, where its results are, and what fetching them costs. ``off``:
    whether the machine is off."""
    machine = as_gcp(saved.target)
    name = machine.instance if machine is not None else saved.target.name
    cost = f"{'would have' if record.cost.emulated else 'has'} cost {dollars(record.cost.usd)} so far"
    came_to = f"the run ended as {record.status.replace('_', ' ')} and {cost}"
    if not off:
        cause = f"{full.cause}; {came_to}, and its results are on {name}, which is not off"
        return DiskError(full.message, cause=cause, hint=f"free some space, then: fcctl pull-results {record.run_id}")
    price = "" if record.cost.emulated else f" for {dollars(saved.wake_usd)} at most"
    return DiskError(
        full.message,
        cause=f"{full.cause}; {came_to}, and {name} is off, with its results on its disk",
        hint=f"free some space, then fetch them{price}: fcctl pull-results --wake {record.run_id}",
    )
