"""All timings of a run in one table: a line for each kernel, case and mode, with the fastest reference beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator.base.errors import plural
from orchestrator.base.sanitize import number, objects
from orchestrator.results.look import Shown
from orchestrator.results.timings import Ratio
from orchestrator.views.blocks import Block, Cell, Grid, Text, more
from orchestrator.views.figures import microseconds, speed, unit_name, whole
from orchestrator.views.report.build import rows, tables
from orchestrator.views.report.model import Row, Table
from orchestrator.views.report.words import bounds

MAX_ROWS = 60
#: As many kernels are named above the table.
MAX_NAMES = 3
#: Further from 1 than this, a kernel's ratio to itself says that the machine was too busy to measure on.
NULL_TOLERANCE = 0.1
_STATS, _PERCENTILES = ("n", "p50", "p90", "p99", "min", "mean"), ("p50", "p90", "p99")
_MODES = {
    "hot": "hot: warm caches", "cold": "cold: out of L2", "eager": "eager: one call from Python",
    "wall": "wall: wall-clock time of one call",
}  # fmt: skip
#: Other kernels of ours that each is compared with, those that come first.
RIVALS = 2
#: What a narrow terminal leaves out, the first first; ``-1`` are the intervals.
_OPTIONAL = ("n", "min", "SDPA\np90", "SDPA\np99", -1, "mode", "p90", "SDPA\nbackend", "p99", "vs SDPA\nflash")


def benchmark(shown: Shown) -> Iterator[Block]:
    """Caption, table and notes; nothing if the run has no timing."""
    made = list(tables([*rows(shown, several=False)]))
    modes = list(dict.fromkeys(table.mode for table in made))
    made.sort(key=lambda table: modes.index(table.mode))
    timed = [(table, row) for table in made for row in table.ours or table.rows[:1]]
    if timed:
        units = " / ".join(sorted({unit_name(table.unit) for table in made}))
        kernels = list(dict.fromkeys(row.label for _, row in timed if row.case and not row.sized))
        names = " and ".join(kernels) if len(kernels) <= MAX_NAMES else plural(len(kernels), "kernel")
        facts = (f"{names} on {made[0].machine}" if names else "", f"times in {units}")
        yield Text(" · ".join(filter(None, facts)), style="soft")
        if known := [_MODES[mode] for mode in modes if mode in _MODES]:
            yield Text(" · ".join(known), style="soft")
        rivals = [
            name for name in dict.fromkeys(row.label for _, row in timed) if any(name in r.against for _, r in timed)
        ]
        lines = [_cells(table, row, rivals[:RIVALS]) for table, row in timed[:MAX_ROWS]]
        yield _grid(lines, is_sdpa={table.rival for table in made} == {"SDPA"})
        yield from more(timed, MAX_ROWS)
        yield from _notes([document.content for document in shown.documents.of("benchmark")], made)


def _grid(lines: Sequence[dict[str, Cell]], *, is_sdpa: bool) -> Grid:
    """Without the columns that have no value, and without the mode or the kernel that all have. A reference that is not
    PyTorch's attention is called a reference."""
    several = {key for key in ("mode", "kernel") if len({line[key].text for line in lines}) > 1}
    by_mean = any(line["mean"].text and not line["p50"].text for line in lines)  # nvbench without its samples
    columns = [
        key for key in lines[0]
        if any(line[key].text for line in lines) and (key not in ("mode", "kernel") or key in several)
        and (key != "mean" or by_mean)
    ]  # fmt: skip
    left = len([key for key in columns if key in ("benchmark", "mode", "kernel")])
    optional = tuple(key if isinstance(key, int) else columns.index(key) for key in _OPTIONAL if key in (-1, *columns))
    first = "case" if any(line["kernel"].text for line in lines) else columns[0]
    titles = (
        columns[1:]
        if is_sdpa
        else [key.replace("SDPA\nbackend", "its\nname").replace("SDPA", "reference") for key in columns[1:]]
    )
    return Grid(
        (first, *titles), tuple(tuple(line[key] for key in columns) for line in lines), "Times",
        numbers=tuple(range(left, len(columns))), optional=optional,
        group=columns.index("mode") if "mode" in columns else None,
    )  # fmt: skip


def _cells(table: Table, row: Row, rivals: Sequence[str]) -> dict[str, Cell]:
    timed = [one for one in table.rows if one.is_reference and one.typical]
    best = min(timed, key=lambda one: one.typical or 0.0, default=None)
    name, own = row.case if row.case and not row.sized else row.name, {} if row.is_reference else row.stats
    flash = any("flash" in one.label for one in timed) and len(timed) > 1
    return {
        "benchmark": Cell(f"{name}: {row.error}" if row.error else name, kind="bad" if row.error else ""),
        "mode": Cell(row.mode),
        "kernel": Cell("" if row.is_reference or row.sized or not row.case else row.label),
        **{key: Cell(_stat(own, key)) for key in _STATS},
        **{f"SDPA\n{key}": Cell(_stat(best.stats if best else {}, key), kind="soft") for key in _PERCENTILES},
        "SDPA\nbackend": Cell(best.label.removeprefix("SDPA").strip() or "default" if best else "", kind="soft"),
        "vs best\nSDPA": _ratio(row.against.get("best")),
        "vs SDPA\nflash": _ratio(row.against.get("flash") if flash else None),
        **{f"vs\n{name}": _ratio(row.against.get(name)) for name in rivals},
    }


def _stat(stats: dict[str, float], key: str) -> str:
    return (whole(stats.get(key)) if stats.get(key) else "") if key == "n" else microseconds(stats.get(key))


def _ratio(ratio: Ratio | None) -> Cell:
    if ratio is None or ratio.value <= 0:
        return Cell("")
    if _undecided(ratio):
        return Cell(f"{speed(ratio.value)} ?", bounds(ratio), "doubt")
    return Cell(speed(ratio.value), bounds(ratio), "good" if ratio.value < 1 else "bad")


def _undecided(ratio: Ratio) -> bool:
    return bool(bounds(ratio)) and (ratio.low or 0.0) <= 1 <= (ratio.high or 0.0)


def _notes(contents: Sequence[dict[str, Any]], made: Sequence[Table]) -> Iterator[Block]:
    comparisons = [one for content in contents for one in objects(content.get("comparisons"))]
    nulls = [c for c in comparisons if c.get("null") is True or c.get("benchmark") == c.get("against")]
    values = [v for v in (number(c.get("ratio")) for c in nulls) if v is not None]
    if values:
        span = f"; {min(values):.3f} to {max(values):.3f} over {len(values)} rows" if len(values) > 1 else ""
        off = max(abs(v - 1) for v in values) > NULL_TOLERANCE
        line = f"null {values[0]:.3f}  the kernel against itself{span}"
        yield Text(line + (": the machine was too busy to measure" if off else ""), style="doubt" if off else "soft")
    throttled = sum(number(c.get("throttled_blocks")) or 0 for c in comparisons)
    if throttled:
        yield Text(f"the GPU's clocks were throttled in {plural(int(throttled), 'block')} of samples", style="doubt")
    rows = [row for table in made for row in table.ours]
    for row in rows:
        if row.grade:
            yield Text(f"grade {row.grade.letter} of {row.name}  next: {row.grade.next_step}")
    if any(_undecided(ratio) for row in rows for ratio in row.against.values()):
        yield Text("?: the interval contains 1, so no difference was measured", style="soft")
