"""By how much one side is slower than the other, and how sure that is.

What repeats independently is the *launch* of a process: its buffers, clocks and neighbours stay with it for as long as
it runs. Samples within a launch only say how well that launch is known. So there are two bases for a claim:

``launches``  :data:`MIN_LAUNCHES` or more a side. Their spread is measured; Welch's t and a bootstrap over launches.
``samples``   fewer. Samples, drawn in blocks as long as they remember, say how well each launch is known; by how much
              launches differ (``spread``) is known from elsewhere or assumed, and enlarged by what the data say.

Launches of one side that were measured before those of the other share what the machine was like then: ``drift``.

docs/statistics.md has the rates of both, measured on simulated data whose truth is known.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fcctl_remote.base.estimates import NEEDS
from orchestrator.base.errors import plural
from orchestrator.results.compare import ranks

if TYPE_CHECKING:
    import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 1000
#: With fewer launches a side no rank test can reach 5 %: three against three have 20 orders, 2 / 20 = 0.1.
MIN_LAUNCHES = 4
#: Samples below which a launch is not known at all.
MIN_SAMPLES = 10
#: Degrees of freedom from which a measured standard deviation between launches replaces the assumed one.
MIN_FREEDOM = 3
_TINY = 1e-5  # of the time: nothing is known better than this


@dataclass(frozen=True)
class Spread:
    """A standard deviation, as a share of the time, and in how many degrees of freedom it is known."""

    share: float
    source: Literal["assumed", "stated", "history", "controls", "launches"] = "assumed"
    freedom: float = math.inf

    def at_least(self, share: float) -> Spread:
        return self if share <= self.share else Spread(share, self.source, self.freedom)


#: Assumed between launches where it cannot be measured: the most that any row of six launches of the same PyTorch
#: kernels on one H200 showed (results/reference/h200), for what is timed on the GPU and for single calls from Python.
SPREAD, SPREAD_CALLS = Spread(0.025), Spread(0.05)
NONE = Spread(0.0)


@dataclass(frozen=True)
class Launch:
    """What one process measured: samples in the order they were taken, or only their summary."""

    samples: tuple[float, ...] = ()
    stats: dict[str, float] = field(default_factory=dict)
    #: Groups of samples with buffers of their own, within the process.
    groups: int = 1
    #: Samples beside these that cannot be times.
    left_out: int = 0

    @property
    def count(self) -> int:
        return len(self.samples) or int(self.stats.get("n", 0))

    def value(self, metric: str) -> float | None:
        """``metric`` in the samples' unit; None if it is not known, or no time."""
        if self.samples:
            import numpy as np

            if not all(map(_is_time, (min(self.samples), max(self.samples)))):
                return None
            if len(self.samples) < NEEDS.get(metric, 1):
                return None
            return float(ranks.statistic(np.asarray(self.samples), metric))
        stated = self.stats.get(metric)
        return stated if stated is not None and _is_time(stated) else None


def _is_time(value: float) -> bool:
    """In whatever unit: what is beyond this is no measurement, and no arithmetic would survive it."""
    return 1e-15 < value < 1e15


@dataclass(frozen=True)
class Effect:
    """The new time over the old: above 1 is slower. ``p`` is two-sided, of no difference, for this benchmark alone."""

    ratio: float
    low: float
    high: float
    #: The interval of twice the error probability: what lies within it is an equivalence test.
    inner_low: float
    inner_high: float
    p: float
    rank_p: float
    basis: str  # launches, samples, none
    old: float  # in the benchmark's unit
    new: float
    launches: tuple[int, int]
    samples: tuple[int, int]
    #: Standard deviation between launches, as a share, and where it is known from.
    spread: float
    spread_from: str
    #: What more is needed before this could be a verdict; empty if nothing.
    lacks: str = ""


def effect(
    old: Sequence[Launch], new: Sequence[Launch], *, metric: str = "p50", spread: Spread = SPREAD, drift: Spread = NONE,
    confidence: float = CONFIDENCE, seed: int = 0,
) -> Effect | None:  # fmt: skip
    """Compare the two sides; None if either has no time at all. The same input always gives the same answer.

    ``spread`` is between launches, for sides that have too few to measure it; from history it is between runs, drift
    included. ``drift`` is between the sides, whatever the number of launches.
    """
    sides = [[launch for launch in side if launch.value(metric) is not None] for side in (old, new)]
    if not all(sides):
        return None
    import numpy as np

    rng = np.random.default_rng(seed)
    if min(map(len, sides)) >= MIN_LAUNCHES:
        return _from_launches(sides, metric, drift, confidence, rng)
    return _from_samples(sides, metric, spread, drift, confidence, rng)


