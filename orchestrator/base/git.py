"""Git commands about a repository that is named."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

#: For every git command of fcctl. A tarball brings its own `.git`, whose hooks git starts, as it does what its `config`
#: names; and a folder of a clone may look like a repository without a working tree.
SAFE = (
    "-c", "safe.bareRepository=explicit", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null",
    "-c", "log.showSignature=false",
)  # fmt: skip
#: No object that is missing is fetched: a remote's helpers are programs, too. The second is for git before 2.45.
_NO_FETCH = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": ""}
_KEPT = ("GIT_CONFIG", "GIT_CEILING")


class GitFailed(Exception):
    """git's exit code is not 0; the text is its error on one line."""


def git_environment(*, may_fetch: bool = False) -> dict[str, str]:
    """This process's environment without what a hook or an alias sets, which would point git at another repository.
    ``may_fetch``: git may fetch what a partial clone lacks."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(_KEPT)}
    return {**own, **({} if may_fetch else _NO_FETCH), "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}


def without_own_filters(folder: Path, timeout_s: float) -> dict[str, str]:
    """:func:`git_environment` in which the filters that the repository's own configuration names are no programs. Those
    of the user, as Git LFS, stay."""
    environment = git_environment()
    try:
        listed = run_git(folder, *_FILTERS, timeout_s=timeout_s).split("\0")
    except GitFailed:  # there is none
        return environment
    own = [key for scope, key in zip(listed[::2], listed[1::2], strict=False) if scope in ("local", "worktree")]
    first = environment.get("GIT_CONFIG_COUNT", "")
    number = int(first) if first.isdecimal() else 0
    for key in own:  # as variables, not with -c: a name may have a "="
        environment[f"GIT_CONFIG_KEY_{number}"] = key
        environment[f"GIT_CONFIG_VALUE_{number}"] = "false" if key.endswith(".required") else ""
        number += 1
    return {**environment, "GIT_CONFIG_COUNT": str(number)}


_FILTERS = ("config", "--includes", "--show-scope", "--name-only", "-z", "--get-regexp", r"^filter\.")


def run_git(folder: Path, *words: str, timeout_s: float, may_fetch: bool = False) -> str:
    """Runs ``git WORDS`` in ``folder`` and returns its output. Raises GitFailed: git failed, took longer than
    ``timeout_s``, or is not installed."""
    try:
        done = subprocess.run(
            [shutil.which("git") or "git", *SAFE, *words], cwd=folder, env=git_environment(may_fetch=may_fetch),
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="surrogateescape",
            timeout=timeout_s, check=False, start_new_session=True,  # Ctrl-C is for the controller
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
