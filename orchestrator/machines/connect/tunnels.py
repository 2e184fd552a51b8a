"""The :class:`~orchestrator.machines.interfaces.Tunnels` of real machines: ports on a machine's loopback, and files
through which a fleet's runs find them."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from orchestrator.base import run_id as ids
from orchestrator.base.errors import FcctlError, HostFault, HostUnusable, LinkLost
from orchestrator.machines.connect.bootstrap import shell_path
from orchestrator.machines.connect.ssh.paramiko_lean import paramiko
from orchestrator.machines.connect.ssh.ssh import broken_link_is_an_os_error
from orchestrator.machines.connect.transport import printable, run_to_end
from orchestrator.machines.interfaces import Stream, TunnelConnection
from orchestrator.machines.targets import LocalTarget, Target

if TYPE_CHECKING:
    from orchestrator.machines.connect.reconnect import Connector
    from orchestrator.machines.connect.ssh.ssh import SshTransport

LOOPBACK = "127.0.0.1"
#: The folder of a run, beside what is collected, that a fleet's files are in.
FOLDER = "fleet"
#: A file of that folder, or one further below the run's.
_NAME = re.compile(r"([a-z0-9]+/)*[a-z0-9]+\.[a-z]+")
NO_RUN, NO_FILE, NO_ROOM = 92, 91, 95
#: Exit statuses above it are those of a program that a signal ended.
KILLED = 128
#: The limit of concurrent connections of a machine: workers of a search keep about three each.
MAX_CONNECTIONS = 128
#: The limit of refused connections, in all, before the tunnel is closed.
MAX_REFUSED = 1000
PIECE_BYTES = 64 * 1024
#: How long threads may take to notice that their connections were closed, seconds.
JOIN_S = 5.0
_log = logging.getLogger(__name__)


class SshTunnels:
    """Tunnels over SSH connections."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    def open(self, target: Target) -> TunnelConnection:
        if isinstance(target, LocalTarget):
            raise TypeError("this computer takes no part in a search on several machines")
        return SshTunnelConnection(self._connector.ssh(target), target)


class SshTunnelConnection:
    """Reading and writing a run's files through a shell; and port forwarding over one SSH connection, like ``ssh -R``
    and ``ssh -W``, without a listening port here."""

    def __init__(self, transport: SshTransport, target: Target) -> None:
        self._transport = transport
        self._ssh: paramiko.Transport = transport.connection
        self._target = target
        self._timeout_s = target.link_timeout_s
        self._gate: Gate | None = None

    def read(self, run_id: str, name: str, limit: int) -> bytes | None:
        script = f'{self._place(run_id, name)}; [ -f "$f" ] || exit {NO_FILE}; exec head -c {limit + 1} "$f"'
        status, data = self._run(script, b"", limit + 1)
        return data if status == 0 and len(data) <= limit else None

    def write(self, run_id: str, name: str, data: bytes) -> bool:
        script = (
            f'{self._place(run_id, name)}; umask 077; [ -d "$r" ] || exit {NO_RUN}; t="$f.$$"; '
            f'mkdir -p "$d" && cat >"$t" && [ "$(wc -c <"$t")" -eq {len(data)} ] && mv -f "$t" "$f" && exit 0; s=$?; '
            f'rm -f "$t"; [ $s -le {KILLED} ] || exit $s; exit {NO_ROOM}'
        )
        status, _ = self._run(script, data, 0)
        if status > KILLED:  # ended by a signal: the machine is shutting down
            raise self._lost(None)
        if status not in (0, NO_RUN):
            raise HostUnusable(
                f"{self._target.name} does not allow fcctl to write into the folder of run {run_id}",
                hint=f"free disk space on the machine (df -h {self._target.root})",
            )
        return status == 0

    def remove(self, run_id: str, name: str) -> None:
        self._run(f'{self._place(run_id, name)}; rm -f "$f"; rmdir "$d" 2>/dev/null; exit 0', b"", 0)

    def _place(self, run_id: str, name: str) -> str:
        if not ids.is_valid(run_id) or not _NAME.fullmatch(name):
            raise ValueError(f"{run_id}/{name} is not a file of a run")
        folder, _, name = name.rpartition("/")
        return f'r={shell_path(self._target.root)}/runs/{run_id}; d="$r/{folder or FOLDER}"; f="$d/{name}"'

    def _run(self, script: str, data: bytes, limit: int) -> tuple[int, bytes]:
        try:
            done = run_to_end(self._transport, script, data, limit, self._timeout_s)
        except OSError as error:
            raise self._lost(error) from None
        if done.status is None:
            raise self._lost(None)
        return done.status, done.output

    def _lost(self, error: BaseException | None) -> LinkLost:
        cause = printable(str(error)) or type(error).__name__ if error is not None else None
        return LinkLost(f"the connection to {self._target.name} broke", cause=cause, hint="run the command again")

    def listen(self, reach: Callable[[], Stream]) -> int:
        if self._gate is not None:
            raise ValueError("a connection forwards one port only")
        gate = self._gate = Gate(reach, self._ssh.close)

        def incoming(channel: paramiko.Channel, _origin: object, _server: object) -> None:
            gate.take(_Stream(channel))

        try:
            with self._within_timeout():
                return self._ssh.request_port_forward(LOOPBACK, 0, incoming)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if not self._ssh.is_active():
                raise self._lost(error) from None
            raise self._refused("remote") from None

    def dial(self, port: int) -> Stream:
        try:
            channel = self._ssh.open_channel("direct-tcpip", (LOOPBACK, port), (LOOPBACK, 0), timeout=self._timeout_s)
        except paramiko.ChannelException as error:
            if error.code == 1:  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED
                raise self._refused("local") from None
            raise HostFault(f"no program listens on port {port} of {self._target.name}", fault="not_found") from None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise self._lost(error) from None
        return _Stream(channel)

    def check(self) -> None:
        try:
            with self._within_timeout():
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
    def _within_timeout(self) -> Iterator[None]:
        """Closes the connection at the timeout, because Paramiko waits for an answer without limit."""
        timer = threading.Timer(self._timeout_s, self._ssh.close)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _refused(self, way: str) -> HostUnusable:
        return HostUnusable(
            f"the SSH server of {self._target.name} does not forward ports",
            cause=f"a search on several machines needs {way} forwarding, only between loopback addresses",
            hint=f"on the machine, in /etc/ssh/sshd_config: AllowTcpForwarding yes (or: {way}), no DisableForwarding, "
            f"and no PermitOpen or PermitListen without 127.0.0.1; then: sudo systemctl reload ssh",
        )


