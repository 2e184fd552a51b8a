"""One benchmark over many runs: where it changed, and how it came to be as fast as it is.

Change points are found by binary segmentation: a segment is split where two levels fit it best, if its ranks can be
told apart by a split (Pettitt's statistic, standardised for the place) better than all but 5 % of its random
reorderings can be by theirs. So a series that never changed shows any change with a probability of 5 %, whatever the
noise is distributed like, and a single odd run makes none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.results.measurement import Measurement
from orchestrator.results.statistics.blocks import midranks

if TYPE_CHECKING:
    import numpy as np

ALPHA = 0.05
#: Runs a segment has at least: two could be two odd ones.
LEAST = 3
PERMUTATIONS = 499
#: Reordering more values than this at once would take memory, not give certainty.
CELLS = 2_000_000
#: A series without a change is known for one after few reorderings.
CHUNK = 100
#: Changes smaller than this are not worth a line, as a share.
WORTH_TELLING = 0.005


@dataclass(frozen=True)
class Series:
    """Measurements that mean the same, oldest first: one benchmark, variant, mode, unit, shape, method and GPU."""

    points: tuple[Measurement, ...]

    @property
    def values(self) -> list[float]:
        return [point.p50 for point in self.points]

    @property
    def title(self) -> str:
        last = self.points[-1]
        parts = (last.benchmark, last.variant, last.mode, last.gpu or "", last.method)
        return " · ".join(part for part in parts if part)


@dataclass(frozen=True)
class Change:
    """Between two runs next to each other, the level of a series changed: ``ratio`` above 1 is slower since."""

    index: int  # of the first point after it
    before: float  # medians of the segments, in the series' unit
    after: float
    p: float
    last_before: Measurement
    first_after: Measurement

    @property
    def ratio(self) -> float:
        return self.after / self.before

    @property
    def commits(self) -> str | None:
        """What ``git log`` would list of it: ``old..new``; None where no commit is known, or both are the same."""
        old, new = self.last_before.git_commit, self.first_after.git_commit
        return f"{old}..{new}" if old and new and old != new else None

    @property
    def why(self) -> tuple[str, ...]:
        """What else changed between the two runs."""
        old, new = self.last_before, self.first_after
        told = [f"driver {old.driver} -> {new.driver}"] if old.driver != new.driver else []
        if old.tree_sha256 == new.tree_sha256:
            told.append("the source is the same")
        return tuple(told)


@dataclass(frozen=True)
class Rung:
    """A run that was faster than all before it. ``gain``: the record before it over this one; 1 for the first."""

    index: int
    point: Measurement
    gain: float


def series(measurements: Iterable[Measurement]) -> list[Series]:
    """Put apart what cannot be compared; the series with the newest point first. Several launches of one run become
    one point, their geometric mean."""
    found: dict[tuple[object, ...], dict[str, list[Measurement]]] = {}
    for m in sorted(measurements, key=lambda m: (m.created, m.run_id)):
        alike = (m.benchmark, m.variant, m.mode, m.unit, m.shape, m.method, m.gpu)
        found.setdefault(alike, {}).setdefault(m.run_id, []).append(m)
    made = [Series(tuple(_merged(launches) for launches in runs.values())) for runs in found.values()]
    return sorted(made, key=lambda s: (s.points[-1].created, len(s.points)), reverse=True)


def changes(of: Series, *, alpha: float = ALPHA, worth: float = WORTH_TELLING) -> list[Change]:
    """Where the level of the series changed, oldest first."""
    splits = change_points(of.values, alpha=alpha)
    bounds = [0, *(at for at, _ in splits), len(of.points)]
    found = []
    for i, (at, p) in enumerate(splits):
        before = _median(of.values[bounds[i] : at])
        after = _median(of.values[at : bounds[i + 2]])
        if abs(after / before - 1) >= worth:
            found.append(Change(at, before, after, p, of.points[at - 1], of.points[at]))
    return found


def best(of: Series) -> Measurement:
    """The fastest, the oldest of equals."""
    return min(of.points, key=lambda point: point.p50)


def ladder(of: Series, *, worth: float = WORTH_TELLING) -> list[Rung]:
    """The records of the series, oldest first, and by how much each beat the one before: at least by ``worth``, since
    of equal runs every now and then one is the fastest so far."""
    best = math.inf
    rungs: list[Rung] = []
    for i, point in enumerate(of.points):
        if point.p50 < best / (1 + worth):
            rungs.append(Rung(i, point, best / point.p50 if rungs else 1.0))
            best = point.p50
    return rungs


def change_points(values: Sequence[float], *, alpha: float = ALPHA, seed: int = 0) -> list[tuple[int, float]]:
    """(index of the first value after it, p) of each change, in order; deterministic for the same values."""
    import numpy as np

    rng = np.random.default_rng(seed)
    data = np.asarray(values, dtype=float)
    found: dict[int, float] = {}
    open_segments = [(0, data.size)]
    while open_segments:
        start, end = open_segments.pop()
        split = _split(data[start:end], alpha, rng)
        if split is not None:
            at, p = split
            found[start + at] = p
            open_segments += [(start, start + at), (start + at, end)]
    return _settled(data, found)


# ------------------------------------------------------------------------------------------------ inside
def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _merged(launches: list[Measurement]) -> Measurement:
    if len(launches) == 1:
        return launches[0]
    middle = math.exp(math.fsum(math.log(m.p50) for m in launches) / len(launches))
    return replace(launches[-1], p50=middle, n=sum(m.n for m in launches))


def _split(segment: np.ndarray, alpha: float, rng: np.random.Generator) -> tuple[int, float] | None:
    """The best split of ``segment`` and its p, if there is one."""
    import numpy as np

    n = segment.size
    if n < 2 * LEAST:
        return None
    ranks = midranks(segment)
    height = float(_heights(ranks[None, :]).max())
    reached, done = 0, 0
    while done < PERMUTATIONS:
        rows = min(PERMUTATIONS - done, CHUNK, max(1, CELLS // n))
        shuffled = rng.permuted(np.broadcast_to(ranks, (rows, n)), axis=1)
        reached += int((_heights(shuffled).max(axis=1) >= height - 1e-9).sum())
        done += rows
        if (1 + reached) / (1 + PERMUTATIONS) > alpha:  # it can only grow
            return None
    return _place(segment), (1 + reached) / (1 + PERMUTATIONS)


def _place(segment: np.ndarray) -> int:
    """Where two levels fit ``segment`` best, by least squares; odd values count as far as three interquartile ranges.

    Not where the ranks differ most, which is drawn towards the middle: ranks of one level differ among themselves as
    much as the levels do.
    """
    import numpy as np

    n = segment.size
    low, high = np.quantile(segment, [0.25, 0.75])
    reach = 3 * (high - low)
    values = np.clip(segment, low - reach, high + reach)
    values = values - values.mean()
    before = np.arange(LEAST, n - LEAST + 1)
    sums = np.cumsum(values)[LEAST - 1 : n - LEAST]
    return int(np.argmax(sums**2 * (1 / before + 1 / (n - before)))) + LEAST


def _heights(ranks: np.ndarray) -> np.ndarray:
    """For each row of ranks and each split: how far apart the parts' mean ranks are, in standard errors."""
    import numpy as np

    n = ranks.shape[1]
    before = np.arange(LEAST, n - LEAST + 1)
    sums = np.cumsum(ranks - ranks.mean(axis=1, keepdims=True), axis=1)[:, LEAST - 1 : n - LEAST]
    return np.asarray(np.abs(sums) / np.sqrt(before * (n - before) / n))


def _settled(data: np.ndarray, found: dict[int, float]) -> list[tuple[int, float]]:
    """Each change where it is best between its neighbours: the first split of a long series is made before anybody
    knows of the others."""
    places = sorted(found)
    p_values = [found[at] for at in places]
    for i in range(len(places)):
        start = places[i - 1] if i else 0
        end = places[i + 1] if i + 1 < len(places) else data.size
        if end - start >= 2 * LEAST:
            places[i] = start + _place(data[start:end])
    return list(zip(places, p_values, strict=True))


__all__ = ["Change", "Measurement", "Rung", "Series", "best", "change_points", "changes", "ladder", "series"]
