"""What ends a run's summary: whether it is better than the runs before, and the command that explains it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from orchestrator.base.clock import SystemClock
from orchestrator.base.errors import FcctlError
from orchestrator.results.look import COMPARED, MEASURED, MISSION, headlines
from orchestrator.results.records import RunRecord
from orchestrator.results.store.store import FileStore
from orchestrator.views.blocks import Block, Heading, Text
from orchestrator.views.tables.runs import answer

#: Earlier runs among which one of the same job on the same GPU is looked for, and benchmarks shown.
EARLIER, ROWS = 50, 6


def against_before(record: RunRecord, folder: Path) -> Iterator[Block]:
    """Whether the run is better: its figure against the runs before and PyTorch in a sentence, then the comparison with
    the last run of the job on the same GPU that ended well; the main benchmark first, then the largest change."""
    if record.status not in MEASURED or folder.parent.name != "runs":
        return
    store = FileStore(folder.parents[1], SystemClock(), note=lambda _: None)
    try:
        yield from _compared(store, record)
    except FcctlError:
        return  # a run that is damaged or was just deleted; a listing says so


def _compared(store: FileStore, record: RunRecord) -> Iterator[Block]:
    rows = store.rows(job=record.job, limit=EARLIER)
    at = next((i for i, row in enumerate(rows) if row.run_id == record.run_id), len(rows) - 1)
    earlier = [row for row in rows[at + 1 :] if (row.target, row.gpu) == (rows[at].target, rows[at].gpu)]
    before = next((row for row in earlier if row.status in COMPARED), None)
    yield Heading("Faster or slower?", f"against {before.run_id}" if before else "")
    if before:
        yield from _verdicts(store, before.run_id, record.run_id)
    heads = headlines(store, [rows[at], *earlier])
    yield from (
        replace(block, style="bold") for block in answer(record.run_id, earlier, heads) if isinstance(block, Text)
    )


def _verdicts(store: FileStore, before: str, run_id: str) -> Iterator[Block]:
    from orchestrator.results.compare.compare import compare_all
    from orchestrator.views.tables.compare import headline, verdicts

    (report,) = compare_all(store, [before, run_id])
    known = [row for row in report.comparison.benchmarks if row.effect]
    if known:
        order = sorted(known, key=lambda row: (row.name != MISSION, -abs(row.effect.ratio - 1) if row.effect else 0))
        yield verdicts(order[:ROWS])
        yield Text(headline(report), style="bold")
        yield Text(f"why: fcctl results compare {before[-6:]} {run_id[-6:]}", style="hint")
