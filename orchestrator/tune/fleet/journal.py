"""What a search has found so far, as far as this computer has it: the journal from which it goes on elsewhere."""

from __future__ import annotations

import contextlib

from orchestrator.base.errors import RunNotFound
from orchestrator.results.store_api import Store
from orchestrator.tune.fleet.rules import JOURNAL, MAX_JOURNAL_BYTES


def stored_journal(store: Store, run_id: str) -> bytes | None:
    """What a complete run brought home; None if there is none, or too much to be one."""
    path = store.folder(run_id) / JOURNAL
    with contextlib.suppress(OSError):
        if 0 < path.stat().st_size <= MAX_JOURNAL_BYTES:
            return path.read_bytes()
    return None


def brought(store: Store, run_id: str) -> bytes | None:
    """What the run, which is not home, was to go on from, as far as this computer knows."""
    with contextlib.suppress(RunNotFound):
        active = store.claim(run_id)
        if active is not None:
            try:
                return active.intake().read(JOURNAL, MAX_JOURNAL_BYTES)
            finally:
                active.release()
    return None


def longest(*journals: bytes | None) -> bytes | None:
    """Each is the beginning of those that are longer."""
    return max(journals, key=lambda journal: len(journal or b""))
