"""A benchmark's series over the runs: change points, records, and how much runs of one source differ."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean, geometric_mean, median

from orchestrator.results.statistics.effect import MIN_FREEDOM, Spread
from orchestrator.results.statistics.ranks import change_points
from orchestrator.results.timings import Measurement

#: Changes smaller than this are not worth a line, as a share.
WORTH_TELLING = 0.005


@dataclass(frozen=True)
class Series:
    """Measurements that mean the same, oldest first: one benchmark, variant, mode, unit, shape, method, GPU,
    job and settings."""

    points: tuple[Measurement, ...]

    @property
    def values(self) -> list[float]:
        return [point.p50 for point in self.points]

    @property
    def title(self) -> str:
        last = self.points[-1]
        parts = (last.benchmark, last.variant, last.mode, last.gpu or last.target,
                 f"method {last.method}" if last.method else "", last.job, last.settings)  # fmt: skip
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
    #: Of an episode: the first point at the old level again.
    end: int | None = None

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
class Record:
    """A run that was faster than all before it. ``gain``: the record before it over this one; 1 for the first."""

    index: int
    point: Measurement
    gain: float


def series(measurements: Iterable[Measurement]) -> list[Series]:
    """Put apart what cannot be compared; the series with the newest point first. Several launches of one run become
    one point, their geometric mean."""
    groups: dict[tuple[object, ...], dict[str, list[Measurement]]] = {}
    for m in sorted(measurements, key=lambda m: (m.created, m.run_id)):
        alike = (m.benchmark, m.variant, m.mode, m.unit, m.shape, m.method, m.gpu or m.target, m.job, m.settings)
        groups.setdefault(alike, {}).setdefault(m.run_id, []).append(m)
    made = [Series(tuple(_merged(launches) for launches in runs.values())) for runs in groups.values()]
    return sorted(made, key=lambda s: (s.points[-1].created, len(s.points)), reverse=True)


def changes(of: Series) -> list[Change]:
    """Where the level of the series changed, oldest first, episodes among them."""
    steps = change_points(of.values)
    found, since = [], 0
    for i, step in enumerate(steps):
        following = steps[i + 1].start if i + 1 < len(steps) else len(of.points)
        before, after = median(of.values[since : step.start]), median(of.values[step.start : step.end or following])
        if abs(after / before - 1) >= WORTH_TELLING:
            last, first = of.points[step.start - 1], of.points[step.start]
            found.append(Change(step.start, before, after, step.p, last, first, step.end))
        since = step.end or step.start
    return found


def best(of: Series) -> Measurement:
    """The fastest, the oldest of equals."""
    return min(of.points, key=lambda point: point.p50)


def ladder(of: Series) -> list[Record]:
    """The records of the series, oldest first, and by how much each beat the one before: at least by WORTH_TELLING,
    since of equal runs every now and then one is the fastest so far."""
    best = math.inf
    rungs: list[Record] = []
    for i, point in enumerate(of.points):
        if point.p50 < best / (1 + WORTH_TELLING):
            rungs.append(Record(i, point, best / point.p50 if rungs else 1.0))
            best = point.p50
    return rungs


def _merged(launches: list[Measurement]) -> Measurement:
    if len(launches) == 1:
        return launches[0]
    return replace(launches[-1], p50=geometric_mean(m.p50 for m in launches), n=sum(m.n for m in launches))


def run_to_run(measurements: Iterable[Measurement]) -> Spread | None:
    """The standard deviation between the medians of runs of one source, pooled over sources; None if there are too
    few. Takes measurements of one benchmark on one target; of a run with several launches one counts."""
    alike: dict[object, dict[str, float]] = {}
    for m in measurements:
        if m.status == "passed" and m.p50 > 0:
            same = (m.tree_sha256, m.unit, m.shape, m.method, m.gpu, m.driver, m.job)
            alike.setdefault(same, {}).setdefault(m.run_id, math.log(m.p50))
    freedom = sum(len(runs) - 1 for runs in alike.values())
    if freedom < MIN_FREEDOM:
        return None
    middles = [(fmean(runs.values()), runs) for runs in alike.values()]
    square = math.fsum((value - middle) ** 2 for middle, runs in middles for value in runs.values())
    return Spread(math.sqrt(square / freedom), "history", freedom)
