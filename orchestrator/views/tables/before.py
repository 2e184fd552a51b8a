"""What ends a run's summary: its figures against those of the run before, and the command that explains them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.clock import SystemClock
from orchestrator.base.errors import FcctlError
from orchestrator.results.headlines import COMPARED, MEASURED, MISSION
from orchestrator.results.records import RunRecord
from orchestrator.results.store.store import FileStore
from orchestrator.views.blocks import Block, Heading, Text

if TYPE_CHECKING:
    from orchestrator.results.records import RunRow

#: Earlier runs among which one of the same job on the same GPU is looked for, and benchmarks shown.
EARLIER, ROWS = 50, 6


def against_before(record: RunRecord, folder: Path) -> Iterator[Block]:
    """The comparison with the last run of the job on the same GPU that ended well, if there is one in the store that
    ``folder`` belongs to; the main benchmark first, then the largest change."""
    if record.status not in MEASURED or folder.parent.name != "runs":
        return
    store = FileStore(folder.parents[1], SystemClock(), note=lambda _: None)
    try:
        yield from _compared(store, record)
    except FcctlError:
        return  # a run that is damaged or was just deleted; a listing says so


def _compared(store: FileStore, record: RunRecord) -> Iterator[Block]:
    rows = store.rows(job=record.job, limit=EARLIER)
    at = next((i for i, row in enumerate(rows) if row.run_id == record.run_id), len(rows))
    before = next((row for row in rows[at + 1 :] if _alike(row, rows[at])), None)
    if before is None:
        return
    from orchestrator.results.compare.compare import compare_all
    from orchestrator.views.tables.compare import headline, verdicts

    (report,) = compare_all(store, [before.run_id, record.run_id])
    known = [row for row in report.comparison.benchmarks if row.effect]
    if known:
        order = sorted(known, key=lambda row: (row.name != MISSION, -abs(row.effect.ratio - 1) if row.effect else 0))
        yield Heading("Against the run before", before.run_id)
        yield verdicts(order[:ROWS])
        yield Text(headline(report), style="bold")
        yield Text(f"why: fcctl results compare {before.run_id[-6:]} {record.run_id[-6:]}", style="hint")


def _alike(row: RunRow, this: RunRow) -> bool:
    return row.status in COMPARED and (row.target, row.gpu) == (this.target, this.gpu)
