"""The folder for the tests' files: in memory if there is room, where fsync takes no time.

That fcctl syncs what it reports as done is tested in ``tests/power_cut``.
"""

from __future__ import annotations

import functools
import os
import tempfile

MEMORY = "/dev/shm"
ROOM = 6 * 1024**3  # a whole run has less at any time


@functools.cache
def folder() -> str:
    """A short name, whatever ``TMPDIR`` says: tmux puts a Unix socket below it."""
    try:
        found = os.statvfs(MEMORY)
    except OSError:
        return "/tmp"
    roomy = found.f_bavail * found.f_frsize >= ROOM and not found.f_flag & os.ST_NOEXEC
    return MEMORY if roomy and os.access(MEMORY, os.W_OK) else "/tmp"


def use() -> None:
    """For this process and those that it starts, unless ``TMPDIR`` is set."""
    if "TMPDIR" not in os.environ:
        os.environ["TMPDIR"] = tempfile.tempdir = folder()
