"""Processes of the machines, and the guardian that ends them if the emulator's process is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

#: Below a boot's folder on macOS: the session of each login, one number in a line.
SESSIONS = "sessions"


def of_home(home: Path, sessions: set[int] | None = None) -> set[int]:
    """Processes that were started with ``HOME=home``, other than this one. ``sessions``: see :func:`_relatives`."""
    return _started_with(f"HOME={home}", set() if sessions is None else sessions)


def sessions_of(volatile: Path) -> set[int]:
    """The sessions of one boot's logins, as far as they were recorded."""
    try:
        return {int(line) for line in (volatile / SESSIONS).read_text().split()}
    except OSError:
        return set()


def of_boot(volatile: Path, sessions: set[int] | None = None) -> set[int]:
    """The sshd with this folder, its descendants, and the sessions that it started."""
    mark = f"{volatile}/sshd_config"
    rows = [line.split(None, 1) for line in _ps("-A", "-ww", "-o", "pid=,command=").splitlines()]
    listeners = {int(pid) for pid, command in (row for row in rows if len(row) == 2) if mark in command}
    pids = set(listeners)
    for pid in listeners:
        pids |= below(pid)
    return pids | _started_with(f"TMUX_TMPDIR={volatile}", sessions_of(volatile) if sessions is None else sessions)


def _started_with(variable: str, sessions: set[int]) -> set[int]:
    pids = _by_proc(variable) if sys.platform == "linux" else _relatives(_by_ps(variable), sessions)
    return pids - {os.getpid()}


def _by_proc(variable: str) -> set[int]:
    pids, mark = set(), variable.encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            path = f"{entry.path}/environ"
            with contextlib.suppress(OSError), open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - far quicker
                environ = stream.read()
                if mark in environ and mark in environ.split(b"\0"):
                    pids.add(int(entry.name))
    return pids


def _by_ps(variable: str) -> set[int]:
    lines = _ps("-E", "-A", "-ww", "-o", "pid=,command=").splitlines()
    return {int(line.split(None, 1)[0]) for line in lines if f" {variable} " in line + " "}


def _relatives(pids: set[int], sessions: set[int]) -> set[int]:
    """``pids``, their descendants, and all processes in their sessions and in ``sessions``, which these are added to.

    On macOS, ps does not show the environment of Apple's own programs. A session whose leader is alive and not among
    these is another's: the number was used again.
    """
    parents = dict(_parents())
    own = os.getsid(0)
    session_of = {pid: _session(pid) for pid in parents}
    while True:
        sessions.update(sid for pid in pids if (sid := session_of.get(pid)) in pids)
        usable = {sid for sid in sessions if sid in pids or sid not in parents} - {own}
        more = {pid for pid in parents if session_of[pid] in usable or parents[pid] in pids} - pids
        if not more:
            return pids
        pids = pids | more


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _parents() -> list[tuple[int, int]]:
    return [(int(pid), int(parent)) for pid, parent in map(str.split, _ps("-A", "-o", "pid=,ppid=").splitlines())]


def below(root: int) -> set[int]:
    """Every descendant of ``root``."""
    children_of = _children_by_proc if Path("/proc/thread-self/children").exists() else _children_by_ps()
    pids: set[int] = set()
    front = {root}
    while front:
        front = {child for pid in front for child in children_of(pid)} - pids
        pids |= front
    return pids - {os.getpid()}


def _children_by_proc(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return children


def _children_by_ps() -> Callable[[int], list[int]]:
    rows = _parents()
    return lambda parent: [pid for pid, other in rows if other == parent]


def command_of(pid: int) -> str:
    """What runs under a pid; empty if nothing does."""
    return _ps("-p", str(pid), "-ww", "-o", "command=").strip()


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


#: A process that SIGKILL does not end within this time is left, seconds.
_PATIENCE_S = 60.0
#: A process that is just starting another program has no environment for an instant, and is not found by it: none is
#: left when none was found so often.
_LOOKS = 2


def end(home: Path, also: Iterable[int] = (), volatile: Path | None = None) -> None:
    """Kills all processes of an instance, repeatedly, because some may be starting. ``volatile``: the boot's folder."""
    sessions = sessions_of(volatile) if volatile is not None else set()
    send(also, signal.SIGKILL)
    _end_all(lambda: of_home(home, sessions))


def end_boot(volatile: Path) -> None:
    """The same for one boot of an instance, given only its folder."""
    sessions = sessions_of(volatile)
    _end_all(lambda: of_boot(volatile, sessions))


def _end_all(which: Callable[[], set[int]]) -> None:
    limit = time.monotonic() + _PATIENCE_S
    none_found = 0
    while none_found < _LOOKS and time.monotonic() < limit:
        left = which()
        none_found = 0 if left else none_found + 1
        send(left, signal.SIGKILL)
        time.sleep(0.005)


def _ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout


#: Each line is one more argument of what is run in the end; a single dot says that there is nothing to be done.
_WATCH = """\
while IFS= read -r line; do
  [ "$line" = . ] && exit 0
  set -- "$@" "$line"
done
exec "$@"
"""
_BURY = "import sys; sys.path.insert(0, sys.argv[1]); from orchestrator.emulator import processes; processes.main()"
_ROOT = str(Path(__file__).resolve().parents[2])


class Guardian:
    """The guardian of one emulator. ``temporary``: the emulator's folder, if it is to be deleted."""

    def __init__(self, temporary: Path | None = None) -> None:
        self._temporary = temporary
        self._shell: subprocess.Popen[bytes] | None = None

    def announce(self, volatile: Path) -> None:
        """A machine is about to boot; ``volatile`` is its folder, used by no other boot."""
        if self._shell is None:
            folder = str(self._temporary or "")
            self._shell = subprocess.Popen(
                ["/bin/sh", "-c", _WATCH, "fcctl-emulator", sys.executable, "-c", _BURY, _ROOT, folder],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                bufsize=0, cwd="/",
            )  # fmt: skip
        self._tell(str(volatile))

    def dismiss(self) -> None:
        """Ends the guardian after a normal stop."""
        if self._shell is None or self._shell.stdin is None:
            return
        self._tell(".")
        self._shell.stdin.close()
        self._shell.wait()
        self._shell = None

    def _tell(self, line: str) -> None:
        if self._shell is not None and self._shell.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it was killed
                self._shell.stdin.write(f"{line}\n".encode())


def main() -> None:
    """``ROOT FOLDER VOLATILE...``: the emulator was killed, and these are its machines."""
    reap(sys.argv[2], sys.argv[3:])


def reap(temporary: str, volatiles: Sequence[str]) -> None:
    """Kills the processes of these boots; later boots of the same disks by another emulator are not touched."""
    for volatile in volatiles:
        end_boot(Path(volatile))
        shutil.rmtree(volatile, ignore_errors=True)
    if temporary:
        shutil.rmtree(temporary, ignore_errors=True)
