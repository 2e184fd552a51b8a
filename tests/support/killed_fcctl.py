"""An fcctl to which something happens, most of it at the N-th line of its journal.

``after``: it is killed with SIGKILL; the line is on disk and its effect has not begun. ``before``: the same; the effect
of the line before has happened and this line is not on disk. ``full``: from this line on, or with 0 from the beginning,
no file takes a byte more. ``clock``: its clock is N seconds ahead. ``most``: a run may bring N bytes.
``broken``: no file below the folder ``line`` can be opened for writing: EIO.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any

from orchestrator.base.journal import FileJournal
from orchestrator.results.store import intake


def arm(when: str, line: int | str) -> None:
    if isinstance(line, str):
        _break(line)
        return
    real, count = FileJournal.append, 0
    if when == "full" and not line:
        _fill()
    if when == "clock":
        now = time.time
        time.time = lambda: now() + line
    if when == "most":
        intake.Limits.__init__.__defaults__ = (line, line // 10)  # type: ignore[misc]

    def append(self: FileJournal, kind: str, **data: Any) -> None:
        nonlocal count
        count += 1
        if count == line and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if count == line and when == "full":
            _fill()
        real(self, kind, **data)
        if count == line and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    FileJournal.append = append  # type: ignore[method-assign]


def _break(folder: str) -> None:
    for module, name in ((io, "open"), (builtins, "open"), (os, "open")):
        setattr(module, name, _broken(getattr(module, name), folder))


def _broken(real: Callable[..., Any], folder: str) -> Callable[..., Any]:
    def call(path: Any, *args: Any, **given: Any) -> Any:
        how = args[0] if args else given.get("mode", "r")
        reads = how.strip("bt") == "r" if isinstance(how, str) else how & os.O_ACCMODE == os.O_RDONLY
        if not reads and not isinstance(path, int) and os.fsdecode(path).startswith(folder):
            raise OSError(errno.EIO, "Input/output error", os.fsdecode(path))
        return real(path, *args, **given)

    return call


def _fill() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
