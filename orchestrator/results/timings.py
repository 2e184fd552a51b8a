"""A benchmark document read as timings: what was measured, on which shape, by our kernel or by the reference; and what
the index of the store keeps of each.

The documents come from a host, so that nothing in them need be there or have the right type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from orchestrator.base.json_text import pick
from orchestrator.base.sanitize import number, objects, part, table, worded
from orchestrator.results.records import RunRow

#: Of a document; what is behind them is not looked at.
MAX_ENTRIES = 20_000
#: Names by which benchmarks call PyTorch's scaled_dot_product_attention.
_REFERENCE = re.compile(r"(?:^|[^a-z0-9])(?:sdpa|pytorch|torch)(?:$|[^a-z0-9])", re.IGNORECASE)
_SEPARATOR = re.compile(r"[/:\[ ]|(?<=[a-z0-9])\.(?=[a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class Timing:
    """One entry of ``benchmarks``; times in microseconds unless ``unit`` says otherwise."""

    name: str
    case: str  # what was timed, ``mission``: the same for our kernel and the reference
    variant: str
    mode: str  # hot, cold, eager; empty if the document knows none
    unit: str
    shape: dict[str, int] | None
    stats: dict[str, float]  # finite numbers only: n, p50, p90, p99, min, max, mean, stddev
    is_reference: bool
    is_anchor: bool = False  # code that never changes, timed to show what the machine does
    error: str = ""  # why there is no time

    @property
    def p50(self) -> float | None:
        return self.stats.get("p50")


@dataclass(frozen=True)
class Ratio:
    """Time over the reference's time: below 1 is faster. ``paired`` ones carry a measured interval."""

    value: float
    low: float | None = None
    high: float | None = None
    paired: bool = False


def timings(document: dict[str, Any]) -> list[Timing]:
    """Every entry that has a median, in the document's order."""
    return [t for t in entries(document) if t.p50 is not None and t.p50 > 0]


def entries(document: dict[str, Any]) -> list[Timing]:
    """Every entry, at most :data:`MAX_ENTRIES`, also those of tools that report no median, and those that failed."""
    return [_timing(entry) for entry in objects(document.get("benchmarks"))[:MAX_ENTRIES]]


class Peers:
    """The timings of a document beside each other, and by how much they differ."""

    def __init__(self, timed: Iterable[Timing], document: dict[str, Any]) -> None:
        #: Those of one case, mode and unit together, in the document's order.
        self.groups: dict[tuple[str, str, str], list[Timing]] = {}
        for t in timed:
            self.groups.setdefault((t.case, t.mode, t.unit), []).append(t)
        self._paired: dict[tuple[str, str], Ratio] = {}
        for entry in objects(document.get("comparisons")):
            value = number(entry.get("ratio"))
            if value is not None and value > 0:
                ratio = Ratio(value, number(entry.get("ci_low")), number(entry.get("ci_high")), paired=True)
                self._paired.setdefault((str(entry.get("benchmark")), str(entry.get("against"))), ratio)

    def references(self, timing: Timing) -> list[Timing]:
        """The references beside one of ours, the fastest first."""
        if timing.is_reference:
            return []
        beside = self.groups[timing.case, timing.mode, timing.unit]
        return sorted((t for t in beside if t.is_reference and t.p50), key=lambda t: t.p50 or 0.0)

    def ratio(self, timing: Timing, other: Timing) -> Ratio | None:
        """The ratio that the document has for the two, measured in pairs; without one, that of their medians."""
        by_medians = Ratio(timing.p50 / other.p50) if timing.p50 and other.p50 else None
        return self._paired.get((timing.name, other.name), by_medians)


def controls(timed: list[Timing]) -> list[Timing]:
    """Anchors, and references that stand beside something that is none: alone, code with PyTorch in its name is
    somebody's own."""
    ours = {(t.case, t.mode) for t in timed if not t.is_reference and not t.is_anchor}
    return [t for t in timed if t.is_anchor or (t.is_reference and (t.case, t.mode) in ours)]


def method_of(document: dict[str, Any]) -> str:
    """How it was measured: the tool, and the version of its method if that has one."""
    version = document.get("method_version")
    tool = document.get("tool")
    return " ".join(str(part)[:60] for part in (tool, f"v{version}" if version is not None else None) if part)


