"""What git knows of the way from one commit to another."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base.git import git_environment

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
