"""A comparison for people: the verdicts first, then what may explain them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.base.sanitize import clean
from orchestrator.results.compare.compare import ComparedSide, Report
from orchestrator.results.compare.facts import Difference
from orchestrator.results.compare.verdicts import Compared
from orchestrator.results.timings import number
from orchestrator.views.tables.cells import FirstThatFits, more, print_trimmed, table, text
from orchestrator.views.tables.figures import microseconds, plural

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

MAX_ROWS, MAX_FACTS, MAX_MOVED = 60, 20, 12
COLOURS = {"slower": "red", "faster": "green", "incomparable": "yellow", "inconclusive": "yellow", "same": ""}
#: Column sets from the widest to the narrowest; the first that fits is shown.
_LAYOUTS = (
    ("mode", "variant", "old", "new", "change", "interval", "p", "basis"),
    ("mode", "old", "new", "change", "interval", "p", "basis"),
    ("mode", "old", "new", "change", "interval"),
    ("old", "new", "change", "interval"),
    ("change",),
)
#: Where it is known from how much launches differ, if there are few of them.
_FEW = {
    "assumed": "is assumed; 4 runs of one source here, or 4 launches a side, measure it (docs/statistics.md)",
    "history": "is what runs of one source differed by on this machine",
    "launches": "is what those of one side do",
}
_KERNELS = ("Compiled kernels", "Profile, what moved most first")
_RIGHT = ("old", "new", "change", "interval", "p", "basis")


def print_comparison(report: Report, console: Console) -> None:
    """All of it, on standard output."""
    for piece in pieces(report):
        print_trimmed(console, piece, console.width)


def pieces(report: Report) -> Iterator[RenderableType]:
    """What is printed, one below the other."""
    found = report.comparison
    yield from _heading(report)
    if found.benchmarks:
        yield text("")
        rows = list(found.benchmarks[:MAX_ROWS])
        yield FirstThatFits([_table(rows, layout) for layout in _LAYOUTS])
        yield from more(len(found.benchmarks), MAX_ROWS)
        yield from _reasons(rows)
    elif not report.searches:
        yield text("no benchmark in common", "yellow")
    yield from _around(report)
    yield from _verdict(report)


def headline(report: Report) -> str:
    """``1 slower, 2 faster, 3 same`` in one line."""
    counts = report.comparison.counts()
    without = "no verdict: a search's ratios are to its own default" if report.searches else "nothing to compare"
    return ", ".join(f"{n} {verdict}" for verdict, n in counts.items() if n) or without


def percent(ratio: float) -> str:
    """A ratio of times as a change: ``+5.1 %`` is slower."""
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"


def basis(compared: Compared) -> str:
    """What the verdict rests on: ``5+5 launches``, or ``112+112 samples``."""
    if compared.effect is None:
        return ""
    pair = compared.effect.launches if compared.effect.basis == "launches" else compared.effect.samples
    return f"{pair[0]}+{pair[1]} {'launches' if compared.effect.basis == 'launches' else 'samples'}"


def p_value(compared: Compared) -> str:
    """Holm's, short."""
    p = compared.p_adjusted
    return "" if p is None else "<.001" if p < 0.001 else f"{p:.3f}"


def side_line(side: ComparedSide) -> str:
    """The runs of a side with their commit, their GPU and how they ended, if not all passed, in one line."""
    first = side.first
    gpu = first.host.get("gpu")
    parts = [
        first.run_id if len(side.runs) == 1 else f"{len(side.runs)} runs, the first {first.run_id}",
        (first.source.git_commit or "")[:10] + ("+" if first.source.dirty else ""),
        str(gpu.get("name") or "") if isinstance(gpu, dict) else "",
        side.endings,
    ]
    return "  ".join(clean(part, 80) for part in parts if part)


def fact(value: Any) -> str:
    """One side of a difference."""
    if value is None:
        return "-"
    figure = number(value)
    return clean(value, 60) if figure is None else f"{figure:.6g}"


