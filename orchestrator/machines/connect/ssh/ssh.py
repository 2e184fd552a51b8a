"""A machine over SSH: programs run on channels of one connection."""

from __future__ import annotations

import base64
import contextlib
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.base.errors import HostUnreachable, HostUnusable, LinkLost
from orchestrator.machines.connect.ssh.config import KnownKey, SshSettings, of_target
from orchestrator.machines.connect.ssh.connection import Link, SshConnector
from orchestrator.machines.connect.ssh.paramiko_lean import paramiko
from orchestrator.machines.connect.transport import GUARD, LOADER, STDERR_TAIL, Process, of_stderr, printable
from orchestrator.machines.provision.endpoint import key_alias

if TYPE_CHECKING:
    from orchestrator.machines.cloud import Endpoint
    from orchestrator.machines.targets import SshTarget, TargetBase

#: How long a reader goes without looking at standard error, which shares the channel's window with the output.
STDERR_EVERY_S = 0.5
#: How long sshd may take to forget a session that was closed, before a refusal counts.
SESSION_PATIENCE_S = 2.0


class SshProcess:
    #: sshd's window for a new channel is 2 MiB; what it cannot hand to the program yet, it keeps.
    write_ahead = 1024 * 1024

    def __init__(self, channel: paramiko.Channel) -> None:
        self.channel = channel
        self._errors = bytearray()

    def write(self, data: bytes, timeout_s: float) -> None:
        self.channel.settimeout(timeout_s)
        with broken_link_is_an_os_error():
            self.channel.sendall(data)

    def read(self, limit: int, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while True:
            self._drain_errors()
            left = deadline - time.monotonic()
            self.channel.settimeout(max(0.001, min(STDERR_EVERY_S, left)))
            try:
                with broken_link_is_an_os_error():
                    return self.channel.recv(limit)
            except TimeoutError:
                if left <= STDERR_EVERY_S:
                    raise

    def end_input(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self.channel.shutdown_write()

    def wait(self, timeout_s: float) -> int | None:
        deadline = time.monotonic() + timeout_s
        while not self.channel.status_event.wait(min(STDERR_EVERY_S, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return None
            try:
                self._drain_errors()  # a full window would keep it from ending
                with broken_link_is_an_os_error():
                    while self.channel.recv_ready():
                        self.channel.recv(64 * 1024)
            except OSError:
                return None
        if not self.channel.exit_status_ready():
            return None
        status = self.channel.recv_exit_status()
        return status if status >= 0 else None

    def stderr(self) -> str:
        with contextlib.suppress(OSError):
            self._drain_errors()
        return of_stderr(self._errors)

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            self.channel.close()

    def _drain_errors(self) -> None:
        with broken_link_is_an_os_error():
            while self.channel.recv_stderr_ready():
                self._errors += self.channel.recv_stderr(64 * 1024)
                del self._errors[:-STDERR_TAIL]


@contextlib.contextmanager
def broken_link_is_an_os_error() -> Iterator[None]:
    """Turns Paramiko's errors into OSError: reading acknowledges data, and raises EOFError on a broken connection."""
    try:
        yield
    except (EOFError, paramiko.SSHException) as error:
        raise OSError(str(error) or "the connection broke") from error


class SshTransport:
    remote = True

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s

    def _type(self, process: SshProcess, script: str) -> None:
        try:
            process.write((GUARD + script).encode() + b"\n", self._timeout_s)
        except OSError as error:
            # Else the shell ended before it read a word; what it said, and its exit status, tell more.
            if isinstance(error, TimeoutError) or not self.alive():
                raise

    def _session(self) -> paramiko.Channel:
        """A new channel, retried while sshd still closes an earlier one. Raises HostUnusable: the server allows no
        further channel."""
        deadline = time.monotonic() + SESSION_PATIENCE_S
        while True:
            try:
                return self._link.transport.open_session(timeout=self._timeout_s)
            except paramiko.ChannelException as error:
                if time.monotonic() >= deadline:
                    raise HostUnusable(
                        "the machine's sshd opens no more sessions on one connection",
                        cause=f"{printable(error.text)}: MaxSessions in its configuration is too low; fcctl needs 2: "
                        f"one to start and follow runs, one to send files",
                        hint="on the machine, as root: set MaxSessions 10 in /etc/ssh/sshd_config, then systemctl "
                        "reload ssh",
                    ) from None
            time.sleep(0.05)

    def run(self, script: str) -> Process:
        try:
            channel = self._session()
            channel.settimeout(self._timeout_s)
            channel.exec_command(LOADER)
            process = SshProcess(channel)
            self._type(process, script)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise LinkLost(
                "the connection broke",
                cause=printable(str(error)) or type(error).__name__,
                hint="run the command again",
            ) from None
        return process

    @property
    def connection(self) -> paramiko.Transport:
        return self._link.transport

    def alive(self) -> bool:
        return self._link.transport.is_active()

    def close(self) -> None:
        self._link.close()


# -------------------------------------------------------------------------------------------------------------- log in
def log_in(target: SshTarget, *, may_ask: bool = True) -> SshTransport:
    """A connection to an SSH host. Raises HostUnreachable, with the reason."""
    connector = SshConnector(
        target.ssh_config, target.known_hosts, timeout_s=target.connect_timeout_s, patience_s=target.link_timeout_s,
        may_ask=may_ask,
    )  # fmt: skip
    return SshTransport(connector.open(of_target(target)), max(target.connect_timeout_s, target.link_timeout_s))


def log_in_to_cloud(endpoint: Endpoint | None, target: TargetBase, connect_timeout_s: float) -> SshTransport:
    """A connection to a machine of a cloud, with its cached address, login and pinned host keys.

    Queries no cloud and reads none of the user's SSH files. Raises HostUnreachable, with the reason; a host key other
    than the pinned ones is ``key``.
    """
    if endpoint is None or not endpoint.host_keys:
        raise not_known(target.name)
    settings = SshSettings(
        name=target.name,
        host=endpoint.address,
        port=endpoint.port,
        user=endpoint.user,
        identity_files=(Path(endpoint.identity_file),),
        chosen_identities=True,
        identities_only=True,
        identity_agent=None,  # an agent may sign with this key; no other key is offered
        known_hosts=(),
        host_key_alias=key_alias(endpoint.instance_id),
        proxy_command=shlex.join(endpoint.proxy_command) if endpoint.proxy_command else None,
        proxy_jump=(),
        pinned=tuple(
            KnownKey(kind, base64.b64decode(blob), False, "the key that the machine published through the cloud")
            for kind, _, blob in (key.partition(" ") for key in endpoint.host_keys)
        ),
    )
    try:
        connector = SshConnector(None, None, timeout_s=connect_timeout_s, patience_s=target.link_timeout_s)
        return SshTransport(connector.open(settings), max(connect_timeout_s, target.link_timeout_s))
    except HostUnreachable as error:
        hint = _hint(error, endpoint, target.name)
        raise HostUnreachable(error.message, reason=error.reason, cause=error.cause, hint=hint) from None


def not_known(name: str) -> HostUnreachable:
    """The error for a cloud machine without an entry in the cache."""
    return HostUnreachable(
        f"this computer does not know the address of target '{name}'",
        reason="config",
        cause="fcctl on this computer has not started the machine yet, or its cache was deleted",
        hint=f"fcctl hosts up {name}",
    )


def _hint(error: HostUnreachable, endpoint: Endpoint, name: str) -> str | None:
    """The hint for a machine of a cloud, in place of the one for a machine that only its owner knows."""
    up = f"fcctl hosts up {name}"
    if error.reason == "key":
        return (
            f"{up} reads the machine's address and host keys from the cloud again; if the key is refused again, do "
            f"not log in: find out who changed {endpoint.name} in project {endpoint.project}"
        )
    if error.reason in ("port", "timeout"):
        return f"the machine may be off, or may have another address now: {up}"
    if error.reason == "login":
        return f"{up} puts the key {endpoint.identity_file} on the machine"
    if error.reason == "proxy" and endpoint.proxy_command:
        return f"check the connection: fcctl doctor --on {name}"
    return error.hint
