"""The environment for git commands about a repository that is named."""

from __future__ import annotations

import os
from collections.abc import Mapping


def git_environment() -> dict[str, str]:
    """This process's environment, fit for asking git about a repository that is named."""
    return _environment(os.environ)


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what a hook or an alias sets, which would point git at another repository."""
    kept = {k: v for k, v in environ.items() if not k.startswith("GIT_") or k.startswith(("GIT_CONFIG", "GIT_CEILING"))}
    return {**kept, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
