"""A report as sections, the same for a page and for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fcctl_remote.base.ncu_metrics import METRICS, Metric
from orchestrator.views.figures import duration, microseconds, small, unit_name
from orchestrator.views.report import words
from orchestrator.views.report.blocks import (
    Block,
    Cell,
    Chart,
    Facts,
    Findings,
    Folded,
    Grid,
    Heading,
    Picture,
    Section,
    Text,
)
from orchestrator.views.report.model import Profiled, Report, Row, RunPart, Table
from orchestrator.views.report.tuning import Tuned

_SPEEDUPS = "A speedup is the other's time over ours, with its 95 % interval where both were timed in turns."
_CEILING = "The nearest ceiling is the least time this GPU needs for the shape, by its measured peaks."
_RULES = (
    "By stated rules (docs/report.md): a finding is there because the number beside it passed the threshold beside"
    " that. Ordered by how much of the time it concerns, which promises no speedup."
)
_SHARES = (
    "Shares of the default configuration's time, below 1 is faster; elites were measured again in turns with it, with"
    " 95 % intervals, on inputs that the search never saw."
)
_COMPARED = {"vs SDPA math": "math", "vs SDPA flash": "flash", "vs fastest SDPA": "best"}
_REACH, _GRADE = "at the nearest ceiling", "grade"
#: Metrics with a column of their own in the report.
_HIGHLIGHTS = tuple(metric for metric in METRICS if metric.title)


def sections(report: Report, charts: Sequence[Chart]) -> list[Section]:
    """Those that there is something to say in, but the top line, which is always there."""
    found = [
        Section("top-line", "Top line", list(_top_line(report))),
        Section("targets", "Targets", list(_targets(report))),
        Section("levers", "Bottlenecks and next levers", list(_levers(report))),
        Section("tuning", "Tuning", list(_tunings(report))),
        Section("pictures", "Pictures", [Picture(chart) for chart in charts]),
        Section("ncu", "Nsight Compute", list(_profiles([p for p in report.profiles if p.metrics]))),
        Section("other", "Other shapes and modes", list(_others(report))),
    ]
    for run in report.runs:
        title = "Run" if len(report.runs) == 1 else f"Run {run.run_id}"
        found.append(Section(f"run-{run.run_id}", title, list(_run(run))))
    return [section for section in found if section.blocks]


# ------------------------------------------------------------------------------------------------ timings
def _top_line(report: Report) -> Iterator[Block]:
    table = report.headline
    if table is None:
        yield Text(f"No timings in {'this run' if len(report.runs) == 1 else 'these runs'}.")
        return
    yield timings(table, report)
    yield Text(f"{_SPEEDUPS} {_CEILING if any(r.roofline_pct is not None for r in table.rows) else ''}", note=True)


def _others(report: Report) -> Iterator[Block]:
    for table in report.tables[1:]:
        yield Folded(words.heading(table, report), (timings(table, report),))


def timings(table: Table, report: Report) -> Grid:
    """The timings of one table, with the columns that any row has a figure for."""
    columns = [name for name, key in _COMPARED.items() if any(row.against.get(key) for row in table.rows)]
    columns += [_REACH] if any(row.roofline_pct is not None for row in table.rows) else []
    columns += [_GRADE] if any(row.grade for row in table.rows) else []
    header = ("kernel", f"p50, {unit_name(table.unit)}", "p90", "p99", *columns, "max error", "status")
    return Grid(
        header,
        tuple(_timing(row, columns) for row in table.rows),
        f"Times on {words.heading(table, report)}",
        numbers=tuple(range(1, len(header) - 1)),
        references=tuple(i for i, row in enumerate(table.rows) if row.is_reference),
    )


def _timing(row: Row, columns: Sequence[str]) -> tuple[str | Cell, ...]:
    times = [microseconds(row.stats.get(key)) for key in ("p50", "p90", "p99")]
    if "p50" not in row.stats and row.typical is not None:
        times[0] = f"{microseconds(row.typical)} (mean)"
    error = small(row.correctness.max_err) if row.correctness else ""
    return (row.label, *times, *(_compared(row, c) for c in columns), error, Cell(row.status, kind="status"))


def _compared(row: Row, column: str) -> str | Cell:
    if column == _GRADE:
        return row.grade.letter if row.grade else ""
    if column == _REACH:
        bound = f"({row.roofline_bound})" if row.roofline_bound else ""
        return "" if row.roofline_pct is None else Cell(f"{row.roofline_pct:.0f} %", bound)
    ratio = row.against.get(_COMPARED[column])
    interval = words.speedup_interval(ratio)
    return Cell(words.speedup(ratio), f"({interval})" if interval else "")


# ------------------------------------------------------------------------------------------------ targets and profiles
def _targets(report: Report) -> Iterator[Block]:
    rows = tuple(
        (t.step + report.suffix(t.run), Cell(t.expr, kind="code"), t.value, Cell(t.verdict, t.hint, "status"))
        for t in report.targets
    )
    if rows:
        yield Grid(("step", "target", "is", "verdict"), rows, "Success gates of the jobs")


def _levers(report: Report) -> Iterator[Block]:
    found = [one for one in words.levers(report) if one.findings]
    if found:
        yield Text(_RULES, note=True)
    for i, one in enumerate(found):
        if i:
            yield Folded(one.label, (Findings(one.findings),))
        else:
            yield from (Heading(one.label), Findings(one.findings))


def _profiles(profiles: Sequence[Profiled]) -> Iterator[Block]:
    if profiles:
        columns = (f"{metric.title}{_target(metric, profiles)}" for metric in _HIGHLIGHTS)
        yield Grid(
            ("kernel", "shape", *columns, "warps wait for"),
            tuple(profile_cells(p) for p in profiles),
            "One profiled launch of each kernel; a profiler's duration is no benchmark and is not shown",
            numbers=tuple(range(2, 2 + len(_HIGHLIGHTS))),
        )


def _target(metric: Metric, profiles: Sequence[Profiled]) -> str:
    """`` (target 50 %)``, where all profiles have the same."""
    least = {profile.targets.get(metric.key) for profile in profiles}
    value = least.pop()
    return f" (target {value:g}{metric.unit and f' {metric.unit}'})" if value is not None and not least else ""


def profile_cells(profile: Profiled) -> tuple[str, ...]:
    """A row of the table of NCU highlights."""
    waits = ", ".join(f"{name.replace('_', ' ')} {share:.0f} %" for name, share in profile.top_stalls)
    return (profile.label, profile.shape, *(_metric(profile, metric) for metric in _HIGHLIGHTS), waits)


def _metric(profile: Profiled, metric: Metric) -> str:
    """``56.0 %, met``: the figure, and how it stands to its target if it has one; empty without the figure."""
    value, least = profile.metrics.get(metric.key), profile.targets.get(metric.key)
    if value is None:
        return ""
    figure = f"{value:.1f} %" if metric.unit == "%" else f"{value:.0f} {metric.unit}".rstrip()
    return figure if least is None else f"{figure}, {'met' if value >= least else 'not met'}"


# ------------------------------------------------------------------------------------------------ searches and runs
def _tunings(report: Report) -> Iterator[Block]:
    if report.tunings:
        yield Text(_SHARES, note=True)
    for one in report.tunings:
        yield from _tuning(one, report.suffix(one.run))


def _tuning(one: Tuned, suffix: str) -> Iterator[Block]:
    yield Heading(one.label, f"on {one.machine}{suffix}")
    yield Text(one.verdict)
    yield Facts(one.facts)
    yield from (grid for grid in (one.controls, one.elites, one.reasons) if grid.rows)


def _run(run: RunPart) -> Iterator[Block]:
    yield Facts(tuple((n, Cell(v, kind="status") if n == "status" else v) for n, v in words.run_facts(run)))
    steps = tuple((s.id, s.activity, duration(s.seconds), Cell(s.status, kind="status")) for s in run.steps)
    if steps:
        yield Grid(("step", "activity", "time", "status"), steps, "Steps", numbers=(2,))
    costs = tuple((c.activity, f"{c.seconds:.0f} s", f"${c.usd:.4f}" if run.usd else "") for c in run.cost)
    if costs:
        yield Grid(("activity", "time", "cost"), costs, "Cost by activity", numbers=(1, 2))
    yield from (Text(f"Not shown: {problem}") for problem in run.problems)
