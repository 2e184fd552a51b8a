from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from fabric import Connection


def connection(target: str, workspace: str | Path = ".") -> Connection:
    """A Fabric connection to a target of the workspace around that folder, for a fabfile of your own.

    fcctl logs in, checks the pinned host key, and wakes nothing. Raises orchestrator.base.errors.FcctlError.
    """
    from pathlib import Path

    from orchestrator.app import fabric_connection
    from orchestrator.workspace.workspace import find_workspace

    return fabric_connection(find_workspace(Path(workspace)).machine(target))
