"""Cuts source files into calls to the agent."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fcctl_remote import wire

#: The most files in one call.
MOST_FILES = 1000


@dataclass
class Batch:
    """The files of one ``tree_put``, and their contents concatenated."""

    files: list[wire.PutFile] = field(default_factory=list)
    content: bytearray = field(default_factory=bytearray)


def batches(source_root: Path, paths: Sequence[str], sizes: Mapping[str, int]) -> Iterator[Batch]:
    """The current files in calls of at most ``MAX_BLOB_BYTES``, a large one in several parts.

    A file that grew since its hash was taken is sent with its earlier size from ``sizes``: that matches the hash of a
    log, such as ``fcctl run ... | tee run.log`` writes. A file that is gone or unreadable is left out. The snapshot's
    check reports any other change.
    """
    batch = Batch()
    for path in paths:
        for part, data in _parts(source_root, path, sizes.get(path)):
            if len(batch.content) + len(data) > wire.MAX_BLOB_BYTES or len(batch.files) == MOST_FILES:
                yield batch
                batch = Batch()
            batch.files.append(part)
            batch.content += data
    if batch.files:
        yield batch


def _parts(source_root: Path, path: str, size: int | None) -> Iterator[tuple[wire.PutFile, bytes]]:
    full, most_bytes = source_root / path, wire.MAX_BLOB_BYTES
    try:
        facts = os.lstat(full)
        if stat.S_ISLNK(facts.st_mode):
            yield wire.PutFile(path, 0, facts.st_mtime, link=os.readlink(full)), b""  # noqa: PTH115 - the text as it is
            return
        stream = open(full, "rb", opener=_opener)  # noqa: SIM115 - closed below
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


def _opener(path: str, flags: int) -> int:
    """Follows no link, and does not wait for the other end of a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
