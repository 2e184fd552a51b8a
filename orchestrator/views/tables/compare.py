"""A comparison: the verdicts first, then what may explain them; on a terminal, on a page, and as GitHub-flavoured
Markdown fit for a comment on a pull request, in which nothing that a host named means anything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from orchestrator.base.errors import plural
from orchestrator.base.sanitize import clean, number
from orchestrator.results.compare.compare import ComparedSide, Report
from orchestrator.results.compare.facts import Difference
from orchestrator.results.compare.verdicts import Compared
from orchestrator.results.look import MISSION
from orchestrator.results.store.rows import gpu_name
from orchestrator.results.timings import HOW_TO
from orchestrator.views.blocks import Bar, Bars, Block, Cell, Folded, Grid, Text, apart, more
from orchestrator.views.blocks import markdown as as_markdown
from orchestrator.views.figures import difference, kind, microseconds, percent, unit_name
from orchestrator.views.table import show, show_blocks

#: Rows of benchmarks, facts of a section, and facts of a section that is in the order of how far they moved.
MAX_ROWS, MAX_FACTS, MAX_MOVED = 100, 20, 12
#: Where it is known from how much launches differ, if there are few of them.
_FEW = {
    "assumed": "is assumed; to measure this, run the same source 4 times on this machine, or use 4 launches per side "
    "(fcctl help statistics)",
    "history": "is the measured difference between runs of the same source on this machine",
    "launches": "is the difference between the launches of one side",
}
#: By which a script finds its own comment again, to replace it.
MARKER = "<!-- fcctl results compare -->"


def headline(report: Report) -> str:
    """``1 slower, 2 faster, 3 same`` in one line; with the reason where the source cannot be it."""
    counts = {verdict: n for verdict, n in report.comparison.counts().items() if n}
    without = (
        "no verdict: the ratios of a search are relative to its own default"
        if report.searches
        else "nothing to compare"
    )
    source, said = report.source, ""
    if others := sum(any(note.startswith("variant ") for note in row.notes) for row in report.comparison.benchmarks):
        said = f"; {others} of them are of different variants"
    if {"faster", "slower"} & counts.keys():
        if source.same_tree:
            said = "; both sides have the same source, so the difference comes from the runs or machines"
        elif source.old and source.old == source.new:
            said = f"; both sides are commit {source.old[:10]}, and differ only by uncommitted changes"
    return (", ".join(f"{n} {verdict}" for verdict, n in counts.items()) or without) + said


def headlines(reports: Sequence[Report]) -> str:
    """The headline; of several comparisons each one's, with the letter of its side."""
    if len(reports) == 1:
        return headline(reports[0])
    return "; ".join(f"{letter(i)}: {headline(report)}" for i, report in enumerate(reports, 1))


def letter(side: int) -> str:
    """``A`` is the first side, which all others are compared with."""
    return chr(ord("A") + side)


def print_comparison(reports: Sequence[Report], console: Console) -> None:
    show_blocks(console, all_blocks(reports))
    failures = [(text, "red") for report in reports for text in _failures(report)]
    show(console, "")
    show_blocks(console, (replace(text, style="bold") for text in answer(reports)))
    show(console, *failures)


def markdown(reports: Sequence[Report]) -> str:
    """The whole comment."""
    failing, conditions = any(r.failures for r in reports), any(r.conditions for r in reports)
    known = any(row.verdict in ("faster", "same") for report in reports for row in report.comparison.benchmarks)
    sign = "❌" if failing else "✅" if conditions and known else "ℹ️"
    head = (MARKER, f"### {sign} Benchmarks: {headlines(reports)}", "")
    failures = [Text(text) for report in reports for text in _failures(report)]
    return "\n".join([*head, *as_markdown([*failures, *all_blocks(reports)])]) + "\n"


def _failures(report: Report) -> Iterator[str]:
    for one in report.failures[:20]:
        where = f"{clean(one.benchmark, 60)}{' ' + clean(one.mode, 16) if one.mode else ''}"
        yield f"fails: {where}: {clean(one.message, 200)}"


def forest(reports: Sequence[Report], limit: int) -> Bars:
    """Each benchmark's ratio with its interval, the main one first, then the largest effect first; with several
    reports each has the letter of its side."""
    several = len(reports) > 1
    rows = [
        (f"{letter(i)} " if several else "", row, row.effect)
        for i, report in enumerate(reports, 1)
        for row in report.comparison.benchmarks
        if row.effect
    ]
    bars = []
    for side, row, e in sorted(rows, key=lambda one: (one[1].name != MISSION, -abs(math.log(one[2].ratio))))[:limit]:
        ends = (e.low, e.high) if e.basis != "none" else (None, None)
        bars.append(Bar(side + _named(row), e.ratio, _result(row), kind(row.verdict), *ends))
    return Bars(forest_caption(len(rows) - limit, "A" if several else "the old side"), tuple(bars), 1.0)


