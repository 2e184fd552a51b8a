"""Which processes belong together, and how they are ended. For Linux by /proc, else by ``ps``."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence

from fcctl_remote.base.hostfacts import IS_LINUX

#: How long to wait for a process that SIGKILL does not end (a driver call that hangs), seconds.
KILL_PATIENCE_S = 5.0


def send(pid: int, number: int, group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def in_group(pid: int, leader: int) -> bool:
    """Whether a signal to the leader's process group reaches the process; no, once it has ended."""
    with contextlib.suppress(OSError):
        return os.getpgid(pid) == leader
    return False


def family(session: int | None = None, ancestor: int | None = None, marker: bytes | None = None) -> set[int]:
    """Living processes of a session, below an ancestor, or with ``marker`` in their environment; macOS shows that of
    Apple's own programs to nobody."""
    if not IS_LINUX:
        return _family_by_ps(session, ancestor, marker)
    parents: dict[int, int] = {}
    pids: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        pid = int(name)
        facts = _stat(pid)
        if facts is None or facts[0] in "ZX":
            continue
        parents[pid] = facts[1]
        if facts[2] == session or (marker is not None and marker in _proc(pid, "environ").split(b"\0")):
            pids.add(pid)
    if ancestor is not None:
        pids |= {pid for pid in parents if _descends(pid, ancestor, parents)}
    return pids - {os.getpid()}


def _stat(pid: int) -> tuple[str, int, int, str] | None:
    """State, parent, session and start time of a process; None once it has ended."""
    # The program's name stands in parentheses and may hold anything, parentheses too.
    fields = _proc(pid, "stat").rpartition(b")")[2].split()
    if len(fields) < 20:
        return None
    return fields[0].decode("ascii"), int(fields[1]), int(fields[3]), fields[19].decode("ascii")


def _proc(pid: int, name: str) -> bytes:
    """What Linux tells of a process; empty if it has ended, or does not concern this user."""
    try:
        with open("/proc/%d/%s" % (pid, name), "rb") as stream:
            return stream.read(1024 * 1024)
    except OSError:
        return b""


def parent_of(pid: int) -> int | None:
    """The present parent of a process; None once it has ended."""
    if IS_LINUX:
        facts = _stat(pid)
        return None if facts is None else facts[1]
    parent = ps(pid, "ppid")
    return int(parent) if parent.isdigit() else None


def are_at_work(pids: Iterable[int]) -> bool:
    """Whether one of these processes runs, or waits for a processor or a disk and for nothing else (Linux)."""
    return any(facts is not None and facts[0] in "RD" for facts in map(_stat, pids))


def started(pid: int) -> str | None:
    """When a process was started, in the system's format; None once it has ended. With the number it identifies the
    process, also after a restart of the container that assigned the number."""
    if IS_LINUX:
        facts = _stat(pid)
        return None if facts is None else facts[3]
    return ps(pid, "lstart") or None


def ends_with(pid: int, words: Sequence[str]) -> bool:
    """Whether a process's command line ends with ``words``: another process may have its number by now."""
    if not IS_LINUX:
        return ps(pid, "command").split()[-len(words) :] == list(words)
    argv = _proc(pid, "cmdline").rstrip(b"\0").split(b"\0")
    return argv[-len(words) :] == [word.encode("utf-8") for word in words]


def ps(pid: int, what: str) -> str:
    """A column of ``ps`` for one process (command, ppid, stat, ...); empty if it has ended."""
    return rows("-p", str(pid), "-ww", "-o", what + "=").strip()


def rows(*arguments: str) -> str:
    """What ``ps`` prints."""
    import subprocess

    done = subprocess.run(["ps", *arguments], check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode("utf-8", "replace")


def parents() -> dict[int, int]:
    """All living processes with their parents, by ``ps``, which is not among them."""
    import subprocess

    with subprocess.Popen(["ps", "-axo", "pid=,ppid=,stat="], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ps:
        table = [line.split() for line in ps.communicate()[0].splitlines()]
    living = {int(row[0]): int(row[1]) for row in table if len(row) == 3 and not row[2].startswith(b"Z")}
    living.pop(ps.pid, None)
    return living


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def _family_by_ps(session: int | None, ancestor: int | None, marker: bytes | None) -> set[int]:
    living = parents()
    pids = {pid for pid in living if ancestor is not None and _descends(pid, ancestor, living)}
    for pid in living if session is not None else ():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                pids.add(pid)
    if marker is not None:
        word = " " + marker.decode("utf-8", "replace") + " "
        lines = rows("-E", "-A", "-ww", "-o", "pid=,command=").splitlines()
        pids |= {int(line.split(None, 1)[0]) for line in lines if word in line + " "}
    return pids & set(living) - {os.getpid()}


def name_of(pid: int) -> str:
    """A process's program for a message; its number if it has ended."""
    from fcctl_remote.base.text import one_line

    name = _proc(pid, "comm").decode("utf-8", "replace") if IS_LINUX else os.path.basename(ps(pid, "comm"))
    return one_line(name, 40) or "process %d" % pid


def kill_family(
    patience_s: float = KILL_PATIENCE_S, *, session: int | None = None, ancestor: int | None = None,
    marker: bytes | None = None,
) -> set[int]:  # fmt: skip
    """SIGKILL what :func:`family` finds until none is left, as processes may fork meanwhile; returns who survived.

    None is left when two looks in a row find none: a process that is just becoming another program has no environment
    for an instant."""
    deadline = time.monotonic() + patience_s
    empty_looks = 0
    while True:
        left = family(session, ancestor, marker)
        empty_looks = 0 if left else empty_looks + 1
        if empty_looks == 2 or time.monotonic() > deadline:
            return left
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.01)
