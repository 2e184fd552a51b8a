"""``python -m tests.support.killed_fcctl before|after N ARGS...``: fcctl, killed with SIGKILL at its N-th journal line.

``after``: the line is on disk and its effect has not begun. ``before``: the effect of the line before has happened and
this line is not on disk.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from orchestrator.adapters.store.journal import FileJournal
from orchestrator.cli.main import main


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


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
