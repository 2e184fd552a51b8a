"""Questions of statistics that several programs ask, one answer each; docs/statistics.md names them all.

kernels/flashcore/estimates.py is a copy of this file, since kernels are timed where fcctl need not be; a test keeps the
two equal. Medians (of an even number: the mean of the two in the middle) and geometric means are those of Python's
``statistics``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

CONFIDENCE = 0.95
#: Samples that a percentile takes: with fewer, none lies beyond it.
NEEDS = {"p90": 10, "p99": 100}


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of sorted values, by linear interpolation between the closest ranks; ``share`` is 0.9 for the 90th percentile."""
    position = share * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def student_t(freedom: int) -> float:
    """The two-sided quantile of Student's t at :data:`CONFIDENCE`: 12.706 for one degree of freedom."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, freedom) < CONFIDENCE else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def stretch(count: int, trim: float = 0.0) -> float:
    """By how much a bootstrap of ``count`` values is too narrow for their mean, the share ``trim`` left out at each
    end: as Student's t is wider than the normal distribution, and by the n / (n - 1) that its variance lacks."""
    freedom = max(1, count - 2 * int(trim * count) - 1)
    normal = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return student_t(freedom) / normal * math.sqrt(count / max(1, count - 1))


def _within(angle: float, freedom: int) -> float:
    """The probability that ``|t|`` is below ``sqrt(freedom) * tan(angle)`` (Abramowitz and Stegun, 26.7.3, 26.7.4)."""
    sine, cosine, odd = math.sin(angle), math.cos(angle), freedom % 2
    term, total = (cosine, 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine * cosine * (k - 1) / k
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
