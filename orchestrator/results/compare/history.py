"""A benchmark's history over the finished runs, from the index: change points, records, how much runs of one source
differ, and the commits between two runs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, geometric_mean, median
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import NotFoundError, did_you_mean
from orchestrator.base.git import GitFailed, run_git
from orchestrator.base.json_text import pick
from orchestrator.results.compare.effect import MIN_FREEDOM, Spread
from orchestrator.results.compare.ranks import change_points
from orchestrator.results.timings import HOW_TO, Measurement

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore


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
    #: The commits that lie at it; None where git does not know.
    source: SourceChanges | None = None

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


TIMEOUT_S = 20
MAX_COMMITS, MAX_FILES = 200, 500
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_STATUS = {"A": "added", "D": "deleted", "M": "modified", "T": "modified", "R": "renamed", "C": "copied"}


@dataclass(frozen=True)
class SourceChanges:
    """What lies between two commits: (sha, subject) of each, newest first; (what happened, path) of each file."""

    commits: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]


SourceHistory = Callable[[Path, str, str], SourceChanges | None]


def source_changes(root: Path, old: str, new: str) -> SourceChanges | None:
    """The commits after ``old`` up to ``new``, and the files that differ; None if git cannot say. Reads only."""
    if not _COMMIT.fullmatch(old) or not _COMMIT.fullmatch(new):  # they come from files
        return None
    span = f"{old}..{new}"
    log = _git(root, "log", "--no-color", f"--max-count={MAX_COMMITS}", "--format=%H%x09%s", span, "--")
    diff = _git(root, "diff", "--no-color", "--no-ext-diff", "--name-status", "-z", "--relative", old, new, "--")
    if log is None or diff is None:
        return None
    commits = tuple((line[:40], line[41:][:200]) for line in log.splitlines() if line)
    return SourceChanges(commits, tuple(_files(diff))[:MAX_FILES])


def subjects(root: Path, commits: Iterable[str | None]) -> dict[str, str]:
    """The first line of each commit's message that git knows here, by its full id."""
    known = sorted({one for one in commits if one and _COMMIT.fullmatch(one)})
    text = _git(root, "log", "--no-color", "--no-walk", "--ignore-missing", "--format=%H%x09%s", *known, "--")
    return dict(line.split("\t", 1) for line in (text or "").splitlines() if "\t" in line) if known else {}


def commit_of(root: Path, word: str) -> str | None:
    """The full id of the commit that git knows as ``word``: a branch, a tag, ``HEAD~2``, an id."""
    found = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{word}^{{commit}}")
    return found.strip() if found else None


def with_subject(root: Path, words: Iterable[str]) -> list[str]:
    """The newest commits of any branch whose messages have all of ``words``."""
    greps = [f"--grep={word}" for word in words]
    flags = ("--all", "--all-match", "-i", "--fixed-strings", f"--max-count={MAX_COMMITS}", "--format=%H")
    return (_git(root, "log", *flags, *greps, "--") or "").split() if greps else []


def branches(root: Path) -> dict[str, str]:
    """The commit of each local branch, by its name."""
    text = _git(root, "for-each-ref", "--format=%(objectname)%09%(refname:short)", "refs/heads")
    return {name: sha for sha, _, name in (line.partition("\t") for line in (text or "").splitlines())}


def _files(listing: str) -> list[tuple[str, str]]:
    """(what happened, path) from ``--name-status -z``: a renamed file has two paths, of which the new one counts."""
    words = iter(listing.split("\0"))
    found = []
    for word in words:
        if not word:
            continue
        path = next(words, "")
        if word[0] in "RC":
            path = next(words, "")
        found.append((_STATUS.get(word[0], "changed"), path[:500]))
    return found


def _git(root: Path, *words: str) -> str | None:
    try:
        text = run_git(root, *words, timeout_s=TIMEOUT_S)
    except GitFailed:
        return None
    return text.encode(errors="surrogateescape").decode(errors="replace")


#: Measurements looked at, the newest ones.
MAX_MEASUREMENTS = 1000


@dataclass(frozen=True)
class Trend:
    """One series with what is to be said of it."""

    series: Series
    changes: tuple[Change, ...]
    ladder: tuple[Record, ...]

    def as_json(self) -> dict[str, Any]:
        last = self.series.points[-1]
        return {
            **pick(last, "benchmark variant mode unit shape method gpu job settings"),
            "points": [_point(p) for p in self.series.points],
            "changes": [_change(found) for found in self.changes],
            "ladder": [{**_point(rung.point), "gain": rung.gain} for rung in self.ladder],
            "best": _point(best(self.series)),
        }


def history(
    store: FileStore, benchmark: str, *, variant: str | None = None, mode: str | None = None, gpu: str | None = None,
    job: str | None = None, limit: int = MAX_MEASUREMENTS, between: tuple[str, str] | None = None,
    commits: SourceHistory | None = None, root: Path | None = None,
) -> list[Trend]:  # fmt: skip
    """The trends of ``benchmark``, one for each set of measurements that can be compared, the newest first; of the
    runs from one id to another if ``between`` names them. Raises NotFoundError: no run measured it so."""
    measurements = store.measurements(limit=limit, benchmark=benchmark, variant=variant, mode=mode, gpu=gpu, job=job)
    first, last = between or ("", "~")
    measurements = [one for one in measurements if first <= one.run_id <= last]
    if not measurements:
        raise _unknown(store, benchmark, variant)
    return [_trend(one, commits, root) for one in series(measurements)]


def _trend(one: Series, commits: SourceHistory | None, root: Path | None) -> Trend:
    told = []
    for change in changes(one):
        old, new = change.last_before.git_commit, change.first_after.git_commit
        between = commits(root, old, new) if commits and root and change.commits and old and new else None
        told.append(replace(change, source=between))
    return Trend(one, tuple(told), tuple(ladder(one)))


def _unknown(store: FileStore, benchmark: str, variant: str | None) -> NotFoundError:
    known = store.benchmarks()
    named = [v for b, v in known if b == benchmark]
    if not known:
        return NotFoundError("no run has a measurement yet", hint=HOW_TO)
    if not named:
        hint = did_you_mean(benchmark, list(dict.fromkeys(b for b, _ in known))[:50])
        return NotFoundError(
            f"no run measured {benchmark[:80]!r}", hint=f"{hint}; see all benchmarks: fcctl results history"
        )
    if variant is not None and variant not in named:
        return NotFoundError(f"no run measured {benchmark!r} of {variant!r}", hint=did_you_mean(variant, named[:50]))
    return NotFoundError(f"no run measured {benchmark!r} with these filters", hint="remove --mode, --gpu or --job")


def _point(point: Measurement) -> dict[str, Any]:
    return pick(point, "run_id created p50 n status git_commit tree_sha256 driver")


def _change(change: Change) -> dict[str, Any]:
    return {
        **pick(change, "ratio before after p commits"),
        "why": list(change.why),
        "episode_runs": change.end - change.index if change.end else None,
        "last_before": _point(change.last_before),
        "first_after": _point(change.first_after),
        "source": asdict(change.source) if change.source else None,
    }
