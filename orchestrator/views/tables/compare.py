"""A comparison for people: the verdicts first, then what may explain them. On a terminal, and as GitHub-flavoured
Markdown fit for a comment on a pull request, in which nothing that a host named means anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from orchestrator.base.sanitize import clean
from orchestrator.base.text.escape import markdown as escape
from orchestrator.base.text.escape import markdown_table
from orchestrator.base.untrusted import number
from orchestrator.results.compare.compare import ComparedSide, Report
from orchestrator.results.compare.facts import Difference
from orchestrator.results.compare.verdicts import Compared
from orchestrator.views.figures import microseconds, plural, unit_name
from orchestrator.views.table import FirstThatFits, Piece, Table, more, show

#: Rows, facts of a section, and facts of a section that is in the order of how far they moved.
MAX_ROWS, MAX_FACTS, MAX_MOVED = 60, 20, 12
_COLOURS = {"slower": "red", "faster": "green", "incomparable": "yellow", "inconclusive": "yellow", "same": ""}
#: Column sets from the widest to the narrowest; the first that fits is shown.
_LAYOUTS = (
    ("mode", "variant", "old", "new", "change", "interval", "p", "basis"),
    ("mode", "old", "new", "change", "interval", "p", "basis"),
    ("mode", "old", "new", "change", "interval"),
    ("old", "new", "change", "interval"),
    ("change",),
)
_LEFT = ("mode", "variant")
#: Where it is known from how much launches differ, if there are few of them.
_FEW = {
    "assumed": "is assumed; 4 runs of one source here, or 4 launches a side, measure it (docs/statistics.md)",
    "history": "is what runs of one source differed by on this machine",
    "launches": "is what those of one side do",
}
#: By which a script finds its own comment again, to replace it.
MARKER = "<!-- fcctl results compare -->"
_MARKS = {"slower": "🔴", "faster": "🟢", "same": "⚪", "inconclusive": "🟡", "incomparable": "🟡"}
_MARKDOWN_ROWS, _MARKDOWN_FACTS = 100, 40


# ------------------------------------------------------------------------------------------------ what both say
def headline(report: Report) -> str:
    """``1 slower, 2 faster, 3 same`` in one line."""
    counts = report.comparison.counts()
    without = "no verdict: a search's ratios are to its own default" if report.searches else "nothing to compare"
    return ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n) or without


def percent(ratio: float) -> str:
    """A ratio of times as a change: ``+5.1 %`` is slower."""
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"


def _cells(row: Compared) -> dict[str, str]:
    cells = dict.fromkeys(("old", "new", "change", "interval", "p", "basis"), "")
    if row.p_adjusted is not None:
        cells["p"] = "<.001" if row.p_adjusted < 0.001 else f"{row.p_adjusted:.3f}"
    if (e := row.effect) is not None:
        basis = "launches" if e.basis == "launches" else "samples"
        pair = e.launches if e.basis == "launches" else e.samples
        cells.update(old=microseconds(e.old), new=microseconds(e.new), change=percent(e.ratio))
        cells.update(
            interval=f"{percent(e.low)} .. {percent(e.high)}" if e.basis != "none" else "",
            basis=f"{pair[0]}+{pair[1]} {basis}",
        )
    return {"mode": clean(row.mode, 16), "variant": clean(row.variant, 24), **cells}


def _fact(value: Any) -> str:
    """One side of a difference."""
    if value is None:
        return "-"
    figure = number(value)
    return clean(value, 60) if figure is None else f"{figure:.6g}"


def _split(facts: Sequence[Difference], *, kernels: bool) -> tuple[list[Difference], list[str]]:
    """The differences of what both sides have, and of ``kernels`` that only one side has a line for each side."""
    of_kernels = [d for d in facts if d.fact]
    alone = _one_sided(facts) if of_kernels or kernels else []
    return of_kernels or ([] if alone else list(facts)), alone


def _one_sided(facts: Sequence[Difference]) -> list[str]:
    lines = []
    for side, names in (
        ("old", [d.name for d in facts if not d.fact and d.new is None]),
        ("new", [d.name for d in facts if not d.fact and d.old is None]),
    ):
        if names:
            short = list(dict.fromkeys(name.partition("<")[0] for name in names))  # one template may have many
            some = ", ".join(clean(name, 48) for name in short[:3])
            lines.append(
                f"only in the {side}: {some}" + (f", {len(names)} in all" if len(names) > min(3, len(short)) else "")
            )
    return lines


# ------------------------------------------------------------------------------------------------ terminal
def print_comparison(report: Report, console: Console) -> None:
    show(console, *_pieces(report))


def _pieces(report: Report) -> Iterator[Piece]:
    found = report.comparison
    yield from _heading(report)
    if found.benchmarks:
        rows = found.benchmarks[:MAX_ROWS]
        yield ""
        yield FirstThatFits([_table(rows, layout) for layout in _LAYOUTS])
        yield from more(len(found.benchmarks), MAX_ROWS)
        yield from _reasons(rows)
    elif not report.searches:
        yield "no benchmark in common", "yellow"
    yield from _notes(report)
    yield from _section("Environment", report.environment, MAX_FACTS)
    yield from _source(report)
    yield from _section("Compiled kernels", report.resources, MAX_FACTS, kernels=True)
    yield from _section("Profile, what moved most first", report.profile, MAX_MOVED, kernels=True)
    yield from _section("Searches, the best of each", report.searches, MAX_FACTS, of="search")
    yield from _section("Metrics, what moved most first", report.metrics, MAX_MOVED)
    yield f"\n{headline(report)}", "bold"
    for failure in report.failures[:20]:
        where = f"{clean(failure.benchmark, 60)}{' ' + clean(failure.mode, 16) if failure.mode else ''}"
        yield f"fails: {where}: {clean(failure.message, 200)}", "red"


def _heading(report: Report) -> Iterator[Piece]:
    for label, side in (("old", report.old), ("new", report.new)):
        name = f" ({clean(side.name, 40)})" if side.name != side.first.run_id else ""
        yield f"{label}  {_side_line(side)}{name}"
    problems = [*report.old.problems, *report.new.problems]
    yield from ((f"not compared: {clean(problem, 300)}", "yellow") for problem in problems[:MAX_MOVED])
    yield from more(len(problems), MAX_MOVED)
    if {r.run_id for r in report.old.runs} == {r.run_id for r in report.new.runs}:
        yield "both sides are the same run; the one before it is last~1: fcctl results compare last~1", "yellow"


def _side_line(side: ComparedSide) -> str:
    """The runs of a side with their commit, their GPU and how they ended, if not all passed, in one line."""
    first, gpu = side.first, side.first.host.get("gpu")
    parts = [
        first.run_id if len(side.runs) == 1 else f"{len(side.runs)} runs, the first {first.run_id}",
        (first.source.git_commit or "")[:10] + ("+" if first.source.dirty else ""),
        str(gpu.get("name") or "") if isinstance(gpu, dict) else "",
        side.endings,
    ]
    return "  ".join(clean(part, 80) for part in parts if part)


def _table(rows: Sequence[Compared], layout: tuple[str, ...]) -> Table:
    units = "/".join(sorted({clean(unit_name(r.unit), 8) for r in rows}))
    heads = {"p": "p (Holm)", "interval": "95 % interval", "old": f"old {units}".rstrip()}
    left = [key for key in layout if key in _LEFT and len({getattr(row, key) for row in rows}) > 1]
    right = [key for key in layout if key not in _LEFT]
    table = Table("verdict", "benchmark", *left, right=[heads.get(key, key) for key in right])
    for row in rows:
        cells = _cells(row)
        table.add_row(
            Text(row.verdict, _COLOURS[row.verdict]), clean(row.name, 48), *(cells[key] for key in (*left, *right))
        )
    return table


def _reasons(rows: Sequence[Compared]) -> Iterator[Piece]:
    """Each reason once, with the benchmarks it holds for."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for kind, texts in ((str(row.verdict), row.reasons), ("note", row.notes)):
            for text in texts:
                names.setdefault((kind, text), []).append(row.name)
    for (kind, text), of in names.items():
        whose = clean(of[0], 40) if len(of) == 1 else f"{len(of)} benchmarks"
        yield f"{kind}: {whose}: {clean(text, 300)}", "dim" if kind == "note" else "yellow"


