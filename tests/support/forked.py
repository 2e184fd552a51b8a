"""``fcctl`` as a process of its own, without the quarter of a second that starting Python and importing costs.

A server, started when the first command is typed, has imported what commands import, and forks a child for each of
them. The child has the caller's pipes as its streams, the environment, the folder and the signals that it would have
had, and ends as fcctl ends, through its own ``entry``. What a fork cannot show is how the interpreter starts, so who
asks for that (``PYTHON...`` or a locale of its own, a time of starting, a signal while it starts) takes a new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pydantic

REPOSITORY = Path(__file__).resolve().parents[2]
#: Of ``python -m tests.mac_like``: its first folder makes each Python say that it is macOS.
_MAC_LIKE = [REPOSITORY / "tests/mac_like/site"] if os.environ.get("MAC_LIKE") else []
PYTHON_PATH = os.pathsep.join(map(str, [*_MAC_LIKE, REPOSITORY, REPOSITORY / "remote"]))
FCCTL = [sys.executable, "-P", "-m", "orchestrator.cli.entry"]  # -P: as the script `fcctl` has it
Kill = tuple[str, int | str]
#: What the interpreter reads when it starts.
AT_THE_START = ("PYTHON", "LC_", "LANG")
ALWAYS_USED = (
    "_strptime", "click.shell_completion", "cronsim", "ctypes", "encodings.idna", "encodings.unicode_escape",
    "encodings.utf_8_sig", "fcctl_tune.search.spec", "paramiko", "platformdirs.unix", "rich.live", "rich.table",
    "yaml",
)  # fmt: skip
#: What a sleep of fcctl takes at most in an emulated cloud's time. Its machines' processes need real time: on a busy
#: computer an sshd may take seconds to start. A wait of ten minutes for it, second by second, lasts 18 s.
REAL_S = 0.03
HUGE, MADV_COLLAPSE = 2 << 20, 25
#: A second of its own, and a hundred megabytes that make each fork slower: for those who talk to a cloud.
CLOUD = ("google.cloud.compute_v1",)


class ForkServer:
    """The test's side of a server that has ``more`` imported. ``close`` ends it; no command is running by then.

    It starts with the first command. Processes that are forked from the one that made this object share the server, and
    the first of them that types a command starts it.
    """

    def __init__(self, more: Sequence[str] = ()) -> None:
        # Whoever ends all processes of a test's HOME does not mean this one.
        self.environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, "HOME": "/nonexistent"}
        self._more = more
        self._socket, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._right_to_start, give = os.pipe()  # one byte, for who comes first
        os.set_blocking(self._right_to_start, False)
        os.write(give, b"1")
        os.close(give)
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        if not os.read(self._right_to_start, 1):
            return
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked", str(self._theirs.fileno()), *self._more],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=self.environment,
            cwd=REPOSITORY,
            pass_fds=[self._theirs.fileno()],
        )

    def can(self, env: Mapping[str, str]) -> bool:
        """Whether an interpreter would start with ``env`` as the server's did."""
        names = {name for given in (env, self.environment) for name in given if name.startswith(AT_THE_START)}
        return all(env.get(name) == self.environment.get(name) for name in names)

    def start(
        self, argv: Sequence[str], cwd: Path, env: Mapping[str, str], kill: Kill | None = None, clock: str | None = None
    ) -> Forked:
        """``fcctl ARGV``, with nothing to read."""
        self.begin()
        ends = [os.pipe() for _ in range(3)]
        nothing = os.open(os.devnull, os.O_RDONLY)
        request = {"argv": list(argv), "cwd": str(cwd), "env": dict(env), "kill": kill, "clock": clock}
        asked = json.dumps(request).encode()
        try:
            socket.send_fds(self._socket, [asked], [nothing, *(write for _, write in ends)])
        finally:
            for fd in (nothing, *(write for _, write in ends)):
                os.close(fd)
        return Forked(argv, *(read for read, _ in ends))

    def close(self) -> None:
        self._socket.close()
        self._theirs.close()
        os.close(self._right_to_start)
        if self._process is not None:
            self._process.wait()


class Forked(subprocess.Popen[str]):
    """A child of a server, to whoever asked for it."""

    def __init__(self, argv: Sequence[str], out: int, err: int, told: int) -> None:
        """``told``: where the server writes its process id, and at the end its exit code."""
        self.args, self.returncode, self.text_mode = list(argv), None, True
        self.stdin, self.stdout, self.stderr = None, os.fdopen(out, errors="replace"), os.fdopen(err, errors="replace")
        self._told = os.fdopen(told)
        self._communication_started, self._input, self._sigint_wait_secs = False, None, 0.25
        self.pid = int(self._told.readline() or 0)
        assert self.pid, "the server has ended"

    def __del__(self, *_: object) -> None:
        self._told.close()

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._told.readline())
        return self.returncode

    def _internal_poll(self, *_: object) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode


_servers: dict[tuple[str, ...], ForkServer] = {}


def share() -> None:
    """Start one server of each kind for the processes that are forked from this one."""
    for more in ((), CLOUD):
        _servers.setdefault(more, ForkServer(more)).begin()


