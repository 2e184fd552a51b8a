"""Times over shapes and sizes: the size is an axis, and kernels are rivals at one size only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.base.errors import plural
from orchestrator.views.blocks import Cell, Chart, Grid
from orchestrator.views.figures import microseconds, significant, unit_name
from orchestrator.views.report.machine_charts import WIDTH, Spec, colour, layer, nominal, numeric, scaled
from orchestrator.views.report.model import Report, Row, Table

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
