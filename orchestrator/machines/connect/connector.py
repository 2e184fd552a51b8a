"""Opens a session with a target's machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.base.errors import ConfigError
from orchestrator.machines.targets import CloudTarget, LocalTarget, SandboxTarget, SshTarget, Target

if TYPE_CHECKING:
    from orchestrator.machines.cloud_api import MachineCache
    from orchestrator.machines.connect.bootstrap import Runner
    from orchestrator.machines.connect.ssh.ssh import SshTransport
    from orchestrator.machines.connect.transport import Transport
    from orchestrator.machines.host_api import HostSession

#: What :meth:`orchestrator.machines.cloud_api.Clouds.resolve` does.
Resolve = Callable[[CloudTarget | SandboxTarget], CloudTarget]


def packaged_runner() -> Runner:
    from orchestrator.machines.connect.host_program import build_runner

    return build_runner()


class Connector:
    """The :class:`~orchestrator.machines.host_api.HostConnector` for machines that are on.

    Args:
        book, resolve: the machine cache, and which machine a target means; without them no cloud machine is reachable.
    """

    def __init__(
        self,
        runner: Callable[[], Runner] = packaged_runner,
        *,
        book: MachineCache | None = None,
        resolve: Resolve | None = None,
    ) -> None:
        self._make_runner = runner
        self._book = book
        self._resolve = resolve
        self._runner: Runner | None = None
        self._making = threading.Lock()

    @staticmethod
    def load(target: Target) -> None:
        """Imports the modules for a login in the caller's thread.

        If one thread imports while another connects, Python's lock slows the connection down.
        """
        if not isinstance(target, LocalTarget):
            import orchestrator.machines.connect.ssh.ssh  # noqa: F401

    def prepare(self) -> None:
        """Imports and builds what a session needs after the login, while another thread connects."""
        import orchestrator.machines.connect.bootstrap  # noqa: F401

        self._archive()

    def _archive(self) -> Runner:
        with self._making:
            self._runner = self._runner or self._make_runner()
            return self._runner

    def connect(self, target: Target) -> HostSession:
        """Log in and start the host program. Raises HostUnreachable, HostUnusable, HostFault, LinkLost: see the
        port."""
        transport = self._transport(target)
        try:
            from orchestrator.machines.connect.bootstrap import start

            # On this machine, the controller's Python is new enough.
            python = target.python or (None if transport.remote else sys.executable)
            return start(transport, self._archive(), root=target.root, python=python, timeout_s=target.link_timeout_s)
        except BaseException:
            transport.close()
            raise

    def _transport(self, target: Target) -> Transport:
        if isinstance(target, LocalTarget):
            from orchestrator.machines.connect.local import LocalTransport

            return LocalTransport()
        return self.ssh(target)

    def ssh(self, target: SshTarget | CloudTarget | SandboxTarget) -> SshTransport:
        """A login alone, without the host program. Raises HostUnreachable: see the port."""
        if isinstance(target, SshTarget):
            from orchestrator.machines.connect.ssh.ssh import SshTransport

            return SshTransport.dial(target)
        return self._cloud_transport(target)

    def _cloud_transport(self, target: CloudTarget | SandboxTarget) -> SshTransport:
        """Logs in with the cached endpoint: a warm start sends the cloud no request."""
        from orchestrator.machines.connect import cloud_login as cloud_machine

        if self._book is None or self._resolve is None:
            raise ConfigError(f"target '{target.name}' is of kind {target.kind}, and no cloud is at hand")
        machine = self._resolve(target)
        known = self._book.known(machine.project, machine.instance)
        if known is None:
            raise cloud_machine.unknown(target.name)
        return cloud_machine.dial(known, target, machine.connect_timeout_s)
