"""Rank tests, correction for many tests, intervals from samples in blocks; and where the level of a series changed, by
a test that stays valid when it is repeated after every run.

Runs in a row are correlated, and the correlation is not known. Two models of a first-order autoregression are compared:
one with a step, one without, each averaged over correlations, places and sizes of the step (a Bayes factor; level and
scale have the improper priors that make it independent of both). For a series without a step, the probability that the
factor ever exceeds 1 / alpha is at most alpha, however often it is computed (Ville's inequality); this holds on average
over the correlations. docs/statistics.md has the measured rates for each.

The series is read from its start, one run after the other, as it was looked at: a change that was told stays told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


#: Up to this many values in all, and without ties, the rank test counts every arrangement.
EXACT = 50


def rank_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of the Wilcoxon-Mann-Whitney test that ``a`` and ``b`` have one distribution.

    Exact for at most :data:`EXACT` values without ties; else the normal approximation with corrections for ties and
    for continuity. 1.0 if either side is empty.
    """
    n, m = len(a), len(b)
    ranks, ties = midranks([*a, *b])
    u = sum(ranks[:n]) - n * (n + 1) / 2
    if n + m <= EXACT and not ties:
        counts = _arrangements(n, m)
        least = int(min(u, n * m - u))
        return min(1.0, 2 * sum(counts[: least + 1]) / sum(counts))
    total = n + m
    variance = n * m / 12 * (total + 1 - sum(t**3 - t for t in ties) / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values as Holm adjusts them: calling those at most alpha significant is wrong anywhere in the family with
    a probability of at most alpha, however the tests depend on each other."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted: dict[int, float] = {}
    worst = 0.0
    for place, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = worst
    return [adjusted[i] for i in range(len(p_values))]


def midranks(values: Sequence[float]) -> tuple[list[float], list[int]]:
    """Mid-ranks from 1, and the sizes of the groups of equal values."""
    import numpy as np

    _, places, sizes = np.unique(np.asarray(values, dtype=float), return_inverse=True, return_counts=True)
    ranks = np.cumsum(sizes) - (sizes - 1) / 2
    return ranks[places].tolist(), sizes[sizes > 1].tolist()


@cache
def _arrangements(n: int, m: int) -> list[int]:
    """How many of the orders of ``n`` and ``m`` values have each U, from 0 to ``n * m`` (Mann and Whitney, 1947)."""
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):  # times (1 - q^(m+i)) / (1 - q^i): the Gaussian binomial coefficient
        for u in range(n * m, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    return counts


METRICS = ("p50", "mean", "min", "p90", "p99")
#: Batches whose medians tell whether the samples drifted: at most so many, of at least so many samples.
BATCHES, BATCH = 8, 4
#: Blocks that a bootstrap draws from, at least.
LEAST_BLOCKS = 5
#: Samples beyond this many are thinned: thousands of them already fix a median far better than launches agree on it.
MAX_SAMPLES = 2000


def statistic(samples: Floats, metric: str) -> Floats:
    """``metric`` of the last axis, in the samples' unit. The mean of samples is arithmetic, as every tool reports it;
    of launches and of ratios it is geometric."""
    import numpy as np

    if metric in ("p90", "p99"):
        return np.asarray(np.percentile(samples, int(metric[1:]), axis=-1))
    of: dict[str, Callable[..., Any]] = {"mean": np.mean, "min": np.min, "p50": np.median}
    return np.asarray(of[metric](samples, axis=-1))


def block_length(samples: Floats) -> int:
    """How many samples in a row to draw together so that a circular block bootstrap keeps their dependence.

    Politis and White's rule (2004, corrected 2009), on ranks, so that single outliers do not decide. At most a fifth of
    the samples: what lasts longer than that is :func:`drift`.
    """
    import numpy as np

    n = samples.size
    values = np.array(midranks(samples.tolist())[0])  # equal ones alike: in their order they would look like a trend
    values -= values.mean()
    variance = float(values @ values) / n
    if n < 8 or variance == 0:
        return 1
    correlations = _autocorrelations(values, variance)
    quiet = max(5, math.ceil(math.log10(n)))
    bound = 2 * math.sqrt(math.log10(n) / n)
    small = np.abs(correlations[1:]) < bound
    lag = next((k for k in range(small.size - quiet + 1) if small[k : k + quiet].all()), small.size)
    if lag == 0:
        return 1
    reach = min(2 * lag, correlations.size - 1)
    lags = np.arange(1, reach + 1)
    taper = np.minimum(1.0, 2 * (1 - lags / reach)) if reach > 1 else np.ones(1)
    kept = taper * correlations[1 : reach + 1]
    slope, level = 2 * float((kept * lags).sum()), 1 + 2 * float(kept.sum())
    if level <= 0:
        return 1
    length: float = (2 * slope**2 / (4 / 3 * level**2)) ** (1 / 3) * n ** (1 / 3)
    return max(1, min(round(length), n // LEAST_BLOCKS))


def draws(samples: Floats, metric: str, length: int, count: int, rng: np.random.Generator) -> Floats:
    """Logarithms of ``metric`` over ``count`` resamples of ``samples`` in blocks of ``length``, ends joined."""
    import numpy as np

    n, values, drawn = samples.size, samples, samples
    if metric == "p50":  # found among ranks of two bytes, several times as fast as among the samples
        values, places = np.unique(samples, return_inverse=True)
        drawn = np.asarray(places, np.min_scalar_type(n))
    blocks = np.lib.stride_tricks.sliding_window_view(np.concatenate([drawn, drawn[: length - 1]]), length)
    needed = math.ceil(n / length)
    found = np.empty(count)
    step = max(1, 1_000_000 // (needed * length))  # bounds the memory
    for start in range(0, count, step):
        rows = min(step, count - start)
        picked = blocks[rng.integers(0, n, size=(rows, needed))].reshape(rows, -1)[:, :n]
        found[start : start + rows] = np.log(_medians(picked, values) if metric == "p50" else statistic(picked, metric))
    return found


def _medians(ranks: np.ndarray, values: Floats) -> Floats:
    """The median of each row of ``values[ranks]``; sorts ``ranks`` in place."""
    ranks.sort(axis=-1, kind="stable")  # of two bytes, this is a radix sort
    n = ranks.shape[1]
    middle: Floats = (values[ranks[:, (n - 1) // 2]] + values[ranks[:, n // 2]]) / 2
    return middle


def drift(samples: Floats) -> float:
    """How far a run moved while it was measured, as the standard deviation of the logarithms of its batches' medians
    beyond what the batches' own scatter explains; 0 if it stood still."""
    import numpy as np

    batches = min(BATCHES, samples.size // BATCH)
    if batches < 3:
        return 0.0
    logs = np.log(samples[: samples.size // batches * batches]).reshape(batches, -1)
    medians = np.median(logs, axis=1)
    half = np.quantile(logs, [0.25, 0.75], axis=1)
    # The standard error of a median of normal samples, from their interquartile range.
    own = float(np.mean((half[1] - half[0]) / 1.349)) * 1.253 / math.sqrt(logs.shape[1])
    return math.sqrt(max(0.0, float(medians.var(ddof=1)) - own**2))


def grain(samples: Floats) -> float:
    """The standard deviation, as a share of the median, that rounding to the timer's ticks may hide; 0 for a fine
    timer."""
    import numpy as np

    values = np.unique(samples)
    if values.size == 1 or values.size > samples.size / 2:
        return 0.0
    return float(np.diff(values).min()) / float(np.median(samples)) / math.sqrt(12)


def thinned(samples: Floats) -> Floats:
    """At most :data:`MAX_SAMPLES`, evenly spread over the run."""
    import numpy as np

    if samples.size <= MAX_SAMPLES:
        return samples
    return np.asarray(samples[np.linspace(0, samples.size - 1, MAX_SAMPLES).astype(int)])


def _autocorrelations(values: Floats, variance: float) -> Floats:
    """From lag 0 on."""
    import numpy as np

    n = values.size
    most = min(n - 1, math.ceil(math.sqrt(n)) + max(5, math.ceil(math.log10(n))) + n // 8)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(values, size)
    products = np.fft.irfft(spectrum * np.conj(spectrum), size)[: most + 1]
    return np.asarray(products / (n * variance), dtype=float)


ALPHA = 0.05
#: Runs before a step, and after it, at least: two could be two odd ones. Runs in all.
LEAST, FIRST = 3, 8
#: A level that returns within so many runs was an episode.
EPISODE = 6
#: Correlations of a run with the one before; all are equally likely.
MEMORIES = (0.0, 0.2, 0.4, 0.6, 0.75, 0.85, 0.92, 0.97)
#: Variance of the step's size by that of the runs.
SIZE = 10.0
#: Places are the less likely the later, so that they add up to one however long the series becomes.
EARLY = 6
#: A run that differs by so many of the usual differences from both neighbours is an odd one.
ODD = 6.0
_TINY = 1e-14


@dataclass(frozen=True)
class Step:
    """From ``start`` on the level is another; an episode is over at ``end``. ``p`` holds however often one looked."""

    start: int
    p: float
    end: int | None = None


def change_points(values: Sequence[float], *, alpha: float = ALPHA) -> list[Step]:
    """The steps of positive ``values``, in order; the same for the same values."""
    import numpy as np

    logs = np.log(np.asarray(values, dtype=float))
    steps: list[Step] = []
    kept: list[int] = []  # since the last change, without episodes
    i = 0
    while i < logs.size:
        kept.append(i)
        i += 1
        step = _step(logs[kept], alpha)
        if step is None:
            continue
        at, p = step
        before, start = kept[:at], kept[at]
        end = _returned(logs, logs[before], logs[kept[at:]], start)
        steps.append(Step(start, p, end))
        kept, i = (before, end) if end is not None else (kept[at:], i)
    return steps


def _step(logs: Floats, alpha: float) -> tuple[int, float] | None:
    """The likeliest place of a step in ``logs`` and its p, if that is at most ``alpha`` and the last runs agree."""
    import numpy as np

    if logs.size < FIRST:
        return None
    factors = _factors(_without_odd(logs))
    p = float(np.exp(-np.logaddexp.reduce(factors)))
    at = LEAST + int(np.argmax(factors))
    if p > alpha or not _beyond(logs[-LEAST:], logs[:at], logs[at:]).all():
        return None
    return at, p


def _returned(logs: Floats, before: Floats, after: Floats, start: int) -> int | None:
    """Where the level was back at that of ``before`` and stayed there, if that was soon."""
    for end in range(start + 1, min(start + EPISODE, logs.size - LEAST) + 1):
        if not _beyond(logs[end : end + LEAST], before, after).any():
            return end
    return None


def _beyond(some: Floats, before: Floats, after: Floats) -> NDArray[np.bool_]:
    """Which of ``some`` are nearer to the level of ``after`` than to that of ``before``."""
    import numpy as np

    levels = np.median(before), np.median(after)
    return np.asarray(np.abs(some - levels[1]) < np.abs(some - levels[0]))


def _without_odd(logs: Floats) -> Floats:
    """Single odd runs replaced by the mean of their neighbours: one is no change, and would hide others."""
    import numpy as np

    steps = np.diff(logs)
    usual = 1.4826 * float(np.median(np.abs(steps - np.median(steps))))
    up, down = steps[:-1], -steps[1:]
    odd = 1 + np.flatnonzero((up * down > 0) & (np.minimum(np.abs(up), np.abs(down)) > ODD * usual))
    found = logs.copy()
    found[odd] = (logs[odd - 1] + logs[odd + 1]) / 2
    return found


def _factors(logs: Floats) -> Floats:
    """The logarithm of the Bayes factor of a step at each place from :data:`LEAST` on; their sum is that of any step.

    For each memory the series is whitened: the level becomes the column ``one``, a step another; the products of both
    with the series and with each other have closed forms in sums over the tail.
    """
    import numpy as np

    n = logs.size
    memory = np.array(MEMORIES)[:, None]
    first, rest = np.sqrt(1 - memory**2), 1 - memory  # of ``one``
    white = np.empty((memory.size, n))
    white[:, :1] = first * (logs[0] - logs.mean())
    white[:, 1:] = (logs[1:] - logs.mean()) - memory * (logs[:-1] - logs.mean())
    one_one = first**2 + (n - 1) * rest**2
    one_y = first * white[:, :1] + rest * white[:, 1:].sum(axis=1, keepdims=True)
    none = np.maximum((white**2).sum(axis=1, keepdims=True) - one_y**2 / one_one, _TINY)
    fit = np.log(first) - 0.5 * np.log(one_one)  # what the memory itself makes of the likelihood

    at = np.arange(LEAST, n - LEAST + 1)
    later = n - at - 1
    tails = np.cumsum(white[:, ::-1], axis=1)[:, ::-1]
    step_y = white[:, at] + rest * (tails[:, at] - white[:, at])
    step_one = rest * (1 + later * rest)
    size = 1 + later * rest**2 - step_one**2 / one_one  # of the step beside the level
    along = step_y - step_one * one_y / one_one
    prior = SIZE / (1 - memory**2)
    left = np.maximum(none - along**2 / (size + 1 / prior), _TINY)
    place = np.log(EARLY / ((at + EARLY - LEAST) * (at + EARLY - LEAST + 1)))
    stepped = fit + place - 0.5 * np.log1p(prior * size) - (n - 1) / 2 * np.log(left)
    return np.asarray(np.logaddexp.reduce(stepped, axis=0) - np.logaddexp.reduce(fit - (n - 1) / 2 * np.log(none)))
