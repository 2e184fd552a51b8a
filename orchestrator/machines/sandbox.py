"""The sandbox: an emulator in the background, one for each user, started on demand and stopped when idle.

Its folder holds its state, its log, ``daemon.json`` with its URL, and a lock that it holds while it runs."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fcctl_remote.base import processes
from fcctl_remote.base.processes import ps
from orchestrator.base.clock import wait_for
from orchestrator.base.errors import CloudError, ConfigError
from orchestrator.base.files import user_folder
from orchestrator.base.installation import sshd_program
from orchestrator.base.journal import OwnerLock, read_object
from orchestrator.machines import targets
from orchestrator.machines.targets import GcpTarget, SandboxTarget

#: The sandbox ends after this time without running instances and requests.
IDLE_S = 15 * 60.0
_START_LIMIT_S = 120.0
#: An emulator that does not answer for so long hangs.
_ANSWER_LIMIT_S = 60.0
_END_LIMIT_S = 30.0
_POLL_S = 0.02
_STARTED_AS = "orchestrator.emulator.daemon"
_UNREADABLE = 3  # its exit code if the saved state is unreadable


@dataclass(frozen=True)
class _Daemon:
    url: str
    pid: int
    identity: str


class Sandbox:
    """The sandbox of a folder.

    Args:
        folder: by default in the user's state folder, ``~/.local/state/fcctl/sandbox`` if the platform has no other.
        idle_s: the idle limit of an emulator started here.
    """

    def __init__(self, folder: Path | None = None, idle_s: float = IDLE_S) -> None:
        self.folder = folder or _default_folder()
        self._idle_s = idle_s

    def resolve(self, target: SandboxTarget) -> GcpTarget:
        """The sandbox's machine as a target; the emulator runs when this returns. Raises ConfigError: the state folder
        cannot be used, or sshd is missing; CloudError: the emulator does not start."""
        return target.at(self.url())

    def url(self) -> str:
        """Where the emulator listens, started if it does not. Raises as :meth:`resolve` does."""
        daemon = self._healthy()
        if daemon is not None:
            return daemon.url
        self._prepare()
        with self._starting():
            daemon = self._healthy() or self._start()
        return daemon.url

    def running(self) -> dict[str, str] | None:
        """The instances (path below ``/compute/v1/``) and their status; None if no emulator runs."""
        daemon = self._alive()
        answer = None if daemon is None else _ask(daemon.url, "status")
        return None if answer is None else {str(k): str(v) for k, v in answer.get("instances", {}).items()}

    def stop(self) -> bool:
        """Switch the instances off, end the emulator, and leave no process. False if none ran. Raises ConfigError: it
        is another user's."""
        if not self.folder.is_dir():
            return False
        self._check_owner()
        with self._starting():
            if not self._locked():
                return False
            self._end()
            return True

    # ------------------------------------------------------------------------------------------------------ is it there
    def _healthy(self) -> _Daemon | None:
        """An emulator that answers and runs this code; one of other code only while an instance of it runs."""
        daemon = self._alive()
        answer = None if daemon is None else _ask(daemon.url, "status")
        if daemon is None or answer is None:
            return None
        idle = all(status == "TERMINATED" for status in answer.get("instances", {}).values())
        return None if daemon.identity != _identity() and idle else daemon

    def _alive(self) -> _Daemon | None:
        return self._record() if self._locked() else None

    def _record(self) -> _Daemon | None:
        value = read_object(self.folder / "daemon.json") or {}
        try:
            return _Daemon(str(value["url"]), int(value["pid"]), str(value["identity"]))
        except (ValueError, KeyError, TypeError):
            return None

    def _locked(self) -> bool:
        """Whether an emulator runs in the folder: it holds the lock."""
        with contextlib.suppress(OSError):
            return OwnerLock.is_taken(self.folder / "lock")
        return False

    # ------------------------------------------------------------------------------------------------------------ start
    def _prepare(self) -> None:
        if sshd_program() is None:
            raise ConfigError(
                "the sandbox needs sshd on this computer, and it is not installed",
                hint="Ubuntu: sudo apt-get install -y openssh-server; or run without the sandbox: --on local",
            )
        _check_account()
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"the sandbox's folder {self.folder} cannot be created",
                cause=error.strerror,
                hint="choose a folder that you may write to: export XDG_STATE_HOME=DIR",
            ) from None
        self._check_owner()
        self.folder.chmod(0o700)

    def _check_owner(self) -> None:
        owner = self.folder.stat().st_uid
        if owner != os.geteuid():
            raise ConfigError(
                f"the sandbox's folder {self.folder} belongs to another user (id {owner})",
                hint="choose another folder: export XDG_STATE_HOME=DIR",
            )

    @contextmanager
    def _starting(self) -> Iterator[None]:
        """Serializes starting and stopping; the other commands wait."""
        lock = OwnerLock.within(self.folder / "start.lock", _START_LIMIT_S)
        if lock is None:
            raise CloudError(
                "another command has been starting the sandbox for two minutes",
                hint="stop it: fcctl emulator --stop; then run the command again",
            )
        try:
            # One that a killed command started writes its record in a moment.
            _wait(lambda: not self._locked() or self._record() is not None)
            yield
        finally:
            lock.release()

    def _start(self) -> _Daemon:
        if self._locked():  # the emulator of other code, or one that hangs
            self._end()
        log = self.folder / "daemon.log"
        if log.exists():
            log.replace(log.with_suffix(".before.log"))  # the log of the last one
        code = self._run(log)
        if code == _UNREADABLE:
            self._set_aside()  # of another version, or truncated
            code = self._run(log)
        daemon = self._record() if code is None else None
        if daemon is None:
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
            raise CloudError(
                "the sandbox's emulator does not start",
                cause="\n".join(tail)[-1000:] or f"it printed nothing; see {log}",
                hint="check this computer: fcctl doctor; or run without the sandbox: --on local",
            )
        return daemon

    def _run(self, log: Path) -> int | None:
        """Starts the emulator, which outlives this process; its exit status, or None once it listens."""
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            starter = subprocess.Popen(
                [sys.executable, "-m", _STARTED_AS, json.dumps(self._settings())],
                stdin=subprocess.DEVNULL, stdout=descriptor, stderr=descriptor, cwd="/", env=_environment(),
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(descriptor)
        limit, listens = time.monotonic() + _START_LIMIT_S, False
        try:
            while not listens and starter.poll() is None and time.monotonic() < limit:
                time.sleep(_POLL_S)
                daemon = self._record()
                listens = daemon is not None and daemon.pid == starter.pid
        finally:
            if not listens:  # also on Ctrl-C
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(starter.pid, signal.SIGKILL)
                starter.wait()
        status, starter.returncode = starter.returncode, 0  # nobody here waits for it
        return None if listens else status

    def _settings(self) -> dict[str, Any]:
        return {
            "state": str(self.folder),
            "idle_s": self._idle_s,
            "identity": _identity(),
            "machine": {
                "project": targets.SANDBOX_PROJECT,
                "zone": targets.SANDBOX_ZONES[0],
                "name": targets.SANDBOX_INSTANCE,
                "machine_type": targets.SANDBOX_MACHINE_TYPE,
                "image": targets.SANDBOX_IMAGE,
            },
            # fcctl's Python may have the packages that steps need, such as torch.
            "guest_path": [str(Path(sys.executable).parent)],
        }

    def _set_aside(self) -> None:
        """Keeps one copy of the unreadable state."""
        old = self.folder / "unreadable"
        shutil.rmtree(old, ignore_errors=True)
        old.mkdir(mode=0o700)
        for name in ("state.json", "disks", "snapshots", "begun"):
            with contextlib.suppress(OSError):
                (self.folder / name).rename(old / name)

    # -------------------------------------------------------------------------------------------------------------- end
    def _end(self) -> None:
        """Ends the emulator of the folder; one that does not exit in time is killed. Raises CloudError: it cannot be
        ended."""
        daemon = self._record()
        if daemon is not None:
            ended = _ask(daemon.url, "end") is not None and _wait(lambda: not self._locked())
            if not ended or not _wait(lambda: ps(daemon.pid, "stat")[:1] in ("", "Z")):  # has exited
                self._kill(daemon.pid)
        if not _wait(lambda: not self._locked()):
            raise CloudError(
                f"an emulator that this fcctl did not start uses the sandbox's folder {self.folder}",
                hint="stop that emulator, or choose another folder: export XDG_STATE_HOME=DIR",
            )

    def _kill(self, pid: int) -> None:
        command = ps(pid, "command")
        if _STARTED_AS in command and str(self.folder) in command:  # the pid may have been reused
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _wait(condition: Callable[[], bool]) -> bool:
    """Whether ``condition`` holds within the time that an emulator needs to end."""
    return wait_for(condition, _END_LIMIT_S, pause_s=_POLL_S)


def _check_account() -> None:
    """Raises ConfigError if sshd would not let this user log in; the sandbox's machine has no other user."""
    try:
        shell = pwd.getpwuid(os.geteuid()).pw_shell
    except KeyError:
        shell = None
    if shell is None or Path(shell).name in ("nologin", "false"):
        why = f"its shell is {shell}" if shell else f"no account has the user id {os.geteuid()}"
        raise ConfigError(
            "this account cannot log in to the sandbox's sshd on this computer",
            cause=why,
            hint="run without the sandbox: --on local",
        )


def _default_folder() -> Path:
    """In the user's state folder; in ``~/.local/state`` where that has a blank, as on macOS: sshd's configuration and
    the instances' scripts take paths without."""
    folder = user_folder("state")
    return (Path.home() / ".local/state/fcctl" if " " in str(folder) else folder) / "sandbox"


def _environment() -> dict[str, str]:
    """The environment of the emulator and its instances: no secrets, no settings, no terminal."""
    names = ("HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SHELL", "LD_LIBRARY_PATH")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    roots = f"{_package().parent}:{Path(processes.__file__).resolve().parents[2]}"
    return {**environment, "PYTHONPATH": roots, "PYTHONUNBUFFERED": "1"}


def _package() -> Path:
    return Path(__file__).resolve().parents[1]


def _identity() -> str:
    """A digest of the emulator's code, which changes with every edit and upgrade."""
    import hashlib

    digest = hashlib.sha256(str(_package()).encode())
    for path in sorted((_package() / "emulator").rglob("*.py")):
        facts = path.stat()
        digest.update(f"{path.name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _ask(url: str, what: str) -> dict[str, Any] | None:
    """``POST url/emulator/what``; None if the port is closed or another program answers. Over a plain socket: an HTTP
    library takes too long to import."""
    where = urlsplit(url)
    head = f"POST {where.path}/emulator/{what} HTTP/1.0\r\nHost: {where.netloc}\r\nContent-Length: 0\r\n\r\n"
    try:
        address = (where.hostname or "127.0.0.1", where.port or 80)
        with socket.create_connection(address, timeout=_ANSWER_LIMIT_S) as link:
            link.sendall(head.encode())
            reply = b"".join(iter(lambda: link.recv(65536), b""))
        top, _, body = reply.partition(b"\r\n\r\n")
        value = json.loads(body) if top.split(None, 2)[1] == b"200" else None
    except (OSError, ValueError, IndexError):
        return None
    return value if isinstance(value, dict) else None