def forest_caption(left_out: int, over: str = "the old side") -> str:
    more = f"; in the tables: {plural(left_out, 'smaller change')}" if left_out > 0 else ""
    order = "the main benchmark first, then the largest change"
    return f"Time against {over}, with the 95 % interval; left of the line is faster. Order: {order}{more}"


def expected(names: Sequence[str], limit: int) -> list[Block]:
    """What keeps the place of an answer with its picture until they are there: as high, and empty."""
    bars = tuple(Bar(clean(name, 60), 1.0, "comparing …") for name in names[:limit])
    head = [Text("comparing …", style="answer"), Text("All benchmarks: …")]
    return [*head, Bars(forest_caption(len(names) - limit), bars, 1.0)]


def all_blocks(reports: Sequence[Report]) -> Iterator[Block]:
    """Everything but the headline: first the sides, then each comparison."""
    yield sides(reports)
    if len(reports) == 1:
        yield from blocks(reports[0])
        return
    for i, report in enumerate(reports, 1):
        yield Folded(f"{letter(i)} against A: {headline(report)}", tuple(blocks(report)))


def main_row(reports: Sequence[Report]) -> tuple[str, str, str] | None:
    """Benchmark, variant and mode of the main one that all sides measured, else of the main one that any did."""
    shared = [{(r.name, r.variant, r.mode) for r in report.comparison.benchmarks if r.effect} for report in reports]
    common = set.intersection(*shared) or set.union(*shared)
    keys = [(r.name, r.variant, r.mode) for report in reports for r in report.comparison.benchmarks]
    return min((key for key in keys if key in common), key=lambda key: key[0] != MISSION, default=None)


def _row(report: Report, key: tuple[str, str, str] | None) -> Compared | None:
    return next((r for r in report.comparison.benchmarks if (r.name, r.variant, r.mode) == key), None)


def answer(reports: Sequence[Report]) -> Iterator[Text]:
    """Whether the main benchmark got better, then how many did."""
    key, counts = main_row(reports), Text(headlines(reports))
    row = _row(reports[0], key) if len(reports) == 1 and key else None
    if row and row.effect:
        why = f": {clean(row.reasons[0], 160)}" if row.verdict == "incomparable" and row.reasons else ""
        yield Text(f"{_named(row)}: {_result(row)}{why}", style="answer")
        yield Text(f"All benchmarks: {counts.text}")
    else:
        yield replace(counts, style="answer")


def _result(row: Compared) -> str:
    """``3.4 % slower``, ``1.8 % faster, inconclusive``."""
    change = difference(row.effect.ratio) if row.effect else ""
    return change if row.verdict in ("faster", "slower") else f"{change}, {row.verdict}"


def _named(row: Compared) -> str:
    name = row.name.removesuffix(f"/{row.mode}")  # FlashCore's names end with all modes but the first
    return " ".join(filter(None, (clean(name, 48), clean(row.variant, 24), clean(row.mode, 16))))


def sides(reports: Sequence[Report]) -> Grid:
    """One line a side: the main benchmark's time, its change against the first side, and what it was measured on."""
    main, several = main_row(reports), len(reports) > 1
    compared = [_row(report, main) if main else None for report in reports]
    base = next((c.effect.old for c in compared if c and c.effect), None)
    first, names = ("A", map(letter, range(1, len(reports) + 1))) if several else ("old", ("new",))
    lines: list[tuple[str | Cell, ...]] = [(first, _side(reports[0].old), microseconds(base), "", "", "")]
    for name, report, c in zip(names, reports, compared, strict=True):
        figures = _figures(c)[1:4] if c else ("", "", "")
        lines.append((name, _side(report.new), *figures, Cell(c.verdict, kind="status") if c else ""))
    unit = next((unit_name(c.unit) for c in compared if c), "")
    what = " ".join(filter(None, (clean(part, 48) for part in main or ())))
    header = ("side", "run", f"time {clean(unit, 8)}".rstrip(), f"against {first}", "95 % interval", "verdict")
    return Grid(header, tuple(lines), what or "No benchmark in common", numbers=(2, 3, 4), optional=(4,), fold=(1,))