def shape_of(value: object) -> dict[str, int] | None:
    """``{B, H, S, D}`` if ``value`` is that, of sizes that can be."""
    if not isinstance(value, dict):
        return None
    sizes = {k: value[k] for k in "BHSD" if type(value.get(k)) is int and 0 < value[k] < 2**31}
    return sizes if len(sizes) == 4 else None


def shape_text(shape: dict[str, int] | None) -> str:
    """``1,8,512,64``; empty without a shape."""
    return ",".join(str(shape[k]) for k in "BHSD") if shape else ""


def _timing(entry: dict[str, Any]) -> Timing:
    name = str(entry.get("name") or "?")
    variant = str(entry.get("variant") or "")
    role = entry.get("role")
    return Timing(
        name=name,
        case=_case(name, variant, entry.get("case")),
        variant=variant,
        mode=str(entry.get("mode") or ""),
        unit=str(entry.get("unit") or "us"),
        shape=shape_of(entry.get("shape")),
        stats={k: v for k, v in ((k, number(v)) for k, v in table(entry.get("stats")).items()) if v is not None},
        error=str(entry.get("error") or ""),
        is_anchor=role == "anchor",
        is_reference=role == "reference" or any(_REFERENCE.search(text) for text in (name, variant)),
    )


def _case(name: str, variant: str, given: object) -> str:
    """``mission`` of ``mission/sdpa/hot``, ``mission.sdpa`` or ``sdpa/mission``."""
    if isinstance(given, str) and given:
        return given
    parts = [p.strip("]) ") for p in _SEPARATOR.split(name)]
    named = [p for p in parts if p and p != variant and not _REFERENCE.search(p)]
    return named[0] if named else name


#: The next step where nothing was measured.
HOW_TO = "let a step print times, or write a benchmark, and collect it (times, google-benchmark, ...): fcctl help jobs"


@dataclass(frozen=True)
class Measurement:
    """One benchmark of one run, as the index of the store holds it. ``p50`` in ``unit``."""

    run_id: str
    created: str  # ISO 8601, UTC
    job: str
    target: str
    status: str
    benchmark: str
    variant: str
    mode: str
    unit: str
    shape: str  # 1,8,512,64; empty if not said
    method: str
    reference: bool  # code that is not ours, timed beside ours
    p50: float
    n: int
    gpu: str | None
    driver: str | None
    git_commit: str | None
    tree_sha256: str
    #: Its time over that of the fastest reference beside it, as measured in pairs where it was; None without one.
    ratio: float | None = None
    settings: str = ""  # what --set replaced: TILE=64 STAGES=2
    spread: float | None = None  # its 90th percentile over its median


#: Benchmarks of one document that the index keeps, and characters of a name.
MAX_ROWS, TEXT = 5000, 200


def measurements(
    document: dict[str, Any], run: RunRow, driver: str | None, settings: str = ""
) -> list[Measurement]:  # fmt: skip
    """Every benchmark of ``document`` that has a median, or, where its tool reports none, a mean."""

    timed = entries(document)[:MAX_ROWS]
    theirs = {id(t) for t in controls(timed)}
    stated, device = part(document, "environment", "driver"), document.get("device")
    method = method_of(document)
    measured = []
    peers = Peers(timed, document)
    for timing in timed:
        middle = timing.stats.get("p50") or timing.stats.get("mean")
        if middle is None or middle <= 0:
            continue
        ratio = next((peers.ratio(timing, reference) for reference in peers.references(timing)), None)
        p90 = timing.stats.get("p90")
        measured.append(
            Measurement(
                **pick(run, "run_id created job target status git_commit tree_sha256"),
                benchmark=timing.name[:TEXT],
                variant=timing.variant[:TEXT],
                mode=timing.mode[:TEXT],
                unit=timing.unit[:TEXT],
                shape=shape_text(timing.shape)[:TEXT],
                method=method[:TEXT],
                reference=id(timing) in theirs,
                p50=middle,
                n=max(0, min(int(timing.stats.get("n", 0)), 2**31)),
                gpu=worded(device, TEXT) or run.gpu,
                driver=worded(stated, TEXT) or driver,
                ratio=ratio.value if ratio else None,
                settings=settings[:TEXT],
                spread=p90 / middle if p90 else None,
            )
        )
    return measured
