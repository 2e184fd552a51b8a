"""Opens a session with a target's machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator.base.errors import ConfigError, HostUnreachable
from orchestrator.machines.targets import CloudTarget, LocalTarget, SandboxTarget, SshTarget, Target

if TYPE_CHECKING:
    from orchestrator.machines.cloud_api import MachineCache
    from orchestrator.machines.connect.bootstrap import RunnerArchive
    from orchestrator.machines.connect.ssh.ssh import SshTransport
    from orchestrator.machines.connect.transport import Transport
    from orchestrator.machines.host_api import HostSession

#: What :meth:`orchestrator.machines.cloud_api.Clouds.resolve` does.
Resolve = Callable[[CloudTarget | SandboxTarget], CloudTarget]


class Connector:
    """The :class:`~orchestrator.machines.host_api.HostConnector` for machines that are on.

    Args:
        book, resolve: the machine cache, and which machine a target means; without them no cloud machine is reachable.
        may_ask: whether a login may ask for a passphrase, on a terminal.
    """

    def __init__(
        self,
        runner: Callable[[], RunnerArchive] | None = None,
        *,
        book: MachineCache | None = None,
        resolve: Resolve | None = None,
        may_ask: bool = True,
    ) -> None:
        self._make_runner = runner
        self._book = book
        self._resolve = resolve
        self._may_ask = may_ask
        self._runner: RunnerArchive | None = None
        self._making = threading.Lock()

    @staticmethod
    def load(target: Target) -> None:
        """Imports the modules for a login: if one thread imports while another connects, both are slow."""
        if not isinstance(target, LocalTarget):
            import orchestrator.machines.connect.ssh.ssh  # noqa: F401

    def prepare(self) -> None:
        """Imports and builds what a session needs after the login, while another thread connects."""
        import orchestrator.machines.connect.bootstrap  # noqa: F401

        self._archive()

    def _archive(self) -> RunnerArchive:
        from orchestrator.machines.connect.bootstrap import build_runner

        with self._making:
            self._runner = self._runner or (self._make_runner or build_runner)()
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
            from orchestrator.machines.connect.transport import LocalTransport

            return LocalTransport()
        return self.ssh(target)

    def ssh(self, target: SshTarget | CloudTarget | SandboxTarget) -> SshTransport:
        """A login alone, without the host program. Raises HostUnreachable: see the port."""
        from orchestrator.machines.connect.ssh import ssh

        if isinstance(target, SshTarget):
            try:
                return ssh.log_in(target, may_ask=self._may_ask)
            except HostUnreachable as error:
                from orchestrator.machines.connect.ssh.terminal import compare_with_openssh

                raise compare_with_openssh(target, error) from None
        if self._book is None or self._resolve is None:
            raise ConfigError(
                f"target '{target.name}' is of kind {target.kind}, which needs a cloud, and none is configured here"
            )
        machine = self._resolve(target)
        # The cached endpoint: a warm start sends the cloud no request.
        return ssh.log_in_to_cloud(
            self._book.known(machine.project, machine.instance), target, machine.connect_timeout_s
        )
