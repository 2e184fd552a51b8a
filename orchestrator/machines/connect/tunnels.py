"""The :class:`~orchestrator.machines.tunnel_api.Tunnels` of real machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.machines.targets import LocalTarget, Target

if TYPE_CHECKING:
    from orchestrator.machines.connect.connector import Connector
    from orchestrator.machines.tunnel_api import TunnelConnection


class SshTunnels:
    """Over connections like those that runs have; this computer is reached without one."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    def open(self, target: Target) -> TunnelConnection:
        from orchestrator.machines.connect.port_forwarding import LocalPassage, SshPassage

        if isinstance(target, LocalTarget):
            return LocalPassage(target)
        return SshPassage(self._connector.ssh(target), target)
