"""The environment for git commands about a repository that is named."""

from __future__ import annotations

import os

_KEPT = ("GIT_CONFIG", "GIT_CEILING")


def git_environment() -> dict[str, str]:
    """This process's environment without what a hook or an alias sets, which would point git at another repository."""
    own = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") or k.startswith(_KEPT)}
    return {**own, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
