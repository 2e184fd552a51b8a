"""What it costs to fetch a run's results out of a cloud, as far as it is known before."""

from __future__ import annotations

from contextlib import suppress

from orchestrator.base.errors import FcctlError
from orchestrator.money.caps import EGRESS_USD_PER_GIB
from orchestrator.results.store_api import Store

#: Earlier runs of the job that count, the newest first.
RUNS_BEFORE = 5


def known_egress_usd(store: Store, job: str) -> float:
    """Dollars for fetching as much as the largest of the last runs of ``job`` left here; 0 where none is known."""
    largest = 0
    for row in store.rows(limit=RUNS_BEFORE, job=job):
        with suppress(FcctlError, OSError):  # just pruned
            largest = max(largest, store.size(row.run_id))
    return largest / 1024**3 * EGRESS_USD_PER_GIB
