"""A benchmark document as a table: one line for each shape and mode of a kernel, with the reference's time beside it.

A document without a reference (any repository's google-benchmark, pytest-benchmark or nvbench) is listed as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.base.sanitize import clean
from orchestrator.results.documents import objects
from orchestrator.results.levers.grades import grade
from orchestrator.results.timings import Ratio, Timing, entries, number, ratio_of, timings
from orchestrator.views.tables.cells import FirstThatFits, more, table, text, whole
from orchestrator.views.tables.figures import interval, microseconds, speed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

MAX_ROWS = 60
#: Further from 1 than this, a kernel's ratio to itself says that the machine was too busy to measure on.
NULL_TOLERANCE = 0.1
_STATS = ("n", "p50", "p90", "p99", "min")
_BRAND = re.compile(r"^(?:sdpa|pytorch|torch)[-_/:. ]*", re.IGNORECASE)
_MODES = {
    "hot": "hot: warm caches",
    "cold": "cold: out of L2",
    "eager": "eager: one call from Python",
    "wall": "wall: the clock around one call",
}


@dataclass(frozen=True)
class _Row:
    """One of our timings (None where only the reference was timed) beside the best reference of its case and mode."""

    label: str
    mode: str
    variant: str
    ours: Timing | None
    best: Timing | None
    ratios: tuple[Ratio | None, ...] = ()  # one for each of _Pivot.against


@dataclass(frozen=True)
class _Layout:
    """Which columns there are. Without ``mode`` as a column, the rows stand under a line with the mode."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    mode: bool
    interval: bool


#: From the widest to the narrowest; the first that fits is shown.
_LAYOUTS = (
    _Layout(_STATS, ("p50", "p90", "p99"), mode=True, interval=True),
    _Layout(("p50", "p90", "p99"), ("p50", "p90", "p99"), mode=True, interval=True),
    _Layout(("p50", "p90", "p99"), ("p50",), mode=True, interval=True),
    _Layout(("p50", "p90", "p99"), ("p50", "p90", "p99"), mode=True, interval=False),
    _Layout(("p50", "p90", "p99"), ("p50",), mode=True, interval=False),
    _Layout(("p50", "p90", "p99"), ("p50",), mode=False, interval=False),
    _Layout(("p50", "p99"), ("p50",), mode=False, interval=False),
    _Layout(("p50",), ("p50",), mode=False, interval=False),
)


def benchmark(content: dict[str, Any]) -> Iterator[RenderableType]:
    """Caption, table and notes of a benchmark document; nothing if it has no timing."""
    found = timings(content)
    pivot = _Pivot(content, found)
    if pivot.paired:
        yield text(pivot.caption(), "dim")
        yield FirstThatFits([pivot.table(layout) for layout in _LAYOUTS])
        yield from more(len(pivot.rows), MAX_ROWS)
        yield from _notes(content, pivot)
    else:
        yield from _listed(entries(content))


