"""One authenticated SSH connection: jump hosts and proxies, the host key check, the login."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from orchestrator.base.clock import in_thread, when_late
from orchestrator.base.errors import HostUnreachable
from orchestrator.machines.connect.ssh.auth import KeyLogin
from orchestrator.machines.connect.ssh.config import (
    Destination,
    KnownKey,
    SshSettings,
    address,
    fingerprint,
    lookup,
    resolve,
)
from orchestrator.machines.connect.ssh.paramiko_lean import CURVE25519, paramiko
from orchestrator.machines.connect.transport import printable

#: AES-GCM first: it authenticates in the same pass, several times faster here than CTR with an HMAC in Python.
CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr")
MACS = ("hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com", "hmac-sha2-256", "hmac-sha2-512")
KEEPALIVE_S = 15
MAX_HOPS = 8

# What Paramiko logs goes where the program sends its log, and to no terminal if it keeps none.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Link:
    """An open connection with its jump connections and proxy."""

    def __init__(self, transport: paramiko.Transport, below: Link | None, proxy: ProxyProgram | None) -> None:
        self.transport = transport
        self._below = below
        self._proxy = proxy

    def close(self) -> None:
        for part in (self.transport, self._below, self._proxy):
            if part is not None:
                with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
                    part.close()


class ProxyProgram:
    """A ``ProxyCommand`` whose standard input and output are one socket: Paramiko's own class waits for full buffers
    and lets the program's errors block it."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.socket, theirs = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        with theirs:
            self._process = subprocess.Popen(  # in a session of its own: Ctrl-C is for the controller
                ["/bin/sh", "-c", f"exec {command}"], stdin=theirs.fileno(), stdout=theirs.fileno(),
                stderr=self._errors, start_new_session=True,
            )  # fmt: skip

    def complaint(self) -> str:
        """Its standard error and exit status."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)
        self._errors.seek(0)
        stderr = printable(self._errors.read(4096).decode(errors="replace"))
        ended = self._process.poll()
        return "; ".join(part for part in (stderr, f"exit code {ended}" if ended is not None else "") if part)

    def close(self) -> None:
        self.socket.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._errors.close()


class TimeoutSocket:
    """A socket that fails when nothing could be sent for ``patience_s`` (Paramiko retries forever), and that
    acknowledges at once: sshd delays its second small packet until then, which Linux delays by 40 ms."""

    def __init__(self, sock: Any, patience_s: float) -> None:
        self._sock = sock
        self._patience_s = patience_s
        self._stuck_since: float | None = None
        tcp = isinstance(sock, socket.socket) and sock.family in (socket.AF_INET, socket.AF_INET6)
        self._quick: int | None = getattr(socket, "TCP_QUICKACK", None) if tcp else None

    def recv(self, limit: int) -> bytes:
        data: bytes = self._sock.recv(limit)
        if self._quick is not None:  # the system takes it back by itself, so each time
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.IPPROTO_TCP, self._quick, 1)
        return data

    def send(self, data: bytes) -> int:
        try:
            sent: int = self._sock.send(data)
        except TimeoutError:
            now = time.monotonic()
            self._stuck_since = self._stuck_since or now
            if now - self._stuck_since > self._patience_s:
                raise ConnectionAbortedError(f"no byte could be sent for {self._patience_s:g} s") from None
            raise
        self._stuck_since = None
        return sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class SshConnector:
    """Opens links with one target's options; jump hosts are resolved with the same configuration file."""

    def __init__(
        self,
        config_file: str | None,
        known_hosts_file: str | None,
        *,
        timeout_s: float,
        patience_s: float,
        may_ask: bool = True,
    ) -> None:
        self._config_file = config_file
        self._known_hosts_file = known_hosts_file
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._may_ask = may_ask

    def open(self, settings: SshSettings, depth: int = 0) -> Link:
        """Raises HostUnreachable, with the reason."""
        if depth > MAX_HOPS:
            raise HostUnreachable(
                f"the chain of jump hosts to {settings} is too long", reason="config",
                cause=f"it has more than {MAX_HOPS} jump hosts",
                hint="look for a ProxyJump loop in the SSH configuration",
            )  # fmt: skip
        below: Link | None = None
        proxy: ProxyProgram | None = None
        try:
            if settings.proxy_jump:
                below = self._over_jumps(settings.proxy_jump, depth)
                sock: Any = self._channel(below, settings)
            elif settings.proxy_command:
                proxy = ProxyProgram(settings.proxy_command)
                sock = proxy.socket
            else:
                sock = dial(settings, self._timeout_s)
            return Link(self._log_in(settings, sock, proxy), below, proxy)
        except BaseException:
            for part in (proxy, below):
                if part is not None:
                    part.close()
            raise

    # ---------------------------------------------------------------------------------------- the way there
    def _over_jumps(self, hops: Sequence[Destination], depth: int) -> Link:
        below: Link | None = None
        for number, hop in enumerate(hops):
            settings = resolve(
                hop,
                config_file=self._config_file,
                known_hosts=self._known_hosts_file,
                proxy_jump=None if number == 0 else "none",
            )
            try:
                if below is None:
                    below = self.open(settings, depth + 1)
                else:
                    below = Link(self._log_in(settings, self._channel(below, settings), None), below, None)
            except HostUnreachable as error:
                if below is not None:
                    below.close()
                if error.reason in ("key", "login", "config"):
                    raise
                raise HostUnreachable(
                    f"jump host {settings} cannot be reached", reason="proxy",
                    cause=": ".join(filter(None, (error.message, error.cause))), hint=error.hint,
                ) from None  # fmt: skip
        assert below is not None  # noqa: S101 - callers pass at least one hop
        return below

    def _channel(self, below: Link, settings: SshSettings) -> paramiko.Channel:
        try:
            return below.transport.open_channel(
                "direct-tcpip", (settings.host, settings.port), ("127.0.0.1", 0), timeout=self._timeout_s
            )
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise HostUnreachable(
                f"the jump host could not connect to {settings}", reason="proxy",
                cause=printable(str(error)) or "it closed the connection",
                hint=f"test on the jump host: nc -vz {settings.host} {settings.port}",
            ) from None  # fmt: skip

    # ---------------------------------------------------------------------------------------- key and login
    def _log_in(self, settings: SshSettings, sock: Any, proxy: ProxyProgram | None) -> paramiko.Transport:
        keys = HostKeys(settings)
        client = paramiko.SSHClient()
        agent = settings.identity_agent or os.environ.get("SSH_AUTH_SOCK")
        interactive = None if self._may_ask else False
        strategy: Any = KeyLogin(settings, None if agent == "none" else agent, interactive=interactive)
        shown: Any = TimeoutSocket(sock, self._patience_s)
        client.set_missing_host_key_policy(keys)
        began = time.monotonic()
        try:
            client.connect(
                settings.host,
                settings.port,
                settings.user,
                sock=shown,
                transport_factory=keys.transport,
                auth_strategy=strategy,
                timeout=self._timeout_s,
                banner_timeout=self._timeout_s,
                auth_timeout=max(self._timeout_s, 30.0),
                channel_timeout=self._timeout_s,
            )
        except HostUnreachable:
            client.close()
            raise
        except paramiko.ssh_exception.IncompatiblePeer as error:
            client.close()
            raise _nothing_in_common(settings, str(error)) from None
        except (paramiko.SSHException, OSError, EOFError) as error:
            client.close()
            _explain(settings, error, proxy, late=time.monotonic() - began >= self._timeout_s)
        transport = client.get_transport()
        assert transport is not None  # noqa: S101 - it was opened just now
        transport.set_keepalive(KEEPALIVE_S)
        return transport