# ----------------------------------------------------------------------------------------------------- bytes both ways
class _Stream:
    """A channel of an SSH connection."""

    def __init__(self, link: paramiko.Channel) -> None:
        link.settimeout(None)
        self._link = link

    def recv(self, limit: int) -> bytes:
        with broken_link_is_an_os_error():
            return self._link.recv(limit)

    def sendall(self, data: bytes) -> None:
        with broken_link_is_an_os_error():
            self._link.sendall(data)

    def end(self) -> None:
        with contextlib.suppress(OSError), broken_link_is_an_os_error():
            self._link.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with contextlib.suppress(OSError), broken_link_is_an_os_error():
            self._link.shutdown(socket.SHUT_RDWR)  # unblocks the reader
        with contextlib.suppress(OSError), broken_link_is_an_os_error():
            self._link.close()


class Gate:
    """Accepts connections and forwards each one; closing it closes all of them.

    Args:
        reach: opens the other half of a connection.
        flooded: called in its own thread if the other side keeps opening connections beyond the limit.
    """

    def __init__(self, reach: Callable[[], Stream], flooded: Callable[[], None]) -> None:
        self._reach = reach
        self._flooded = flooded
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._threads: set[threading.Thread] = set()
        self._inside = 0
        self._refused = 0
        self._closed = False

    def take(self, near: Stream) -> None:
        """Forwards ``near``. Never blocks: it may be called by the thread that serves the whole connection."""
        with self._lock:
            refused = self._closed or self._inside >= MAX_CONNECTIONS
            self._refused += refused
            if not refused:
                self._inside += 1
                self._streams.add(near)
            flooded = self._refused == MAX_REFUSED
        self._start(near.close if refused else lambda: self._lead(near))
        if flooded:
            _log.warning("a machine opened too many connections; fcctl closed its tunnel")
            self._start(self._flooded)

    def _start(self, work: Callable[[], None]) -> None:
        def carried_out() -> None:
            try:
                work()
            finally:
                with self._lock:
                    self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=carried_out, name="fcctl-relay", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def _lead(self, near: Stream) -> None:
        far: Stream | None = None
        try:
            far = self._reach()
            with self._lock:
                self._streams.add(far)
                closed = self._closed
            if not closed:
                back = threading.Thread(target=_pump, args=(far, near), name="fcctl-relay-back", daemon=True)
                back.start()
                _pump(near, far)
                back.join()
        except (OSError, FcctlError) as error:
            _log.debug("a forwarded connection failed: %s", error)
        finally:
            for stream in (near, far):
                if stream is not None:
                    stream.close()
            with self._lock:
                self._inside -= 1
                self._streams -= {near, *([far] if far is not None else [])}

    def close(self) -> None:
        """Closes every connection and waits for its threads."""
        with self._lock:
            self._closed = True
            streams, threads = list(self._streams), list(self._threads)
        for stream in streams:
            stream.close()
        deadline = time.monotonic() + JOIN_S
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


def _pump(source: Stream, sink: Stream) -> None:
    """Copies ``source`` to ``sink``; an error closes both, so that the other direction ends too."""
    try:
        while data := source.recv(PIECE_BYTES):
            sink.sendall(data)
    except OSError:
        source.close()
        sink.close()
    else:
        sink.end()
