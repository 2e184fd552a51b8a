"""A report as sections, the same for a page and for Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from urllib.parse import quote

from orchestrator.base.clock import epoch
from orchestrator.base.errors import plural
from orchestrator.base.sanitize import clean
from orchestrator.results.records import CostLine, StepRecord
from orchestrator.results.timings import Ratio
from orchestrator.views.blocks import (
    Bar,
    Bars,
    Block,
    Cell,
    Chart,
    Facts,
    Findings,
    Folded,
    Grid,
    Heading,
    Line,
    Picture,
    Section,
    Text,
    plain,
)
from orchestrator.views.figures import duration, gate_value, kind, microseconds, small, speed, unit_name, usd
from orchestrator.views.report import words
from orchestrator.views.report.build import profile_blocks
from orchestrator.views.report.charts import sizes_grid
from orchestrator.views.report.model import Report, Row, RunPart, Table
from orchestrator.views.report.model import blocks as search_blocks
from orchestrator.views.tables.compare import forest, sides

_SPEEDUPS = "A ratio to a reference has a 95 % interval if both were measured interleaved."
_CEILING = "Percent of roofline: the shortest time possible at this GPU's measured peaks, divided by the measured time."
_RULES = (
    "Each rule (fcctl help report) compares a number with a threshold; both are shown. The order is by the share of the"
    " time that the finding concerns, which is not an expected speedup."
)
#: The kernel that a project began with.
BASELINE = "baseline"
#: Bars longer than this many of the shortest say nothing of it; and bars that are drawn.
LONGEST, MAX_BARS = 12, 24
#: What a run waited longer for is another day's matter: its time line would show nothing else.
MAX_QUEUE_S = 3600.0
#: What a gate compares with, at the end of its expression.
_LIMIT = re.compile(r"(.{3,}?) ((?:[<>]=?|==|!=) -?[\w.+\"]+)( \(optional\))?")
_ROLES = {"bad": "bad"}
#: Verdicts of gates, those that need a look first.
_URGENT = ("fail", "unavailable", "pass", "not_applicable")


def sections(
    report: Report, charts: Sequence[Chart] = (), order: Sequence[str] = ("compared", "results")
) -> list[Section]:
    """Those that there is something to say in, those in ``order`` first; the results are always there."""
    parts = [
        Section("compared", "Comparison", [*_comparison(report)]),
        Section("results", "Results", list(_top_line(report))),
        Section("gates", "Gates", list(_gates(report))),
        Section("levers", "Bottlenecks and next levers", list(_levers(report))),
        Section("tuning", "Tuning", list(_tunings(report))),
        Section("pictures", "Charts", [Picture(chart) for chart in charts]),
        Section("ncu", "Nsight Compute", list(profile_blocks(report.profiles))),
        Section("other", "Other shapes and modes", list(_others(report))),
    ]
    for run in report.runs:
        tail, title = ("", "") if len(report.runs) == 1 else (f"-{run.run_id}", f" of {run.run_id}")
        parts.append(Section(f"steps{tail}", f"Steps{title}", list(_timeline(run))))
        parts.append(Section(f"machine{tail}", f"Run and machine{title}", list(_run(run))))
    shown = [section for section in parts if section.blocks]
    return sorted(shown, key=lambda one: order.index(one.id) if one.id in order else len(order))


def _comparison(report: Report) -> Iterator[Block]:
    if report.comparison:
        yield sides(report.comparison)
        yield forest(report.comparison, MAX_BARS)


# ------------------------------------------------------------------------------------------------ timings
def _top_line(report: Report) -> Iterator[Block]:
    table = report.headline
    if table is None:
        yield Text(f"No benchmark results in {'this run' if len(report.runs) == 1 else 'these runs'}.")
        return
    if sizes := words.sized(report):
        yield sizes_grid(sizes)
    else:
        bars, figures = [*_bars(table, report)], timings(table, report)
        yield from bars
        yield Folded("Figures of all kernels", (figures,), is_open=True) if bars else figures
    notes = {_SPEEDUPS: any(row.against for row in table.rows),
             _CEILING: any(row.roofline_pct is not None for row in table.rows)}  # fmt: skip
    if any(notes.values()):
        yield Text(" ".join(note for note, holds in notes.items() if holds), note=True)


def _bars(table: Table, report: Report) -> Iterator[Bars]:
    """The fastest of ours, beside each reference and our other kernels; what takes much longer is in the table."""
    timed = [(row, row.typical) for row in table.rows if row.typical]
    least = min((time for row, time in timed if not row.is_reference), default=0.0)
    bars = []
    for row, time in sorted((one for one in timed if one[1] <= LONGEST * least), key=lambda one: one[1])[:MAX_BARS]:
        role = "reference" if row.is_reference else "good" if time == least else "plain"
        low, high = row.stats.get("min"), row.stats.get("p90")
        text = _time(row, table) + (_over_baseline(row, table) if role == "good" else "")
        bars.append(Bar(row.label, time, text, role, low, high))
    if len(bars) > 1:
        what = "the line is from the fastest sample to the 90th percentile"
        longer = len(timed) - len(bars)
        left_out = f"; only in the table: {plural(longer, 'slower kernel')}" if longer else ""
        yield Bars(f"Time{words.on(table, report)}, lower is better; {what}{left_out}", tuple(bars))


def _others(report: Report) -> Iterator[Block]:
    for table in report.tables[0 if words.sized(report) else 1 :]:
        fastest = "".join(
            f": {row.label} {_time(row, table)}{_over_baseline(row, table)}" for row in table.ours[:1] if row.typical
        )
        yield Folded(words.heading(table, report) + fastest, (timings(table, report),))


def _time(row: Row, table: Table) -> str:
    """``4.51 µs, 2.02x faster than the fastest SDPA [2.01, 2.03]``; what is known of it."""
    faster = _faster(row.against.get("best"), f"the fastest {table.rival}")
    return f"{microseconds(row.typical)} {unit_name(table.unit)}{faster}"


def _over_baseline(row: Row, table: Table) -> str:
    """``, 38.2x faster than baseline``: as measured in turns, else by the medians; empty without one."""
    base = next((one.p50 for one in table.ours if one.label == BASELINE and one is not row), None)
    by_medians = Ratio(row.p50 / base) if row.p50 and base else None
    return _faster(row.against.get(BASELINE) or by_medians, BASELINE)


def _faster(ratio: Ratio | None, name: str) -> str:
    return f", {words.than(ratio, name)} {words.bounds(ratio)}".rstrip() if ratio and ratio.value > 0 else ""


def timings(table: Table, report: Report) -> Grid:
    """The timings of one table, with the columns that any row has a figure for."""
    lines = [_timing(row, table) for row in table.rows]
    columns = [
        name for name in lines[0] if name in ("kernel", "status") or any(map(plain, (one[name] for one in lines)))
    ]
    return Grid(
        tuple(columns), tuple(tuple(line[name] for name in columns) for line in lines),
        f"Times{words.on(table, report)}", numbers=tuple(range(1, len(columns) - 1)),
        references=tuple(i for i, row in enumerate(table.rows) if row.is_reference),
    )  # fmt: skip


def _timing(row: Row, table: Table) -> dict[str, str | Cell]:
    times = [microseconds(row.stats.get(key)) for key in ("p50", "p90", "p99")]
    if "p50" not in row.stats and row.typical is not None:
        times[0] = f"{microseconds(row.typical)} (mean)"
    bound = f"({row.roofline_bound})" if row.roofline_bound else ""
    compared = {"math": "SDPA math", "flash": "SDPA flash", "best": f"fastest {table.rival}"}
    return {
        "kernel": row.label, **dict(zip((f"p50, {unit_name(table.unit)}", "p90", "p99"), times, strict=True)),
        **{f"vs {name}": _compared(row.against.get(key)) for key, name in compared.items()},
        "of roofline": "" if row.roofline_pct is None else Cell(f"{row.roofline_pct:.0f} %", bound),
        "grade": row.grade.letter if row.grade else "",
        "max error": small(row.correctness.max_err) if row.correctness else "",
        "status": Cell(row.status, kind="status"),
    }  # fmt: skip


def _compared(ratio: Ratio | None) -> str | Cell:
    return Cell(speed(ratio.value), words.bounds(ratio)) if ratio and ratio.value > 0 else ""


# ------------------------------------------------------------------------------------------------ gates and profiles
def _gates(report: Report) -> Iterator[Block]:
    """Those that failed first; of each the measured value beside its limit."""
    rows: dict[bool, list[Line]] = {False: [], True: []}
    for run, step, gate in sorted(words.gates(report), key=lambda one: _URGENT.index(one[2].verdict)):
        what, limit, expr = words.expression(gate), "", gate.expr
        if " and " not in expr and " or " not in expr and (compares := _LIMIT.fullmatch(what)):
            what, limit = compares[1] + (compares[3] or ""), compares[2]
        hint = clean(gate.hint or "", 300) if gate.verdict in ("fail", "unavailable") else ""
        place = clean(step.id, 40) + report.suffix(run.run_id)
        line = (Cell(gate.verdict, kind="status"), Cell(what, hint, "code"), gate_value(gate.value), limit, place)
        rows[gate.verdict in _URGENT[2:]].append(line)
    header = ("verdict", "gate", "measured", "limit", "step")
    passed = sum(gate.verdict == "pass" for *_, gate in words.gates(report))
    of = f"of {plural(len(rows[False]) + passed, 'gate')}"
    if rows[False]:
        yield Grid(header, tuple(rows[False]), f"{len(rows[False])} {of} did not pass", (2, 3))
    if rows[True]:
        done = Grid(header, tuple(rows[True]), "Gates of the job", (2, 3))
        yield Folded(f"{passed} {of} passed", (done,), is_open=True)


def _levers(report: Report) -> Iterator[Block]:
    kernels = [one for one in words.levers(report) if one.findings]
    if kernels:
        yield Text(_RULES, note=True)
    for i, one in enumerate(kernels):
        if i:
            yield Folded(one.label, (Findings(one.findings),))
        else:
            yield from (Heading(one.label), Findings(one.findings))


# ------------------------------------------------------------------------------------------------ searches and runs
def _tunings(report: Report) -> Iterator[Block]:
    for one in report.tunings:
        yield Heading(one.label, f"on {one.machine}{report.suffix(one.run)}")
        yield from islice(search_blocks(one), 1, None)  # its verdict is among the report's first sentences


#: Parts of a machine's time before the first step and after the last one, in their order.
_BEFORE, _AFTER = ("boot", "sync"), ("collect", "stop", "minimum")
_LONGER = {"minimum": "minimum charge"}


def _timeline(run: RunPart) -> Iterator[Bars]:
    """Each part of the run from its start to its end with its dollars, the steps with how they ended."""
    record, costs = run.record, {line.activity: line for line in run.record.cost.breakdown}
    at = [epoch(step.started) for step in record.steps]
    first = begun = min((one for one in at if one is not None), default=0.0)
    bars: list[Bar] = []
    for name in _BEFORE[::-1]:
        if line := costs.get(name):
            first -= line.seconds
            bars.insert(0, _phase(line, first))
    created = epoch(record.created)
    if created is not None and 1 < first - created < MAX_QUEUE_S:
        bars.insert(0, Bar("queue", first, duration(first - created), start=created))
    now, rate = begun, record.cost.usd_per_hour / 3600
    for started, step in zip(at, record.steps, strict=True):
        begins = now if started is None else started
        bars.append(_step(run.run_id, step, begins, rate))
        now = max(now, bars[-1].value)
    for line in filter(None, map(costs.get, _AFTER)):
        bars.append(_phase(line, now))
        now += line.seconds
    if (line := costs.get("idle")) and line.seconds >= 1:
        bars.append(replace(_phase(line, now), label="between steps", start=now, value=now))
    origin = min((bar.start for bar in bars), default=0.0)
    bars = [replace(bar, start=bar.start - origin, value=bar.value - origin) for bar in bars]
    emulated = "would have cost " if record.cost.emulated else ""
    total = f"; {emulated}{usd(record.cost.usd)}" if record.cost.usd else ""
    if bars:
        yield Bars(f"Timeline, {duration(now - origin)}{total}", tuple(bars))


def _phase(line: CostLine, start: float) -> Bar:
    words = ", ".join(filter(None, (duration(line.seconds), usd(line.usd) if line.usd else "")))
    return Bar(clean(_LONGER.get(line.activity, line.activity), 24), start + line.seconds, words, start=start)


def _step(run_id: str, step: StepRecord, start: float, rate: float) -> Bar:
    seconds, status = max(0.0, step.duration_s), step.status
    took = (duration(seconds), usd(seconds * rate) if rate else "") if seconds else ()
    why = next(iter((step.message or step.hint or "").splitlines()), "")
    ended = () if status == "passed" else (status.replace("_", " "), clean(why, 160))
    log = f"/runs/{run_id}/log/{quote(step.id)}" if step.log else ""
    words = ", ".join(filter(None, (*took, *ended)))
    return Bar(clean(step.id, 40), start + seconds, words, _ROLES.get(kind(status), "plain"), start=start, href=log)


def _run(run: RunPart) -> Iterator[Block]:
    yield Facts(tuple((n, Cell(v, kind="status") if n == "status" else v) for n, v in words.run_facts(run)))
    yield from (Text(f"Not shown: {problem}") for problem in run.problems)
