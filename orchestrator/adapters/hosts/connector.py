"""From a target to a session with its machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.domain.target import LocalTarget, SshTarget, Target
from orchestrator.errors import ConfigError

if TYPE_CHECKING:
    from orchestrator.adapters.hosts.bootstrap import Runner
    from orchestrator.adapters.hosts.transport import Transport
    from orchestrator.ports import HostSession


def packaged_runner() -> Runner:
    from orchestrator.adapters.runner_archive import build_runner

    return build_runner()


class Connector:
    """The :class:`~orchestrator.ports.HostConnector` for machines that are there already."""

    def __init__(self, runner: Callable[[], Runner] = packaged_runner) -> None:
        self._make_runner = runner
        self._runner: Runner | None = None
        self._making = threading.Lock()

    @staticmethod
    def load(target: Target) -> None:
        """Import what it takes to log in, in the caller's thread.

        A thread that connects while another one imports would get half of Python's attention, and the host would wait.
        """
        if isinstance(target, SshTarget):
            import orchestrator.adapters.hosts.ssh  # noqa: F401

    def prepare(self) -> None:
        """Get ready what a session needs once the login is through; for a caller whose other thread connects."""
        import orchestrator.adapters.hosts.bootstrap  # noqa: F401

        self._archive()

    def _archive(self) -> Runner:
        with self._making:
            self._runner = self._runner or self._make_runner()
            return self._runner

    def connect(self, target: Target) -> HostSession:
        """Log in and start the host program.

        Raises:
            HostUnreachable, HostUnusable, HostFault, LinkLost: see the port.
        """
        transport = self._transport(target)
        try:
            from orchestrator.adapters.hosts.bootstrap import start

            # Here, the Python that runs the controller is new enough, and needs no looking for.
            python = target.python or (None if transport.remote else sys.executable)
            return start(transport, self._archive(), root=target.root, python=python, timeout_s=target.link_timeout_s)
        except BaseException:
            transport.close()
            raise

    def _transport(self, target: Target) -> Transport:
        if isinstance(target, LocalTarget):
            from orchestrator.adapters.hosts.local import LocalTransport

            return LocalTransport()
        if isinstance(target, SshTarget):
            from orchestrator.adapters.hosts.ssh import SshTransport

            return SshTransport.dial(target)
        raise ConfigError(
            f"target '{target.name}' is of kind {target.kind}, which takes a machine that is not started yet",
            hint="use a target of kind local or ssh",
        )
