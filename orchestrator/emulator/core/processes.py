"""Processes of an instance: found by their home directory or by their ancestor, and signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path


def of_home(home: Path) -> set[int]:
    """Processes that were started with ``HOME=home``, other than this one."""
    return _started_with(f"HOME={home}")


def of_boot(volatile: Path) -> set[int]:
    """The sshd with this folder, its descendants, and the sessions that it started."""
    mark = f"{volatile}/sshd_config"
    rows = [line.split(None, 1) for line in _ps("-A", "-ww", "-o", "pid=,command=").splitlines()]
    listeners = {int(pid) for pid, command in (row for row in rows if len(row) == 2) if mark in command}
    pids = set(listeners)
    for pid in listeners:
        pids |= below(pid)
    return (pids | _started_with(f"TMUX_TMPDIR={volatile}")) - {os.getpid()}


def _started_with(variable: str) -> set[int]:
    pids = _by_proc(variable) if sys.platform == "linux" else _by_ps(variable)
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


def below(root: int) -> set[int]:
    """Every descendant of ``root``."""
    rows = [tuple(map(int, line.split())) for line in _ps("-A", "-o", "pid=,ppid=").splitlines()]
    pids: set[int] = set()
    front = {root}
    while front:
        front = {pid for pid, parent in rows if parent in front} - pids
        pids |= front
    return pids - {os.getpid()}


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


def end(home: Path, also: Iterable[int] = (), *, within_s: float = _PATIENCE_S) -> None:
    """Kills all processes of an instance, repeatedly, because some may be starting."""
    send(also, signal.SIGKILL)
    _end_all(lambda: of_home(home), within_s)


def end_boot(volatile: Path, *, within_s: float = _PATIENCE_S) -> None:
    """The same for one boot of an instance, given only its folder."""
    _end_all(lambda: of_boot(volatile), within_s)


def _end_all(which: Callable[[], set[int]], within_s: float) -> None:
    limit = time.monotonic() + within_s
    none_found = 0
    while none_found < _LOOKS and time.monotonic() < limit:
        left = which()
        none_found = 0 if left else none_found + 1
        send(left, signal.SIGKILL)
        time.sleep(0.005)


def _ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout
