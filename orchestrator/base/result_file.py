"""Opens a file of a run's folder, named by an untrusted host: a plain file there, reached by no link."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orchestrator.base import safe_paths as paths


@dataclass(frozen=True)
class Tail:
    data: bytes
    #: Bytes of the file before ``data``.
    cut: int


def opened(folder: Path, name: str) -> tuple[BinaryIO, int]:
    """Opens ``folder/name``, named as the host called it; returns it and its size. Raises OSError, ValueError for a bad
    name, a link or no plain file."""
    if paths.fault(name):
        raise ValueError("its name is not acceptable")
    at = folder
    for part in paths.harmless(name).split("/"):
        at /= part
        if at.is_symlink():
            raise ValueError("a link is in the way, and fcctl makes none")
    # O_NONBLOCK: a FIFO under that name must not make us wait for a writer.
    fd = os.open(at, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise ValueError("not a plain file")
    return os.fdopen(fd, "rb"), found.st_size


def tail(folder: Path, name: str, most: int) -> Tail | None:
    """At most the last ``most`` bytes of ``folder/name``; None where :func:`opened` would raise."""
    try:
        stream, size = opened(folder, name)
    except (OSError, ValueError):
        return None
    with stream:
        start = max(0, size - most)
        stream.seek(start)
        return Tail(stream.read(most), start)
