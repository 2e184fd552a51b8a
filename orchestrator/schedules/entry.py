"""What the computer's scheduler is to call, and calls of the scheduler's own programs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.base.errors import FcctlError
from orchestrator.base.run_id import slug


@dataclass(frozen=True)
class Entry:
    """The entry of the scheduler: command, folder and PATH."""

    name: str
    argv: tuple[str, ...]
    folder: Path
    path: str  # PATH for gcloud, ssh and what the jobs' own steps need

    @classmethod
    def of(cls, workspace: Path) -> Entry:
        digest = hashlib.sha256(str(workspace).encode()).hexdigest()[:8]
        fcctl = (sys.executable, "-P", "-m", "orchestrator.cli.entry")  # -P: the workspace's modules are not Python's
        argv = (*fcctl, "-C", str(workspace), "--quiet", "schedule", "tick")
        return cls(f"fcctl-{slug(workspace.name)[:32] or 'workspace'}-{digest}", argv, workspace, _path())


def _path() -> str:
    parts = os.environ.get("PATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(p for p in [*parts, "/usr/local/bin", "/usr/bin", "/bin"] if p))


def call(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a program of the scheduler; exit code 127 if it does not start or hangs."""
    try:
        # Messages are looked at for their meaning, so they must not be translated.
        env = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, env=env)
    except (OSError, subprocess.TimeoutExpired) as e:
        return subprocess.CompletedProcess(list(argv), 127, "", str(e))


def must(argv: Sequence[str]) -> None:
    """The same; raises FcctlError if the program refuses."""
    done = call(argv)
    if done.returncode != 0:
        raise refused(argv, done)


def refused(argv: Sequence[str], done: subprocess.CompletedProcess[str], fix: str = "") -> FcctlError:
    """The error for a call that failed. ``fix``: what may help, before the general hint."""
    hint = fix or "correct the problem that it names and install again"
    return FcctlError(
        f"`{' '.join(argv[:3])}` failed",
        cause=(done.stderr or done.stdout).strip()[:500] or f"exit code {done.returncode}",
        hint=f"{hint}; or run a scheduler in the foreground: fcctl schedule serve",
    )
