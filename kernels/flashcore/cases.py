"""Test cases and the result document of :mod:`flashcore.check`.

Nothing here needs torch: arrays are PyTorch's or NumPy's (:mod:`flashcore.plain`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from flashcore.errors import UsageError, nearest
from flashcore.roundings import Error, Tolerance, Verdict
from flashcore.shapes import Shape

SEEDS = 3
#: What follows the cases of the shapes.
SUMMARY = ("edges", "causal", "values", "layout", "repeat")
ALL = "all"
#: Launches on the same inputs that must all give the same bits.
REPEATS = 8
#: Lengths of the edges case, beside the longest.
EDGES = (1, 2, 17, 31, 63, 65, 127, 129, 511)
LONGEST = 4095
GUARD = 2048  # elements before and after each output that must stay as they are
#: Bits of a NaN, of FP16 and of bfloat16, that arithmetic does not produce.
POISON = 0x7FDA
#: Scales of the values case, beside D ** -0.5.
SCALES = (0.03, 0.3)
#: The brief's absolute tolerance. Alone it is far too loose: outputs at S = 512 are themselves below 0.3.
MAX_ERR = 0.06

#: Kinds of values that break careless kernels, with what each one breaks.
HOSTILE = {
    "large": "scores in the hundreds: overflow without a running maximum",
    "tiny": "scores near zero: all weights are equal",
    "hot_row": "one late key gets nearly all the weight: earlier sums must be corrected",
    "bias": "a constant offset per channel of K and V, as real models have: cancellation",
    "negative": "all scores far below zero: finds a maximum that starts at 0 instead of -inf",
}


def edges(D: int) -> Iterator[Shape]:
    for S in EDGES:
        yield Shape(2, 3, S, D)
    for S_q, S_kv in ((1, 129), (130, 1), (77, 300), (300, 77)):
        yield Shape(1, 3, S_q, D, S_kv)
    yield Shape(1, 1, LONGEST, D)


def causal(D: int) -> Iterator[tuple[Shape, str]]:
    """Shapes, and the values of their inputs."""
    for shape in (Shape(1, 8, 512, D), Shape(2, 3, 129, D), Shape(1, 3, 200, D, 77), Shape(1, 3, 77, D, 200)):
        yield shape, "plain"
    yield Shape(1, 2, 193, D), "hot_row"


def fresh_seeds(count: int) -> list[int]:
    """Random seeds, so that a kernel cannot be tuned for them. The document records them, so that a failure can be
    repeated."""
    return [secrets.randbits(31) for _ in range(count)]


Cases = Iterator[tuple[str, int, Iterator["Trial"]]]


def choose(text: str, shapes: Iterable[str], seeds: int = SEEDS) -> tuple[str, ...]:
    """The cases that ``text`` names, several separated by ``;``: ``mission/1``, ``edges``, all of a shape, or ``all``.

    Raises:
        UsageError: there is no such case.
    """
    known = [*(f"{shape}/{number}" for shape in shapes for number in range(1, seeds + 1)), *SUMMARY]
    chosen: list[str] = []
    for part in filter(None, (one.strip() for one in text.split(";"))):
        found = [name for name in known if part in (ALL, name, name.rpartition("/")[0])]
        if not found:
            raise UsageError(f"unknown case {part!r}", hint=nearest(part, known))
        chosen += found
    return tuple(dict.fromkeys(chosen or known))


def only(chosen: Sequence[str] | None, cases: Cases) -> Cases:
    """Those of ``cases`` that are ``chosen``; None: all. What is behind the last one is not prepared."""
    left = None if chosen is None else set(chosen)
    for name, seed, trials in cases:
        if left is None or name in left:
            yield name, seed, trials
        if left is not None:
            left.discard(name)
            if not left:
                return


def shaped(values: str, q: Any, k: Any, v: Any, normal: Callable[[int], Any]) -> tuple[Any, Any, Any]:
    """Standard normal ``q``, ``k``, ``v`` made ``plain`` or a key of :data:`HOSTILE`; ``normal`` draws a vector."""
    if values == "large":
        q, k = q * 8, k * 4
    elif values == "tiny":
        q, k = q * 1e-3, k * 1e-3
    elif values == "hot_row":
        k[:, :, -(k.shape[2] // 8 + 1)] = 3 * q.mean(2) + 4 * q[:, :, 0]
    elif values == "bias":
        k, v = k + 4 * normal(k.shape[3]), v + 2 * normal(v.shape[3])
    elif values == "negative":
        q, k = abs(q) * 2, -abs(k) * 2
    return q, k, v


@dataclass(frozen=True)
class Trial:
    """One launch and how it went; ``fault`` is None for a pass."""

    label: str
    shape: Shape
    error: Error | None = None
    tolerance: Tolerance | None = None
    fault: str | None = None
    used: float = math.inf  # of the tolerance

    @classmethod
    def of(cls, label: str, shape: Shape, verdict: Verdict, fault: str | None = None) -> Trial:
        """``fault``: what is wrong, if the results are right."""
        return cls(label, shape, verdict.error, verdict.tolerance, verdict.fault or fault, verdict.used)

    @property
    def badness(self) -> tuple[bool, float]:
        """Orders trials: failures first, then by how much of the tolerance is used."""
        return (self.fault is not None, self.used)

    @property
    def of_sdpa(self) -> float | None:
        """The largest error in those of PyTorch's on the same inputs; None if PyTorch is exact, or there is none."""
        if self.error is None or self.tolerance is None or not self.tolerance.sdpa_max_err:
            return None
        ratio = self.error.max_err / self.tolerance.sdpa_max_err
        return round(ratio, 4) if math.isfinite(ratio) else None


def summary(cases: Sequence[dict[str, Any]]) -> dict[str, Any]:
    passed = sum(c["passed"] for c in cases)
    errors = [c["max_err"] for c in cases if c["max_err"] is not None]
    means = [c["mean_err"] for c in cases if c["mean_err"] is not None]
    return {
        "total": len(cases),
        "passed": passed,
        "failed": len(cases) - passed,
        "skipped": 0,
        "max_err": max(errors, default=None),
        "mean_err": sum(means) / len(means) if means else None,
        "max_rel_rms": max((c["rel_rms"] for c in cases if c["rel_rms"] is not None), default=None),
        "of_sdpa": max((c["of_sdpa"] for c in cases if c["of_sdpa"] is not None), default=None),
        "max_used": max((c["used"] for c in cases if c["used"] is not None), default=None),
        "brief_passed": sum(c["brief_passed"] for c in cases),
    }


def case(name: str, seed: int, trials: Iterator[Trial]) -> dict[str, Any]:
    worst = max(trials, key=lambda t: t.badness)
    error = asdict(worst.error) if worst.error else dict.fromkeys(field.name for field in fields(Error))
    allowed = asdict(worst.tolerance) | {"brief_max_err": MAX_ERR} if worst.tolerance else None
    where = f"{worst.label}, shape {worst.shape}"
    return {
        "name": name,
        "shape": worst.shape.as_dict(),
        "seed": seed,
        "passed": worst.fault is None,
        **_finite(error),
        "tolerance": _finite(allowed) if allowed else None,
        "used": round(worst.used, 4) if math.isfinite(worst.used) else None,
        "of_sdpa": worst.of_sdpa,
        "brief_passed": worst.error is not None and worst.error.max_err <= MAX_ERR,
        "message": f"worst: {where}" if worst.fault is None else f"{where}: {worst.fault}",
    }


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
