"""A real sshd on loopback, run by whoever runs the tests, with a home directory of its own for the far side."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fcctl_remote.base.processes import family
from orchestrator.emulator.guest import HOST_KEY_KINDS, new_key_pair
from orchestrator.machines.targets import SshTarget
from tests.support import host_program, scratch
from tests.support.link import LinkProxy
from tests.support.living import started_with

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
#: Far more than it takes on a busy computer.
START_LIMIT_S = END_LIMIT_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def held_port() -> tuple[int, int]:
    """A port on loopback, and the descriptor that keeps it for a server that will bind it, again and again: nobody else
    gets it, and as long as the server does not listen, connections are refused. Only Linux lets two bind it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1]), os.dup(held.fileno()) if sys.platform == "linux" else os.open(os.devnull, 0)


@contextmanager
def port_of_nobody() -> Iterator[int]:
    """A port on loopback that is taken, so that nobody else gets it meanwhile, and at which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def generate_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A new key pair at ``path`` and ``path.pub``."""
    bits = ("-b", "2048") if kind == "rsa" else ()  # a longer one takes a second
    argv = ["ssh-keygen", "-q", "-t", kind, *bits, "-N", passphrase, "-C", "", "-f", str(path)]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    return path


class PortTaken(Exception):
    """Somebody else has the port."""


