"""The :class:`~orchestrator.ports.Tunnels` of real machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.domain.target import LocalTarget, Target

if TYPE_CHECKING:
    from orchestrator.adapters.hosts.connector import Connector
    from orchestrator.ports import Passage


class SshTunnels:
    """Over connections like those that runs have; this computer is reached without one."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    def open(self, target: Target) -> Passage:
        from orchestrator.adapters.hosts.passage import LocalPassage, SshPassage

        if isinstance(target, LocalTarget):
            return LocalPassage(target)
        return SshPassage(self._connector.ssh(target), target)
