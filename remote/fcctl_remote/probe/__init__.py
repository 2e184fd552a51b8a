"""Preflight: what this machine is, what is wrong with it for CUDA work, and the environment steps should run in.

Everything asked of another program is bounded in time: a hanging nvidia-smi is a finding, not a hang. Preflight itself
is imported when it is called for: what every run needs must not wait for what it rarely does.
"""

from __future__ import annotations

from collections.abc import Mapping

from fcctl_remote.probe.environment import resolve_environment
from fcctl_remote.record import Any
from fcctl_remote.wire import Needs

__all__ = ["check_needs", "collect", "render", "resolve_environment"]


def check_needs(needs: Needs, env: Mapping[str, str]) -> tuple[str, str] | None:
    """None if the machine has what a step needs, else (what is missing, how to get it)."""
    from fcctl_remote.probe import needs as wanted

    return wanted.check_needs(needs, env)


def collect(env: Mapping[str, str] | None = None, require: str = "auto") -> dict[str, Any]:
    """The ``environment`` document: see :func:`fcctl_remote.probe.document.collect`."""
    from fcctl_remote.probe import document

    return document.collect(env, require)


def render(document: Mapping[str, Any], color: bool = False) -> str:
    """The document as sections, a summary with counts, and one last [PASS], [WARN] or [FAIL] line."""
    from fcctl_remote.probe import printed

    return printed.render(document, color)
