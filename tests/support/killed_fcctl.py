"""An fcctl to which something happens, most of it at the N-th line of its journal.

``after``: it is killed with SIGKILL; the line is on disk and its effect has not begun. ``before``: the same; the effect
of the line before has happened and this line is not on disk. ``full``: from this line on, or with 0 from the beginning,
no file takes a byte more. ``clock``: its clock is N seconds ahead. ``most``: a run may bring N bytes.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import Any

from orchestrator.base.journal import FileJournal
from orchestrator.results.store import intake


def arm(when: str, line: int) -> None:
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


def _fill() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
