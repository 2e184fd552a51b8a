"""The history of a benchmark for people: its trend, where it changed, and its records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.base.sanitize import clean
from orchestrator.results.compare.changes import Record, Series
from orchestrator.results.compare.history import LocatedChange, Trend
from orchestrator.views.tables.cells import FirstThatFits, print_trimmed, table, text
from orchestrator.views.tables.figures import microseconds, plural, speed
from orchestrator.views.tables.sparkline import sparkline

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

#: Series told in full; of further ones a line each.
FULL, MAX_RUNGS, MAX_COMMITS = 3, 12, 5


def print_history(trends: Sequence[Trend], console: Console) -> None:
    """All series, the newest first."""
    plain = "utf" not in console.encoding.lower()
    width = min(console.width, 160)
    for i, trend in enumerate(trends):
        pieces = _full(trend, width, plain=plain) if i < FULL else _brief(trend, width, plain=plain)
        for piece in pieces:
            print_trimmed(console, piece, console.width)


def print_names(names: Sequence[tuple[str, str]], console: Console) -> None:
    """What there is a history of."""
    rows = table("BENCHMARK", "VARIANT")
    for benchmark, variant in names:
        rows.add_row(text(clean(benchmark, 80)), text(clean(variant, 60)))
    print_trimmed(console, rows, console.width)


def _full(trend: Trend, width: int, *, plain: bool) -> Iterator[RenderableType]:
    yield from _brief(trend, width, plain=plain)
    for found in trend.changes:
        yield from _change(found, trend.series)
    if len(trend.ladder) > 1:
        yield text(f"\n  {plural(len(trend.ladder) - 1, 'record')} after the first run, each faster than all before it")
        yield FirstThatFits([_ladder(trend.ladder, run=True), _ladder(trend.ladder, run=False)])
    yield text("")


def _brief(trend: Trend, width: int, *, plain: bool) -> Iterator[Text]:
    points = trend.series.points
    yield text(clean(trend.series.title, 150), "bold")
    line = sparkline(trend.series.values, max(10, width - 4), ascii_only=plain)
    yield text(f"  {line}")
    unit = _unit(trend.series)
    low, high = min(trend.series.values), max(trend.series.values)
    first, last = points[0], points[-1]
    days = list(dict.fromkeys((first.created[:10], last.created[:10])))
    said = f"{plural(len(points), 'run')}, {' to '.join(days)}"
    yield text(
        f"  {said}: {microseconds(low)} to {microseconds(high)} {unit}, now {microseconds(last.p50)} {unit}", "dim"
    )


def _change(found: LocatedChange, of: Series) -> Iterator[Text]:
    change = found.change
    unit = _unit(of)
    colour = "red" if change.ratio > 1 else "green"
    spell = f"for {plural(change.end - change.index, 'run')} from" if change.end else "since"
    said = f"  {speed(change.ratio)} {spell} {change.first_after.created[:16].replace('T', ' ')}"
    figures = f"{microseconds(change.before)} to {microseconds(change.after)} {unit}, p {change.p:.3f}"
    yield text(f"{said}: {figures}", colour)
    yield text(f"    first in {change.first_after.run_id}")
    where = change.commits or "no commit lies between the two runs"
    yield text(f"    git log {_short(where)}" if change.commits else f"    {where}", "dim")
    for note in change.why:
        yield text(f"    {clean(note, 120)}", "yellow")
    if found.source:
        for sha, subject in found.source.commits[:MAX_COMMITS]:
            yield text(f"      {sha[:10]}  {clean(subject, 90)}", "dim")
        if len(found.source.commits) > MAX_COMMITS:
            yield text(f"      ... and {len(found.source.commits) - MAX_COMMITS} more", "dim")


def _short(span: str) -> str:
    old, _, new = span.partition("..")
    return f"{clean(old[:10])}..{clean(new[:10])}"


def _ladder(rungs: Sequence[Record], *, run: bool) -> RenderableType:
    """The last records, with the first for what it began with. Without ``run``, the commit alone names it."""
    shown = [rungs[0], *rungs[1:][-(MAX_RUNGS - 1) :]]
    rows = table("  date", *(("run",) if run else ()), "commit", right=("p50", "gain", "over the first"))
    for rung in shown:
        point = rung.point
        rows.add_row(
            text(f"  {point.created[:10]}"),
            *((text(point.run_id),) if run else ()),
            text(clean((point.git_commit or "")[:10])),
            text(microseconds(point.p50)),
            text("" if rung is rungs[0] else f"{rung.gain:.3f}x"),
            text("" if rung is rungs[0] else f"{rungs[0].point.p50 / point.p50:.2f}x"),
        )
    return rows


def _unit(of: Series) -> str:
    unit = of.points[-1].unit
    return "µs" if unit == "us" else clean(unit, 8)
