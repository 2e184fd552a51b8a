"""The tables of ``fcctl cost ledger``."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from rich.console import Console

from orchestrator.base.clock import iso
from orchestrator.base.fields import pick
from orchestrator.base.sanitize import clean
from orchestrator.base.text.escape import csv_cell
from orchestrator.money.ledger import Line
from orchestrator.money.totals import LedgerNote, Total
from orchestrator.views.figures import duration
from orchestrator.views.table import Table, show

_COLUMNS = "start seconds usd activity target run_id job machine emulated what sure why"
_SURE = {"estimated": "an estimate", "upper_bound": "at most"}


def print_totals(
    totals: Sequence[Total], by: str, timezone: str, console: Console, notes: Sequence[LedgerNote] = ()
) -> None:
    """One line a group, and the sum; then whatever of it is not simply what the cloud reported."""
    if not totals:
        show(console, "nothing has cost anything yet")
        return
    first = f"{by.upper()} ({timezone})" if by in ("day", "week", "month") else by.upper()
    table = Table(first, right=("TIME", "RUNS", "USD", "OF IT IDLE", "STANDING"), header="bold")
    for t in totals:
        time = duration(t.seconds) if t.seconds else "-"
        parts = (_part(t.idle_usd), _part(t.standing_usd))
        table.add_row(clean(t.group, 80), time, str(t.runs), f"{t.usd:.4f}", *parts)
    table.add_section()
    seconds, *dollars = (
        sum(getattr(t, name) for t in totals) for name in ("seconds", "usd", "idle_usd", "standing_usd")
    )
    parts = (_part(dollars[1]), _part(dollars[2]))
    table.add_row("all", duration(seconds), "", f"{dollars[0]:.4f}", *parts, style="bold")
    show(console, table)
    print_notes(notes, console)


def _part(usd: float) -> str:
    return f"{usd:.4f}" if usd else "-"


def print_notes(notes: Sequence[LedgerNote], console: Console) -> None:
    """What is not simply what the cloud reported, one line each."""
    for note in notes:
        unpriced = note.sure == "unpriced"
        head = "not in the sum" if unpriced else f"{_SURE[note.sure]}, ${note.usd:.4f}"
        show(console, (clean(f"{head}: {note.what}: {note.why}", 400), "yellow" if unpriced else "dim"))


def notes_json(notes: Sequence[LedgerNote]) -> list[dict[str, object]]:
    return [{**vars(note), "usd": round(note.usd, 6)} for note in notes]


def as_csv(lines: Sequence[Line]) -> str:
    """Every line, one a row, with a header; times ISO 8601 in UTC."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS.split())
    for line in lines:
        row = {
            **pick(line, _COLUMNS), "start": iso(line.start), "seconds": f"{line.seconds:.3f}",
            "usd": f"{line.usd:.6f}", "emulated": str(line.emulated).lower(),
        }  # fmt: skip
        writer.writerow([csv_cell("" if cell is None else str(cell)) for cell in row.values()])
    return out.getvalue()


def as_json(lines: Sequence[Line]) -> list[dict[str, object]]:
    return [{**pick(line, _COLUMNS), "start": iso(line.start)} for line in lines]
