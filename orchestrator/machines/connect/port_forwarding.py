"""A fleet's way to one machine: ports on its loopback, and the files through which its runs learn of them."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from orchestrator.base import run_id as ids
from orchestrator.base.errors import HostFault, HostUnusable, LinkLost
from orchestrator.machines.connect.host_command import shell_path
from orchestrator.machines.connect.local import LocalTransport
from orchestrator.machines.connect.relay import Gate, SocketStream
from orchestrator.machines.connect.ssh.paramiko_lean import paramiko
from orchestrator.machines.connect.ssh.ssh import broken_link_is_an_os_error
from orchestrator.machines.connect.transport import Transport, printable
from orchestrator.machines.targets import Target
from orchestrator.machines.tunnel_api import Stream

if TYPE_CHECKING:
    from orchestrator.machines.connect.ssh.ssh import SshTransport

LOOPBACK = "127.0.0.1"
#: The folder of a run, beside what comes home, that a fleet's files are in.
FOLDER = "fleet"
#: A file of that folder, or one further below the run's.
_NAME = re.compile(r"([a-z0-9]+/)*[a-z0-9]+\.[a-z]+")
NO_RUN, NO_FILE, NO_ROOM = 92, 91, 95
#: Exit statuses above it are those of a program that a signal ended.
KILLED = 128


class _Files:
    """What all passages do in the same way: files of a run, by way of a shell."""

    def __init__(self, transport: Transport, target: Target) -> None:
        self._transport = transport
        self._target = target
        self._patience_s = target.link_timeout_s

    def read(self, run_id: str, name: str, limit: int) -> bytes | None:
        script = f'{self._place(run_id, name)}; [ -f "$f" ] || exit {NO_FILE}; exec head -c {limit + 1} "$f"'
        status, data = self._carry_out(script, b"", limit + 1)
        return data if status == 0 and len(data) <= limit else None

    def write(self, run_id: str, name: str, data: bytes) -> bool:
        script = (
            f'{self._place(run_id, name)}; umask 077; [ -d "$r" ] || exit {NO_RUN}; t="$f.$$"; '
            f'mkdir -p "$d" && cat >"$t" && [ "$(wc -c <"$t")" -eq {len(data)} ] && mv -f "$t" "$f" && exit 0; s=$?; '
            f'rm -f "$t"; [ $s -le {KILLED} ] || exit $s; exit {NO_ROOM}'
        )
        status, _ = self._carry_out(script, data, 0)
        if status > KILLED:  # as all is that runs on a machine which is switched off
            raise self._lost(None)
        if status not in (0, NO_RUN):
            raise HostUnusable(
                f"{self._target.name} does not let fcctl write into the folder of run {run_id}",
                hint=f"free some space there (df -h {self._target.root})",
            )
        return status == 0

    def remove(self, run_id: str, name: str) -> None:
        self._carry_out(f'{self._place(run_id, name)}; rm -f "$f"; rmdir "$d" 2>/dev/null; exit 0', b"", 0)

    def _place(self, run_id: str, name: str) -> str:
        if not ids.is_valid(run_id) or not _NAME.fullmatch(name):
            raise ValueError(f"{run_id}/{name} is no file of a run")
        folder, _, name = name.rpartition("/")
        return f'r={shell_path(self._target.root)}/runs/{run_id}; d="$r/{folder or FOLDER}"; f="$d/{name}"'

    def _carry_out(self, script: str, data: bytes, limit: int) -> tuple[int, bytes]:
        """Exit status and output of one line of shell. Raises: LinkLost."""
        process = self._transport.run(script)
        said = b""
        try:
            try:
                process.write(data, self._patience_s)
            except TimeoutError:
                raise
            except OSError:  # it ended before it read: its status says why
                pass
            process.end_input()
            while len(said) < limit and (piece := process.read(limit - len(said), self._patience_s)):
                said += piece
            status = process.wait(self._patience_s)
        except (TimeoutError, OSError) as error:
            raise self._lost(error) from None
        finally:
            process.close()
        if status is None:
            raise self._lost(None)
        return status, said

    def _lost(self, error: BaseException | None) -> LinkLost:
        cause = printable(str(error)) or type(error).__name__ if error is not None else None
        return LinkLost(f"the way to {self._target.name} broke", cause=cause, hint="try again")


class SshPassage(_Files):
    """Forwards over one SSH connection, as ``ssh -R`` and ``ssh -W`` make them, without a listening port here."""

    def __init__(self, transport: SshTransport, target: Target) -> None:
        super().__init__(transport, target)
        self._ssh: paramiko.Transport = transport.connection
        self._gate: Gate | None = None

    def listen(self, reach: Callable[[], Stream]) -> int:
        if self._gate is not None:
            raise ValueError("a passage has one port that is listened to")
        gate = self._gate = Gate(reach, self._ssh.close)

        def incoming(channel: paramiko.Channel, _origin: object, _server: object) -> None:
            gate.take(_ChannelStream(channel))

        try:
            with self._in_time():
                return self._ssh.request_port_forward(LOOPBACK, 0, incoming)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if not self._ssh.is_active():
                raise self._lost(error) from None
            raise _refused(self._target.name, "remote") from None

    def dial(self, port: int) -> Stream:
        try:
            channel = self._ssh.open_channel("direct-tcpip", (LOOPBACK, port), (LOOPBACK, 0), timeout=self._patience_s)
        except paramiko.ChannelException as error:
            if error.code == 1:  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED
                raise _refused(self._target.name, "local") from None
            raise _nobody(self._target.name, port) from None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._lost(error) from None
        return _ChannelStream(channel)

    def check(self) -> None:
        try:
            with self._in_time():
                self._ssh.global_request("keepalive@openssh.com", wait=True)  # refused, and so answered
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._lost(error) from None
        if not self._ssh.is_active():
            raise self._lost(None)

    def close(self) -> None:
        self._transport.close()
        if self._gate is not None:
            self._gate.close()

    @contextlib.contextmanager
    def _in_time(self) -> Iterator[None]:
        """Paramiko waits for the answer to a request as long as the connection stands, so in time it stands no more."""
        alarm = threading.Timer(self._patience_s, self._ssh.close)
        alarm.daemon = True
        alarm.start()
        try:
            yield
        finally:
            alarm.cancel()


class LocalPassage(_Files):
    """This computer as a machine of a fleet: ports of its own loopback."""

    def __init__(self, target: Target) -> None:
        super().__init__(LocalTransport(), target)
        self._listener: socket.socket | None = None
        self._gate: Gate | None = None

    def listen(self, reach: Callable[[], Stream]) -> int:
        if self._listener is not None:
            raise ValueError("a passage has one port that is listened to")
        listener = self._listener = socket.create_server((LOOPBACK, 0), backlog=64)
        gate = self._gate = Gate(reach, self.close)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    sock, _ = listener.accept()
                    gate.take(SocketStream(sock))

        threading.Thread(target=accept, name="fcctl-listen", daemon=True).start()
        return int(listener.getsockname()[1])

    def dial(self, port: int) -> Stream:
        try:
            return SocketStream(socket.create_connection((LOOPBACK, port), self._patience_s))
        except OSError:
            raise _nobody(self._target.name, port) from None

    def check(self) -> None:
        """It is here."""

    def close(self) -> None:
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._listener.close()
        if self._gate is not None:
            self._gate.close()


class _ChannelStream:
    def __init__(self, channel: paramiko.Channel) -> None:
        channel.settimeout(None)
        self._channel = channel

    def recv(self, limit: int) -> bytes:
        with broken_link_is_an_os_error():
            return self._channel.recv(limit)

    def sendall(self, data: bytes) -> None:
        with broken_link_is_an_os_error():
            self._channel.sendall(data)

    def end(self) -> None:
        with contextlib.suppress(OSError), broken_link_is_an_os_error():
            self._channel.shutdown_write()

    def close(self) -> None:
        with contextlib.suppress(OSError), broken_link_is_an_os_error():
            self._channel.close()


def _refused(name: str, way: str) -> HostUnusable:
    return HostUnusable(
        f"the SSH server of {name} does not forward ports",
        cause=f"a search over several machines needs {way} forwarding, between their loopback addresses only",
        hint=f"there, in /etc/ssh/sshd_config: AllowTcpForwarding yes (or: {way}), no DisableForwarding, no PermitOpen"
        " or PermitListen that excludes 127.0.0.1; then: sudo systemctl reload ssh",
    )


def _nobody(name: str, port: int) -> HostFault:
    return HostFault(f"nothing listens on port {port} of {name}", fault="not_found")
