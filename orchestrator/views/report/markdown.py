"""A report as GitHub-flavoured Markdown: for a README, a pull request, a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from orchestrator.views.live.run import duration
from orchestrator.views.report import words
from orchestrator.views.report.chart import Chart
from orchestrator.views.report.model import Report, Row, RunPart, Table
from orchestrator.views.tables.figures import microseconds, small

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!&])")


def escape(text: str) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, nobody notified, whatever a host wrote into it."""
    return _SPECIAL.sub(r"\\\1", text.replace("\n", " ")).replace("@", "@\u200b")


def render(report: Report, charts: Iterable[Chart] = (), pictures: Mapping[str, str] | None = None) -> str:
    """The report; ``pictures`` names the file (or address) of each chart that is to be shown."""
    return "\n".join(_blocks(report, charts, pictures or {})).rstrip() + "\n"


def _blocks(report: Report, charts: Iterable[Chart], pictures: Mapping[str, str]) -> Iterator[str]:
    yield f"# {escape(words.title(report))}\n"
    verdict = " ".join(escape(said) for said in words.verdict(report))
    if verdict:
        yield verdict + "\n"
    if report.headline:
        yield "## Top line\n"
        yield f"{escape(words.heading(report.headline, report))}\n"
        yield from _timings(report.headline)
    for chart in charts:
        if chart.name in pictures:
            yield f"### {escape(chart.title)}\n"
            yield f"![{escape(chart.caption)}](<{pictures[chart.name]}>)\n"
    yield from _targets(report)
    if any(p.metrics for p in report.profiles):
        yield "## Nsight Compute\n"
        rows = [(p.label, *words.profile_cells(p)) for p in report.profiles if p.metrics]
        yield from _table(words.PROFILE_HEADER, rows)
    yield from _levers(report)
    yield from _tunings(report)
    if len(report.tables) > 1:
        yield "## Other shapes and modes\n"
        for table in report.tables[1:]:
            yield f"### {escape(words.heading(table, report))}\n"
            yield from _timings(table)
    for run in report.runs:
        yield f"## {'Run' if len(report.runs) == 1 else escape(run.run_id)}\n"
        yield from _run(run)


def _run(run: RunPart) -> Iterator[str]:
    yield from (f"- {escape(name)}: {escape(value)}" for name, value in words.run_facts(run))
    yield ""
    if run.steps:
        yield from _table(
            ("step", "status", "time"),
            [(s.id, s.status.replace("_", " "), duration(s.seconds)) for s in run.steps],
        )
    cost = [(c.activity, f"{c.seconds:.0f} s", f"${c.usd:.4f}" if run.usd else "") for c in run.cost]
    if cost:
        yield from _table(("activity", "time", "cost"), cost)
    yield from (f"Not shown: {escape(problem)}\n" for problem in run.problems)


def _timings(table: Table) -> Iterator[str]:
    unit = words.unit(table)
    columns = timing_columns(table)
    header = ["kernel", f"p50 {unit}", f"p90 {unit}", f"p99 {unit}", *columns, "max error", "status"]
    yield from _table(header, [_timing_cells(row, columns) for row in table.rows])


def timing_columns(table: Table) -> list[str]:
    """Of what a timing may be compared with, that which any row has a figure for."""
    found = [name for key, name in COMPARED if any(row.against.get(key) for row in table.rows)]
    found += [REACH] if any(row.roofline_pct is not None for row in table.rows) else []
    return found + ([GRADE] if any(row.grade for row in table.rows) else [])


COMPARED = (("math", "vs SDPA math"), ("flash", "vs SDPA flash"), ("best", "vs fastest SDPA"))
REACH, GRADE = "at the nearest ceiling", "grade"


def timing_cell(row: Row, column: str) -> str:
    """One of :func:`timing_columns`."""
    if column == REACH:
        return words.reach(row)
    if column == GRADE:
        return row.grade.letter if row.grade else ""
    ratio = row.against.get({name: key for key, name in COMPARED}[column])
    interval = words.speedup_interval(ratio)
    return words.speedup(ratio) + (f" ({interval})" if interval else "")


def _timing_cells(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    times = [microseconds(row.stats.get(key)) for key in ("p50", "p90", "p99")]
    if "p50" not in row.stats and row.typical is not None:
        times[0] = f"{microseconds(row.typical)} (mean)"
    error = small(row.correctness.max_err) if row.correctness else ""
    return (row.label, *times, *(timing_cell(row, c) for c in columns), error, row.status)


def _targets(report: Report) -> Iterator[str]:
    if not report.targets:
        return
    yield "## Targets\n"
    yield from _table(
        ("target", "is", "verdict"),
        [
            (f"{t.step}{_of_run(t.run, report)}: {t.expr}", t.value, t.verdict + (f"; {t.hint}" if t.hint else ""))
            for t in report.targets
        ],
    )


def _of_run(run_id: str, report: Report) -> str:
    return f" ({run_id[-6:]})" if len(report.runs) > 1 else ""


def _levers(report: Report) -> Iterator[str]:
    found = [one for one in words.levers(report) if one.findings]
    if not found:
        return
    yield "## Bottlenecks and next levers\n"
    for one in found:
        yield f"### {escape(one.label)}\n"
        for i, (shape, finding) in enumerate(one.findings, 1):
            facts = "; ".join(f"{f.name} {f.value} (rule: {f.threshold})" for f in finding.facts)
            where = f" On {shape}:" if shape else ""
            said = f"**{escape(finding.bottleneck)}**.{escape(where)} {escape(facts)}."
            yield f"{i}. {said} Next: {escape(finding.lever)}."
        yield ""


def _tunings(report: Report) -> Iterator[str]:
    if not report.tunings:
        return
    yield "## Tuning\n"
    for one in report.tunings:
        yield f"### {escape(one.label)} on {escape(one.machine)}{escape(_of_run(one.run, report))}\n"
        yield escape(one.verdict) + "\n"
        yield from (f"- {escape(name)}: {escape(value)}" for name, value in one.facts)
        yield ""
        for grid in (one.controls, one.elites, one.reasons):
            if grid.rows:
                yield from _table(grid.header, grid.rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(escape(name) for name in header)} |"
    yield f"|{'|'.join(' --- ' for _ in header)}|"
    for row in rows:
        yield f"| {' | '.join(escape(cell) for cell in row)} |"
    yield ""