class HostKeys(paramiko.MissingHostKeyPolicy):
    """Checks a host's key. Paramiko gets no keys of its own, so that it asks this policy about every key."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        host, port = settings.key_name
        self._known = list(settings.pinned) or lookup(settings.known_hosts, host, port)
        if not self._known and port != 22:  # as OpenSSH does, a key filed without a port will do if it matches
            self._portless = lookup(settings.known_hosts, host, 22)
        else:
            self._portless = []

    def transport(self, sock: Any, **options: Any) -> paramiko.Transport:
        """A transport that prefers the known kinds of host key, and fast ciphers."""
        transport = paramiko.Transport(sock, **options)
        security = transport.get_security_options()
        with contextlib.suppress(ValueError):  # this Paramiko does not have it
            security.kex = tuple(dict.fromkeys([*security.kex, CURVE25519]))
        security.ciphers = [c for c in CIPHERS if c in security.ciphers] or security.ciphers
        security.digests = [m for m in MACS if m in security.digests] or security.digests
        wanted: list[str] = []
        for key in (*self._known, *self._portless):
            names = ("rsa-sha2-512", "rsa-sha2-256") if key.kind == "ssh-rsa" else (key.kind,)
            wanted += [name for name in names if not key.revoked and name in security.key_types]
        security.key_types = list(dict.fromkeys([*wanted, *security.key_types]))
        return transport

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:  # noqa: ARG002
        blob = key.asbytes()
        if any(known.revoked and known.blob == blob for known in self._known):
            raise HostUnreachable(
                f"{self._settings} has a host key that is marked as revoked", reason="key",
                cause=f"{key.get_name()} {fingerprint(blob)}",
                hint="do not log in; ask the machine's administrator",
            )  # fmt: skip
        valid = [known for known in self._known if not known.revoked]
        if any(known.blob == blob for known in (*valid, *self._portless)):
            return
        same_kind = [known for known in valid if known.kind == key.get_name()]
        if valid:
            self._changed(key, (same_kind or valid)[0])
        self._unknown(key)

    def _unknown(self, key: paramiko.PKey) -> NoReturn:
        settings = self._settings
        files = [str(file) for file in settings.known_hosts]
        keeps_keys = bool(files) and files[0] != os.devnull
        file = files[0] if keeps_keys else os.path.expanduser("~/.ssh/known_hosts")  # noqa: PTH111 - pathlib is not needed yet
        host, _ = settings.key_name
        if settings.proxy_jump or settings.proxy_command:
            see = f"ssh {shlex.quote(settings.name)}"  # ssh-keyscan cannot go through a proxy
        else:
            see = f"ssh-keyscan -p {settings.port} {shlex.quote(settings.host)}"
            if settings.host_key_alias:
                see += f" | sed 's/^[^ ]*/{host}/'"
            see += f" >> {shlex.quote(file)}"
        if not keeps_keys:
            see += f', and set `known_hosts = "{file}"` in the target: your SSH configuration stores no host keys'
        raise HostUnreachable(
            f"the host key of {settings} is not known",
            reason="key",
            cause=f"its key is {key.get_name()} {fingerprint(key.asbytes())}, and no known_hosts file "
            f"contains {address(*settings.key_name)}",
            hint=f"compare that fingerprint with the machine's own (on the machine: ssh-keygen -lf "
            f"/etc/ssh/ssh_host_ed25519_key.pub); if they are equal: {see}",
        )

    def _changed(self, key: paramiko.PKey, known: KnownKey) -> NoReturn:
        file = known.where.rpartition(":")[0]
        name = address(*self._settings.key_name)
        raise HostUnreachable(
            f"THE HOST KEY OF {self._settings} HAS CHANGED: this may be another machine, or an attack",
            reason="key",
            cause=f"its key is {key.get_name()} {fingerprint(key.asbytes())}, but {known.where} contains "
            f"{known.kind} {fingerprint(known.blob)}",
            hint=f"only if you know why it changed (for example, the machine was reinstalled): ssh-keygen -R "
            f"{shlex.quote(name)} -f {shlex.quote(file)}, then connect again",
        )


def dial(settings: SshSettings, timeout_s: float) -> socket.socket:
    """A TCP connection to the first address that answers. Raises HostUnreachable: name, port or timeout."""
    where = settings.host, settings.port
    # In a thread, because looking a name up has no time limit.
    dialled = in_thread(lambda: socket.create_connection(where, timeout_s), "fcctl-dial")
    try:
        sock = dialled.result(timeout_s)
    except (socket.gaierror, UnicodeError) as error:
        raise HostUnreachable(
            f"the host name '{printable(settings.host)}' does not exist", reason="name",
            cause=getattr(error, "strerror", None) or str(error),
            hint=f"check `host` in the target, or HostName in the SSH configuration: ssh -G {settings.name}",
        ) from None  # fmt: skip
    except TimeoutError:
        when_late(dialled, socket.socket.close)
        raise HostUnreachable(
            f"{settings} does not answer on port {settings.port}", reason="timeout",
            cause=f"no connection within {timeout_s:g} s",
            hint="check that the machine is on and that no firewall blocks the port",
        ) from None  # fmt: skip
    except OSError as error:
        raise HostUnreachable(
            f"cannot connect to port {settings.port} of {settings}", reason="port", cause=error.strerror or str(error),
            hint="check that sshd runs on the machine, and that `port` in the target is right",
        ) from None  # fmt: skip
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


#: By Paramiko's complaint: what the two ends agree on, the word of sshd_config(5), and a name that Paramiko and every
#: sshd since 2016 have.
_ALGORITHMS = {
    "kex algorithm": ("key exchange", "KexAlgorithms", CURVE25519),
    "host key": ("kind of host key", "HostKeyAlgorithms", "ssh-ed25519"),
    "ciphers": ("cipher", "Ciphers", "aes256-gcm@openssh.com"),
    "macs": ("message code", "MACs", "hmac-sha2-256-etm@openssh.com"),
}


def _nothing_in_common(settings: SshSettings, complaint: str) -> HostUnreachable:
    """The error for a server that shares no algorithm with Paramiko: what to change there."""
    rows = (row for words, row in _ALGORITHMS.items() if words in complaint)
    what, setting, usual = next(rows, ("algorithm", "", ""))
    hint = f"see the reason: ssh -v -p {settings.port} {settings.host}"
    if usual:
        change = f"on the machine, add {usual} to {setting} in /etc/ssh/sshd_config"
        hint = f"{change}, then: sudo systemctl reload ssh; {hint}"
    cause = f"{printable(complaint)}; Paramiko {paramiko.__version__} is installed here"
    return HostUnreachable(f"{settings} and fcctl have no {what} in common", reason="config", cause=cause, hint=hint)


def _explain(settings: SshSettings, error: Exception, proxy: ProxyProgram | None, *, late: bool) -> NoReturn:
    """Raises HostUnreachable with the reason of an error before the login."""
    detail = printable(str(error)) or "it closed the connection"
    if proxy is not None:
        raise HostUnreachable(
            f"the ProxyCommand of {settings} failed", reason="proxy",
            cause=proxy.complaint() or detail, hint=f"run it by hand: {proxy.command}",
        ) from None  # fmt: skip
    if late or isinstance(error, TimeoutError):
        raise HostUnreachable(
            f"{settings} accepts connections but sends nothing", reason="timeout", cause=detail,
            hint="the machine may be overloaded or still starting; try again, or raise `connect_timeout_s`",
        ) from None  # fmt: skip
    raise HostUnreachable(
        f"the program on port {settings.port} of {settings} is not a usable SSH server", reason="port", cause=detail,
        hint=f"see the reason: ssh -v -p {settings.port} {settings.host}",
    ) from None  # fmt: skip