def _from_launches(
    sides: list[list[Launch]], metric: str, drift: Spread, confidence: float, rng: np.random.Generator
) -> Effect:
    """Welch's t on the launches' logarithms; the interval is a bootstrap over launches, stretched as t is wider."""
    logs = [_logs(side, metric) for side in sides]
    difference = float(logs[1].mean() - logs[0].mean())
    ticks = [_floor(side) ** 2 for side in sides]
    errors = [float(x.var(ddof=1) + t) / x.size for x, t in zip(logs, ticks, strict=True)]
    errors.append(drift.share**2)
    freedom = _freedom(errors, [*(float(x.size - 1) for x in logs), drift.freedom])
    resampled = []
    for values, tick in zip(logs, ticks, strict=True):
        picked = values[rng.integers(0, values.size, size=(RESAMPLES, values.size))].mean(axis=1)
        centred = (picked - values.mean()) * math.sqrt(values.size / (values.size - 1))
        resampled.append(centred + rng.normal(0, math.sqrt(tick / values.size), RESAMPLES))
    drawn = resampled[1] - resampled[0] + rng.normal(0, drift.share, RESAMPLES)
    return _effect(
        sides, metric, difference, drawn, freedom, confidence,
        error=math.sqrt(sum(errors)),
        basis="launches",
        rank_p=ranks.rank_test(logs[0].tolist(), logs[1].tolist()),
        spread=_pooled(logs),
    )  # fmt: skip


def _from_samples(
    sides: list[list[Launch]], metric: str, spread: Spread, drift: Spread, confidence: float, rng: np.random.Generator,
) -> Effect:  # fmt: skip
    """Block bootstrap within each launch, and the spread between them."""
    import numpy as np

    logs = [_logs(side, metric) for side in sides]
    difference = float(logs[1].mean() - logs[0].mean())
    between, drift = _between(logs, spread, drift)
    drawn = rng.normal(0, drift.share, RESAMPLES)
    errors, freedoms, medians = [], [], []
    for sign, side in zip((-1, 1), sides, strict=True):
        known = [_known(launch, metric, rng) for launch in side]
        drawn += sign * np.mean([found.drawn for found in known], axis=0)
        errors.append(sum(found.variance for found in known) / len(side) ** 2)
        freedoms.append(max(1.0, min(found.blocks for found in known) - 1.0))
        medians.append([value for found in known for value in found.medians])
        drawn += rng.normal(0, math.sqrt((between.share**2 + max(f.extra for f in known)) / len(side)), RESAMPLES)
    settled = between.share**2 * sum(1 / len(side) for side in sides)
    freedom = _freedom([*errors, settled, drift.share**2], [*freedoms, between.freedom, drift.freedom])
    lacks = _lacks(sides)
    return _effect(
        sides, metric, difference, drawn, min(freedom, between.freedom), confidence,
        error=float(drawn.std()),
        basis="none" if lacks else "samples",
        rank_p=ranks.rank_test(*medians) if all(medians) else 1.0,
        spread=between,
        lacks=lacks,
    )  # fmt: skip


def _between(logs: Sequence[np.ndarray], spread: Spread, drift: Spread) -> tuple[Spread, Spread]:
    """Between launches, and between the sides besides. What is assumed gives way to enough launches of one side; it
    and history count the drift already."""
    own = _pooled(logs)
    if spread.source == "assumed" and own.freedom >= MIN_FREEDOM:
        return own, drift
    return spread.at_least(own.share), NONE


@dataclass(frozen=True)
class _Known:
    """How well one launch's statistic is known, in logarithms."""

    drawn: np.ndarray  # centred
    variance: float  # of drawn, drift and the timer's grain
    extra: float  # the part of it that is not in drawn
    blocks: int
    medians: list[float]  # of the blocks