def blocks(report: Report) -> Iterator[Block]:
    """Everything but the headline."""
    comparison = report.comparison
    problems = [*report.old.problems, *report.new.problems]
    yield from (Text(f"not compared: {clean(problem, 300)}", style="notice") for problem in problems[:MAX_MOVED])
    yield from more(problems, MAX_MOVED)
    if {r.run_id for r in report.old.runs} == {r.run_id for r in report.new.runs}:
        text = "both sides are the same run; compare with the previous run: fcctl results compare last~1"
        yield Text(text, style="notice")
    if comparison.benchmarks:
        yield verdicts(comparison.benchmarks[:MAX_ROWS])
        yield from more(comparison.benchmarks, MAX_ROWS)
        yield from _reasons(comparison.benchmarks[:MAX_ROWS])
    elif not report.searches:
        yield Text(_nothing_in_common(report), style="notice")
    yield from (Text(text, style="soft") for text in _notes(report))
    yield from _section("Environment", report.environment, MAX_FACTS)
    yield from _source(report)
    yield from _section("Compiled kernels", report.resources, MAX_FACTS, kernels=True)
    yield from _section("Profile, largest change first", report.profile, MAX_MOVED, kernels=True)
    yield from _section("Searches: the best configuration of each", report.searches, MAX_FACTS, of="search")
    yield from _section("Metrics, largest change first", report.metrics, MAX_MOVED)


def _nothing_in_common(report: Report) -> str:
    old, new = (list(dict.fromkeys(clean(row.key.name, 48) for row in side.rows)) for side in (report.old, report.new))
    if not old and not new:
        return f"neither side has a benchmark; {HOW_TO}"
    shown = [", ".join(names[:4]) + ", ..." * (len(names) > 4) or "none" for names in (old, new)]
    return f"no benchmark in common: old has {shown[0]}; new has {shown[1]}"


def _side(side: ComparedSide) -> Cell:
    """The runs of a side with their commit, their GPU, how they ended if not all passed, and the name it has here."""
    first = side.first
    commit = (first.source.git_commit or "")[:10]
    parts = [
        f"and {len(side.runs) - 1} more" if len(side.runs) > 1 else "",
        f"commit {commit}{' with changes' if first.source.dirty else ''}" if commit else "",
        gpu_name(first.host) or "",
        side.endings,
    ]
    name = f" ({clean(side.name, 80)})" if side.name != first.run_id else ""
    note = ", ".join(clean(part, 80) for part in parts if part) + name
    return Cell(first.run_id, note, href=f"/runs/{first.run_id}")


def verdicts(rows: Sequence[Compared]) -> Grid:
    units = sorted({clean(unit_name(r.unit), 8) for r in rows})
    shown = [clean(r.name, 48) + f", {clean(unit_name(r.unit), 8)}" * (len(units) > 1) for r in rows]
    names = [key for key in ("mode", "variant") if len({getattr(row, key) for row in rows}) > 1]
    figures = (f"old {'/'.join(units)}".rstrip(), "new", "change", "95 % interval", "p (Holm)", "basis")
    header = ("verdict", "benchmark", *names, *figures)
    least_needed = ("variant", "basis", "p (Holm)", "mode", "95 % interval", "new")
    return Grid(
        header,
        tuple((Cell(r.verdict, kind="status"), name, *(clean(getattr(r, key), 24) for key in names), *_figures(r))
              for name, r in zip(shown, rows, strict=True)),
        "Time of the new side over the old one's; above 0 % is slower",
        numbers=tuple(range(2 + len(names), len(header))),
        optional=tuple(header.index(name) for name in least_needed if name in header),
    )  # fmt: skip


def _figures(row: Compared) -> tuple[str, ...]:
    p = "" if row.p_adjusted is None else "<.001" if row.p_adjusted < 0.001 else f"{row.p_adjusted:.3f}"
    if (e := row.effect) is None:
        return ("", "", "", "", p, "")
    word, pair = ("launches", e.launches) if e.basis == "launches" else ("samples", e.samples)
    interval = f"{percent(e.low)} .. {percent(e.high)}" if e.basis != "none" else ""
    return microseconds(e.old), microseconds(e.new), percent(e.ratio), interval, p, f"{pair[0]}+{pair[1]} {word}"


