"""The history of a benchmark: its trend, where it changed, and its records; on a terminal and on a page."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console

from orchestrator.base.errors import plural
from orchestrator.base.sanitize import clean
from orchestrator.results.compare.history import Change, Record, Series, Trend, best
from orchestrator.results.timings import Measurement
from orchestrator.views.blocks import Block, Cell, Chart, Folded, Grid, Picture, Text, more
from orchestrator.views.figures import microseconds, minute, scale, sparkline, speed, unit_name
from orchestrator.views.report.machine_charts import WIDTH, Spec, colour, layer, numeric, scaled
from orchestrator.views.table import show, show_blocks

#: Series shown in full on a terminal; one line for each further one.
FULL, MAX_RECORDS, MAX_COMMITS = 3, 12, 5
#: Commits named below a picture.
MAX_TICKS = 12


def print_history(trends: Sequence[Trend], console: Console) -> None:
    """All series, the newest first."""
    plain, width = "utf" not in console.encoding.lower(), min(console.width, 160)
    for i, trend in enumerate(trends):
        values = trend.series.values
        show(console, (clean(trend.series.title, 150), "bold"))
        show(console, f"  {sparkline(values, max(10, width - 4), ascii_only=plain)}", (f"  {_brief(trend)}", "dim"))
        if i < FULL:
            show_blocks(console, _details(trend))
            show(console, "")


def print_names(names: Sequence[tuple[str, str]], console: Console) -> None:
    """What there is a history of."""
    rows = tuple((clean(benchmark, 80), clean(variant, 60)) for benchmark, variant in names)
    show_blocks(console, [Grid(("BENCHMARK", "VARIANT"), rows)])


def page_blocks(
    trends: Sequence[Trend], subjects: Mapping[str, str], tags: Mapping[str, Sequence[str]]
) -> Iterator[Block]:
    """A picture of each series; those of one run are one table. ``subjects``: of the commits git knows; ``tags``: by
    run."""
    single = [trend for trend in trends if len(trend.series.points) < 2]
    for number, trend in enumerate(trend for trend in trends if trend not in single):
        title, points = clean(trend.series.title, 150), trend.series.points
        records = {record.index: f"{record.gain:.3f}x" for record in trend.ladder[1:]}
        rows = tuple(
            (_run(p, tags), microseconds(p.p50), records.get(i, ""), minute(p.created), _commit(p, subjects))
            for i, p in enumerate(points)
        )
        spec = trend_chart(trend.series, trend.changes, trend.ladder, subjects, tags)
        notes = tuple(block for change in trend.changes for block in _change(change, trend.series))
        header = ("run", f"time {_unit(trend.series)}".rstrip(), "record", "when", "commit")
        keys = tuple(point.run_id for point in points)
        yield Picture(Chart(f"trend-{number}", title, _brief(trend), spec, header, rows, keys, notes))
    if single:
        lines = tuple((clean(one.series.title, 150), f"{microseconds(one.series.values[0])} {_unit(one.series)}",
                       _run(one.series.points[0], tags)) for one in single)  # fmt: skip
        name = f"{plural(len(single), 'benchmark')} with one run"
        yield Folded(name, (Grid(("benchmark", "time", "run"), lines, name, numbers=(1,)),))


def _run(point: Measurement, tags: Mapping[str, Sequence[str]]) -> Cell:
    return Cell(point.run_id, ", ".join(tags.get(point.run_id, ())), href=f"/runs/{point.run_id}")


def _commit(point: Measurement, subjects: Mapping[str, str]) -> Cell:
    commit = point.git_commit or ""
    return Cell(clean(commit[:9]), clean(subjects.get(commit, ""), 72), "code" if commit else "")


def _brief(trend: Trend) -> str:
    points, values, unit = trend.series.points, trend.series.values, _unit(trend.series)
    days = " to ".join(dict.fromkeys((points[0].created[:10], points[-1].created[:10])))
    range_ = f"{microseconds(min(values))} to {microseconds(max(values))} {unit}"
    fastest = best(trend.series)
    last = f"now {microseconds(points[-1].p50)} {unit}, best {microseconds(fastest.p50)} {unit} in {fastest.run_id}"
    return f"{plural(len(points), 'run')}, {days}: {range_}, {last}"


def _details(trend: Trend) -> Iterator[Block]:
    for change in trend.changes:
        yield from _change(change, trend.series)
    if len(trend.ladder) > 1:
        yield _records(trend.ladder)


def _change(change: Change, of: Series) -> Iterator[Text]:
    unit = _unit(of)
    spell = f"for {plural(change.end - change.index, 'run')} from" if change.end else "since"
    levels = f"{microseconds(change.before)} to {microseconds(change.after)} {unit}, p {change.p:.3f}"
    yield Text(
        f"  {speed(change.ratio)} {spell} {minute(change.first_after.created)}: {levels}",
        style="bad" if change.ratio > 1 else "good",
    )
    yield Text(f"    first in {change.first_after.run_id}")
    old, _, new = (change.commits or "").partition("..")
    span = f"git log {clean(old[:10])}..{clean(new[:10])}"
    yield Text(f"    {span if change.commits else 'no commit between the two runs'}", style="soft")
    yield from (Text(f"    {clean(note, 120)}", style="doubt") for note in change.why)
    commits = change.source.commits if change.source else ()
    for sha, subject in commits[:MAX_COMMITS]:
        yield Text(f"      {sha[:10]}  {clean(subject, 90)}", style="soft")
    yield from more(commits, MAX_COMMITS)


def _records(records: Sequence[Record]) -> Grid:
    """The last records, with the first for what it began with."""
    rows, first = [], records[0]
    for record in (first, *records[1:][-(MAX_RECORDS - 1) :]):
        point = record.point
        gains = (f"{record.gain:.3f}x", f"{first.point.p50 / point.p50:.2f}x") if record is not first else ("", "")
        run, commit = _run(point, {}), clean((point.git_commit or "")[:10])
        rows.append((point.created[:10], run, commit, microseconds(point.p50), *gains))
    caption = f"{plural(len(records) - 1, 'record')} after the first run, each faster than all before it"
    header = ("date", "run", "commit", "p50", "vs previous", "vs first")
    return Grid(header, tuple(rows), caption, numbers=(3, 4, 5), optional=(1,))


def _unit(of: Series) -> str:
    return clean(unit_name(of.points[-1].unit), 8)


def _ticks(of: Series) -> dict[str, Any]:
    """The runs in their order, named by the commit where it is another than before; a part of them if there are
    many."""
    commits = [(p.git_commit or "")[:7] for p in of.points]
    pairs = zip(range(1, len(commits) + 1), ["", *commits], commits, strict=False)
    named = {str(i): commit for i, before, commit in pairs if commit.isalnum() and commit != before}
    kept = list(named)[:: -(-len(named) // MAX_TICKS)] if named else []
    if not kept:
        return {"tickMinStep": 1, "grid": False, "format": "d", "tickCount": min(12, len(of.points))}
    labels = json.dumps({at: named[at] for at in kept})
    return {
        "grid": False, "values": [int(at) for at in kept], "labelExpr": f"({labels})[datum.value]", "labelAngle": -35,
    }  # fmt: skip


def _said(point: Measurement, subjects: Mapping[str, str]) -> str:
    commit = point.git_commit or ""
    subject = f" ({clean(subjects[commit], 72)})" if commit in subjects else ""
    what = f"{microseconds(point.p50)} {point.unit}, commit {commit[:9] or 'unknown'}{subject}"
    return f"{what}, {minute(point.created)}, {point.run_id}"


def trend_chart(
    of: Series, changes: Sequence[Change], rungs: Sequence[Record], subjects: Mapping[str, str],
    tags: Mapping[str, Sequence[str]],
) -> Spec:  # fmt: skip
    """Medians in the order of the runs with their tags, the levels between changes, and the records."""
    best = {rung.index for rung in rungs}
    points = [
        {"i": i + 1, "v": p.p50, "record": i in best, "said": _said(p, subjects),
         "tags": ", ".join(tags.get(p.run_id, ()))}
        for i, p in enumerate(of.points)
    ]  # fmt: skip
    bounds = [0, *sorted({at for c in changes for at in (c.index, c.end) if at}), len(of.points)]
    levels = [{"from": a + 0.5, "to": b + 0.5, "v": median(of.values[a:b])} for a, b in itertools.pairwise(bounds)]
    ticks = _ticks(of)
    domain = {"domain": [0.5, len(of.points) + 0.5], "nice": False}
    title = "commit" if "values" in ticks else "run"
    unit = of.points[-1].unit.replace("us", "µs")
    # Of equal values alone an axis has one mark, whose rounded number is none of them.
    y = numeric("v", unit, scale={"domain": list(scale(of.values)), "nice": True}, axis={"tickCount": 4})
    at = {"x": numeric("i", title, axis=ticks, scale=domain), "y": y}
    level = {"x": numeric("from", title, axis=ticks, scale=domain), "x2": {"field": "to"}, "y": y}
    hue = scaled("record", [True, False], [colour("series3"), colour("series1")])
    return {
        "width": WIDTH,
        "height": 150,
        "layer": [
            layer(levels, "rule", level, color=colour("series2"), strokeWidth=1.5),
            layer(points, "point", {**at, "color": hue}, filled=True, size=45, opacity=1),
            layer(points, "text", {**at, "text": {"field": "tags"}}, dy=-10, aria=False),
        ],
    }
