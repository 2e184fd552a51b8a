"""Processes: a step's are started in a session of their own and all ended with it, daemons too."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from fcctl_remote.base import files
from fcctl_remote.base.hostfacts import IS_LINUX
from fcctl_remote.record import Record, field
from fcctl_remote.run.secrets import MaskedLog

#: How long processes that outlive their step may take to end by themselves; then between SIGTERM and SIGKILL, seconds.
SETTLE_S, LEFTOVER_GRACE_S = 2.0, 0.5
#: How long to wait for a process that SIGKILL does not end (a driver call that hangs), seconds.
KILL_PATIENCE_S = 5.0
IDLE_S = 0.2
#: How often to note which sessions a step's processes made, where nothing else tells that they are the step's, seconds.
NOTE_S = 2.0
#: How often to look for processes that were started while SIGTERM was being sent, seconds.
LOOK_S = 0.25


class Signals:
    """Ends a wait as soon as a child ends or a signal arrives; ``stop_asked`` after SIGTERM."""

    def __init__(self) -> None:
        self.stop_asked = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def install(self) -> None:
        """Install handlers: a step would inherit SIG_IGN. SIGHUP comes when tmux dies, SIGINT from its window."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTTOU):
            signal.signal(number, _nothing)
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, _number: int, _frame: object) -> None:
        self.stop_asked = True

    def wait(self, timeout: float, also: int | None = None) -> bool:
        """Sleep for at most ``timeout`` seconds; whether the descriptor ``also`` became readable."""
        watched = [self._read] if also is None else [self._read, also]
        ready, _, _ = select.select(watched, [], [], max(0.0, timeout))
        if self._read in ready:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._read, 512):
                    pass
        return also in ready


def _nothing(_number: int, _frame: object) -> None:
    """The call alone ends the wait."""