# ------------------------------------------------------------------------------------------------ beside a reference
@dataclass
class _Pivot:
    content: dict[str, Any]
    found: list[Timing]
    rows: list[_Row] = field(default_factory=list)
    #: What the last columns compare with: ``best``, a backend's name, or another variant of ours.
    against: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._peers: dict[tuple[str, str, str], list[Timing]] = {}
        for timing in self.found:
            self._peers.setdefault((timing.case, timing.mode, timing.unit), []).append(timing)
        self.paired = any(len({t.is_reference for t in peers}) == 2 for peers in self._peers.values())
        if not self.paired:
            return
        self.backends = list(dict.fromkeys(_backend(t) for t in self.found if t.is_reference))
        self.variants = list(dict.fromkeys(t.variant for t in self.found if not t.is_reference))
        self.modes = list(dict.fromkeys(t.mode for t in self.found))
        self.brand = "SDPA" if any("sdpa" in f"{t.name} {t.variant}".lower() for t in self.found) else "PyTorch"
        self.against = ["best", *(["flash"] if len(self.backends) > 1 and "flash" in self.backends else [])]
        self.against += self.variants[1:3]
        self.rows = sorted(self._rows(), key=lambda row: self.modes.index(row.mode))

    def _rows(self) -> Iterator[_Row]:
        for (case, mode, _), peers in self._peers.items():
            theirs = [t for t in peers if t.is_reference]
            ours = [t for t in peers if not t.is_reference]
            best = min(theirs, key=lambda t: t.p50 or math.inf, default=None)
            if best and not ours:
                yield _Row(clean(case, 40), mode, "", None, best)
            twice = len(ours) > len({t.variant for t in ours})
            for timing in ours:
                ratios = tuple(self._ratio(timing, best, peers, name) for name in self.against)
                yield _Row(clean(timing.name if twice else case, 40), mode, timing.variant, timing, best, ratios)

    def _ratio(self, timing: Timing, best: Timing | None, peers: list[Timing], name: str) -> Ratio | None:
        if name == "best":
            other = best
        elif name == "flash":
            other = next((t for t in peers if t.is_reference and _backend(t) == name), None)
        else:
            other = next((t for t in peers if not t.is_reference and t.variant == name), None)
        return ratio_of(timing, other, self.content) if other and other is not timing else None

    def caption(self) -> str:
        """What was measured, in which unit, and what the modes are."""
        units = sorted({"µs" if t.unit == "us" else clean(t.unit, 8) for t in self.found})
        counts = sorted({int(n) for t in self.found if (n := t.stats.get("n")) is not None})
        few = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}" if counts else ""
        named = " and ".join(clean(v, 24) for v in self.variants[:3] if v)
        where = clean(self.content.get("device") or "", 40)
        where = "" if where == named else where
        first = [
            f"{named}{' on ' if named and where else ''}{where}",
            f"times in {' / '.join(units)}",
            f"{few} samples" if few else "",
        ]
        known = [_MODES[m] for m in self.modes if m in _MODES]
        second = known if len(known) == len(self.modes) else []
        return " · ".join(s for s in first if s) + ("\n" + " · ".join(second) if second else "")

    def table(self, layout: _Layout) -> Table:
        """The rows with the columns of ``layout``."""
        several = len(self.modes) > 1
        left = ["\ncase"]
        left += ["\nmode"] if several and layout.mode else []
        left += ["\nvariant"] if len(self.variants) > 1 else []
        made = table(*left, right=(*(f"\n{key}" for key in layout.ours), *self._their_headers(layout)))
        made.columns[0].no_wrap = True
        shown_mode = None
        for row in self.rows[:MAX_ROWS]:
            if several and not layout.mode and row.mode != shown_mode:
                made.add_row(text(clean(row.mode, 20) or "-", "bold"))
                shown_mode = row.mode
            made.add_row(*self._cells(row, layout, several=several))
        return made

    def _their_headers(self, layout: _Layout) -> list[str]:
        best = "best" if len(self.backends) > 1 else self.brand
        headers = [f"{best if key == layout.theirs[0] else ''}\n{key}" for key in layout.theirs]
        if len(self.backends) > 1:
            headers.append(f"{self.brand}\nbackend")
        names = {"best": f"best {self.brand}" if len(self.backends) > 1 else self.brand}
        return headers + [f"against\n{clean(names.get(name, name), 24)}" for name in self.against]

    def _cells(self, row: _Row, layout: _Layout, *, several: bool) -> Iterator[Text]:
        yield text(row.label)
        if several and layout.mode:
            yield text(clean(row.mode, 20))
        if len(self.variants) > 1:
            yield text(clean(row.variant, 24))
        for key in layout.ours:
            yield _stat(row.ours, key)
        for key in layout.theirs:
            yield _stat(row.best, key, "dim")
        if len(self.backends) > 1:
            yield text(clean(_backend(row.best), 20) if row.best else "", "dim")
        for ratio in row.ratios or (None,) * len(self.against):
            yield _ratio_cell(ratio, interval_too=layout.interval)


def _stat(timing: Timing | None, key: str, style: str = "") -> Text:
    value = timing.stats.get(key) if timing else None
    return text((whole(value) if value else "") if key == "n" else microseconds(value), style)