# ------------------------------------------------------------------------------------------------ inside
def _heading(report: Report) -> Iterator[Text]:
    for label, side in (("old", report.old), ("new", report.new)):
        name = f" ({clean(side.name, 40)})" if side.name != side.first.run_id else ""
        yield text(f"{label}  {side_line(side)}{name}")
    problems = [*report.old.problems, *report.new.problems]
    for problem in problems[:MAX_MOVED]:
        yield text(f"not compared: {clean(problem, 300)}", "yellow")
    yield from more(len(problems), MAX_MOVED)
    if {r.run_id for r in report.old.runs} == {r.run_id for r in report.new.runs}:
        yield text("both sides are the same run; the one before it is last~1: fcctl results compare last~1", "yellow")


def _table(rows: Sequence[Compared], layout: tuple[str, ...]) -> Table:
    units = sorted({"µs" if r.unit == "us" else clean(r.unit, 8) for r in rows})
    heads = {"p": "p (Holm)", "interval": "95 % interval", "old": f"old {'/'.join(units)}".rstrip(), "new": "new"}
    shown = [key for key in layout if key != "variant" or len({r.variant for r in rows}) > 1]
    shown = [key for key in shown if key != "mode" or len({r.mode for r in rows}) > 1]
    left = [key for key in shown if key not in _RIGHT]
    right = [key for key in shown if key in _RIGHT]
    made = table("verdict", "benchmark", *left, right=[heads.get(key, key) for key in right])
    for row in rows:
        cells = {key: text(value) for key, value in _cells(row).items()}
        verdict = text(row.verdict, COLOURS[row.verdict])
        made.add_row(verdict, text(clean(row.name, 48)), *(cells[key] for key in (*left, *right)))
    return made


def _cells(row: Compared) -> dict[str, str]:
    e = row.effect
    return {
        "mode": clean(row.mode, 16),
        "variant": clean(row.variant, 24),
        "old": microseconds(e.old) if e else "",
        "new": microseconds(e.new) if e else "",
        "change": percent(e.ratio) if e else "",
        "interval": f"{percent(e.low)} .. {percent(e.high)}" if e and e.basis != "none" else "",
        "p": p_value(row),
        "basis": basis(row),
    }


def _reasons(rows: Sequence[Compared]) -> Iterator[Text]:
    """Each reason once, with the benchmarks it holds for."""
    told: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for said in row.reasons:
            told.setdefault((row.verdict, said), []).append(row.name)
        for said in row.notes:
            told.setdefault(("note", said), []).append(row.name)
    for (kind, said), names in told.items():
        whose = clean(names[0], 40) if len(names) == 1 else f"{len(names)} benchmarks"
        yield text(f"{kind}: {whose}: {clean(said, 300)}", "dim" if kind == "note" else "yellow")


def _around(report: Report) -> Iterator[RenderableType]:
    found = report.comparison
    effects = [r.effect for r in found.benchmarks if r.effect]
    for source, why in _FEW.items():
        known = [e for e in effects if e.basis == "samples" and e.spread_from == source]
        if known:
            low, high = (100 * edge(e.spread for e in known) for edge in (min, max))
            span = f"{low:.1f} %" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f} %"
            yield text(f"few launches: that they differ by {span} (standard deviation) {why}", "dim")
    if found.interleaved and any(e.basis == "launches" for e in effects):
        yield text("the launches of both sides were measured in turns", "dim")
    moved = [c.effect.ratio for c in found.controls if c.effect and c.verdict != "incomparable"]
    if moved:
        span = f"{percent(min(moved))} to {percent(max(moved))}" if len(moved) > 1 else percent(moved[0])
        yield text(f"code that is not ours, in the same processes: {span} over {plural(len(moved), 'row')}", "dim")
    for what, keys in (("only in the old", found.only_old), ("only in the new", found.only_new)):
        if keys:
            names = ", ".join(clean(" ".join(filter(None, (k.name, k.variant, k.mode))), 48) for k in keys[:8])
            yield text(f"{what}: {names}" + (f" and {len(keys) - 8} more" if len(keys) > 8 else ""), "dim")
    yield from _section("Environment", report.environment, MAX_FACTS)
    yield from _source(report)
    yield from _section(_KERNELS[0], report.resources, MAX_FACTS)
    yield from _section(_KERNELS[1], report.profile, MAX_MOVED)
    yield from _section("Searches, the best of each", report.searches, MAX_FACTS, of="search")
    yield from _section("Metrics, what moved most first", report.metrics, MAX_MOVED)


