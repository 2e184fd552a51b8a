"""Commands of a trial: each in its own session, with limits of time, output and memory, and ended with all children.

A command may hang, ignore SIGTERM, print without end, take all memory or leave a daemon. Its descendants are found by
their session and by :data:`MARK` in their environment; others are adopted by the worker and end with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Dict, Iterator, Mapping, Optional, Set

from fcctl_remote.base.files import size_of
from fcctl_remote.base.hostfacts import IS_LINUX, which
from fcctl_remote.base.processes import KILL_PATIENCE_S, family, kill_family, send
from fcctl_remote.run.process import MaskedLog, become_subreaper, values_in

#: Marks a command and its descendants.
MARK = "FCCTL_TUNE_COMMAND"
MIB = 1024 * 1024
#: Bytes that a command may print.
OUTPUT_BYTES = 64 * MIB
#: Bytes of the largest file that a command may write; OUTPUT_BYTES is only looked at now and then.
FILE_BYTES = 1024 * MIB
#: Bytes kept of a longer log.
KEPT_BYTES = MIB
#: Seconds between SIGTERM and SIGKILL.
GRACE_S = 0.5
#: Niceness added to builds, for which no GPU waits; and the largest there is.
YIELDING, LAST = 10, 19
#: Seconds between two looks at output and memory.
LOOK_S = 0.2
#: Out of memory, the kernel ends the command first. No core files.
_PREPARE = (
    "ulimit -c 0; ulimit -f %d; { echo 1000 >/proc/self/oom_score_adj; } 2>/dev/null; "
    'exec "$0" -eo pipefail -c "$1"' % (FILE_BYTES // 1024)
)
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Outcome:
    exit_code: int  # as a shell shows it: 128 + n for a command that signal n ended
    how: str  # exited, timed_out, output, memory
    seconds: float

    @property
    def reason(self) -> Optional[str]:
        """Why this is no success, for people; None if it is one."""
        if self.how == "exited":
            return None if self.exit_code == 0 else described(self.exit_code)
        return "%s and was ended after %.1f s" % (TOOK[self.how], self.seconds)


TOOK = {"timed_out": "exceeded its time limit", "output": "printed too much", "memory": "used too much memory"}


def described(code: int) -> str:
    """``exit code 1``; ``SIGSEGV`` for 139."""
    if code > 128:
        with contextlib.suppress(ValueError):
            return signal.Signals(code - 128).name
    return "exit code %d" % code


def crashed(code: int) -> bool:
    """Whether a signal ended it: 128 + n, also of a child of its shell."""
    return 128 < code < 128 + signal.NSIG


class Running:
    """A shell command that was started, with all its descendants."""

    def __init__(
        self, text: str, env: Mapping[str, str], cwd: str, log: str, pipes: bool = False,
        yields: bool = False,
    ) -> None:  # fmt: skip
        """Start ``text`` under ``bash -eo pipefail``, with its stderr, and unless ``pipes`` its stdout, in ``log``, and
        with a lower priority if it ``yields``. Raises: OSError: no bash, no such folder, too many processes."""
        self.log = log
        self.started = time.monotonic()
        mark = uuid.uuid4().hex
        self._marker = ("%s=%s" % (MARK, mark)).encode()
        bash = which("bash", dict(env)) or "/bin/bash"
        with contextlib.suppress(FileExistsError):  # an earlier command may have deleted it
            os.mkdir(os.path.dirname(log))
        with open(log, "wb") as stream, _spawning:
            values = values_in(env)
            self._masked = MaskedLog(stream.fileno(), values) if values else None
            out = self._masked.fd if self._masked is not None else stream.fileno()
            self.popen = subprocess.Popen(
                [bash, "-c", _PREPARE, bash, text], stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else out, stderr=out, cwd=cwd, env={**env, MARK: mark},
                start_new_session=True, bufsize=0,
            )  # fmt: skip
            self.pid = self.popen.pid
            _commands.add(self.pid)
            if self._masked is not None:
                self._masked.start()
        if yields:
            _yield(self.pid)
        self._pidfd = _pidfd(self.pid)
        self._memory = memory_bytes() // 2
        self._look_at = 0.0

    @property
    def ended(self) -> bool:
        return self.popen.poll() is not None

    @property
    def exit_code(self) -> int:
        code = self.popen.poll()
        return 128 - code if code is not None and code < 0 else code or 0

    def nap(self, seconds: float, also: Optional[int] = None) -> bool:
        """Sleep until it ends or the descriptor ``also`` is readable, ``seconds`` at most; whether ``also`` is."""
        watched = [fd for fd in (self._pidfd, also) if fd is not None]
        if self._pidfd is None:
            seconds = min(seconds, 0.02)
        ready, _, _ = select.select(watched, [], [], max(0.0, seconds))
        return also in ready

    def excess(self) -> Optional[str]:
        """``output`` or ``memory`` if that is beyond its limit; looked up every :data:`LOOK_S`."""
        now = time.monotonic()
        if now < self._look_at:
            return None
        self._look_at = now + LOOK_S
        with contextlib.suppress(OSError):
            if os.stat(self.log).st_size > OUTPUT_BYTES:
                return "output"
        return "memory" if resident_bytes(self.pid) > self._memory else None

    def end(self, grace_s: float = GRACE_S) -> None:
        """End the command and all descendants: SIGTERM, ``grace_s``, SIGKILL."""
        if not self.ended and grace_s > 0:
            send(self.pid, signal.SIGTERM, group=True)
            deadline = time.monotonic() + grace_s
            while not self.ended and time.monotonic() < deadline:
                self.nap(deadline - time.monotonic())
        deadline = time.monotonic() + KILL_PATIENCE_S
        while not self.ended and time.monotonic() < deadline:
            send(self.pid, signal.SIGKILL, group=True)  # its number is not reused before it is reaped
            self.nap(0.01)
        kill_family(session=self.pid, marker=self._marker)
        self.close()

    @property
    def has_descendants(self) -> bool:
        return bool(family(session=self.pid, marker=self._marker) - {self.pid})

    def close(self) -> None:
        """Free what belongs to an ended command."""
        _commands.discard(self.pid)
        if self._masked is not None:
            self._masked.finish()
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        shorten(self.log)


def _yield(leader: int) -> None:
    """Lower the priority of the session of ``leader`` and, for Linux's autogroups, of its group. Errors are ignored."""
    with contextlib.suppress(OSError), open("/proc/%d/autogroup" % leader, "wb", buffering=0) as stream:
        stream.write(b"%d" % YIELDING)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PGRP, leader, min(LAST, os.getpriority(os.PRIO_PROCESS, 0) + YIELDING))