def _backend(timing: Timing) -> str:
    """``flash`` of ``sdpa-flash``; PyTorch's own choice has no name of its own."""
    return _BRAND.sub("", timing.variant) or "default"


def _ratio_cell(ratio: Ratio | None, *, interval_too: bool) -> Text:
    if ratio is None:
        return text("")
    if ratio.low is None or ratio.high is None or not 0 < ratio.low <= ratio.high:
        return text(speed(ratio.value), "green" if ratio.value < 1 else "red")
    certain = not ratio.low <= 1 <= ratio.high
    colour = ("green" if ratio.value < 1 else "red") if certain else "yellow"
    if interval_too:
        return text(f"{speed(ratio.value)} {interval(ratio.value, ratio.low, ratio.high)}", colour)
    return text(speed(ratio.value) + ("" if certain else " ?"), colour)


# ------------------------------------------------------------------------------------------------ notes below
def _notes(content: dict[str, Any], pivot: _Pivot) -> Iterator[Text]:
    comparisons = objects(content.get("comparisons"))
    nulls = [c for c in comparisons if c.get("null") is True or c.get("benchmark") == c.get("against")]
    values = [v for v in (number(c.get("ratio")) for c in nulls) if v is not None]
    if values:
        span = f"; {min(values):.3f} to {max(values):.3f} over {len(values)} rows" if len(values) > 1 else ""
        off = max(abs(v - 1) for v in values) > NULL_TOLERANCE
        said = f"null {values[0]:.3f}  the kernel against itself{span}"
        yield text(said + (": the machine was too busy" if off else ""), "yellow" if off else "dim")
    throttled = sum(number(c.get("throttled_blocks")) or 0 for c in comparisons)
    if throttled:
        yield text(f"the GPU's clocks were throttled during {throttled:.0f} blocks of samples", "yellow")
    yield from _grade(content, pivot)
    ratios = [r for row in pivot.rows for r in row.ratios if r and r.low is not None and r.high is not None]
    if any(r.low <= 1 <= r.high for r in ratios if r.low is not None and r.high is not None):
        yield text("? or an interval around 1: as fast, as far as these samples can tell", "dim")


def _grade(content: dict[str, Any], pivot: _Pivot) -> Iterator[Text]:
    """The mission shape's grade, which there is on an L4 only."""
    missions = [t for t in pivot.found if not t.is_reference and t.name == "mission"]
    found = grade(missions[0].stats.get("p50", math.nan), str(content.get("device"))) if missions else None
    if found:
        yield text(f"grade {found.letter}  next: {found.next_step}")


# ------------------------------------------------------------------------------------------------ as it is
def _listed(found: list[Timing]) -> Iterator[RenderableType]:
    if not found:
        return
    units = sorted({"µs" if t.unit == "us" else clean(t.unit, 8) for t in found})
    modes = [m for m in dict.fromkeys(t.mode for t in found) if m]
    yield text(f"times in {' / '.join(units)}" + (f" · {clean(modes[0], 20)}" if len(modes) == 1 else ""), "dim")
    rows = found[:MAX_ROWS]
    several = len(modes) > 1
    by_mean = any("p50" not in t.stats and "mean" in t.stats for t in rows)  # nvbench without its samples
    keys = [k for k in (*_STATS, *(("mean",) if by_mean else ())) if any(k in t.stats for t in rows)]
    made = table("benchmark", *(("mode",) if several else ()), right=keys)
    for timing in rows:
        named = text(_named(timing))
        if timing.error:
            named.append(f": {clean(timing.error, 200)}", "red")
        mode = (text(clean(timing.mode, 20)),) if several else ()
        made.add_row(named, *mode, *(_stat(timing, key) for key in keys))
    yield made
    yield from more(len(found), MAX_ROWS)


def _named(timing: Timing) -> str:
    named = timing.name
    if timing.variant and timing.variant not in timing.name:
        named += f" {timing.variant}"
    return clean(named, 80)
