"""Which processes run. One that ended and that nobody has waited for yet does not."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import wait_for


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # gone since, before or after the file was opened; or no Linux
        return not Path("/proc/self/stat").exists()


def processes(mark: str, home: Path) -> list[int]:
    """Those with ``mark`` in their command line and that home folder: of one test, others run beside it."""
    return [pid for pid, typed in started_with(f"HOME={home}") if mark in typed]


def started_with(*variables: str) -> Iterator[tuple[int, str]]:
    """Pids with all of these ``NAME=VALUE`` in their environment, and their command lines."""
    marks = {variable.encode() for variable in variables}
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError):  # it ended meanwhile, or is not ours
            environ = _contents(f"/proc/{pid}/environ")
            if all(mark in environ for mark in marks) and marks <= set(environ.split(b"\0")):
                yield int(pid), _contents(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")


def _contents(path: str) -> bytes:
    """Thousands of times in a session, for each process of the computer: without what ``Path`` and buffers cost."""
    with open(path, "rb", buffering=0) as stream:
        return stream.read()


def kill_supervisor(home: Path) -> None:
    """SIGKILL to the supervisor of the only run below ``home``; it is gone when this returns."""
    found: list[int] = []

    def is_alone() -> bool:
        """What it is just starting has its command line until that is its own program."""
        own = started_with(f"HOME={home}")
        found[:] = [pid for pid, typed in own if "supervise" in typed and "tmux" not in typed]
        return len(found) == 1

    wait_for(is_alone)
    (supervisor,) = found
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: not is_running(supervisor))  # under load that takes a moment
