"""The tables of ``fcctl cost ledger``."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.base.clock import iso
from orchestrator.base.sanitize import clean
from orchestrator.money.ledger import Line
from orchestrator.money.totals import LedgerNote, Total
from orchestrator.views.live.run import duration
from orchestrator.views.tables.cells import print_trimmed

if TYPE_CHECKING:
    from rich.console import Console


COLUMNS = (
    "start",
    "seconds",
    "usd",
    "activity",
    "target",
    "run_id",
    "job",
    "machine",
    "emulated",
    "what",
    "sure",
    "why",
)


def print_totals(
    totals: Sequence[Total], by: str, timezone: str, console: Console, remarks: Sequence[LedgerNote] = ()
) -> None:
    """One line a group, and the sum; then whatever of it is not simply what the cloud said."""
    from rich.table import Table
    from rich.text import Text

    if not totals:
        console.print("nothing has cost anything yet")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{by.upper()} ({timezone})" if by in ("day", "week", "month") else by.upper(), overflow="fold")
    for title in ("TIME", "RUNS", "USD", "OF IT IDLE", "STANDING"):
        table.add_column(title, justify="right", no_wrap=True)
    for total in totals:
        of_it = (_part(total.idle_usd), _part(total.standing_usd))
        table.add_row(
            Text(clean(total.group, 80)),
            duration(total.seconds) if total.seconds else "-",
            str(total.runs),
            f"{total.usd:.4f}",
            *of_it,
        )
    seconds, usd = sum(t.seconds for t in totals), sum(t.usd for t in totals)
    of_it = (_part(sum(t.idle_usd for t in totals)), _part(sum(t.standing_usd for t in totals)))
    table.add_section()
    table.add_row("all", duration(seconds), "", f"{usd:.4f}", *of_it, style="bold")
    print_trimmed(console, table, console.width)
    print_remarks(remarks, console)


def print_remarks(remarks: Sequence[LedgerNote], console: Console) -> None:
    """What is not simply what the cloud said, one line each."""
    for remark in remarks:
        style = "yellow" if remark.sure == "unpriced" else "dim"
        console.print(clean(_said(remark), 400), style=style, markup=False, highlight=False)


def _part(usd: float) -> str:
    return f"{usd:.4f}" if usd else "-"


_SURE = {"estimated": "an estimate", "upper_bound": "at most"}


def _said(remark: LedgerNote) -> str:
    if remark.sure == "unpriced":
        return f"not in the sum: {remark.what}: {remark.why}"
    return f"{_SURE[remark.sure]}, ${remark.usd:.4f}: {remark.what}: {remark.why}"


def remarks_json(remarks: Sequence[LedgerNote]) -> list[dict[str, object]]:
    return [{**vars(remark), "usd": round(remark.usd, 6)} for remark in remarks]


def as_csv(lines: Sequence[Line]) -> str:
    """Every line, one a row, with a header; times ISO 8601 in UTC."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line in lines:
        row = [iso(line.start), f"{line.seconds:.3f}", f"{line.usd:.6f}", line.activity, line.target,
               line.run_id or "", line.job or "", line.machine or "", str(line.emulated).lower(), line.what or "",
               line.sure, line.why]  # fmt: skip
        writer.writerow([_inert(str(cell)) for cell in row])
    return out.getvalue()


def _inert(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell.startswith(("=", "+", "@", "\t", "\r")) else cell


def as_json(lines: Sequence[Line]) -> list[dict[str, object]]:
    return [{name: getattr(line, name) for name in COLUMNS} | {"start": iso(line.start)} for line in lines]
