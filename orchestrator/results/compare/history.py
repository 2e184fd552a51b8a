"""A benchmark's history over the finished runs, from the index, and the commits between two runs."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import NotFoundError, did_you_mean
from orchestrator.base.git import git_environment
from orchestrator.base.json_text import pick
from orchestrator.results.compare.changes import Change, Record, Series, best, changes, ladder, series
from orchestrator.results.timings import HOW_TO, Measurement

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

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
    git = shutil.which("git")
    if git is None:
        return None
    try:
        done = subprocess.run(
            [git, *words], cwd=root, env=git_environment(), stdin=subprocess.DEVNULL, capture_output=True,
            timeout=TIMEOUT_S, check=False, start_new_session=True,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


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
        return {
            **pick(last, "benchmark variant mode unit shape method gpu job settings"),
            "points": [_point(p) for p in self.series.points],
            "changes": [_change(found) for found in self.changes],
            "ladder": [{**_point(rung.point), "gain": rung.gain} for rung in self.ladder],
            "best": _point(best(self.series)),
        }


def history(
    store: FileStore, benchmark: str, *, variant: str | None = None, mode: str | None = None, gpu: str | None = None,
    job: str | None = None, limit: int = LIMIT, between: tuple[str, str] | None = None,
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
        told.append(LocatedChange(change, between))
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


def _change(found: LocatedChange) -> dict[str, Any]:
    change = found.change
    return {
        **pick(change, "ratio before after p commits"),
        "why": list(change.why),
        "episode_runs": change.end - change.index if change.end else None,
        "last_before": _point(change.last_before),
        "first_after": _point(change.first_after),
        "source": asdict(found.source) if found.source else None,
    }
