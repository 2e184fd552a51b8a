"""Fabric's connection over a login that fcctl made, to one machine or to several at once. Fabric itself never connects:
it trusts unknown host keys."""

from __future__ import annotations

import base64
import functools
import itertools
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from orchestrator.base.errors import FcctlError, LinkLost
from orchestrator.machines.connect.ssh.paramiko_lean import paramiko  # before Fabric imports the whole of it

import fabric  # isort: skip

if TYPE_CHECKING:
    from orchestrator.machines.connect.ssh.ssh import SshTransport
    from orchestrator.machines.targets import Target


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


class LineStream:
    """A stream for Invoke: whole lines go to ``write`` as they come, what is left at the :meth:`end`."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write, self._begun = write, ""

    def write(self, text: str) -> None:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._write(line)

    def flush(self) -> None:
        """Invoke calls it after each piece, and pieces are no lines."""

    def __copy__(self) -> LineStream:
        """Invoke copies what its configuration holds, and what is left must be here."""
        return self

    def end(self) -> None:
        if self._begun:
            self.write("\n")


def posix(script: str) -> str:
    """The command that runs a POSIX shell script, whatever the login shell there is."""
    encoded = base64.b64encode(script.encode()).decode()
    return "exec /bin/sh -c " + shlex.quote(f'eval "$(echo {encoded} | base64 -d)"')


def run_on(
    targets: Sequence[Target],
    command: str,
    connect: Callable[[Target], Connection],
    line: Callable[[str, bool, str], None] | None = None,
) -> list[Any]:
    """Runs ``command`` on all targets at once: for each the result of Invoke, or the exception that ended it. ``line``
    gets the output as it comes: target, whether it is of standard error, text."""
    outcomes: dict[str, Any] = {}
    streams: list[LineStream] = []
    with ExitStack() as opened:
        connections = []
        for target in targets:
            try:
                connections.append(opened.enter_context(connect(target)))
            except FcctlError as error:
                outcomes[target.name] = error
        if line is not None:
            for one, name in itertools.product(connections, ("out_stream", "err_stream")):
                streams.append(LineStream(functools.partial(line, one.host, name == "err_stream")))
                one.config.run[name] = streams[-1]
        group = fabric.ThreadingGroup.from_connections(connections)
        try:
            results = group.run(command, hide=line is None, warn=True, in_stream=False) if connections else {}
        except fabric.exceptions.GroupException as error:
            results = error.result
        for stream in streams:
            stream.end()
        outcomes.update((connection.host, result) for connection, result in results.items())
    return [outcomes[target.name] for target in targets]
