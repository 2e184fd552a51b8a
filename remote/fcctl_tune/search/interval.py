"""The ratio of the times of two configurations that were timed in turns, with a bootstrap interval.

Two turns, there and back, make a block, so that a drifting clock affects both equally; only blocks are independent.
Pure Python, since a host may have no numpy.
"""

from __future__ import annotations

import math
import random
import statistics
from typing import Dict, List, Sequence

from fcctl_remote.base import estimates
from fcctl_remote.base.estimates import CONFIDENCE

RESAMPLES = 1000
#: No comparison is finer: a configuration differs from itself by so much.
FINEST = 0.001
#: Turns of a block.
BLOCK = 2
#: Share of the blocks left out at each end of the mean.
TRIM = 0.1


def log_ratios(figures: Sequence[float], base: Sequence[float], direction: str = "min") -> List[float]:
    """For each block the logarithm of time by ``base``'s time; ``direction`` max turns rates into times."""
    sign = -1.0 if direction == "max" else 1.0
    pairs = [sign * math.log(a / b) for a, b in zip(figures, base)]  # noqa: B905 (Python 3.9)
    return [statistics.fmean(pairs[i : i + BLOCK]) for i in range(0, len(pairs), BLOCK)]


def ratio(cases: Sequence[Sequence[float]], floor: float = 0.0, seed: int = 0) -> Dict[str, float]:
    """The geometric mean over ``cases`` of their ratios, from the blocks' :func:`log_ratios`.

    The interval holds 95 % of a bootstrap of each case's blocks, stretched for few blocks as Student's t is wider than
    the normal distribution, and at least the share ``floor`` on either side.
    """
    rng = random.Random(seed)  # noqa: S311 - of a bootstrap
    middle = statistics.fmean(_trimmed(blocks) for blocks in cases)
    means = sorted(
        statistics.fmean(_trimmed(rng.choices(blocks, k=len(blocks))) for blocks in cases) for _ in range(RESAMPLES)
    )
    low, high = (estimates.quantile(means, (1 + side * CONFIDENCE) / 2) for side in (-1, 1))
    stretch, least = estimates.stretch(min(len(blocks) for blocks in cases), TRIM), math.log1p(floor)
    return {
        "ratio": round(math.exp(middle), 5),
        "ci_low": round(math.exp(middle - max(stretch * (middle - low), least)), 5),
        "ci_high": round(math.exp(middle + max(stretch * (high - middle), least)), 5),
    }


def floor_of(null: Dict[str, float]) -> float:
    """The larger of the null ratio's distance from 1 and half its interval, at least :data:`FINEST`."""
    return round(max(abs(null["ratio"] - 1), (null["ci_high"] - null["ci_low"]) / 2, FINEST), 5)


def _trimmed(values: Sequence[float]) -> float:
    out = int(TRIM * len(values))
    return statistics.fmean(sorted(values)[out : len(values) - out])