def _known(launch: Launch, metric: str, rng: np.random.Generator) -> _Known:
    import numpy as np

    if not launch.samples:
        return _Known(np.zeros(RESAMPLES), 0.0, 0.0, 0, [])
    samples = ranks.thinned(np.asarray(launch.samples))
    length = max(ranks.block_length(samples), samples.size // launch.groups if launch.groups > 1 else 1)
    drawn = ranks.draws(samples, metric, length, RESAMPLES, rng)
    extra = ranks.drift(samples) ** 2 + max(_TINY, ranks.grain(samples)) ** 2
    count = samples.size // length
    # A sample a block, so that the number of values is that of independent ones.
    parts = np.array_split(samples, max(1, count))
    centred = (drawn - drawn.mean()) * math.sqrt(count / max(1, count - 1))
    return _Known(centred, float(centred.var()) + extra, extra, count, [statistics.median(p.tolist()) for p in parts])


def _lacks(sides: list[list[Launch]]) -> str:
    samples = [min(len(launch.samples) for launch in side) for side in sides]
    if min(samples) == 0:
        return f"no raw samples: {MIN_LAUNCHES} launches per side are needed"
    if min(samples) < MIN_SAMPLES:
        few = plural(min(samples), "sample")
        return f"{few} in a launch: {MIN_SAMPLES} are needed, or {MIN_LAUNCHES} launches a side"
    return ""


def _effect(
    sides: list[list[Launch]], metric: str, difference: float, drawn: np.ndarray, freedom: float, confidence: float,
    *, error: float, basis: str, rank_p: float, spread: Spread, lacks: str = "",
) -> Effect:  # fmt: skip
    import numpy as np
    from scipy.special import ndtri, stdtr, stdtrit  # type: ignore[import-untyped]  # it ships without types

    error = max(error, _TINY)
    bounded = min(freedom, 1e6)

    def reach(tail: float) -> tuple[float, float]:
        """The ratios that leave ``tail`` on either side, stretched as Student's t is wider than the normal."""
        stretch = float(stdtrit(bounded, tail)) / float(ndtri(tail))
        low, high = (float(q) for q in np.quantile(drawn, [tail, 1 - tail]))
        low, high = stretch * min(low, -_TINY), stretch * max(high, _TINY)
        return math.exp(difference + low), math.exp(difference + high)

    low, high = reach((1 - confidence) / 2)
    inner_low, inner_high = reach(1 - confidence)
    old, new = (statistics.geometric_mean(_values(side, metric)) for side in sides)
    return Effect(
        ratio=math.exp(difference),
        low=low,
        high=high,
        inner_low=inner_low,
        inner_high=inner_high,
        p=float(2 * stdtr(bounded, -abs(difference) / error)),
        rank_p=rank_p,
        basis=basis,
        old=old,
        new=new,
        launches=(len(sides[0]), len(sides[1])),
        samples=(_count(sides[0]), _count(sides[1])),
        spread=spread.share,
        spread_from=spread.source,
        lacks=lacks,
    )


def _logs(side: list[Launch], metric: str) -> np.ndarray:
    import numpy as np

    return np.log(_values(side, metric))


def _values(side: list[Launch], metric: str) -> list[float]:
    return [value for launch in side if (value := launch.value(metric)) is not None]


def _count(side: list[Launch]) -> int:
    return sum(launch.count for launch in side)


def _pooled(logs: Sequence[np.ndarray]) -> Spread:
    """Between launches of each side; 0 in no degree of freedom where no side has two."""
    freedom = sum(x.size - 1 for x in logs)
    share = math.sqrt(sum(float(((x - x.mean()) ** 2).sum()) for x in logs) / freedom) if freedom else 0.0
    return Spread(max(share, _TINY) if freedom else 0.0, "launches", freedom)


def _floor(side: list[Launch]) -> float:
    """What no number of launches can see, as a share: the grain of the timer."""
    import numpy as np

    grains = [ranks.grain(np.asarray(launch.samples)) for launch in side if len(launch.samples) > 1]
    return max([_TINY, *grains])


def _freedom(variances: Sequence[float], freedoms: Sequence[float]) -> float:
    """Welch and Satterthwaite's degrees of freedom of a sum of independent estimates."""
    total = sum(variances)
    below = sum(v**2 / f for v, f in zip(variances, freedoms, strict=True) if v)
    return total**2 / below if below > 0 else math.inf
