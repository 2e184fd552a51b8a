"""The console script ``fcctl``: :func:`orchestrator.cli.main.main`, started and left quickly."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from typing import NoReturn

#: Importing makes many objects that live as long as the process. Looking through them for garbage again and again, as
#: Python's default of 700 has it, is a tenth of the time that a short command takes.
GC_THRESHOLD = 20_000


def entry() -> NoReturn:
    """Run the command line and leave with its exit code.

    The process ends without Python's own clearing up: that frees memory piece by piece and waits for the threads of
    connections that are closed already. By now streams are flushed, the log file is closed, and what had to be on disk
    was flushed when it was written.
    """
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    from orchestrator.cli.main import main

    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    entry()
