"""A comparison as GitHub-flavoured Markdown, fit for a comment on a pull request.

What a host named goes through :func:`cell`: it can neither break the table nor mention a person, nor become HTML.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from orchestrator.base.sanitize import clean
from orchestrator.results.compare.compare import ComparedSide, Report
from orchestrator.results.compare.facts import Difference
from orchestrator.results.compare.verdicts import Compared
from orchestrator.views.tables.compare import basis, fact, headline, one_sided, p_value, percent
from orchestrator.views.tables.figures import microseconds, plural

#: By which a script finds its own comment again, to replace it.
MARKER = "<!-- fcctl results compare -->"
MARKS = {"slower": "🔴", "faster": "🟢", "same": "⚪", "inconclusive": "🟡", "incomparable": "🟡"}
MAX_ROWS, MAX_FACTS = 100, 40
_SPECIAL = re.compile(r"([\\`*_{}\[\]<()#!|~@&$])")


def markdown(report: Report) -> str:
    """The whole comment."""
    return "\n".join([MARKER, *_lines(report)]) + "\n"


def cell(value: object, limit: int = 80) -> str:
    """Text of a host in a cell of a table: one line, nothing in it means anything."""
    return _SPECIAL.sub(r"\\\1", clean(value, limit)).replace("\\@", "&#64;").replace("\\<", "&lt;")


def _lines(report: Report) -> Iterator[str]:
    found = report.comparison
    failed = report.failures
    sign = "❌" if failed else "✅" if report.conditions else "ℹ️"
    yield f"### {sign} Benchmarks: {headline(report)}"
    yield ""
    yield f"old: {_side(report.old)}<br>new: {_side(report.new)}"
    yield ""
    yield from (f"- not compared: {cell(said, 300)}" for said in [*report.old.problems, *report.new.problems][:20])
    if failed:
        yield from (f"- **{cell(f.benchmark)}** {cell(f.mode)}: {cell(f.message, 200)}" for f in failed[:20])
        yield ""
    if found.benchmarks:
        yield "| | benchmark | mode | old | new | change | 95 % interval | p (Holm) | from |"
        yield "|---|---|---|---:|---:|---:|---:|---:|---|"
        yield from (_row(row) for row in found.benchmarks[:MAX_ROWS])
        if len(found.benchmarks) > MAX_ROWS:
            yield f"\n... and {len(found.benchmarks) - MAX_ROWS} more"
        yield ""
        yield from _reasons(found.benchmarks)
    yield from _details(report)


def _side(side: ComparedSide) -> str:
    commit = side.first.source.git_commit
    shown = f" at {cell(commit[:10])}{' with changes' if side.first.source.dirty else ''}" if commit else ""
    several = f" and {len(side.runs) - 1} more" if len(side.runs) > 1 else ""
    return f"`{side.first.run_id}`{several}{shown}" + (f" ({cell(side.endings)})" if side.endings else "")


def _row(row: Compared) -> str:
    e = row.effect
    unit = "µs" if row.unit == "us" else cell(row.unit, 8)
    times = [f"{microseconds(v)} {unit}" for v in (e.old, e.new)] if e else ["", ""]
    span = f"{percent(e.low)} .. {percent(e.high)}" if e and e.basis != "none" else ""
    change = percent(e.ratio) if e else ""
    cells = [f"{MARKS[row.verdict]} {row.verdict}", cell(row.name), cell(row.mode, 16), *times]
    return f"| {' | '.join([*cells, change, span, p_value(row), basis(row)])} |"


def _reasons(rows: Sequence[Compared]) -> Iterator[str]:
    told: dict[str, int] = {}
    for row in rows:
        for said in (*row.reasons, *row.notes):
            told[said] = told.get(said, 0) + 1
    for said, count in list(told.items())[:12]:
        yield f"- {cell(said, 300)} ({count} of {len(rows)})"
    if told:
        yield ""


def _details(report: Report) -> Iterator[str]:
    sections = (
        ("Environment", report.environment),
        ("Compiled kernels", report.resources),
        ("Profile", report.profile),
        ("Searches", report.searches),
        ("Metrics", report.metrics),
    )
    for title, facts in sections:
        alone = one_sided(facts) if title in ("Compiled kernels", "Profile") else []
        both = [d for d in facts if d.fact or not alone]
        if facts:
            body = [*(_facts(both) if both else []), "", *(f"- {cell(line, 300)}" for line in alone)]
            yield from _folded(f"{title}: {plural(len(both), 'difference')}", body)
    changes = report.source.changes
    if report.source.same_tree:
        yield "The source is the same on both sides."
    elif changes:
        body = [f"- {sha[:10]} {cell(subject, 120)}" for sha, subject in changes.commits[:30]]
        files = [f"- {what} {cell(path, 160)}" for what, path in changes.files[:60]]
        yield from _folded(
            f"Source: {plural(len(changes.commits), 'commit')}, {plural(len(changes.files), 'file')}",
            [*body, "", *files],
        )


def _facts(facts: Sequence[Difference]) -> list[str]:
    rows = [f"| {cell(d.fact)} {cell(d.name)} | {cell(fact(d.old))} | {cell(fact(d.new))} |" for d in facts[:MAX_FACTS]]
    rest = [f"\n... and {len(facts) - MAX_FACTS} more"] if len(facts) > MAX_FACTS else []
    return ["| | old | new |", "|---|---:|---:|", *rows, *rest]


def _folded(summary: str, body: Sequence[str]) -> Iterator[str]:
    yield f"<details><summary>{summary}</summary>"
    yield ""
    yield from body
    yield ""
    yield "</details>"
    yield ""
