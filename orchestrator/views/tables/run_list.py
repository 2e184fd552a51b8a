"""The tables of ``fcctl results ls`` and ``fcctl results tag``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console

from orchestrator.base.sanitize import clean
from orchestrator.results.records import RunRow
from orchestrator.results.tags import Tag
from orchestrator.views.figures import age, duration
from orchestrator.views.table import Table, mark, show

#: The order is a promise to scripts: new columns go to the end.
PLAIN = ("RUN", "STATUS", "SECONDS", "CREATED", "JOB", "TARGET", "USD", "COMMIT", "GPU")
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
    wide = console.width >= _WIDE
    tagged = {row.run_id: tags[row.run_id] for row in rows if tags and row.run_id in tags}
    table = Table("RUN", header="bold")
    table.add_column("STATUS", no_wrap=True)
    for name in ("TIME", "AGE"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("COMMIT", no_wrap=True)
        table.add_column("USD", justify="right", no_wrap=True)
    if tagged:
        table.add_column("TAGS", overflow="ellipsis", no_wrap=True)
    table.add_column("GPU", overflow="ellipsis", no_wrap=True, style="dim")
    for row in rows:
        cells = [duration(row.duration_s), age(row.created, now)]
        cells += [clean(row.git_commit or "", 9), f"{row.usd:.2f}" if row.usd else ""] if wide else []
        cells += [" ".join(tagged.get(row.run_id, ()))] if tagged else []
        table.add_row(clean(row.run_id, 63), mark(row.status), *cells, clean(row.gpu or "", 40))
    show(console, table)


def print_tags(tags: Sequence[Tag], console: Console) -> None:
    """One line a tag, and one for each further run of it."""
    table = Table("TAG", "RUN", "COMMIT", "GPU", "NOTE")
    for tag in tags:
        about = (clean(tag.git_commit[:10]), clean(tag.gpu, 24), clean(tag.note, 80))
        table.add_row(tag.name, tag.runs[0], *about)
        for run in tag.runs[1:]:
            table.add_row("", run)
    show(console, table)
