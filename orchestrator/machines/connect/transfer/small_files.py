"""A few small files inside one call to the agent: starting two rsyncs would take longer than sending them."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fcctl_remote import wire

#: What goes into one call. Beyond it rsync, which may send only the changed part of a file, is worth its start.
INLINE_BYTES = 256 * 1024
INLINE_FILES = 64


@dataclass(frozen=True)
class SmallFileSet:
    """The files of one ``tree_put``, and their contents end to end."""

    files: list[wire.PutFile]
    content: bytes


def packed(source_root: Path, paths: Sequence[str], sizes: Mapping[str, int]) -> SmallFileSet | None:
    """The files as they are now; None if they are too many or too large.

    Of a file that has grown since its hash was taken, the ``sizes`` bytes it had then: those are what the hash is of,
    if it is a log, and ``fcctl run ... | tee run.log`` in the workspace writes one all the time. What is gone or
    unreadable by now is left out. Whatever else has changed, the snapshot's check will say so.
    """
    if len(paths) > INLINE_FILES:
        return None
    files: list[wire.PutFile] = []
    content = bytearray()
    for path in paths:
        try:
            room = INLINE_BYTES - len(content) + 1
            file, data = _packed(source_root, path, min(room, sizes.get(path, room)))
        except OSError:
            continue
        content += data
        if len(content) > INLINE_BYTES:
            return None
        files.append(file)
    return SmallFileSet(files, bytes(content))


def _packed(source_root: Path, path: str, room: int) -> tuple[wire.PutFile, bytes]:
    """One file with at most ``room`` bytes of it. Raises OSError."""
    full = source_root / path
    facts = os.lstat(full)
    if stat.S_ISLNK(facts.st_mode):
        return wire.PutFile(path, 0, facts.st_mtime, link=os.readlink(full)), b""  # noqa: PTH115 - the text as it is
    fd = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as stream:
        data = stream.read(room)
    return wire.PutFile(path, len(data), facts.st_mtime, executable=bool(facts.st_mode & 0o100)), data
