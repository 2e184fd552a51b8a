"""Percentiles, and the ratio of two kernels with its uncertainty.

Samples in a row are not independent, nor are blocks on the same buffers and the same captured graphs: a placement's
luck stays for as long as the placement. Only *replicates* (:mod:`flashcore.bench`: buffers, graphs and blocks of their
own) are, so the interval is made from replicates.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flashcore import estimates
from flashcore.estimates import CONFIDENCE

RESAMPLES = 2000
#: No comparison is finer. A steady kernel gives intervals of 0.04 %, and of 20 that compared one with itself (an H200),
#: two did not contain 1: what else is different in two replicates shows by then.
FINEST = 0.001
#: Share of the replicates left out at each end of the mean: a few disturbed replicates must not decide.
TRIM = 0.2


def summary(samples: np.ndarray) -> dict[str, Any]:
    """n, percentiles, min, max, mean and sample standard deviation, in the samples' unit; a percentile of too few is
    None (:data:`flashcore.estimates.NEEDS`)."""
    p50, p90, p99 = np.percentile(samples, [50, 90, 99])
    spread = float(np.std(samples, ddof=1)) if samples.size > 1 else 0.0
    named = {"p50": p50, "p90": p90, "p99": p99, "min": samples.min(), "max": samples.max(), "mean": samples.mean()}
    enough = {k: samples.size >= estimates.NEEDS.get(k, 1) for k in named}
    known = {k: round(float(v), 4) if enough[k] else None for k, v in named.items()}
    return {"n": int(samples.size), **known, "stddev": round(spread, 4)}


def paired_ratio(a: np.ndarray, b: np.ndarray, *, floor: float = 0.0, seed: int = 0) -> dict[str, float]:
    """The time of ``a`` over that of ``b``, each [replicates, blocks, samples per block], measured in the same blocks.

    Each block gives one ratio of medians, so that drift slower than a block cancels. The estimate is the trimmed mean
    of the replicates' mean log ratios. The interval holds 95 % of a two-level bootstrap (replicates, then blocks within
    each), stretched for few replicates as Student's t is wider than the normal distribution. It reaches at least the
    share ``floor`` of the ratio to either side: what a kernel against itself showed in the same run (:func:`floor_of`).
    """
    logs = np.log(block_ratios(a, b))
    replicates, blocks = logs.shape
    middle = float(_trimmed(logs.mean(axis=1)))
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, replicates, size=(RESAMPLES, replicates, 1))
    columns = rng.integers(0, blocks, size=(RESAMPLES, replicates, blocks))
    drawn = _trimmed(logs[rows, columns].mean(axis=2))
    low, high = np.percentile(drawn, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
    stretch = estimates.stretch(replicates, TRIM)
    least = math.log1p(floor)
    return {
        "ratio": round(math.exp(middle), 5),
        "ci_low": round(math.exp(middle - max(stretch * (middle - low), least)), 5),
        "ci_high": round(math.exp(middle + max(stretch * (high - middle), least)), 5),
    }


def block_ratios(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[replicates, blocks] of ``a``'s median over ``b``'s; in A B B A both medians have the same centre."""
    return np.asarray(np.median(a, axis=-1) / np.median(b, axis=-1))


def floor_of(null: dict[str, float]) -> float:
    """How far from 1 a comparison of equals came to lie in this run, or could have: the larger of the two, and at least
    :data:`FINEST`."""
    return round(max(abs(null["ratio"] - 1), (null["ci_high"] - null["ci_low"]) / 2, FINEST), 5)


def _trimmed(values: np.ndarray) -> np.ndarray:
    """Mean along the last axis without the :data:`TRIM` largest and smallest."""
    n = values.shape[-1]
    out = int(TRIM * n)
    return np.asarray(np.sort(values, axis=-1)[..., out : n - out].mean(axis=-1))
