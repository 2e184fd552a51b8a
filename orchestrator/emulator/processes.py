"""Processes of the machines, and the guardian that ends them if the emulator's process is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from fcctl_remote.base import processes as base_processes
from fcctl_remote.base.processes import family, parents, rows, send

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
    table = [line.split(None, 1) for line in rows("-A", "-ww", "-o", "pid=,command=").splitlines()]
    pids = {int(pid) for pid, command in (row for row in table if len(row) == 2) if mark in command}
    for listener in list(pids):
        pids |= family(ancestor=listener)
    return pids | _started_with(f"TMUX_TMPDIR={volatile}", sessions_of(volatile) if sessions is None else sessions)


def _started_with(variable: str, sessions: set[int]) -> set[int]:
    pids = family(marker=variable.encode())
    return pids if sys.platform == "linux" else _relatives(pids, sessions) - {os.getpid()}


def _relatives(pids: set[int], sessions: set[int]) -> set[int]:
    """``pids``, their descendants, and all processes in their sessions and in ``sessions``, which these are added to.

    On macOS, ps does not show the environment of Apple's own programs. A session whose leader is alive and not among
    these is another's: the number was used again.
    """
    parent_of = parents()
    own = os.getsid(0)
    session_of = {pid: _session(pid) for pid in parent_of}
    while True:
        sessions.update(sid for pid in pids if (sid := session_of.get(pid)) in pids)
        usable = {sid for sid in sessions if sid in pids or sid not in parent_of} - {own}
        more = {pid for pid in parent_of if session_of[pid] in usable or parent_of[pid] in pids} - pids
        if not more:
            return pids
        pids = pids | more


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def send_all(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        send(pid, number)


#: A process that SIGKILL does not end within this time is left, seconds.
_PATIENCE_S = 60.0
#: A process that is just starting another program has no environment for an instant, and is not found by it: none is
#: left when none was found so often.
_LOOKS = 2


def end(home: Path, also: Iterable[int] = (), volatile: Path | None = None) -> None:
    """Kills all processes of an instance, repeatedly, because some may be starting. ``volatile``: the boot's folder."""
    sessions = sessions_of(volatile) if volatile is not None else set()
    send_all(also, signal.SIGKILL)
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
        send_all(left, signal.SIGKILL)
        time.sleep(0.005)


#: Each line is one more argument of what is run in the end; a single dot says that there is nothing to be done.
_WATCH = """\
while IFS= read -r line; do
  [ "$line" = . ] && exit 0
  set -- "$@" "$line"
done
exec "$@"
"""
_BURY = "import sys; sys.path[:0] = sys.argv[1].split(':'); from orchestrator.emulator.processes import main; main()"
_ROOTS = f"{Path(__file__).resolve().parents[2]}:{Path(base_processes.__file__).resolve().parents[2]}"


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
                ["/bin/sh", "-c", _WATCH, "fcctl-emulator", sys.executable, "-c", _BURY, _ROOTS, folder],
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
    """``ROOTS FOLDER VOLATILE...``: the emulator was killed. Kills the processes of these boots, of no later boots of
    the same disks."""
    temporary, *volatiles = sys.argv[2:]
    for volatile in volatiles:
        end_boot(Path(volatile))
    for folder in filter(None, (*volatiles, temporary)):
        shutil.rmtree(folder, ignore_errors=True)
