"""The history of a benchmark for people: its trend, where it changed, and its records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from orchestrator.base.sanitize import clean
from orchestrator.results.compare.changes import Record, Series
from orchestrator.results.compare.history import LocatedChange, Trend
from orchestrator.views.figures import microseconds, plural, sparkline, speed, unit_name
from orchestrator.views.table import FirstThatFits, Piece, Table, more, show

#: Series told in full; of further ones a line each.
FULL, MAX_RECORDS, MAX_COMMITS = 3, 12, 5


def print_history(trends: Sequence[Trend], console: Console) -> None:
    """All series, the newest first."""
    plain, width = "utf" not in console.encoding.lower(), min(console.width, 160)
    for i, trend in enumerate(trends):
        show(console, *_brief(trend, width, plain=plain), *(_details(trend) if i < FULL else ()))


def print_names(names: Sequence[tuple[str, str]], console: Console) -> None:
    """What there is a history of."""
    table = Table("BENCHMARK", "VARIANT")
    for benchmark, variant in names:
        table.add_row(clean(benchmark, 80), clean(variant, 60))
    show(console, table)


def _brief(trend: Trend, width: int, *, plain: bool) -> Iterator[Piece]:
    points, values, unit = trend.series.points, trend.series.values, _unit(trend.series)
    yield clean(trend.series.title, 150), "bold"
    yield f"  {sparkline(values, max(10, width - 4), ascii_only=plain)}"
    days = " to ".join(dict.fromkeys((points[0].created[:10], points[-1].created[:10])))
    range_ = f"{microseconds(min(values))} to {microseconds(max(values))} {unit}"
    yield f"  {plural(len(points), 'run')}, {days}: {range_}, now {microseconds(points[-1].p50)} {unit}", "dim"


def _details(trend: Trend) -> Iterator[Piece]:
    for change in trend.changes:
        yield from _change(change, trend.series)
    if len(trend.ladder) > 1:
        yield f"\n  {plural(len(trend.ladder) - 1, 'record')} after the first run, each faster than all before it"
        yield FirstThatFits([_records(trend.ladder, run=True), _records(trend.ladder, run=False)])
    yield ""


def _change(located: LocatedChange, of: Series) -> Iterator[Piece]:
    change, unit = located.change, _unit(of)
    spell = f"for {plural(change.end - change.index, 'run')} from" if change.end else "since"
    when = change.first_after.created[:16].replace("T", " ")
    levels = f"{microseconds(change.before)} to {microseconds(change.after)} {unit}, p {change.p:.3f}"
    yield f"  {speed(change.ratio)} {spell} {when}: {levels}", "red" if change.ratio > 1 else "green"
    yield f"    first in {change.first_after.run_id}"
    old, _, new = (change.commits or "").partition("..")
    span = f"git log {clean(old[:10])}..{clean(new[:10])}"
    yield f"    {span if change.commits else 'no commit lies between the two runs'}", "dim"
    yield from ((f"    {clean(note, 120)}", "yellow") for note in change.why)
    commits = located.source.commits if located.source else ()
    yield from ((f"      {sha[:10]}  {clean(subject, 90)}", "dim") for sha, subject in commits[:MAX_COMMITS])
    yield from (Text("      ") + line for line in more(len(commits), MAX_COMMITS))


def _records(records: Sequence[Record], *, run: bool) -> Table:
    """The last records, with the first for what it began with. Without ``run``, the commit alone names it."""
    table = Table("  date", *(("run",) if run else ()), "commit", right=("p50", "gain", "over the first"))
    first = records[0]
    for record in (first, *records[1:][-(MAX_RECORDS - 1) :]):
        point = record.point
        gains = (f"{record.gain:.3f}x", f"{first.point.p50 / point.p50:.2f}x") if record is not first else ("", "")
        name = (point.run_id,) if run else ()
        commit = clean((point.git_commit or "")[:10])
        table.add_row(f"  {point.created[:10]}", *name, commit, microseconds(point.p50), *gains)
    return table


def _unit(of: Series) -> str:
    return clean(unit_name(of.points[-1].unit), 8)
