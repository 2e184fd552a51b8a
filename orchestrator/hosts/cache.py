"""``fcctl hosts prune --on TARGET``: what the runs of workspaces keep on a machine, ``$FCCTL_CACHE``."""

from __future__ import annotations

import re
import shlex

from orchestrator.base.errors import ConflictError, HostUnusable
from orchestrator.base.sanitize import clean
from orchestrator.hosts.prepare import Preparation

#: What reading and deleting a cache may take, seconds: it may have millions of files.
LIMIT_S = 600.0
_LINE = re.compile(r"(\d{1,15})\s+.*/cache/([a-z0-9._-]{1,64})")


def sizes(machine: Preparation) -> dict[str, int]:
    """The caches on the machine, bytes by workspace. Raises LinkLost."""
    script = 'for d in "$FCCTL_ROOT"/cache/*; do [ ! -d "$d" ] || du -sk "$d"; done'
    _, output, _ = machine.run(script, LIMIT_S)
    found = map(_LINE.fullmatch, output.splitlines())
    return {match[2]: int(match[1]) * 1024 for match in found if match is not None}


def delete(machine: Preparation, workspace: str) -> None:
    """Deletes the cache of a workspace. Raises ConflictError: a run is on the machine; HostUnusable: it stays."""
    if not machine.is_free():
        raise ConflictError("a run uses the machine", hint="wait until it ends: fcctl ps")
    status, _, errors = machine.run(f'rm -rf "$FCCTL_ROOT"/cache/{shlex.quote(workspace)}', LIMIT_S)
    if status:
        raise HostUnusable("the cache could not be deleted", cause=clean(errors))
