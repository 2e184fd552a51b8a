"""Percentiles, and the ratio of two kernels with its uncertainty."""

from __future__ import annotations

from typing import Any

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95


def summary(samples: np.ndarray) -> dict[str, Any]:
    """n, percentiles (linear interpolation), min, max, mean and sample standard deviation, in the samples' unit."""
    p50, p90, p99 = np.percentile(samples, [50, 90, 99])
    spread = float(np.std(samples, ddof=1)) if samples.size > 1 else 0.0
    named = {"p50": p50, "p90": p90, "p99": p99, "min": samples.min(), "max": samples.max(), "mean": samples.mean()}
    return {"n": int(samples.size), **{k: round(float(v), 4) for k, v in named.items()}, "stddev": round(spread, 4)}


def paired_ratio(a: np.ndarray, b: np.ndarray, seed: int = 0) -> dict[str, float]:
    """The time of ``a`` over that of ``b``, each [blocks, samples per block], measured in the same blocks.

    Each block gives one ratio of mean times, so that drift slower than a block cancels. The estimate is the median of
    these ratios, and the interval holds 95 % of the medians of resampled blocks (percentile bootstrap).
    """
    ratios = a.mean(axis=1) / b.mean(axis=1)
    picks = np.random.default_rng(seed).integers(0, ratios.size, size=(RESAMPLES, ratios.size))
    low, high = np.percentile(np.median(ratios[picks], axis=1), [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
    return {
        "ratio": round(float(np.median(ratios)), 5),
        "ci_low": round(float(low), 5),
        "ci_high": round(float(high), 5),
    }
