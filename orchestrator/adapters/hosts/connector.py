"""From a target to a session with its machine."""

from __future__ import annotations

import sys
from collections.abc import Callable

from orchestrator.adapters.hosts.bootstrap import Runner, start
from orchestrator.adapters.hosts.local import LocalTransport
from orchestrator.adapters.hosts.transport import Transport
from orchestrator.domain.target import LocalTarget, SshTarget, Target
from orchestrator.errors import ConfigError
from orchestrator.ports import HostSession


def packaged_runner() -> Runner:
    from orchestrator.adapters.runner_archive import build_runner

    return build_runner()


class Connector:
    """The :class:`~orchestrator.ports.HostConnector` for machines that are there already."""

    def __init__(self, runner: Callable[[], Runner] = packaged_runner) -> None:
        self._runner = runner

    def connect(self, target: Target) -> HostSession:
        """Log in and start the host program.

        Raises:
            HostUnreachable, HostUnusable, HostFault, LinkLost: see the port.
        """
        transport = self._transport(target)
        try:
            # Here, the Python that runs the controller is new enough, and needs no looking for.
            python = target.python or (None if transport.remote else sys.executable)
            return start(transport, self._runner(), root=target.root, python=python, timeout_s=target.link_timeout_s)
        except BaseException:
            transport.close()
            raise

    def _transport(self, target: Target) -> Transport:
        if isinstance(target, LocalTarget):
            return LocalTransport()
        if isinstance(target, SshTarget):
            from orchestrator.adapters.hosts.ssh import SshTransport  # Paramiko takes a tenth of a second

            return SshTransport.dial(target)
        raise ConfigError(
            f"target '{target.name}' is of kind {target.kind}, which takes a machine that is not started yet",
            hint="use a target of kind local or ssh",
        )