def run(text: str, env: Mapping[str, str], cwd: str, log: str, timeout_s: float, yields: bool = False) -> Outcome:
    """Run a shell command with its output in ``log``, and end all its processes. Raises: OSError, at its start."""
    running = Running(text, env, cwd, log, yields=yields)
    deadline = running.started + timeout_s
    how = "exited"
    while not running.ended:
        now = time.monotonic()
        excess = "timed_out" if now >= deadline else running.excess()
        if excess is not None and not running.ended:
            how = excess
            break
        running.nap(min(LOOK_S, deadline - now))
    if how == "exited" and size_of(log) > OUTPUT_BYTES:
        how = "output"  # the limit of files ended it
    seconds = time.monotonic() - running.started
    if how != "exited" or (may_have_strays() and running.has_descendants):
        running.end()
    else:
        running.close()
    return Outcome(running.exit_code, how, seconds)


_spawning = threading.Lock()
_commands: Set[int] = set()  # children of this process that are not closed
_adopts = False


def adopt_orphans() -> None:
    """Make this process the parent of its commands' orphans (Linux), so that they are among its children."""
    global _adopts  # noqa: PLW0603 - a fact of this process
    _adopts = become_subreaper()


def may_have_strays() -> bool:
    """Whether a process may have outlived its command; ended orphans are reaped."""
    if not _adopts:
        return True
    with _spawning:  # a command that is just started is no orphan
        return any(_is_alive(pid) for pid in set(_children(os.getpid())) - _commands)


def _is_alive(child: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(child, os.WNOHANG)[0] == 0
    return False


def _children(pid: int) -> Iterator[int]:
    """The children of all its threads (Linux). Raises: OSError, if it has ended."""
    for task in os.listdir("/proc/%d/task" % pid):
        with contextlib.suppress(OSError), open("/proc/%d/task/%s/children" % (pid, task), "rb") as stream:
            yield from map(int, stream.read(MIB).split())


_is_ending = threading.Event()


def end_descendants() -> None:
    """Kill all descendants, before this process ends."""
    _is_ending.set()
    for pid in list(_commands):  # without /proc
        send(pid, signal.SIGKILL, group=True)
    kill_family(ancestor=os.getpid())


def never_if_ending() -> None:
    """Do not return while :func:`end_descendants` kills commands, which then have no result."""
    while _is_ending.is_set():
        time.sleep(KILL_PATIENCE_S)


def clean_environment(env: Mapping[str, str]) -> Dict[str, str]:
    """``env`` for a kernel's commands: without the search's libraries, whose folder is ``FCCTL_TUNE``."""
    cleaned = {name: value for name, value in env.items() if name not in (MARK, "FCCTL_TUNE")}
    bundle, path = env.get("FCCTL_TUNE"), env.get("PYTHONPATH")
    if bundle and path:
        home = os.path.realpath(bundle)
        kept = [p for p in path.split(os.pathsep) if p and not (os.path.realpath(p) + os.sep).startswith(home + os.sep)]
        cleaned.pop("PYTHONPATH")
        if kept:
            cleaned["PYTHONPATH"] = os.pathsep.join(kept)
    return cleaned


def drop_log(path: str) -> None:
    """Delete a log, unless its command did."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def shorten(path: str) -> None:
    """Keep the end of a long log."""
    with contextlib.suppress(OSError):
        size = os.path.getsize(path)
        if size > KEPT_BYTES:
            with open(path, "r+b") as stream:
                stream.seek(size - KEPT_BYTES)
                kept = stream.read(KEPT_BYTES)
                stream.seek(0)
                stream.write(b"[%d bytes left out]\n" % (size - KEPT_BYTES) + kept)
                stream.truncate()


def memory_bytes() -> int:
    """The memory of this machine or container."""
    total = os.sysconf("SC_PHYS_PAGES") * _PAGE
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path, "rb") as stream:
            total = min(total, int(stream.read(32)))
    return total


def processors() -> int:
    """The number that this process may use, at least 1."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/cpu.max", "rb") as stream:
            quota, period = stream.read(64).split()
        count = min(count, int(quota) // int(period))
    return max(1, count)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants (Linux; 0 elsewhere)."""
    if not IS_LINUX:
        return 0
    total, todo = 0, [pid]
    while todo:
        one = todo.pop()
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open("/proc/%d/statm" % one, "rb") as stream:
                fields = stream.read(128).split()
            total += max(0, int(fields[1]) - int(fields[2])) * _PAGE  # what is shared is not its own
            todo += _children(one)
    return total


def _pidfd(pid: int) -> Optional[int]:
    """A descriptor that becomes readable at its end, where the system has that."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
