"""The end of a file below a run's folder, whatever a host called it."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from orchestrator.domain import paths


@dataclass(frozen=True)
class Tail:
    data: bytes
    #: Bytes of the file before ``data``.
    cut: int


def tail(folder: Path, name: str, most: int) -> Tail | None:
    """At most the last ``most`` bytes of ``folder/name``; None unless it is a plain file there, reached by no link."""
    if paths.fault(name):
        return None
    at = folder
    for part in name.split("/"):
        at /= part
        if at.is_symlink():
            return None
    try:
        fd = os.open(at, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return None
        start = max(0, found.st_size - most)
        return Tail(os.pread(fd, most, start), start)
    finally:
        os.close(fd)