class LoopbackSshd:
    """One sshd process: ``start``, ``stop``, ``restart``; its port stays the same.

    On Linux the port is this server's until ``close``. Elsewhere somebody may take it before the first start; then
    another is chosen, so :attr:`port` counts from that start on.

    Commands run over it see ``HOME`` = :attr:`home` (so ``~/.fcctl`` is the test's own) and a private
    ``TMUX_TMPDIR``. Everything a client needs is in :attr:`folder`: ``id`` (accepted key), ``known_hosts``,
    ``ssh_config`` (with the alias ``box``). Works as root and as any other user.
    """

    def __init__(self, *, settings: tuple[str, ...] = (), host_key_kinds: tuple[str, ...] = ("ed25519",)) -> None:
        # Short, because tmux puts a Unix socket below it and those have a limit of about 100 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="fcs", dir=scratch.folder()))
        self.home = self.folder / "home"
        self.tmux_tmpdir = self.folder / "t"
        self.log = self.folder / "sshd.log"
        self.known_hosts = self.folder / "known_hosts"
        self.identity = self.folder / "id"
        self.host_keys = [self.folder / f"host_{kind}" for kind in host_key_kinds]
        for path, kind in zip((self.identity, *self.host_keys), ("ed25519", *host_key_kinds), strict=True):
            make = new_key_pair if kind in HOST_KEY_KINDS else generate_key
            make(path, kind)
        self.user = getpass.getuser()
        self._held: int | None
        self.port, self._held = held_port()
        self._had_port = False
        self.settings = settings
        #: Of every command over it; a change counts from the next start.
        self.environment = {"HOME": str(self.home), "TMUX_TMPDIR": str(self.tmux_tmpdir)}
        self._process: subprocess.Popen[bytes] | None = None
        self._proxies: list[LinkProxy] = []
        self.home.mkdir()
        self.tmux_tmpdir.mkdir()
        host_program.unpacked_in(self.home / ".fcctl")
        shutil.copy(f"{self.identity}.pub", self.folder / "authorized_keys")
        self.ssh_config = self.folder / "ssh_config"
        self._introduce()

    def _introduce(self) -> None:
        """Write what clients need to know of :attr:`port`."""
        self.known_hosts.unlink(missing_ok=True)
        self.trust(self.port)
        self.ssh_config.write_text(
            f"Host box\n  HostName 127.0.0.1\n  Port {self.port}\n  User {self.user}\n"
            f"  IdentityFile {self.identity}\n  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts}\n"
            "  GlobalKnownHostsFile /dev/null\n"
        )

    # ------------------------------------------------------------------------------------------ the process
    def start(self) -> LoopbackSshd:
        if os.getuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)  # where sshd, started as root, drops its privileges
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                self._launch(deadline)
            except PortTaken:
                assert time.monotonic() < deadline, f"port {self.port} stays taken"
                if self._had_port:  # clients know it: whoever has it is a connection that is about to go
                    time.sleep(0.1)
                else:
                    self.port = free_port()
                    self._introduce()
            else:
                self._had_port = True
                return self

    def _launch(self, deadline: float) -> None:
        config = self.folder / "sshd_config"
        config.write_text("\n".join(self._directives()) + "\n")
        said = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        while time.monotonic() < deadline:
            # Its own word, not a connection: that may be answered by somebody else, or by itself.
            text = self.log.read_bytes()[said:].decode(errors="replace")
            if f"Server listening on 127.0.0.1 port {self.port}." in text:
                return
            if self._process.poll() is not None:
                text = self.log.read_bytes()[said:].decode(errors="replace")
                self._process = None
                raise PortTaken if "Address already in use" in text else RuntimeError(f"sshd ended at once:\n{text}")
            time.sleep(0.01)
        raise RuntimeError(f"sshd does not listen:\n{self.log.read_text(errors='replace')}")

    def stop(self, *, sessions: bool = True) -> None:
        """End the listener and, unless ``sessions`` is false, the open connections too (not what runs in tmux)."""
        if self._process is None:
            return
        children: list[int] = []
        if sessions:
            os.kill(self._process.pid, signal.SIGSTOP)  # it makes no session while the others are listed
            os.waitpid(self._process.pid, os.WUNTRACED)
            children = _descendants(self._process.pid, "sshd")
            self._process.kill()
        self._process.terminate()
        self._process.wait()
        self._process = None
        for pid in children:
            _kill(pid)

    def restart(self, *, sessions: bool = True) -> None:
        self.stop(sessions=sessions)
        self.start()

    def close(self) -> None:
        """Stop, end whatever still runs in :attr:`home`, and delete the folder."""
        for proxy in self._proxies:
            proxy.close()
        self.stop()
        if self._held is not None:
            os.close(self._held)
            self._held = None
        end_processes_of(self.home)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _directives(self) -> list[str]:
        return [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            *(f"HostKey {key}" for key in self.host_keys),
            f"AuthorizedKeysFile {self.folder}/authorized_keys",
            f"PidFile {self.folder}/sshd.pid",
            "SetEnv " + " ".join(f"{name}={value}" for name, value in self.environment.items()),
            *self.settings,
            "StrictModes no",
            "UsePAM no",
            "UseDNS no",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PrintMotd no",
            "PrintLastLog no",
            "MaxStartups 100",
            "MaxSessions 100",
            "LogLevel VERBOSE",
        ]

    # ------------------------------------------------------------------------------------------ what clients need
    def trust(self, port: int) -> None:
        """Add the host keys to ``known_hosts`` for 127.0.0.1 at ``port`` (a proxy's, say)."""
        with self.known_hosts.open("a") as known:
            for key in self.host_keys:
                kind, blob = Path(f"{key}.pub").read_text().split()[:2]
                known.write(f"[127.0.0.1]:{port} {kind} {blob}\n")

    def target(self, name: str = "box", **changes: Any) -> SshTarget:
        """A target that reaches this sshd, without using any file of the real home."""
        values: dict[str, Any] = {
            "name": name,
            "host": "127.0.0.1",
            "port": self.port,
            "user": self.user,
            "identity_file": str(self.identity),
            "known_hosts": str(self.known_hosts),
            "ssh_config": "/dev/null",
            "python": sys.executable,
            "connect_timeout_s": 30.0,
            "link_timeout_s": 30.0,
            **changes,
        }
        return SshTarget(**values)

    def proxy(self) -> LinkProxy:
        """A :class:`LinkProxy` in front of this sshd, whose port ``known_hosts`` trusts: ``target(port=p.port)``."""
        proxy = LinkProxy(self.port)
        self._proxies.append(proxy)
        self.trust(proxy.port)
        return proxy

    def ssh_argv(self, *command: str, port: int | None = None) -> list[str]:
        """OpenSSH's own client, logged in the same way; for checks beside the code under test."""
        options = ["-F", str(self.ssh_config), "-o", "BatchMode=yes", "-p", str(port or self.port)]
        return ["ssh", *options, "box", *command]


def end_processes_of(home: Path) -> None:
    """Kill every process whose HOME is ``home``: tmux, supervisors, daemons a test left behind.

    Again until none is left: some are started, by one that is killed next, while the list is read; and once more, since
    one that is just starting another program has no environment for an instant.
    """
    deadline = time.monotonic() + END_LIMIT_S
    none_found = 0
    while none_found < 2:
        left = {pid for pid, _ in started_with(f"HOME={home}")} - {os.getpid()}
        assert time.monotonic() < deadline, f"{sorted(left)} outlive SIGKILL"
        none_found = 0 if left else none_found + 1
        for pid in left:
            _kill(pid)
        time.sleep(0.005)


def _descendants(root: int, command: str) -> list[int]:
    """Pids below ``root`` that run ``command``, the sessions sshd forked."""
    pids = ",".join(map(str, family(ancestor=root)))
    if not pids:
        return []
    table = subprocess.run(["ps", "-p", pids, "-o", "pid=,comm="], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid, comm in (line.split(None, 1) for line in table.splitlines()) if command in comm]


def _kill(pid: int) -> None:
    if pid == os.getpid():
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
