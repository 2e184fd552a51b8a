"""An fcctl that is killed with SIGKILL at the N-th line of its journal.

``after``: the line is on disk and its effect has not begun. ``before``: the effect of the line before has happened and
this line is not on disk.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from orchestrator.base.journal import FileJournal


def arm(when: str, line: int) -> None:
    real, count = FileJournal.append, 0

    def append(self: FileJournal, kind: str, **data: Any) -> None:
        nonlocal count
        count += 1
        if count == line and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, kind, **data)
        if count == line and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    FileJournal.append = append  # type: ignore[method-assign]