def _reasons(rows: Sequence[Compared]) -> Iterator[Text]:
    """Each reason once, with the benchmarks it holds for."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for verdict, texts in ((str(row.verdict), row.reasons), ("note", row.notes)):
            for text in texts:
                names.setdefault((verdict, text), []).append(row.name)
    for (verdict, text), of in names.items():
        whose = clean(of[0], 40) if len(of) == 1 else f"{len(of)} benchmarks"
        yield Text(f"{verdict}: {whose}: {clean(text, 300)}", style="soft" if verdict == "note" else "notice")


def _notes(report: Report) -> Iterator[str]:
    comparison = report.comparison
    effects = [r.effect for r in comparison.benchmarks if r.effect]
    for source, why in _FEW.items():
        known = [100 * e.spread for e in effects if e.basis == "samples" and e.spread_from == source]
        if known:
            low, high = f"{min(known):.1f} %", f"{max(known):.1f} %"
            span = low if low == high else f"{low.removesuffix(' %')} to {high}"
            yield f"few launches: a difference of {span} (standard deviation) between launches {why}"
    if comparison.interleaved and any(e.basis == "launches" for e in effects):
        yield "the launches of both sides were interleaved"
    moved = [c.effect.ratio for c in comparison.controls if c.effect and c.verdict != "incomparable"]
    if moved:
        span = f"{percent(min(moved))} to {percent(max(moved))}" if len(moved) > 1 else percent(moved[0])
        yield f"unchanged reference code in the same processes: {span} over {plural(len(moved), 'row')}"
    for side, keys in (("old", comparison.only_old), ("new", comparison.only_new)):
        if keys:
            names = ", ".join(clean(" ".join(filter(None, (k.name, k.variant, k.mode))), 48) for k in keys[:8])
            yield f"only on the {side} side: {names}" + (f" and {len(keys) - 8} more" if len(keys) > 8 else "")


def _section(
    title: str, facts: Sequence[Difference], limit: int, of: str = "kernel", *, kernels: bool = False
) -> Iterator[Block]:
    """The differences of what both sides have. What only one side has is a line for each side: ``kernels``, and other
    facts if they are many, as when one side has no such document."""
    if not facts:
        return
    of_kernels = [d for d in facts if d.fact]
    one_sided = [d for d in facts if not d.fact and None in (d.old, d.new)]
    listed_apart = kernels or bool(of_kernels) or len(one_sided) > MAX_MOVED
    alone = _one_sided(one_sided) if listed_apart else []
    both = of_kernels or [d for d in facts if not listed_apart or d not in one_sided]
    inside: list[Block] = [_facts(both[:limit], of), *more(both, limit)] if both else []
    yield Folded(title, (*inside, *(Text(line, style="soft") for line in alone)), is_open=True)


def _facts(facts: Sequence[Difference], of: str) -> Grid:
    moved, several = any(d.change is not None for d in facts), any(d.fact for d in facts)
    header = ("fact", *((of,) if several else ()), "old", "new", *(("change",) if moved else ()))
    rows = []
    for d, short in zip(facts, apart([d.name for d in facts], 64), strict=True):
        change = ("" if d.change is None else f"{100 * d.change:+.0f} %",) if moved else ()
        name = (clean(d.fact, 40), short) if several else (clean(d.name, 80),)
        rows.append((*name, _fact(d.old), _fact(d.new), *change))
    return Grid(header, tuple(rows), "Differences", numbers=tuple(range(2 if several else 1, len(header))))


def _fact(value: Any) -> str:
    """One side of a difference."""
    if value is None:
        return "-"
    figure = number(value)
    return clean(value, 60) if figure is None else f"{figure:.6g}"


def _one_sided(facts: Sequence[Difference]) -> Iterator[str]:
    for side, names in (
        ("old", [d.name for d in facts if d.new is None]),
        ("new", [d.name for d in facts if d.old is None]),
    ):
        if names:
            short = list(dict.fromkeys(name.partition("<")[0] for name in names))  # one template may have many
            some = ", ".join(clean(name, 48) for name in short[:3])
            rest = f", {len(names)} in total" if len(names) > min(3, len(short)) else ""
            yield f"only on the {side} side: {some}{rest}"


def _source(report: Report) -> Iterator[Block]:
    source = report.source
    if source.same_tree:
        yield Text("Source: the same files on both sides")
        return
    yield from (Text(f"{clean(name, 60)} was built with uncommitted changes", style="notice") for name in source.dirty)
    lines: list[Block] = []
    if source.changes is not None:
        commits, files = source.changes.commits, source.changes.files
        lines += [Text(f"{sha[:10]}  {clean(subject, 100)}") for sha, subject in commits[:MAX_FACTS]]
        lines += [*more(commits, MAX_FACTS)]
        lines += [Text(f"{what:<9} {clean(path, 100)}", style="soft") for what, path in files[:MAX_FACTS]]
        lines += [*more(files, MAX_FACTS)]
    elif source.old != source.new:
        lines.append(Text("git in this workspace does not have these commits", style="soft"))
    span = f"{(source.old or 'no commit')[:10]}..{(source.new or 'no commit')[:10]}"
    yield Folded(f"Source  {span}", tuple(lines), is_open=True)
