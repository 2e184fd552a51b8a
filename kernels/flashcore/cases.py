"""Test cases, tolerances and the result document of :mod:`flashcore.check`.

Nothing here needs torch: arrays are PyTorch's or NumPy's (:mod:`flashcore.plain`).
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flashcore.errors import UsageError, nearest
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
#: Bits of an FP16 NaN that arithmetic does not produce.
POISON = 0x7E5A
#: Scales of the values case, beside D ** -0.5.
SCALES = (0.03, 0.3)
#: The brief's absolute tolerance. Alone it is far too loose: outputs at S = 512 are themselves below 0.3.
MAX_ERR = 0.06
#: Root mean square error relative to the output's own.
REL_RMS = 1e-3
#: Times PyTorch's own error on the same inputs.
SDPA_FACTOR = 2.0
#: One rounding to FP16, relative to the largest value: no kernel can be asked for less, and where PyTorch happens to be
#: exact (a single key) twice nothing would be nothing.
HALF_ULP = 2.0**-11
FP32_SLACK = 1e-5


#: Kinds of values that break careless kernels, with what each one breaks.
HOSTILE = {
    "large": "scores in the hundreds: overflow without a running maximum",
    "tiny": "scores near zero: every weight the same",
    "hot_row": "one key draws nearly all the weight, late in the sequence: the correction of earlier sums",
    "bias": "a constant offset per channel of K and V, as real models have: cancellation",
    "negative": "all scores far below zero: a maximum that starts at 0 instead of -inf",
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
            raise UsageError(f"there is no case {part!r}", hint=nearest(part, known))
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
class Error:
    max_err: float  # NaN and infinity count as infinite; they are counted apart, too
    mean_err: float
    rel_rms: float
    nan: int
    inf: int


@dataclass(frozen=True)
class Tolerance:
    max_err: float
    rel_rms: float
    sdpa_max_err: float | None = None  # PyTorch's own, on the same inputs

    def refusal(self, error: Error) -> str | None:
        """Why ``error`` is too large, None if it is not."""
        if error.nan or error.inf:
            return f"{error.nan} NaN and {error.inf} infinite outputs (outputs start as NaN: unwritten ones count)"
        if error.max_err > self.max_err:
            return f"max error {error.max_err:.3g} is above {self.max_err:.3g}"
        if error.rel_rms > self.rel_rms:
            return f"relative RMS error {error.rel_rms:.3g} is above {self.rel_rms:.3g}"
        return None

    def as_dict(self) -> dict[str, Any]:
        return {
            "max_err": self.max_err,
            "rel_rms": self.rel_rms,
            "sdpa_max_err": self.sdpa_max_err,
            "brief_max_err": MAX_ERR,
        }


def measure(got: Any, right: Any) -> Error:
    """The error of ``got`` against ``right``, which is finite; both float64."""
    size = abs(got)
    nan, inf = int((got != got).sum()), int((size == math.inf).sum())  # noqa: PLR0124 (NaN differs from itself)
    if nan or inf:
        finite = size < math.inf
        got, right = got[finite], right[finite]
    if math.prod(got.shape) == 0:
        return Error(math.inf, math.inf, math.inf, nan, inf)
    difference = abs(got - right)
    size, rms = float((right * right).mean()) ** 0.5, float((difference * difference).mean()) ** 0.5
    return Error(float(difference.max()), float(difference.mean()), rms / size if size else rms, nan, inf)


def tolerance(theirs: float, right: Any, declared: tuple[float, float] | None = None) -> Tolerance:
    """The largest error that passes. ``theirs`` is the largest error of the reference implementation (SDPA, or NumPy in
    FP32) on the same inputs; ``declared`` the limits of a kernel with fewer bits (registry.Variant.tolerance)."""
    largest = float(abs(right).max())
    if declared is not None:
        return Tolerance(declared[0] * max(1.0, largest), declared[1], theirs)
    floor = HALF_ULP * largest + FP32_SLACK
    return Tolerance(min(MAX_ERR, max(SDPA_FACTOR * theirs, floor)), REL_RMS, theirs)


@dataclass(frozen=True)
class Trial:
    """One launch and how it went; ``fault`` is None for a pass."""

    label: str
    shape: Shape
    error: Error | None = None
    tolerance: Tolerance | None = None
    fault: str | None = None

    @property
    def badness(self) -> tuple[bool, float]:
        """Orders trials: failures first, then by how much of the tolerance is used."""
        used = self.error.max_err / self.tolerance.max_err if self.error and self.tolerance else math.inf
        return (self.fault is not None, used)

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
        "brief_passed": sum(c["brief_passed"] for c in cases),
    }


def case(name: str, seed: int, trials: Iterator[Trial]) -> dict[str, Any]:
    worst = max(trials, key=lambda t: t.badness)
    error = asdict(worst.error) if worst.error else dict.fromkeys(("max_err", "mean_err", "rel_rms", "nan", "inf"))
    error = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in error.items()}
    where = f"{worst.label}, shape {worst.shape}"
    return {
        "name": name,
        "shape": worst.shape.as_dict(),
        "seed": seed,
        "passed": worst.fault is None,
        **error,
        "tolerance": worst.tolerance.as_dict() if worst.tolerance else None,
        "of_sdpa": worst.of_sdpa,
        "brief_passed": worst.error is not None and worst.error.max_err <= MAX_ERR,
        "message": f"worst: {where}" if worst.fault is None else f"{where}: {worst.fault}",
    }
