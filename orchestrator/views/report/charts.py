"""The charts of a report, here of times and searches; and times over shapes and sizes: the size is an axis, and kernels
are rivals at one size only."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fcctl_remote.base.estimates import quantile
from orchestrator.base.errors import plural
from orchestrator.base.sanitize import clean
from orchestrator.results.tuning import Control, Value
from orchestrator.views.blocks import Cell, Chart, Grid
from orchestrator.views.figures import microseconds, significant, unit_name
from orchestrator.views.report.machine_charts import (
    MAX_ROWS,
    SERIES,
    WIDTH,
    Spec,
    colour,
    layer,
    nominal,
    numeric,
    rooflines,
    scaled,
    stalls,
    telemetry,
)
from orchestrator.views.report.model import Report, Row, Table, Tuned, curve_name

HEIGHT = 180
#: Trials after which the numbers beside the picture are given.
_MARKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384, 65536)


def best_so_far(tuned: Tuned) -> Chart | None:
    """After each trial the least of the default's time that a configuration took; None before there is one."""
    curves = [(curve_name(c, i > 0), c) for i, c in enumerate(tuned.curves) if c.best is not None]
    if not curves:
        return None
    data = [point for name, curve in curves for point in _points(name, curve)]
    names = [name for name, _ in curves]
    spec = {
        "width": WIDTH, "height": HEIGHT,
        **layer(data, "line", {
            "x": numeric("trial", "trials", axis={"tickMinStep": 1}),
            "y": numeric("best", "best time / default's time", scale={"zero": False}),
            "color": scaled("name", names, map(colour, SERIES[: len(names)]), legend={"orient": "top"}),
            "strokeDash": scaled("name", names, [[1, 0], [6, 4], [2, 3]][: len(names)]),
        }, interpolate="step-after", strokeWidth=2),
    }  # fmt: skip
    longest = max(len(curve.curve) for _, curve in curves)
    marks = [*(m for m in _MARKS if m < longest), longest]
    rows = tuple((name, *(_after(curve, mark) for mark in marks)) for name, curve in curves)
    caption = (
        f"The best configuration of {tuned.label} found after each trial, relative to the default's time. The"
        " search adds 5 % to the time of a short measurement; configurations with wrong results are not shown."
    )
    if len(curves) > 1:
        caption += " The dashed line is a random search with the same budget."
    return Chart("search", "Search", caption, spec, ("", *(f"after {mark}" for mark in marks)), rows)


def _points(name: str, curve: Control) -> Iterator[Spec]:
    """Where the line changes, and where it ends."""
    before: float | None = None
    for trial, best in enumerate(curve.curve, 1):
        if best is not None and (best != before or trial == len(curve.curve)):
            yield {"name": name, "trial": trial, "best": round(best, 5)}
            before = best


def _after(curve: Control, trials: int) -> str:
    reached = curve.curve[:trials][-1] if curve.curve else None
    return "" if reached is None else f"{reached:.4f}"


#: Trials drawn, the best of which are brought out; and parameters and their values that have room for words.
MAX_LINES, BEST, MAX_AXES, MAX_VALUES = 300, 8, 12, 12