def become_subreaper() -> bool:
    """Adopt the orphans of our steps in place of init (Linux), so that no daemon is overlooked."""
    if not IS_LINUX:
        return False
    import ctypes

    try:
        return bool(ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def exit_code(status: int) -> int:
    """A wait status as a shell shows it: 128 + n for a process ended by signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class ProcessExit(Record):
    exit_code: int
    how: str  # exited, timed_out, or the reason that ``stop`` gave
    leftovers: list[str] = field(default_factory=list)  # programs that outlived the step and were killed
    immortal: int = 0  # processes that not even SIGKILL ended


class Command(Record):
    argv: list[str]
    cwd: str
    env: Mapping[str, str]
    log: str
    timeout_s: float
    secrets: list[str] = field(default_factory=list)  # masked in the log


class StepProcess:
    """One attempt at a step. The caller has no other child processes meanwhile."""

    def __init__(self, command: Command, signals: Signals) -> None:
        self.command = command
        self.signals = signals
        import subprocess  # slow, and the agent starts none

        self._statuses: dict[int, int] = {}
        self._sessions: dict[int, str | None] = {}  # without /proc: sessions of its processes -> start of the leader
        self._note_at = 0.0
        fd = files.open_own(command.log, os.O_WRONLY | os.O_APPEND)
        self._masked = MaskedLog(fd, command.secrets) if command.secrets else None
        out = self._masked.fd if self._masked else fd
        try:
            self._popen = subprocess.Popen(
                command.argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=command.cwd, env=dict(command.env),
                start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(fd)
            if self._masked is not None:
                self._masked.start()
        self.pid = self._popen.pid
        self.started = started(self.pid)

    def wait(
        self, stop: Callable[[], str | None], idle: Callable[[], None], grace_s: Callable[[], float]
    ) -> ProcessExit:
        """Wait for the end, the timeout, or a reason from ``stop``; then end the processes that are left.

        ``stop`` returns why the step must end now, else None; ``idle`` is called several times a second; ``grace_s``
        returns the seconds between SIGTERM and SIGKILL.
        """
        deadline = time.monotonic() + self.command.timeout_s
        how = "exited"
        while self._children() and self.pid not in self._statuses:
            reason = stop() or ("timed_out" if time.monotonic() >= deadline else None)
            if reason is not None:
                how = reason
                break
            self.signals.wait(min(IDLE_S, deadline - time.monotonic()))
            self._note_sessions()
            idle()
        names, immortal = [] if how != "exited" else self._leftover_names(), 0
        if how != "exited":
            immortal = self._end(grace_s())
        elif names:
            immortal = self._end(LEFTOVER_GRACE_S)
        code = exit_code(self._statuses.get(self.pid, signal.SIGKILL))
        self._popen.returncode = code
        if self._masked is not None:
            self._masked.finish()
        return ProcessExit(code, how, names, immortal)

    def _children(self) -> bool:
        """Reap ended children; whether one, own or adopted, still runs."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._statuses[pid] = status

    def _leftover_names(self) -> list[str]:
        """Programs that do not end by themselves soon after the step, as Python's helpers of multiprocessing do."""
        deadline = time.monotonic() + (SETTLE_S if IS_LINUX else 0.0)
        while time.monotonic() < deadline:
            if not self._children():
                return []  # the common case costs one system call
            self.signals.wait(0.02)
        return [name_of(pid) for pid in sorted(self._members())]

    def _members(self) -> set[int]:
        # Once the leader is reaped, its number may be another process's.
        is_ours = self.pid not in self._statuses or started(self.pid) is None
        pids = family(session=self.pid if is_ours else None, ancestor=os.getpid())
        for session, start in self._sessions.items():
            if started(session) in (start, None):
                pids |= family(session=session)
        return pids - {self.pid} if self.pid in self._statuses else pids

    def _note_sessions(self) -> None:
        """Notes the sessions that processes of the step made. There is no subreaper there, so one whose parent has
        ended is found by its session alone."""
        if IS_LINUX or time.monotonic() < self._note_at:
            return
        self._note_at = time.monotonic() + NOTE_S
        for pid in family(ancestor=os.getpid()) - {self.pid} - set(self._sessions):
            with contextlib.suppress(OSError):
                if os.getsid(pid) == pid:
                    self._sessions[pid] = started(pid)

    def _end(self, grace_s: float) -> int:
        """Send SIGTERM, wait, send SIGKILL. Returns how many processes survived that."""
        signalled = self._send(signal.SIGTERM)
        if self._ended_within(grace_s, signalled):
            return 0
        deadline = time.monotonic() + KILL_PATIENCE_S
        while time.monotonic() < deadline:
            self._send(signal.SIGKILL)  # repeated: a process may fork meanwhile
            if self._ended_within(0.1):
                return 0
        return len(self._members())

    def _send(self, number: int) -> set[int]:
        """Signal all processes of the step; returns them."""
        if self.pid not in self._statuses:
            send(self.pid, number, group=True)
        pids = self._members()
        for pid in pids:
            send(pid, number)
            if number == signal.SIGTERM:
                send(pid, signal.SIGCONT)  # a stopped process does not handle SIGTERM
        return pids | {self.pid}

    def _ended_within(self, seconds: float, signalled: set[int] | None = None) -> bool:
        """Whether all processes end in time. ``signalled`` got SIGTERM; those that get it here are added."""
        deadline = time.monotonic() + seconds
        look_at = time.monotonic() + LOOK_S
        while True:
            if not self._children() and (IS_LINUX or not self._members()):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return not self._members() and self.pid in self._statuses
            if signalled is not None and time.monotonic() >= look_at:
                self._signal_orphans(signalled)
                look_at = time.monotonic() + LOOK_S
            self.signals.wait(min(0.05, left))

    def _signal_orphans(self, signalled: set[int]) -> None:
        """Send SIGTERM to processes that have not got it and whose parent has ended.

        A shell blocks signals while it starts a program. One that gets SIGTERM just then starts the program and ends;
        the program never got the signal. A process whose parent lives is left to it: the parent may be cleaning up.
        """
        for pid in self._members() - signalled:
            if parent_of(pid) in (os.getpid(), 1):
                send(pid, signal.SIGTERM)
                signalled.add(pid)


def send(pid: int, number: int, group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def family(session: int | None = None, ancestor: int | None = None, marker: bytes | None = None) -> set[int]:
    """Living processes of a session, below an ancestor, or with ``marker`` in their environment (Linux)."""
    if not IS_LINUX:
        return _family_by_ps(session, ancestor)
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
    parent = _ps(pid, "ppid")
    return int(parent) if parent.isdigit() else None


def started(pid: int) -> str | None:
    """When a process was started, in the system's format; None once it has ended. With the number it identifies the
    process, also after a restart of the container that assigned the number."""
    if IS_LINUX:
        facts = _stat(pid)
        return None if facts is None else facts[3]
    return _ps(pid, "lstart") or None


def ends_with(pid: int, words: Sequence[str]) -> bool:
    """Whether a process's command line ends with ``words``: another process may have its number by now."""
    if not IS_LINUX:
        return _ps(pid, "command").split()[-len(words) :] == list(words)
    argv = _proc(pid, "cmdline").rstrip(b"\0").split(b"\0")
    return argv[-len(words) :] == [word.encode("utf-8") for word in words]


def _ps(pid: int, what: str) -> str:
    import subprocess

    argv = ["ps", "-ww", "-o", what + "=", "-p", str(pid)]
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return done.stdout.decode("utf-8", "replace").strip()


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    seen: set[int] = set()
    while pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


def _family_by_ps(session: int | None, ancestor: int | None) -> set[int]:
    import subprocess

    with subprocess.Popen(["ps", "-axo", "pid=,ppid=,stat="], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as ps:
        rows = [line.split() for line in ps.communicate()[0].splitlines()]
    parents = {int(row[0]): int(row[1]) for row in rows if len(row) == 3 and not row[2].startswith(b"Z")}
    pids = {pid for pid in parents if ancestor is not None and _descends(pid, ancestor, parents)}
    for pid in parents if session is not None else ():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                pids.add(pid)
    return pids - {os.getpid(), ps.pid}


def name_of(pid: int) -> str:
    """A process's program for a message; its number if it has ended."""
    from fcctl_remote.base.text import one_line

    name = _proc(pid, "comm").decode("utf-8", "replace") if IS_LINUX else os.path.basename(_ps(pid, "comm"))
    return one_line(name, 40) or "process %d" % pid


def kill_family(
    patience_s: float = KILL_PATIENCE_S, *, session: int | None = None, ancestor: int | None = None,
    marker: bytes | None = None,
) -> set[int]:  # fmt: skip
    """SIGKILL what :func:`family` finds until none is left, as processes may fork meanwhile; returns who survived."""
    deadline = time.monotonic() + patience_s
    while True:
        left = family(session, ancestor, marker)
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            send(pid, signal.SIGKILL)
        time.sleep(0.01)


def end_orphans(
    run_id: str, session: int | None, leader_started: str | None, patience_s: float = KILL_PATIENCE_S
) -> int:
    """Kill the processes of a run whose supervisor has died; returns how many there were.

    ``session`` is that of the step that ran, ``leader_started`` the start of its first process. If that process has
    ended, the number may be another session's: then processes are known by their environment alone.
    """
    marker = b"FCCTL_RUN_ID=" + run_id.encode("ascii")
    if session is not None and (leader_started is None or started(session) != leader_started):
        session = None
    count = len(family(session=session, marker=marker))
    kill_family(patience_s, session=session, marker=marker)
    return count
