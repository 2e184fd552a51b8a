"""Processes: a step's are started in a session of their own and all ended with it, daemons too; and a run's secret
values: in memory only, from the call that submits it to its steps' environment, masked in logs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from fcctl_remote.base import files, hostfacts, processes
from fcctl_remote.base.hostfacts import IS_LINUX
from fcctl_remote.base.layout import RunLayout
from fcctl_remote.base.processes import KILL_PATIENCE_S, family, kill_family, name_of, parent_of, send, started
from fcctl_remote.record import Record, field
from fcctl_remote.wire import Refusal

#: How long processes that outlive their step may take to end by themselves; then between SIGTERM and SIGKILL, seconds.
SETTLE_S, LEFTOVER_GRACE_S = 2.0, 0.5
#: How long they may take while they are at work: on a busy machine Python's helpers wait for a processor, seconds.
BUSY_SETTLE_S = 10.0
IDLE_S = 0.2
#: How often to note which sessions a step's processes made, where nothing else tells that they are the step's, seconds.
NOTE_S = 2.0
#: How often to look for processes that were started while SIGTERM was being sent, seconds.
LOOK_S = 0.25


class Signals:
    """Ends a wait as soon as a child ends or a signal arrives; ``stop_asked`` after SIGTERM, and after SIGUSR1: a
    cancel that a full disk did not take."""

    def __init__(self) -> None:
        self.stop_asked = self.is_cancelled = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def install(self) -> None:
        """Install handlers: a step would inherit SIG_IGN. SIGHUP comes when tmux dies, SIGINT and SIGQUIT from
        its window."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE, signal.SIGTTOU):
            signal.signal(number, _nothing)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._stop)

    def _stop(self, number: int, _frame: object) -> None:
        self.stop_asked = True
        self.is_cancelled = self.is_cancelled or number == signal.SIGUSR1

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
    try:
        import ctypes  # a Python that was built without libffi has none

        return bool(ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def exit_code(status: int) -> int:
    """A wait status as a shell shows it: 128 + n for a process ended by signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class ProcessExit(Record):
    exit_code: int
    how: str  # exited, timed_out, or the reason that ``stop`` gave
    leftovers: list[str] = field(default_factory=list)  # programs that outlived the step and were killed
    immortal: int = 0  # processes that not even SIGKILL ended


class StepProcess:
    """One attempt at a step. The caller has no other child processes meanwhile."""

    def __init__(
        self, argv: Sequence[str], cwd: str, env: Mapping[str, str], log: str, timeout_s: float, signals: Signals,
        secrets: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """``secrets`` are masked in the log."""
        self.timeout_s = timeout_s
        self.signals = signals
        import subprocess  # slow, and the agent starts none

        self._statuses: dict[int, int] = {}
        self._sessions: dict[int, str | None] = {}  # without /proc: sessions of its processes -> start of the leader
        self._note_at = 0.0
        fd = files.open_own(log, os.O_WRONLY | os.O_APPEND)
        self._masked = MaskedLog(fd, secrets) if secrets else None
        out = self._masked.fd if self._masked else fd
        try:
            self._popen = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, env=dict(env), start_new_session=True
            )
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
        returns the seconds between SIGTERM and SIGKILL, which may become fewer meanwhile.
        """
        deadline = time.monotonic() + self.timeout_s
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
            immortal = self._end(grace_s)
        elif names:
            immortal = self._end(lambda: LEFTOVER_GRACE_S)
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
        began = time.monotonic()
        while IS_LINUX:
            if not self._children():
                return []  # the common case costs one system call
            waited = time.monotonic() - began
            if waited >= BUSY_SETTLE_S or (waited >= SETTLE_S and not processes.are_at_work(self._members())):
                break
            self.signals.wait(0.02 if waited < SETTLE_S else 0.1)
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

    def _end(self, grace_s: Callable[[], float]) -> int:
        """Send SIGTERM, wait, send SIGKILL. Returns how many processes survived that."""
        signalled = self._send(signal.SIGTERM)
        if self._ended_within(grace_s, signalled):
            return 0
        deadline = time.monotonic() + KILL_PATIENCE_S
        while time.monotonic() < deadline:
            self._send(signal.SIGKILL)  # repeated: a process may fork meanwhile
            if self._ended_within(lambda: 0.1):
                return 0
        return len(self._members())

    def _send(self, number: int) -> set[int]:
        """Signal all processes of the step, each once; returns them. They are listed first: what one of them starts
        when it gets the signal, to tidy up, does not get it."""
        pids = self._members()
        leader = self.pid if self.pid not in self._statuses else None
        # A stopped process does not handle SIGTERM.
        for each in (number, signal.SIGCONT) if number == signal.SIGTERM else (number,):
            if leader is not None:
                send(leader, each, group=True)
            for pid in pids:
                if leader is None or not processes.in_group(pid, leader):
                    send(pid, each)
        return pids | {self.pid}

    def _ended_within(self, seconds: Callable[[], float], signalled: set[int] | None = None) -> bool:
        """Whether all processes end in time. ``signalled`` got SIGTERM; those that get it here are added."""
        began = time.monotonic()
        look_at = time.monotonic() + LOOK_S
        while True:
            if not self._children() and (IS_LINUX or not self._members()):
                return True
            left = began + seconds() - time.monotonic()
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


def end_orphans(run_id: str, session: int | None, leader_started: str | None) -> int:
    """Kill the processes of a run whose supervisor has died; returns how many there were.

    ``session`` is that of the step that ran, ``leader_started`` the start of its first process. If that process has
    ended, the number may be another session's: then processes are known by their environment alone.
    """
    marker = b"FCCTL_RUN_ID=" + run_id.encode("ascii")
    if session is not None and (leader_started is None or started(session) != leader_started):
        session = None
    count = len(family(session=session, marker=marker))
    kill_family(KILL_PATIENCE_S, session=session, marker=marker)
    return count


MASK = b"***"
MOST_BYTES = 256 * 1024
SCRIPT = ".sh"
#: In the environment of a search: the names of its secrets, for what masks the logs of trials.
NAMES = "FCCTL_SECRETS"
#: File systems that are memory, and no disk.
_IN_MEMORY = ("tmpfs", "ramfs")
#: A process that outlives its step may keep the log's pipe open for so long, seconds.
_END_PATIENCE_S = 5.0


def hand_over(run: RunLayout, values: Mapping[str, str]) -> None:
    """Leaves the values where :func:`take` finds them: a file in memory that only this user reads. Raises: Refusal:
    no_memory_files, bad_request."""
    text = files.to_json(dict(values))
    if len(text) > MOST_BYTES or any("\0" in value for value in values.values()):
        raise Refusal("bad_request", "the secrets of a run must be text of at most %d KiB" % (MOST_BYTES // 1024))
    path = _place(run)
    if path is None:
        raise Refusal(
            "no_memory_files", "secrets need a file system in memory (tmpfs), and this machine has none",
            "mount one on the machine: mount -t tmpfs tmpfs /dev/shm; or remove `secrets` from the job",
        )  # fmt: skip
    drop(run)
    _write(path, text)


def take(run: RunLayout, names: Sequence[str]) -> dict[str, str] | None:
    """The values, which are then nowhere but in this process; None if they are gone."""
    if not names:
        return {}
    path = _place(run)
    try:
        fd = os.open(path or "", os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as stream:
        ours = os.fstat(fd).st_uid == os.getuid()
        values = json.loads(stream.read(MOST_BYTES)) if ours else {}
    drop(run)
    return {name: values[name] for name in names} if set(names) <= set(values) else None


def as_script(run: RunLayout, values: Mapping[str, str]) -> str | None:
    """A file in memory that sets the values in a shell, for a step in a container; None without values."""
    path = _place(run)
    if not values or path is None:
        return None
    drop(run)
    _write(path + SCRIPT, "".join("export %s=%s\n" % (k, shlex.quote(v)) for k, v in values.items()).encode())
    return path + SCRIPT


def _write(path: str, data: bytes) -> None:
    with files.closing(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)) as fd:
        files.write_all(fd, data)


def drop(run: RunLayout) -> None:
    """Deletes what :func:`hand_over` and :func:`as_script` left."""
    path = _place(run)
    for name in (path, path + SCRIPT) if path is not None else ():
        with contextlib.suppress(OSError):
            os.unlink(name)


def _place(run: RunLayout) -> str | None:
    mounts = [line.split() for line in hostfacts.read_text("/proc/mounts").splitlines()]
    in_memory = [words[1] for words in mounts if len(words) > 2 and words[2] in _IN_MEMORY]
    for folder in ("/dev/shm", "/run/user/%d" % os.getuid()):  # noqa: S108 - the file is made with O_EXCL
        if folder in in_memory and os.access(folder, os.W_OK):
            return os.path.join(folder, "fcctl-%d-%s" % (os.getuid(), run.run_id))
    return None


def values_in(env: Mapping[str, str]) -> list[str]:
    """The values of the secrets that :data:`NAMES` names."""
    return [env[name] for name in env.get(NAMES, "").split() if name in env]


def masked(data: bytes, values: Sequence[str]) -> bytes:
    """``data`` with :data:`MASK` for each value."""
    for value in sorted(values, key=len, reverse=True):
        data = data.replace(value.encode(), MASK)
    return data


class MaskedLog:
    """A pipe into a step's log that writes :data:`MASK` for each value. ``fd`` is the end for the step."""

    def __init__(self, log: int, values: Sequence[str]) -> None:
        self._log = os.dup(log)
        lines = [line for value in values for line in [value, *value.splitlines()] if len(line) >= 4]
        self._values = sorted({line.encode() for line in lines}, key=len, reverse=True)
        self._read, self.fd = os.pipe()
        self._held = b""
        self._thread = threading.Thread(target=self._pump, daemon=True)

    def start(self) -> None:
        """The step has its end: from here on all of its output passes."""
        os.close(self.fd)
        self._thread.start()

    def finish(self) -> None:
        """Waits until all output is in the log."""
        self._thread.join(_END_PATIENCE_S)

    def _pump(self) -> None:
        while True:
            data = os.read(self._read, 65536)
            try:
                files.write_all(self._log, self._masked(data))
            except OSError:
                pass  # the disk is full: the step goes on, as it would with a log of its own
            if not data:
                break
        os.close(self._read)
        os.close(self._log)

    def _masked(self, data: bytes) -> bytes:
        """What can be written now; the beginning of a value stays until its end is known. No ``data``: the end."""
        text = self._held + data
        for value in self._values:
            text = text.replace(value, MASK)
        keep = 0 if not data else max((_overlap(text, value) for value in self._values), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: bytes, value: bytes) -> int:
    """How many bytes at the end of ``text`` are the beginning of ``value``."""
    return next((n for n in range(min(len(text), len(value) - 1), 0, -1) if text.endswith(value[:n])), 0)
