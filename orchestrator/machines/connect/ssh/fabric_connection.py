"""Fabric's connection over a login that fcctl made. Fabric itself never connects: it trusts unknown host keys."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import LinkLost
from orchestrator.machines.connect.ssh.paramiko_lean import paramiko  # before Fabric imports the whole of it

import fabric  # isort: skip

if TYPE_CHECKING:
    from orchestrator.machines.connect.ssh.ssh import SshTransport


class Connection(fabric.Connection):  # type: ignore[misc]  # Fabric has no types
    """An open connection to a target's machine: ``run``, ``put``, ``get``, ``sudo``, ``forward_local`` of Fabric."""

    #: Fabric's class takes an attribute only if the class has it.
    login: SshTransport | None = None

    def __init__(self, name: str, login: SshTransport) -> None:
        # An SSH configuration of its own, and lazy: neither ~/.ssh/config nor /etc/fabric.yaml counts here.
        super().__init__(name, config=fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig()))
        self.login = login
        self.transport = login.connection
        self.client._transport = self.transport  # noqa: SLF001 - Paramiko's client takes no open connection otherwise

    def open(self) -> None:
        """Raises LinkLost: the connection has ended, and only fcctl opens another."""
        if not self.is_connected:
            raise LinkLost(f"the connection to {self.host} has ended", hint="open another connection through fcctl")

    def close(self) -> None:
        self.client._transport = None  # noqa: SLF001
        super().close()
        if self.login is not None:
            self.login.close()


def in_parallel(connections: Sequence[Connection], command: str) -> list[Any]:
    """Runs ``command`` on all of them at once: for each Invoke's result, or the exception that ended it."""
    group = fabric.ThreadingGroup.from_connections(connections)
    try:
        results = group.run(command, hide=True, warn=True, in_stream=False)
    except fabric.exceptions.GroupException as error:
        results = error.result
    return [results[connection] for connection in connections]


def posix(script: str) -> str:
    """The command that runs a POSIX shell script, whatever the login shell there is."""
    encoded = base64.b64encode(script.encode()).decode()
    return "exec /bin/sh -c " + shlex.quote(f'eval "$(echo {encoded} | base64 -d)"')
