"""A benchmark document as a table: one line for each shape and mode of a kernel, with the reference's time beside it.

A document without a reference (any repository's google-benchmark, pytest-benchmark or nvbench) is listed as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.base.sanitize import clean, number, objects, part
from orchestrator.results.timings import Peers, Ratio, Timing, entries, timings
from orchestrator.views.blocks import Block, Cell, Grid, Text, more
from orchestrator.views.figures import interval, microseconds, speed, unit_name, whole

MAX_ROWS = 60
#: Further from 1 than this, a kernel's ratio to itself says that the machine was too busy to measure to measure on.
NULL_TOLERANCE = 0.1
_STATS, _PERCENTILES = ("n", "p50", "p90", "p99", "min"), ("p50", "p90", "p99")
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


#: What a narrow terminal leaves out, the first first; ``-1`` are the intervals.
_OPTIONAL = ("n", "min", "best p90", "best p99", -1, "mode", "p90", "backend", "p99", "against flash")


def benchmark(content: dict[str, Any]) -> Iterator[Block]:
    """Caption, table and notes of a benchmark document; nothing if it has no timing."""
    timed = timings(content)
    peers = Peers(timed, content)
    if any(len({t.is_reference for t in beside}) == 2 for beside in peers.groups.values()):
        pivot = _Pivot(content, timed, peers)
        yield from (Text(line, style="soft") for line in pivot.caption())
        yield pivot.grid()
        yield from more(pivot.rows, MAX_ROWS)
        yield from _notes(content, pivot.rows)
    else:
        yield from _listed(entries(content))


# ------------------------------------------------------------------------------------------------ beside a reference
class _Pivot:
    """Our timings, each beside the best reference. ``against``: what the last columns compare with, which is ``best``,
    ``flash``, or another variant of ours."""

    def __init__(self, content: dict[str, Any], timed: list[Timing], peers: Peers) -> None:
        self._content, self._timed, self._peers = content, timed, peers
        self.backends = list(dict.fromkeys(_backend(t) for t in timed if t.is_reference))
        self.variants = list(dict.fromkeys(t.variant for t in timed if not t.is_reference))
        self.modes = list(dict.fromkeys(t.mode for t in timed))
        self.brand = "SDPA" if any("sdpa" in f"{t.name} {t.variant}".lower() for t in timed) else "PyTorch"
        self.against = ["best", *(["flash"] if len(self.backends) > 1 and "flash" in self.backends else [])]
        self.against += self.variants[1:3]
        rows = (row for (case, mode, _), beside in peers.groups.items() for row in self._rows(case, mode, beside))
        self.rows = sorted(rows, key=lambda row: self.modes.index(row.mode))

    def _rows(self, case: str, mode: str, peers: list[Timing]) -> Iterator[_Row]:
        ours = [t for t in peers if not t.is_reference]
        best = min((t for t in peers if t.is_reference), key=lambda t: t.p50 or math.inf, default=None)
        if best and not ours:
            yield _Row(clean(case, 40), mode, "", None, best)
        twice = len(ours) > len({t.variant for t in ours})
        for timing in ours:
            ratios = tuple(self._ratio(timing, best, peers, name) for name in self.against)
            yield _Row(clean(timing.name if twice else case, 40), mode, timing.variant, timing, best, ratios)

    def _ratio(self, timing: Timing, best: Timing | None, peers: list[Timing], name: str) -> Ratio | None:
        other = best
        if name == "flash":
            other = next((t for t in peers if t.is_reference and _backend(t) == name), None)
        elif name != "best":
            other = next((t for t in peers if not t.is_reference and t.variant == name), None)
        return self._peers.ratio(timing, other) if other and other is not timing else None

    def caption(self) -> Iterator[str]:
        """What was measured, in which unit, and what the modes are."""
        counts = sorted({int(n) for t in self._timed if (n := t.stats.get("n")) is not None})
        few = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}" if counts else ""
        named = " and ".join(clean(v, 24) for v in self.variants[:3] if v)
        where = clean(self._content.get("device") or "", 40)
        where = "" if where == named else where
        first = (
            f"{named}{' on ' if named and where else ''}{where}",
            _units(self._timed),
            few and f"{few} sample{'s' * (few != '1')}",
        )
        yield " · ".join(text for text in first if text)
        known = [_MODES[m] for m in self.modes if m in _MODES]
        if known and len(known) == len(self.modes):
            yield " · ".join(known)

    def grid(self) -> Grid:
        several = len(self.backends) > 1
        best = f"best {self.brand}" if several else self.brand
        labels = [(key, key) for key in ("case", "mode", "variant")]
        labels = [pair for pair in labels if pair[0] == "case" or len(getattr(self, f"{pair[0]}s")) > 1]
        left = len(labels)
        labels += [(key, key) for key in _STATS] + [(f"best {key}", f"{self.brand}\n{key}") for key in _PERCENTILES]
        labels += [("backend", f"{self.brand}\nbackend")] if several else []
        labels += [
            (f"against {name}", f"against\n{best if name == 'best' else clean(name, 24)}") for name in self.against
        ]
        keys = [key for key, _ in labels]
        optional = tuple(key if isinstance(key, int) else keys.index(key) for key in _OPTIONAL if key in (-1, *keys))
        return Grid(
            tuple(label for _, label in labels), tuple(self._cells(row, keys) for row in self.rows[:MAX_ROWS]),
            "Times of our kernels and the reference's", numbers=tuple(range(left, len(keys))), optional=optional,
            group=keys.index("mode") if "mode" in keys else None,
        )  # fmt: skip

    def _cells(self, row: _Row, keys: list[str]) -> tuple[str | Cell, ...]:
        cells: dict[str, str | Cell] = {
            "case": row.label,
            "mode": clean(row.mode, 20),
            "variant": clean(row.variant, 24),
        }
        cells |= {key: _stat(row.ours, key) for key in _STATS}
        cells |= {f"best {key}": Cell(_stat(row.best, key), kind="soft") for key in _PERCENTILES}
        cells["backend"] = Cell(clean(_backend(row.best), 20) if row.best else "", kind="soft")
        ratios = row.ratios or (None,) * len(self.against)
        cells |= {f"against {name}": _ratio_cell(r) for name, r in zip(self.against, ratios, strict=True)}
        return tuple(cells[key] for key in keys)


def _units(timed: Iterable[Timing]) -> str:
    return f"times in {' / '.join(sorted({clean(unit_name(t.unit), 8) for t in timed}))}"


def _stat(timing: Timing | None, key: str) -> str:
    value = timing.stats.get(key) if timing else None
    return (whole(value) if value else "") if key == "n" else microseconds(value)


def _backend(timing: Timing) -> str:
    """``flash`` of ``sdpa-flash``; PyTorch's own choice has no name of its own."""
    return _BRAND.sub("", timing.variant) or "default"


