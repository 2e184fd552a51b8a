"""The table of ``fcctl results ls``: with rich on a terminal, plain columns elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from orchestrator.base.sanitize import clean
from orchestrator.views.live.run import duration
from orchestrator.views.tables.cells import print_trimmed
from orchestrator.views.tables.figures import mark

if TYPE_CHECKING:
    from rich.console import Console

    from orchestrator.results.records import RunRow

#: The order is a promise to scripts: new columns go to the end.
PLAIN = ("RUN", "STATUS", "SECONDS", "CREATED", "JOB", "TARGET", "USD", "COMMIT", "GPU")
COLOURS = {"passed": "green", "failed": "red", "incomplete": "magenta", "error": "red", "lost": "red"}
_WIDE = 110


def plain(rows: list[RunRow]) -> str:
    """Columns of text two spaces apart, ``-`` for what is not known; no cell but the last has a space in it."""
    table = [PLAIN, *(_plain_row(row) for row in rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(PLAIN))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table)
    return "\n".join(lines) + "\n"


def _plain_row(row: RunRow) -> tuple[str, ...]:
    usd = f"{row.usd:.4f}" if row.usd else "-"
    cells = (row.run_id, row.status, f"{row.duration_s:.1f}", row.created, row.job, row.target, usd)
    commit = (row.git_commit or "-")[:12]
    return (*(clean(c, 80).replace(" ", "_") or "-" for c in (*cells, commit)), clean(row.gpu or "-", 60))


def print_runs(
    rows: list[RunRow], console: Console, now: float, tags: Mapping[str, Sequence[str]] | None = None
) -> None:
    """The table for people, newest first. Wide terminals get more columns; the run id says most of it anyway."""
    from rich.table import Table
    from rich.text import Text

    wide = console.width >= _WIDE
    tagged = {row.run_id: tags[row.run_id] for row in rows if tags and row.run_id in tags}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("RUN", overflow="fold")
    table.add_column("STATUS", no_wrap=True)
    table.add_column("TIME", justify="right", no_wrap=True)
    table.add_column("AGE", justify="right", no_wrap=True)
    if wide:
        table.add_column("COMMIT", no_wrap=True)
        table.add_column("USD", justify="right", no_wrap=True)
    if tagged:
        table.add_column("TAGS", overflow="ellipsis", no_wrap=True)
    table.add_column("GPU", overflow="ellipsis", no_wrap=True, style="dim")
    for row in rows:
        more = (clean(row.git_commit or "", 9), f"{row.usd:.2f}" if row.usd else "") if wide else ()
        table.add_row(
            Text(clean(row.run_id, 63)),
            mark(row.status),
            duration(row.duration_s),
            age(row.created, now),
            *(Text(cell) for cell in more),
            *((Text(" ".join(tagged.get(row.run_id, ()))),) if tagged else ()),
            Text(clean(row.gpu or "", 40)),
        )
    print_trimmed(console, table, console.width)


def age(created: str, now: float) -> str:
    """How long ago, in one unit: ``40 s``, ``12 min``, ``5 h``, ``3 d``."""
    try:
        seconds = max(0.0, now - datetime.fromisoformat(created).timestamp())
    except (ValueError, OverflowError):
        return "?"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