def _notes(report: Report) -> Iterator[Piece]:
    found = report.comparison
    effects = [r.effect for r in found.benchmarks if r.effect]
    for source, why in _FEW.items():
        known = [100 * e.spread for e in effects if e.basis == "samples" and e.spread_from == source]
        if known:
            low, high = f"{min(known):.1f} %", f"{max(known):.1f} %"
            span = low if low == high else f"{low.removesuffix(' %')} to {high}"
            yield f"few launches: that they differ by {span} (standard deviation) {why}", "dim"
    if found.interleaved and any(e.basis == "launches" for e in effects):
        yield "the launches of both sides were measured in turns", "dim"
    moved = [c.effect.ratio for c in found.controls if c.effect and c.verdict != "incomparable"]
    if moved:
        span = f"{percent(min(moved))} to {percent(max(moved))}" if len(moved) > 1 else percent(moved[0])
        yield f"code that is not ours, in the same processes: {span} over {plural(len(moved), 'row')}", "dim"
    for side, keys in (("old", found.only_old), ("new", found.only_new)):
        if keys:
            names = ", ".join(clean(" ".join(filter(None, (k.name, k.variant, k.mode))), 48) for k in keys[:8])
            yield f"only in the {side}: {names}" + (f" and {len(keys) - 8} more" if len(keys) > 8 else ""), "dim"