def start(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], more: tuple[str, ...] = (), kill: Kill | None = None,
    clock: str | None = None,
) -> subprocess.Popen[str]:  # fmt: skip
    """``fcctl ARGV``, with nothing to read and pipes as its output.

    Args:
        more: modules that its server is to have imported beforehand.
        kill: what happens to it at its N-th journal line: see ``killed_fcctl``.
        clock: the address of an emulator, whose time is that of the command.
    """
    if more not in _servers:
        _servers[more] = ForkServer(more)
    if kill is not None or clock is not None or _servers[more].can(env):
        return _servers[more].start(argv, cwd, env, kill, clock)
    return fresh([*FCCTL, *argv], cwd, env)


def fresh(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    """The same of any other program."""
    return subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace",
    )  # fmt: skip


def run(
    argv: Sequence[str], cwd: Path, env: Mapping[str, str], more: tuple[str, ...] = (), kill: Kill | None = None,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """What :func:`start` starts, when nobody can write to its output any more. Without a limit of its own: pytest has
    one, and then the report shows what was printed."""
    with start(argv, cwd, env, more, kill) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.kill()
            print(f"fcctl {' '.join(argv)}: {process.communicate()}")
            raise
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)


def close() -> None:
    """End the servers that were needed."""
    while _servers:
        _servers.popitem()[1].close()


# --------------------------------------------------------------------------------------------------- the process itself
def _import_what_commands_import(more: Sequence[str]) -> None:
    import importlib
    import pkgutil

    import orchestrator
    import tests.support.killed_fcctl
    import tests.support.patience  # noqa: F401 - for the children

    for name in (*ALWAYS_USED, *more):
        importlib.import_module(name)
    for module in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        with contextlib.suppress(ImportError):  # of what is not installed
            importlib.import_module(module.name)
    _build_validators()


def _build_validators() -> None:
    """Each child would build those that it needs: a quarter of what a run costs it."""
    from fcctl_remote import wire
    from orchestrator.machines.connect import framing
    from orchestrator.runs import record

    _build(pydantic.BaseModel)
    framing.prepare()
    for shape in (list[wire.FilePart], list[wire.RunSummary], wire.CallError):
        framing._adapter(shape)
    record.outcome_type()


def _build(model: type[pydantic.BaseModel]) -> None:
    for own in model.__subclasses__():
        own.model_rebuild()
        _build(own)


def _use_huge_pages() -> None:
    """A fork copies the tables of all pages: with pages of 2 MiB it takes half the time. Linux from 6.1 on; elsewhere
    nothing happens."""
    libc = ctypes.CDLL(None)
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        for line in maps:
            where, rights, _, _, number, *_ = line.split()
            first, last = (int(address, 16) for address in where.split("-"))
            if rights == "rw-p" and number == "0" and last - first >= HUGE:
                first, last = -(-first // HUGE) * HUGE, last // HUGE * HUGE
                libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)


def _serve(asks: socket.socket, more: Sequence[str]) -> None:
    """Fork for each request; tell its fourth descriptor the process's id and, in the end, its exit code."""
    _import_what_commands_import(more)
    gc.collect()
    gc.freeze()
    _use_huge_pages()
    wakes, wake = os.pipe()
    for fd in (wakes, wake):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([asks, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 4096)
        _tell_who_ended(running)
        if asks in ready:
            request, fds, _, _ = socket.recv_fds(asks, 1 << 20, 4)
            if not request:
                return
            pid = os.fork()
            if pid == 0:
                _be_fcctl(json.loads(request), fds)
            for fd in fds[:3]:
                os.close(fd)
            running[pid] = fds[3]
            with contextlib.suppress(BrokenPipeError):  # whoever asked is gone: others go on asking
                os.write(fds[3], f"{pid}\n".encode())


def _tell_who_ended(running: dict[int, int]) -> None:
    for pid in list(running):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            told = running.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # whoever asked had no more time
                os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(told)


class RemoteClock:
    """The time of an emulator in another process, which moves when the command sleeps."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _advance(self, seconds: float) -> float:
        import urllib.request

        body = json.dumps({"advance": seconds}).encode()
        request = urllib.request.Request(f"{self._url}/emulator/clock", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=240) as answer:
            return float(json.load(answer)["now"])

    def now(self) -> float:
        return self._advance(0.0)

    monotonic = elapsed = now

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, REAL_S))
        self._advance(max(0.0, seconds - REAL_S))


def _be_fcctl(asked: dict[str, Any], fds: Sequence[int]) -> NoReturn:
    from orchestrator import app
    from orchestrator.cli import entry
    from tests.support import killed_fcctl, patience

    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, fd in enumerate(fds[:3]):
            os.dup2(fd, number)
        os.closerange(3, 4096)
        os.environ.clear()
        os.environ.update(asked["env"])
        time.tzset()
        os.chdir(asked["cwd"])
        del sys.path[0]  # the folder that the server was started in; the script `fcctl` has none in its place
        sys.argv = [entry.__file__, *asked["argv"]]
        if asked["kill"]:
            killed_fcctl.arm(*asked["kill"])
        if asked["clock"]:
            clock = RemoteClock(asked["clock"])
            app.SystemClock = lambda: clock  # type: ignore[assignment,misc]
        patience.be_patient()
        entry.entry()
    finally:
        os._exit(70)  # entry() does not come back


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        _serve(given, sys.argv[2:])
