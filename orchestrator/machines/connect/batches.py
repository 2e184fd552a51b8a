"""Sends source files in calls to the agent: one for a few small files, several where rsync is not available."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fcctl_remote import wire

#: What goes into one call before rsync, which sends only the changed part of a file, is worth its start.
INLINE_BYTES = 256 * 1024
INLINE_FILES = 64
#: The most files in one of several calls.
MOST_FILES = 1000


@dataclass
class Batch:
    """The files of one ``tree_put``, and their contents concatenated."""

    files: list[wire.PutFile] = field(default_factory=list)
    content: bytearray = field(default_factory=bytearray)


def inline(source_root: Path, paths: Sequence[str], sizes: Mapping[str, int]) -> Batch | None:
    """All files in one batch; None if they are too many or too large."""
    if paths and len(paths) > INLINE_FILES:
        return None
    parts = batches(source_root, paths, sizes, INLINE_BYTES + 1)
    batch, more = next(parts, Batch()), next(parts, None)
    return batch if more is None and len(batch.content) <= INLINE_BYTES else None


def batches(
    source_root: Path, paths: Sequence[str], sizes: Mapping[str, int], most_bytes: int = wire.MAX_BLOB_BYTES
) -> Iterator[Batch]:
    """The current files, a large one in several parts.

    A file that grew since its hash was taken is sent with its earlier size from ``sizes``: that matches the hash of a
    log, such as ``fcctl run ... | tee run.log`` writes. A file that is gone or unreadable is left out. The snapshot's
    check reports any other change.
    """
    batch = Batch()
    for path in paths:
        for part, data in _parts(source_root, path, sizes.get(path), most_bytes):
            if len(batch.content) + len(data) > most_bytes or len(batch.files) == MOST_FILES:
                yield batch
                batch = Batch()
            batch.files.append(part)
            batch.content += data
    if batch.files:
        yield batch


def _parts(source_root: Path, path: str, size: int | None, most_bytes: int) -> Iterator[tuple[wire.PutFile, bytes]]:
    full = source_root / path
    try:
        facts = os.lstat(full)
        if stat.S_ISLNK(facts.st_mode):
            yield wire.PutFile(path, 0, facts.st_mtime, link=os.readlink(full)), b""  # noqa: PTH115 - the text as it is
            return
        # Follows no link, and does not wait for the other end of a pipe.
        stream = os.fdopen(os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError:
        return
    executable, offset = bool(facts.st_mode & 0o100), 0
    with stream:
        while True:
            left = most_bytes + 1 if size is None else size - offset
            data = stream.read(min(left, most_bytes))
            last = len(data) < most_bytes or len(data) == left
            yield wire.PutFile(path, len(data), facts.st_mtime, executable, offset=offset, last=last), data
            if last:
                return
            offset += len(data)