def _section(
    title: str, facts: Sequence[Difference], limit: int, of: str = "kernel", *, kernels: bool = False
) -> Iterator[RenderableType]:
    if not facts:
        return
    yield Text(f"\n{title}", "bold")
    both, alone = _split(facts, kernels=kernels)
    if both:
        yield FirstThatFits([_facts(both[:limit], width, of) for width in (64, 40, 24, 16)])
        yield from more(len(both), limit)
    yield from (Text(line, "dim") for line in alone)


def _facts(facts: Sequence[Difference], width: int, of: str) -> Table:
    """Names of what has several facts cut to ``width``."""
    moved, several = any(d.change is not None for d in facts), any(d.fact for d in facts)
    table = Table("fact", *((of,) if several else ()), right=("old", "new", *(("moved",) if moved else ())))
    for d in facts:
        change = ("" if d.change is None else f"{100 * d.change:+.0f} %",) if moved else ()
        name = (clean(d.fact, 40), clean(d.name, width)) if several else (clean(d.name, width + 16),)
        table.add_row(*name, _fact(d.old), _fact(d.new), *change)
    return table


def _source(report: Report) -> Iterator[RenderableType]:
    source = report.source
    if source.same_tree:
        yield Text("\nSource  the same files on both sides")
        return
    span = f"{(source.old or 'no commit')[:10]}..{(source.new or 'no commit')[:10]}"
    yield Text("\nSource", "bold").append(f"  {span}", "default")
    for name in source.dirty:
        yield Text(f"{clean(name, 60)} was built with changes that no commit has", "yellow")
    if source.changes is not None:
        yield from (Text(f"  {sha[:10]}  {clean(subject, 100)}") for sha, subject in source.changes.commits[:10])
        yield from more(len(source.changes.commits), 10)
        yield from (Text(f"  {what:<9} {clean(path, 100)}", "dim") for what, path in source.changes.files[:15])
        yield from more(len(source.changes.files), 15)
    elif source.old != source.new:
        yield Text("git does not know what lies between them here", "dim")


# ------------------------------------------------------------------------------------------------ Markdown
def markdown(report: Report) -> str:
    """The whole comment."""
    return "\n".join([MARKER, *_markdown(report)]) + "\n"


