"""What it takes, and costs, to turn a machine on again only to fetch what a run left on its disk."""

from __future__ import annotations

from orchestrator.base.errors import ConflictError
from orchestrator.money.caps import TRANSFER_MARGIN_S, as_gcp, fenced_worst_case_usd
from orchestrator.runs.job.saved_plan import SavedPlan


def waking_s(saved: SavedPlan) -> int:
    """Returns the deadline of such a start in seconds: boot and fetching. Raises ConflictError if fcctl does not start
    this machine."""
    machine = as_gcp(saved.target)
    if machine is None:
        raise ConflictError(
            f"{saved.target.name} is not a machine that fcctl turns on", hint="turn it on, then: fcctl pull-results"
        )
    return int(min(machine.max_run_minutes * 60, machine.wake_timeout_s + TRANSFER_MARGIN_S))


def waking_usd(saved: SavedPlan) -> float:
    """The most such a start can cost, dollars."""
    return fenced_worst_case_usd(waking_s(saved), saved.worst_rate) + saved.egress_usd
