"""Processes of an instance: found by their home directory or by their ancestor, and signalled."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path


def of_home(home: Path) -> set[int]:
    """Processes that were started with ``HOME=home``, other than this one."""
    found = _by_proc(home) if sys.platform == "linux" else _by_ps(home)
    return found - {os.getpid()}


def _by_proc(home: Path) -> set[int]:
    mark = f"HOME={home}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
    return found


def _by_ps(home: Path) -> set[int]:
    mark = f" HOME={home} "
    lines = _ps("-E", "-A", "-ww", "-o", "pid=,command=").splitlines()
    return {int(line.split(None, 1)[0]) for line in lines if mark in line + " "}


def below(root: int) -> set[int]:
    """Every descendant of ``root``."""
    rows = [tuple(map(int, line.split())) for line in _ps("-A", "-o", "pid=,ppid=").splitlines()]
    found: set[int] = set()
    front = {root}
    while front:
        front = {pid for pid, parent in rows if parent in front} - found
        found |= front
    return found - {os.getpid()}


def command_of(pid: int) -> str:
    """What runs under a pid; empty if nothing does."""
    return _ps("-p", str(pid), "-ww", "-o", "command=").strip()


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end(home: Path, also: Iterable[int] = (), *, within_s: float = 5.0) -> None:
    """Kill all of an instance, again until none is left: some are being started meanwhile."""
    send(also, signal.SIGKILL)
    limit = time.monotonic() + within_s
    while (left := of_home(home)) and time.monotonic() < limit:
        send(left, signal.SIGKILL)
        time.sleep(0.005)


def _ps(*arguments: str) -> str:
    return subprocess.run(["ps", *arguments], capture_output=True, text=True, check=False).stdout