def parallel(tuned: Tuned) -> Chart | None:
    """Each timed trial as a line over its parameters and its time: which values the best ones share."""
    ranked = sorted(tuned.result.timed, key=lambda trial: trial.value)
    kept = ranked[:: -(-len(ranked) // MAX_LINES)] if ranked else []
    values = {
        name: _in_order({trial.params.get(name) for trial in kept}) for name in (ranked[0].params if ranked else ())
    }
    axes = [name for name, known in values.items() if len(known) > 1][:MAX_AXES]
    if len(kept) < 2 or not axes:
        return None
    time, worst = "time", kept[-1].value - kept[0].value or 1.0
    names = {name: clean(name, 24) for name in axes}
    data: list[Spec] = []
    for rank, trial in list(enumerate(kept))[::-1]:  # the best on top
        places = {names[n]: values[n].index(trial.params.get(n)) / (len(values[n]) - 1) for n in axes}
        places[time] = (trial.value - kept[0].value) / worst
        said = f"trial {trial.trial}: {trial.value:.3f} of the default's time"
        data += [
            {"axis": axis, "at": at, "trial": trial.trial, "best": rank < BEST, "said": said}
            for axis, at in places.items()
        ]  # fmt: skip
    words = [
        {"axis": names[n], "at": i / (len(values[n]) - 1), "word": clean(value, 16)}
        for n in axes for i, value in enumerate(values[n]) if len(values[n]) <= MAX_VALUES
    ]  # fmt: skip
    words += [{"axis": time, "at": at, "word": f"{v:.3f}"} for at, v in ((0, kept[0].value), (1, kept[-1].value))]
    x = nominal("axis", sort=[*names.values(), time], axis={"labelAngle": -30, "grid": True, "domain": False})
    y = numeric("at", axis=None)
    hue = scaled("best", [False, True], [colour("soft"), colour("series2")])
    lines = {"x": x, "y": y, "detail": {"field": "trial"}, "color": hue,
             "opacity": scaled("best", [False, True], [0.1, 1])}  # fmt: skip
    labels = {"x": x, "y": y, "text": {"field": "word"}}
    layers = [layer(data, "line", lines, strokeWidth=1.4), layer(words, "text", labels, align="left", dx=4, dy=-7)]
    spec = {"width": WIDTH, "height": 260, "layer": layers}
    rows = tuple(
        (str(t.trial), f"{t.value:.4f}", *(clean(t.params.get(name, ""), 16) for name in axes)) for t in ranked[:BEST]
    )
    caption = (
        f"{len(kept)} of {plural(len(ranked), 'timed trial')} of {tuned.label}: each line is a configuration, the best"
        f" {BEST} in colour. Time is relative to the default's; lower is better."
    )
    return Chart("parameters", "Parameters of the trials", caption, spec, ("trial", time, *names.values()), rows)


def _in_order(values: set[Value | None]) -> list[Value | None]:
    """Numbers by size, then words."""

    def place(value: Value | None) -> tuple[bool, float, str]:
        return (False, float(value), "") if isinstance(value, int | float) else (True, 0.0, str(value))

    return sorted(values, key=place)


MAX_BINS = 48
#: Percent of the samples that the picture of the spread leaves out at each end; the numbers beside it do not.
_TRIM = 1.0


def spread(table: Table) -> Chart | None:
    """Where each timing's samples lie around its own median, in percent: how steady the machine was."""
    rows = [r for r in table.rows if len(r.samples) >= 10 and r.p50][:MAX_ROWS]
    if not rows:
        return None
    deviations = {_unique(r, rows): sorted(100 * (s / (r.p50 or 1.0) - 1) for s in r.samples) for r in rows}
    ends = [(quantile(d, _TRIM / 100), quantile(d, 1 - _TRIM / 100)) for d in deviations.values()]
    low, high = min(e[0] for e in ends), max(e[1] for e in ends)
    width = (high - low) / MAX_BINS or 0.01
    data = [cell for name, values in deviations.items() for cell in _bins(name, values, low, width)]
    deviation = "deviation from the timing's own median, percent"
    shade = {"type": "sqrt", "range": [0.12, 1]}
    spec = {
        "width": WIDTH, "height": {"step": 22},
        **layer(data, "rect", {
            "y": nominal("name"), "x": numeric("from", deviation, scale={"nice": False}), "x2": {"field": "to"},
            "opacity": numeric("share", scale=shade,
                               legend={"title": "percent of samples", "orient": "top", "format": ".0f"}),
        }, color=colour("series1")),
    }  # fmt: skip
    cells = tuple(
        (name, str(len(values)), *(f"{quantile(values, q):+.2f} %" for q in (0.01, 0.1, 0.9, 0.99, 1)))
        for name, values in deviations.items()
    )
    caption = (
        f"How the samples of each timing{_of(table)} are distributed around its median; darker means more samples."
        f" The outermost {_TRIM:g} % at each end are not drawn; the table below shows the maximum."
    )
    header = ("", "samples", "p1", "p10", "p90", "p99", "max")
    return Chart("latency", "Latency distributions", caption, spec, header, cells)


def _bins(name: str, values: list[float], low: float, width: float) -> Iterator[Spec]:
    counts: dict[int, int] = {}
    for value in values:
        i = math.floor((value - low) / width)
        if 0 <= i <= MAX_BINS:
            counts[min(i, MAX_BINS - 1)] = counts.get(min(i, MAX_BINS - 1), 0) + 1
    for i, count in sorted(counts.items()):
        share = 100 * count / len(values)
        start = low + i * width
        yield {
            "name": name, "from": round(start, 4), "to": round(start + width, 4), "share": round(share, 2),
            "said": f"{name}: {share:.0f} % of samples at {start:+.2f} to {start + width:+.2f} %",
        }  # fmt: skip


def _unique(row: Row, rows: list[Row]) -> str:
    """The row's label; with its place where two have the same."""
    same = [r for r in rows if r.label == row.label]
    return row.label if len(same) == 1 else f"{row.label} #{next(i for i, r in enumerate(same) if r is row) + 1}"


def _of(table: Table) -> str:
    what = " ".join(w for w in (table.case, f"({table.mode})" if table.mode else "") if w)
    return f" of {what}" if what else ""


def charts(report: Report) -> list[Chart]:
    """Every picture there is data for. With several machines or runs, each names its own."""
    return [chart for chart in _all(report) if chart is not None]


def _all(report: Report) -> Iterator[Chart | None]:
    first = {table.machine: table for table in reversed(report.tables) if table.ours}
    for i, machine in enumerate(report.gpus):
        if machine in first:
            made = spread(first[machine])
            yield _named(made, f"-{i + 1}", machine) if len(report.gpus) > 1 else made
    yield from heat_maps(report)
    yield from rooflines(report)
    yield stalls(report.profiles)
    for i, one in enumerate(report.tunings, 1):
        for made in (best_so_far(one), parallel(one)):
            yield _named(made, f"-{i}", one.label) if len(report.tunings) > 1 else made
    for run in report.runs:
        made = telemetry(run)
        yield _named(made, f"-{run.run_id[-6:]}", run.run_id) if len(report.runs) > 1 else made


def _named(chart: Chart | None, suffix: str, said: str) -> Chart | None:
    return chart and replace(chart, name=chart.name + suffix, title=f"{chart.title}, {said}")


#: Kernels and shapes of one picture or table.
KERNELS, SHAPES = 12, 16
#: A whole number of a name, with its key: ``64`` of ``copy/64`` and ``test[64]``, ``n=64`` of ``copy n=64``.
_NUMBER = re.compile(r"(?:(?<=[/\[ ,(])|^)(?:([A-Za-z_]\w{0,15})=)?\d+(?=$|[/\]),: ])")
#: Keys of what a kernel is built with: such variants are rivals.
_BUILT = re.compile(r"block|tile|stage|warp|thread|unroll|vec|split|iteration|repeat", re.IGNORECASE)
_LEFT = re.compile(r"[\[(][\s,/]*[\])]|[\s,/:]+$|^[\s,/:]+|(?<=[/, ])[/, ]+|,(?=\])")


def size_in(name: str) -> tuple[str, str]:
    """The kernel and the size that a benchmark's name says: ``copy`` and ``n=64`` of ``copy[n=64]``."""
    sizes = [m for m in _NUMBER.finditer(name) if not (m[1] and _BUILT.search(m[1]))]
    kernel = name
    for found in reversed(sizes):
        kernel = kernel[: found.start()] + kernel[found.end() :]
    return _LEFT.sub("", kernel).strip(), ", ".join(m[0] for m in sizes)


def by_size(rows: Sequence[Row]) -> list[Row]:
    """Rows of one document that are of no case: those of a kernel at several sizes get the size as their case."""
    split = {row.label: size_in(row.label) for row in rows if not row.case}
    sizes: dict[str, set[str]] = {}
    for kernel, size in split.values():
        if size:
            sizes.setdefault(kernel, set()).add(size)

    def sized(row: Row) -> Row:
        kernel, size = split.get(row.label, ("", ""))
        if row.case or not size or len(sizes[kernel]) < 2:
            return row
        return replace(row, label=kernel or "time", case=size, sized=True)

    return [sized(row) for row in rows]


def groups(report: Report) -> list[list[Table]]:
    """Tables of several shapes with kernels of ours, by machine, mode and unit."""
    found: dict[tuple[str, str, str], list[Table]] = {}
    for table in report.tables:
        if table.case and any(row.typical for row in table.ours):
            found.setdefault((table.machine, table.mode, table.unit), []).append(table)
    return [tables[:SHAPES] for tables in found.values() if len(tables) > 1]


def _kernels(tables: Sequence[Table]) -> list[str]:
    return list(dict.fromkeys(row.label for table in tables for row in table.ours))[:KERNELS]


def _times(tables: Sequence[Table], kernel: str) -> list[Row | None]:
    return [next((row for row in table.ours if row.label == kernel), None) for table in tables]


def sizes_grid(tables: Sequence[Table]) -> Grid:
    """A line for each kernel, a column for each size; the fastest of each size is bold."""
    kernels = _kernels(tables)
    least = [min((row.typical for row in table.ours if row.typical), default=0.0) for table in tables]
    lines: list[tuple[str | Cell, ...]] = []
    for kernel in kernels:
        cells = [row.typical if row else None for row in _times(tables, kernel)]
        best = (len(kernels) > 1 and time == low for time, low in zip(cells, least, strict=True))
        lines.append(
            (kernel, *(Cell(microseconds(t), kind="bold" if b else "") for t, b in zip(cells, best, strict=True)))
        )
    unit, mode = unit_name(tables[0].unit), tables[0].mode
    caption = f"Time in {unit} at each size{f', {mode}' if mode else ''}"
    return Grid(
        ("kernel", *(table.case for table in tables)), tuple(lines), caption, numbers=tuple(range(1, len(tables) + 1))
    )


def verdict(tables: Sequence[Table]) -> str:
    """One kernel's range over the sizes; of several, how often each is the fastest."""
    kernels, count = _kernels(tables), plural(len(tables), "size")
    if len(kernels) > 1:
        wins = [table.ours[0].label for table in tables]
        ranked = sorted(dict.fromkeys(wins), key=lambda name: -wins.count(name))
        if len(ranked) == 1:
            return f"{ranked[0]} is the fastest at all {count}."
        return f"Fastest of {count}: {', '.join(f'{name} at {wins.count(name)}' for name in ranked)}."
    timed = [(table, table.ours[0].typical or 0.0) for table in tables]
    (low, least), (high, most) = min(timed, key=lambda one: one[1]), max(timed, key=lambda one: one[1])
    unit = unit_name(low.unit)
    return (
        f"{kernels[0]} takes {microseconds(least)} {unit} at {low.case} to {microseconds(most)} {unit} at {high.case},"
        f" over {count}."
    )


# ------------------------------------------------------------------------------------------------ the heat map
def heat_maps(report: Report) -> Iterator[Chart]:
    """Kernels over shapes: how many times as fast as the reference, or as the fastest kernel at that shape."""
    for number, tables in enumerate(groups(report), 1):
        kernels = _kernels(tables)
        if len(kernels) > 1 or any(row.against.get("best") for table in tables for row in table.ours):
            yield _heat_map(tables, kernels, f"shapes-{number}", report)


def _heat_map(tables: Sequence[Table], kernels: Sequence[str], name: str, report: Report) -> Chart:
    referenced = any(row.against.get("best") for table in tables for row in table.ours)
    data: list[Spec] = []
    lines = []
    for kernel in kernels:
        texts = []
        for table, row in zip(tables, _times(tables, kernel), strict=True):
            speedup = _speedup(row, table, referenced=referenced)
            texts.append("" if speedup is None else f"{significant(speedup)}x")
            if speedup is not None and row is not None:
                time = f"{microseconds(row.typical)} {unit_name(table.unit)}"
                data.append({"kernel": kernel, "shape": table.case, "text": texts[-1], "better": speedup >= 1,
                             "strength": min(1.0, abs(speedup - 1) / 2 if speedup >= 1 else 1 - speedup),
                             "said": f"{kernel} on {table.case}: {time}, {texts[-1]}"})  # fmt: skip
        lines.append((kernel, *texts))
    shapes = [table.case for table in tables]
    what = f"the fastest {tables[0].rival}" if referenced else "the fastest kernel at that size"
    mode = tables[0].mode
    where = ", ".join(filter(None, (mode, tables[0].machine if len(report.gpus) > 1 else "")))
    caption = (
        f"How many times as fast as {what}: green is above 1, orange below 1; a stronger colour is further from 1."
    )
    plain = {"domain": False, "ticks": False}
    x = nominal("shape", sort=shapes, axis={**plain, "orient": "top", "labelAngle": -35 if len(shapes) > 5 else 0})
    y = nominal("kernel", sort=[*kernels], axis=plain)
    strength = {"domain": [0, 1], "range": [0.12, 0.6]}
    cells = {"x": x, "y": y, "color": scaled("better", [True, False], [colour("series3"), colour("series2")]),
             "opacity": numeric("strength", legend=None, scale=strength)}  # fmt: skip
    labels = layer(data, "text", {"x": x, "y": y, "text": {"field": "text"}}, aria=False)
    spec = {"width": WIDTH, "height": {"step": 30}, "layer": [layer(data, "rect", cells), labels]}
    title = f"Shapes{f', {where}' if where else ''}"
    return Chart(name, title, caption, spec, ("kernel", *shapes), tuple(lines))


def _speedup(row: Row | None, table: Table, *, referenced: bool) -> float | None:
    if row is None or not row.typical:
        return None
    if referenced:
        ratio = row.against.get("best")
        return 1 / ratio.value if ratio and ratio.value > 0 else None
    return min(one.typical for one in table.ours if one.typical) / row.typical
