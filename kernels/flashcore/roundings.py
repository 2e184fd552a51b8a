"""How far a right kernel's output lies from the exact result: derived from the roundings that it cannot avoid.

A kernel of 16 bits rounds twice: each weight P to the operand of P V, and each output. One rounding to a format whose
numbers above 1 lie ``unit`` apart errs by ``unit * sqrt(E / 12)`` of the value (root mean square), where E is the mean
of 1 / m^2 over mantissas m whose logarithms are spread evenly: 3 / (8 ln 2). That is 2.07e-4 for FP16, 1.66e-3 for
bfloat16, 0.0265 for E4M3. The roundings are independent, so the error of output [i, d] has the variance

    sum over j of (P_ij V_jd / l_i)^2 * sigma^2  +  (O_id)^2 * sigma^2,      l_i = sum over j of P_ij

which for normally distributed V comes to a relative RMS of sqrt(2) * sigma: 2.9e-4, 2.3e-3. Added are the format's
smallest numbers, the FP32 roundings of scores, and that tensor cores cut sums off, once for each 16 keys.

The kernel of 8 bits (csrc/fp8.cu) takes V's mean out first, rounds V, too, and divides by the sum of the rounded
weights, so that of P's error only what moves weight between values counts: (V_jd - O_id)^2. Its Q and K are signed
bytes, a scale for each row, or E4M3; what that does to a score is a relative error of its weight. csrc/int8.cu has
such Q and K alone: an error of a score moves weight between values, as there, and P, V and sums are those of 16 bits.
Both take scores' errors for independent: where V follows K (V = K, say), a query's own error is in all of its scores
alike, and a right kernel errs by more than this.

An error passes if it is at most ``MARGIN`` times what follows from that variance, with room for chance at ``Z``
standard deviations: each element, and the RMS of each row, of each head, and of all. So does the gain,
<error, O> / <O, O>: at most ``GAIN``, or where few roundings make it less certain, what chance allows. Where all rows
of a head are alike their roundings are, too, and count once. With 8 bits one score may decide a row: no RMS of rows.

Nothing here needs torch: arrays are PyTorch's or NumPy's, of one head [S, D] or of all [B, H, S, D], in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

MARGIN, Z, GAIN = 1.25, 6.0, 1e-4
#: Roundings of FP32: of a score, relative to the product of the norms; of a sum, relative to the largest value.
SCORE, SUM = 2.0**-22, 2.0**-23
#: What a tensor core cuts off a sum of 16 more keys, at most, relative to the sum.
CUT, KEYS = 2.0**-24, 16
LARGEST_BYTE = 127.0
NOTHING = 1e-300  # no division by zero


@dataclass(frozen=True)
class Format:
    unit: float  # between neighbours above 1
    tiny: float  # between the smallest

    @property
    def sigma(self) -> float:
        """Relative RMS error of a rounding."""
        return self.unit * math.sqrt(3 / (8 * math.log(2)) / 12)


FP16, BF16 = Format(2.0**-10, 2.0**-24), Format(2.0**-7, 2.0**-133)
E4M3 = Format(2.0**-3, 2.0**-9 / 448)  # of weights: the largest of a row is 448


@dataclass(frozen=True)
class Head:
    """What one head is computed from: weights relative to the largest of their row, not normalised."""

    q: Any
    k: Any
    v: Any
    p: Any
    out: Any  # exact
    scale: float


@dataclass(frozen=True)
class Spread:
    """Of the error of right kernels: ``variance`` [.., S, D]; ``gains`` [.., S], the variance of <error, O> of rows,
    and ``gain`` [..] of the head; ``count`` [..], how many roundings are independent."""

    variance: Any
    gains: Any
    gain: Any
    count: Any


@dataclass(frozen=True)
class Expected:
    """The right output for some inputs, and the error allowed."""

    right: Any
    spread: Spread
    drift: float  # a gain that tensor cores may have
    theirs: float | None = None  # PyTorch's largest error, for comparison
    by_row: bool = True  # the RMS error of a row is judged


def of_heads(
    heads: Iterable[tuple[Any, Head]], empty: Callable[..., Any], shape: Sequence[int], *how: Any
) -> tuple[Any, Spread]:
    """The right output, of ``shape`` [B, H, S, D], and the spread, by :func:`of_head` of each batch and head and
    ``how``; ``empty`` makes an array of a shape."""
    right, variance, gains = empty(shape), empty(shape), empty(shape[:3])
    gain, count = empty(shape[:2]), empty(shape[:2])
    for at, head in heads:
        spread = of_head(head, *how)
        right[at], variance[at], gains[at] = head.out, spread.variance, spread.gains
        gain[at], count[at] = spread.gain, spread.count
    return right, Spread(variance, gains, gain, count)


def of_head(head: Head, rounded: Format, eight_bits: str = "") -> Spread:
    """``rounded``: of the output, and of weights and V unless they are E4M3. ``eight_bits`` says what Q and K are: int8
    or e4m3, with E4M3 for P V; "qk", int8 as csrc/int8.cu has it, with P V in 16 bits."""
    pv = eight_bits not in ("", "qk")
    weights = E4M3 if pv else rounded
    v, out = head.v, head.out
    norms = ((head.k * head.k).sum(-1)) ** 0.5
    norms = norms[norms < math.inf]
    largest = float(norms.max()) if len(norms) else 0.0
    factor = abs(head.scale)
    total = head.p.sum(-1)[:, None]
    total = total + (total == 0)  # of a row that sees no key
    score = (SCORE * factor * math.log2(math.e) * largest) ** 2 * (head.q * head.q).sum(-1)[:, None]
    if pv:
        mean = head.v.mean(0)
        v, out = v - mean, out - mean
    if eight_bits:
        score = score + factor**2 * _of_scores(head, eight_bits)
    # In place where it can be: all but a few have few elements.
    of_weights = head.p.clip(weights.tiny / 12**0.5 / weights.sigma, None)
    of_weights *= of_weights
    stored = (rounded.sigma * head.out) ** 2 + rounded.tiny**2 / 12 + (SUM * float(abs(head.v).max())) ** 2
    of_scores = 0.0
    if eight_bits == "qk":
        moved = _moved(of_weights * (score / total**2), v, out, normalised=True)
        of_weights *= weights.sigma**2 / total**2
        rounding = _moved(of_weights, v, out, normalised=False)
        variance, own = (x + y for x, y in zip(moved, rounding))  # noqa: B905 (Python 3.9)
        of_scores = float(moved[0].sum())
    else:
        of_weights *= (weights.sigma**2 + score) / total**2
        variance, own = _moved(of_weights, v, out, normalised=pv)
    variance += stored
    own += (stored * head.out**2).sum(-1)
    of_values, common = 0.0, 0.0
    if pv:
        weight = head.p / total
        values = E4M3.sigma**2 * (weight**2 @ (v * v))
        variance += values
        of_values = (values * head.out**2).sum(-1)
        common = E4M3.sigma**2 * float(((v * (weight.T @ head.out)) ** 2).sum())
    rows, depth = head.out.shape
    of_rows, of_all = _shared(head, v, out, total, eight_bits) if eight_bits else (0.0, 0.0)
    gains = own + of_values + of_rows
    gain = float(own.sum()) + common + of_all
    scatter = head.out - head.out.mean(0)
    alike = float((scatter * scatter).sum()) <= weights.unit**2 * float((head.out * head.out).sum())
    if alike:
        gain = float((gains**0.5).sum()) ** 2
    part = of_scores / (float(variance.sum()) + NOTHING)  # of all: an error of a score is in all outputs of its row
    independent = 1 / (part**2 + (1 - part) ** 2 / depth)  # of a row
    # Of n rows that share errors, with correlation c, n / (1 + (n - 1) c^2) are independent.
    shared = min(1.0, of_all / (float(own.sum()) + NOTHING) / max(rows - 1, 1))
    independent *= 1 if alike else rows / (1 + (rows - 1) * shared**2)
    return Spread(variance, gains, gain, float(independent))


def _moved(weights: Any, v: Any, out: Any, *, normalised: bool) -> tuple[Any, Any]:
    """Variance of an output, and of <error, O> of rows, if that of weights, relative to their sum, is ``weights``;
    ``normalised``: and if their sum has the same errors, so that they only move weight between values."""
    along = out @ v.T  # <O, V> of each key
    variance = weights @ (v * v)
    if normalised:
        along -= (out * out).sum(-1)[:, None]
        variance += out * out * weights.sum(-1)[:, None] - 2 * out * (weights @ v)
    along *= along
    along *= weights
    return variance, along.sum(-1)


def _of_scores(head: Head, eight_bits: str) -> Any:
    """Variance of a score, without its scale, by Q and K of 8 bits; K is without its mean."""
    q, k, of_q, of_k = _of_operands(head, eight_bits)
    return of_q @ (k * k).T + (q * q) @ of_k.T


def _of_operands(head: Head, eight_bits: str) -> tuple[Any, Any, Any, Any]:
    """Q, K without its mean, and the variance of each element of both by its 8 bits."""
    q, k = head.q, head.k - (sampled_mean(head.k) if eight_bits == "qk" else head.k.mean(0))
    if eight_bits == "e4m3":
        return q, k, E4M3.sigma**2 * (q * q), E4M3.sigma**2 * (k * k)
    most_q, most_k = _row_max(abs(q)), _row_max(abs(k))
    if eight_bits == "qk":
        most_k = of_groups(most_k, q.shape[-1])
    of_q, of_k = (((most / LARGEST_BYTE) ** 2 / 12)[:, None] + 0 * x for most, x in ((most_q, q), (most_k, k)))
    return q, k, of_q, of_k


def _shared(head: Head, v: Any, out: Any, total: Any, eight_bits: str) -> tuple[Any, float]:
    """Returns what to add to the variance of <error, O>: [S] for each row, and for the head. An element of Q is rounded
    once for all keys, and one of K once for all rows, so these errors add up where all Q have one direction. Rows and
    keys whose errors cancel add nothing."""
    q, k, of_q, of_k = _of_operands(head, eight_bits)
    slope = out @ v.T - (out * out).sum(-1)[:, None]
    slope *= abs(head.scale) * head.p / total  # of <error, O> by a score
    squares = slope * slope
    by_q = (of_q * (slope @ k) ** 2).sum(-1) - (of_q * (squares @ (k * k))).sum(-1)
    by_k = (of_k * (slope.T @ q) ** 2).sum(-1) - (of_k * (squares.T @ (q * q))).sum(-1)
    by_q, by_k = by_q * (by_q > 0), by_k * (by_k > 0)
    return by_q, float(by_q.sum()) + float(by_k.sum())


def sampled_mean(k: Any) -> Any:
    """Of the keys [S, D] that csrc/int8.cu takes for a sample."""
    return k[[(i * 2654435769 % 2**32 * len(k)) >> 32 for i in range(64)]].mean(0)


def of_groups(sizes: Any, depth: int) -> Any:
    """The largest of each key's ``sizes`` [S] among those that share its scale in csrc/int8.cu: of 64 or 32 keys those
    whose number modulo 8 is 2 t or 2 t + 1."""
    keys = 64 if depth == 64 else 32
    padded = (sizes[:1] * 0).repeat(-(-len(sizes) // keys) * keys)
    padded[: len(sizes)] = sizes
    groups = padded.reshape(-1, keys // 8, 4, 2)
    groups[:] = _row_max(groups.swapaxes(1, 2).reshape(-1, 4, keys // 4))[:, None, :, None]
    return padded[: len(sizes)]


def _row_max(x: Any) -> Any:
    return x.amax(-1) if hasattr(x, "amax") else x.max(-1)


def drift(keys: int) -> float:
    return CUT * math.ceil(keys / KEYS)


# ------------------------------------------------------------------------------------------------ the verdict
@dataclass(frozen=True)
class Error:
    max_err: float  # NaN and infinity count as infinite; they are counted apart, too
    mean_err: float
    rel_rms: float
    nan: int
    inf: int
    gain: float = 0.0  # <error, right> / <right, right>


@dataclass(frozen=True)
class Tolerance:
    """Of all elements together: what the check of single elements, rows and heads adds is not in it."""

    max_err: float
    rel_rms: float
    gain: float = math.inf
    sdpa_max_err: float | None = None  # PyTorch's own, on the same inputs


@dataclass(frozen=True)
class Verdict:
    error: Error
    tolerance: Tolerance
    used: float  # the largest part of a limit that is used; above 1 it fails
    fault: str | None


def measure(got: Any, right: Any) -> Error:
    """The error of ``got`` against ``right``, which is finite; both float64."""
    size = abs(got)
    nan, inf = int((got != got).sum()), int((size == math.inf).sum())  # noqa: PLR0124 (NaN differs from itself)
    if nan or inf:
        finite = size < math.inf
        got, right = got[finite], right[finite]
    if math.prod(got.shape) == 0:
        return Error(math.inf, math.inf, math.inf, nan, inf)
    difference = got - right
    power, rms = float((right * right).mean()), float((difference * difference).mean()) ** 0.5
    gain = float((difference * right).mean()) / power if power else 0.0
    size = abs(difference)
    return Error(float(size.max()), float(size.mean()), rms / power**0.5 if power else rms, nan, inf, gain)


def judge(got: Any, expected: Expected) -> Verdict:
    """``got`` in float64."""
    right, spread = expected.right, expected.spread
    error = measure(got, right)
    power, variance = float((right * right).sum()), float(spread.variance.sum())
    tolerance = Tolerance(
        MARGIN * Z * float(spread.variance.max()) ** 0.5,
        MARGIN * float(_chance(spread.count.sum())) * (variance / power) ** 0.5 if power else math.inf,
        max(GAIN, MARGIN * Z * float(spread.gain.sum()) ** 0.5 / power) + expected.drift if power else math.inf,
        expected.theirs,
    )
    if error.nan or error.inf:
        what = f"{error.nan} NaN and {error.inf} infinite outputs (outputs start as NaN, so unwritten outputs count)"
        return Verdict(error, tolerance, math.inf, what)
    used, fault = max(_used(got - right, expected), key=lambda found: found[0])
    return Verdict(error, tolerance, used, fault if used > 1 else None)


def _used(wrong: Any, expected: Expected) -> Iterator[tuple[float, str]]:
    """The largest part of each limit that is used, and what to say if that is above 1."""
    right, spread, drift = expected.right, expected.spread, expected.drift
    size = abs(wrong) / (spread.variance**0.5 + drift * abs(right))
    most = float(size.max())
    yield most / (MARGIN * Z), f"an error is {most:.3g} standard deviations of a correct kernel (limit {MARGIN * Z:g})"
    power, squares, along = (right * right).sum(-1), (wrong * wrong).sum(-1), (wrong * right).sum(-1)
    variance = spread.variance.sum(-1) + drift**2 * power
    if expected.by_row:
        yield from _compared("a row", squares, variance, right.shape[-1])
    yield from _gain("a row", along, power, spread.gains, drift)
    squares, variance, power, along = (x.sum(-1) for x in (squares, variance, power, along))
    yield from _compared("a head", squares, variance, spread.count)
    yield from _gain("a head", along, power, spread.gain, drift)
    whole = (x.sum()[None] for x in (squares, variance, spread.count))
    yield from _compared("all", *whole)
    yield from _gain("all", *(x.sum()[None] for x in (along, power, spread.gain)), drift)


def _compared(of: str, squares: Any, variance: Any, count: Any) -> Iterator[tuple[float, str]]:
    ratio = (squares / variance) ** 0.5
    used, most = ratio / (MARGIN * _chance(count)), float(ratio.max())
    yield float(used.max()), f"the RMS error of {of} is up to {most:.3g} times that of a correct kernel"


def _gain(of: str, along: Any, power: Any, variance: Any, drift: float) -> Iterator[tuple[float, str]]:
    allowed = MARGIN * Z * variance**0.5 + drift * power + NOTHING
    least = (GAIN + drift) * power
    allowed = allowed + (least - allowed) * (least > allowed)
    used = abs(along) / allowed
    most = float((abs(along) / (power + (power == 0))).max())
    yield float(used.max()), f"the gain of {of} is wrong by up to {most:.3g}"


def _chance(count: Any) -> Any:
    """How much larger than expected the RMS of so many independent errors is at most, at Z standard deviations: a
    quantile of the chi-square distribution (Wilson and Hilferty)."""
    part = 2 / (9 * count)
    return (1 - part + Z * part**0.5) ** 1.5
