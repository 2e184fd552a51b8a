"""How a benchmark developed over the runs that are home. Everything comes out of the index; no run is opened."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.base.errors import NotFoundError, did_you_mean
from orchestrator.results.compare.changes import Change, Record, Series, best, changes, ladder, series
from orchestrator.results.compare.git_history import SourceChanges, SourceHistory
from orchestrator.results.measurement import HOW_TO, Measurement
from orchestrator.results.store_api import Store

#: Measurements looked at, the newest ones.
LIMIT = 1000


@dataclass(frozen=True)
class LocatedChange:
    """A change of level with the commits that lie at it; None where git does not know."""

    change: Change
    source: SourceChanges | None = None


@dataclass(frozen=True)
class Trend:
    """One series with what is to be said of it."""

    series: Series
    changes: tuple[LocatedChange, ...]
    ladder: tuple[Record, ...]

    def as_json(self) -> dict[str, Any]:
        last = self.series.points[-1]
        same = ("benchmark", "variant", "mode", "unit", "shape", "method", "gpu")
        return {
            **{name: getattr(last, name) for name in same},
            "points": [_point(p) for p in self.series.points],
            "changes": [_change(found) for found in self.changes],
            "ladder": [{**_point(rung.point), "gain": rung.gain} for rung in self.ladder],
            "best": _point(best(self.series)),
        }


def history(
    store: Store,
    benchmark: str,
    *,
    variant: str | None = None,
    mode: str | None = None,
    gpu: str | None = None,
    job: str | None = None,
    limit: int = LIMIT,
    commits: SourceHistory | None = None,
    root: Path | None = None,
) -> list[Trend]:
    """The trends of ``benchmark``, one for each set of measurements that can be compared, the newest first.

    Raises:
        NotFoundError: no run measured it so.
    """
    found = store.measurements(limit=limit, benchmark=benchmark, variant=variant, mode=mode, gpu=gpu, job=job)
    if not found:
        raise _unknown(store, benchmark, variant)
    return [_trend(one, commits, root) for one in series(found)]


def _trend(one: Series, commits: SourceHistory | None, root: Path | None) -> Trend:
    told = []
    for change in changes(one):
        old, new = change.last_before.git_commit, change.first_after.git_commit
        between = commits(root, old, new) if commits and root and change.commits and old and new else None
        told.append(LocatedChange(change, between))
    return Trend(one, tuple(told), tuple(ladder(one)))


def _unknown(store: Store, benchmark: str, variant: str | None) -> NotFoundError:
    known = store.benchmarks()
    named = [v for b, v in known if b == benchmark]
    if not known:
        return NotFoundError("no run measured anything yet", hint=HOW_TO)
    if not named:
        hint = did_you_mean(benchmark, list(dict.fromkeys(b for b, _ in known))[:50])
        return NotFoundError(f"no run measured {benchmark[:80]!r}", hint=f"{hint}; fcctl results history lists them")
    if variant is not None and variant not in named:
        return NotFoundError(f"no run measured {benchmark!r} of {variant!r}", hint=did_you_mean(variant, named[:50]))
    return NotFoundError(f"no run measured {benchmark!r} so", hint="leave out --mode, --gpu or --job")


def _point(point: Measurement) -> dict[str, Any]:
    keep = ("run_id", "created", "p50", "n", "status", "git_commit", "tree_sha256", "driver")
    return {name: getattr(point, name) for name in keep}


def _change(found: LocatedChange) -> dict[str, Any]:
    change = found.change
    return {
        "ratio": change.ratio,
        "before": change.before,
        "after": change.after,
        "p": change.p,
        "commits": change.commits,
        "why": list(change.why),
        "episode_runs": change.end - change.index if change.end else None,
        "last_before": _point(change.last_before),
        "first_after": _point(change.first_after),
        "source": asdict(found.source) if found.source else None,
    }