def one_sided(facts: Sequence[Difference]) -> list[str]:
    """Kernels that only one side has, in a line for each side."""
    lines = []
    for side, names in (
        ("old", [d.name for d in facts if not d.fact and d.new is None]),
        ("new", [d.name for d in facts if not d.fact and d.old is None]),
    ):
        if names:
            short = list(dict.fromkeys(name.partition("<")[0] for name in names))  # one template may have many
            some = ", ".join(clean(name, 48) for name in short[:3])
            more_of_them = f", {len(names)} in all" if len(names) > min(3, len(short)) else ""
            lines.append(f"only in the {side}: {some}{more_of_them}")
    return lines


def _section(title: str, facts: Sequence[Difference], limit: int, of: str = "kernel") -> Iterator[RenderableType]:
    if not facts:
        return
    yield text(f"\n{title}", "bold")
    of_kernels = [d for d in facts if d.fact]
    alone = one_sided(facts) if of_kernels or title in _KERNELS else []
    shown = of_kernels or ([] if alone else list(facts))
    if shown:
        yield FirstThatFits([_facts(shown[:limit], width, of) for width in (64, 40, 24, 16)])
        yield from more(len(shown), limit)
    yield from (text(line, "dim") for line in alone)


def _facts(facts: Sequence[Difference], width: int, of: str) -> Table:
    """Names of what has several facts cut to ``width``."""
    moved = any(d.change is not None for d in facts)
    several = any(d.fact for d in facts)
    made = table("fact", *((of,) if several else ()), right=("old", "new", *(("moved",) if moved else ())))
    for d in facts:
        change = text("" if d.change is None else f"{100 * d.change:+.0f} %")
        whose = (text(clean(d.fact, 40)), text(clean(d.name, width))) if several else (text(clean(d.name, width + 16)),)
        made.add_row(*whose, text(fact(d.old)), text(fact(d.new)), *((change,) if moved else ()))
    return made


def _source(report: Report) -> Iterator[Text]:
    source = report.source
    if source.same_tree:
        yield text("\nSource  the same files on both sides")
        return
    span = f"{(source.old or 'no commit')[:10]}..{(source.new or 'no commit')[:10]}"
    yield text("\nSource", "bold").append(f"  {span}", "default")
    for name in source.dirty:
        yield text(f"{clean(name, 60)} was built with changes that no commit has", "yellow")
    if source.changes is None:
        if source.old != source.new:
            yield text("git does not know what lies between them here", "dim")
        return
    for sha, subject in source.changes.commits[:10]:
        yield text(f"  {sha[:10]}  {clean(subject, 100)}")
    yield from more(len(source.changes.commits), 10)
    for what, path in source.changes.files[:15]:
        yield text(f"  {what:<9} {clean(path, 100)}", "dim")
    yield from more(len(source.changes.files), 15)


def _verdict(report: Report) -> Iterator[Text]:
    yield text(f"\n{headline(report)}", "bold")
    for failure in report.failures[:20]:
        where = f"{clean(failure.benchmark, 60)}{' ' + clean(failure.mode, 16) if failure.mode else ''}"
        yield text(f"fails: {where}: {clean(failure.message, 200)}", "red")
