"""Git commands about a repository that is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

#: For every git command of fcctl: a folder of a clone may look like a repository without a working tree, and
#: its `config` names programs that git starts.
SAFE = ("-c", "safe.bareRepository=explicit")
_KEPT = ("GIT_CONFIG", "GIT_CEILING")


class GitFailed(Exception):
    """git's exit code is not 0; the text is its error on one line."""


def git_environment() -> dict[str, str]:
    """This process's environment without what a hook or an alias sets, which would point git at another repository."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(_KEPT)}
    return {**own, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def run_git(folder: Path, *words: str, timeout_s: float) -> str:
    """Runs ``git WORDS`` in ``folder`` and returns its output. Raises GitFailed: git failed, took longer than
    ``timeout_s``, or is not installed."""
    try:
        done = subprocess.run(
            [shutil.which("git") or "git", *SAFE, *words], cwd=folder, env=git_environment(), stdin=subprocess.DEVNULL,
            capture_output=True, encoding="utf-8", errors="surrogateescape", timeout=timeout_s, check=False,
            start_new_session=True,  # Ctrl-C is for the controller
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise GitFailed(f"git took over {timeout_s:g} s") from None
    except OSError as error:
        raise GitFailed(f"git cannot be started: {error.strerror}") from None
    if done.returncode:
        told = done.stderr.encode(errors="replace").decode(errors="replace").strip().split("\n")
        last = next((line for line in told if line.startswith("fatal: ")), told[0]).removeprefix("fatal: ")
        raise GitFailed(last or f"git {words[0]} ended with exit code {done.returncode}")
    return done.stdout