def _escaped(value: object, limit: int = 80) -> str:
    return escape(clean(value, limit))


def _markdown(report: Report) -> Iterator[str]:
    found = report.comparison
    sign = "❌" if report.failures else "✅" if report.conditions else "ℹ️"
    yield from (f"### {sign} Benchmarks: {headline(report)}", "")
    yield from (f"old: {_side(report.old)}<br>new: {_side(report.new)}", "")
    yield from (f"- not compared: {_escaped(text, 300)}" for text in [*report.old.problems, *report.new.problems][:20])
    for f in report.failures[:20]:
        yield f"- **{_escaped(f.benchmark)}** {_escaped(f.mode)}: {_escaped(f.message, 200)}"
    yield ""
    if found.benchmarks:
        header = ("", "benchmark", "mode", "old", "new", "change", "95 % interval", "p (Holm)", "from")
        yield from markdown_table(header, map(_row, found.benchmarks[:_MARKDOWN_ROWS]), right=range(3, 8))
        if len(found.benchmarks) > _MARKDOWN_ROWS:
            yield f"\n... and {len(found.benchmarks) - _MARKDOWN_ROWS} more"
        yield ""
        counts: dict[str, int] = {}
        for row in found.benchmarks:
            for text in (*row.reasons, *row.notes):
                counts[text] = counts.get(text, 0) + 1
        yield from (f"- {_escaped(t, 300)} ({n} of {len(found.benchmarks)})" for t, n in list(counts.items())[:12])
        yield ""
    yield from _details(report)


def _side(side: ComparedSide) -> str:
    commit, dirty = side.first.source.git_commit, " with changes" if side.first.source.dirty else ""
    several = f" and {len(side.runs) - 1} more" if len(side.runs) > 1 else ""
    at = f" at {_escaped(commit[:10])}{dirty}" if commit else ""
    return f"`{side.first.run_id}`{several}{at}" + (f" ({_escaped(side.endings)})" if side.endings else "")


def _row(row: Compared) -> list[str]:
    cells, unit = _cells(row), clean(unit_name(row.unit), 8)
    times = [f"{cells[key]} {unit}".rstrip() if row.effect else "" for key in ("old", "new")]
    rest = (cells[key] for key in ("change", "interval", "p", "basis"))
    return [f"{_MARKS[row.verdict]} {row.verdict}", clean(row.name, 80), cells["mode"], *times, *rest]


def _details(report: Report) -> Iterator[str]:
    sections = (
        ("Environment", report.environment, False),
        ("Compiled kernels", report.resources, True),
        ("Profile", report.profile, True),
        ("Searches", report.searches, False),
        ("Metrics", report.metrics, False),
    )
    for title, facts, kernels in sections:
        both, alone = _split(facts, kernels=kernels)
        rows = [(clean(f"{d.fact} {d.name}", 160), _fact(d.old), _fact(d.new)) for d in both[:_MARKDOWN_FACTS]]
        body = [*markdown_table(("", "old", "new"), rows, right=(1, 2))] if rows else []
        body += [f"\n... and {len(both) - _MARKDOWN_FACTS} more"] if len(both) > _MARKDOWN_FACTS else []
        if facts:
            lines = ["", *(f"- {_escaped(line, 300)}" for line in alone)]
            yield from _folded(f"{title}: {plural(len(both), 'difference')}", [*body, *lines])
    changes = report.source.changes
    if report.source.same_tree:
        yield "The source is the same on both sides."
    elif changes:
        commits = [f"- {sha[:10]} {_escaped(subject, 120)}" for sha, subject in changes.commits[:30]]
        files = [f"- {what} {_escaped(path, 160)}" for what, path in changes.files[:60]]
        summary = f"Source: {plural(len(changes.commits), 'commit')}, {plural(len(changes.files), 'file')}"
        yield from _folded(summary, [*commits, "", *files])


def _folded(summary: str, body: Sequence[str]) -> Iterator[str]:
    yield from (f"<details><summary>{summary}</summary>", "", *body, "", "</details>", "")