def _ratio_cell(ratio: Ratio | None) -> Cell:
    if ratio is None:
        return Cell("")
    style = "good" if ratio.value < 1 else "bad"
    if ratio.low is None or ratio.high is None or not 0 < ratio.low <= ratio.high:
        return Cell(speed(ratio.value), kind=style)
    if ratio.low <= 1 <= ratio.high:
        return Cell(f"{speed(ratio.value)} ?", interval(ratio.value, ratio.low, ratio.high), "doubt")
    return Cell(speed(ratio.value), interval(ratio.value, ratio.low, ratio.high), style)


def _notes(content: dict[str, Any], rows: list[_Row]) -> Iterator[Block]:
    comparisons = objects(content.get("comparisons"))
    nulls = [c for c in comparisons if c.get("null") is True or c.get("benchmark") == c.get("against")]
    values = [v for v in (number(c.get("ratio")) for c in nulls) if v is not None]
    if values:
        span = f"; {min(values):.3f} to {max(values):.3f} over {len(values)} rows" if len(values) > 1 else ""
        off = max(abs(v - 1) for v in values) > NULL_TOLERANCE
        line = f"null {values[0]:.3f}  the kernel against itself{span}"
        yield Text(line + (": the machine was too busy to measure" if off else ""), style="doubt" if off else "soft")
    throttled = sum(number(c.get("throttled_blocks")) or 0 for c in comparisons)
    if throttled:
        yield Text(f"the GPU's clocks were throttled during {throttled:.0f} blocks of samples", style="doubt")
    for entry in objects(content.get("benchmarks")):
        if letter := part(entry, "grade", "letter"):
            name, step = clean(entry.get("name") or "", 40), clean(part(entry, "grade", "next_step") or "", 200)
            yield Text(f"grade {clean(letter, 8)} of {name}  next: {step}")
    ratios = [r for row in rows for r in row.ratios if r]
    if any(r.low <= 1 <= r.high for r in ratios if r.low is not None and r.high is not None):
        yield Text("?, an interval that contains 1: no difference measured", style="soft")


# ------------------------------------------------------------------------------------------------ as it is
def _listed(timed: list[Timing]) -> Iterator[Block]:
    if not timed:
        return
    modes = [m for m in dict.fromkeys(t.mode for t in timed) if m]
    yield Text(_units(timed) + (f" · {clean(modes[0], 20)}" if len(modes) == 1 else ""), style="soft")
    rows, several = timed[:MAX_ROWS], len(modes) > 1
    by_mean = any("p50" not in t.stats and "mean" in t.stats for t in rows)  # nvbench without its samples
    keys = [k for k in (*_STATS, *(("mean",) if by_mean else ())) if any(k in t.stats for t in rows)]
    header = ("benchmark", *(("mode",) if several else ()), *keys)
    lines = []
    for t in rows:
        named = f"{t.name} {t.variant}" if t.variant and t.variant not in t.name else t.name
        name = Cell(clean(named, 80) + (f": {clean(t.error, 200)}" if t.error else ""), kind="bad" if t.error else "")
        lines.append((name, *((clean(t.mode, 20),) if several else ()), *(_stat(t, key) for key in keys)))
    yield Grid(header, tuple(lines), "Times", numbers=tuple(range(len(header) - len(keys), len(header))))
    yield from more(timed, MAX_ROWS)
