"""The journal of an active run: one JSON line per intent, on disk before the deed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from orchestrator.base.clock import Clock
from orchestrator.base.errors import DiskError
from orchestrator.base.files import disk_errors, flush, sync_folder, write_all
from orchestrator.base.models import KEPT


class JournalEntry(BaseModel):
    model_config = KEPT

    seq: int
    time: float
    kind: str
    data: dict[str, Any] = {}


def newest(entries: Sequence[JournalEntry], *kinds: str) -> dict[str, Any]:
    """The data of the newest line of one of these kinds; empty without one."""
    return next((entry.data for entry in reversed(entries) if entry.kind in kinds), {})


class FileJournal:
    """``journal.jsonl``. A line that a crash cut short is ignored on reading and cut away by the next append."""

    #: Lines of :meth:`append_if_possible` that are not on disk yet.
    _late = b""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._fd: int | None = None
        self._entries, self._length = _read(path)
        #: When each line was written, by the monotonic clock.
        now, elapsed = clock.now(), clock.elapsed()
        self._written = {entry.seq: elapsed - max(0.0, now - entry.time) for entry in self._entries}

    def append(self, kind: str, **data: Any) -> None:
        """Adds a line; it is on disk when this returns. Raises DiskError; the journal is as before then."""
        entry, line, elapsed = self._line(kind, data)
        self._write(self._late + line)
        self._late = b""
        self._add(entry, elapsed)

    def append_if_possible(self, kind: str, **data: Any) -> bool:
        """Adds a line whose effect must not wait for room; False: it is in memory, and reaches the disk with the next
        line."""
        try:
            self.append(kind, **data)
        except DiskError:
            entry, line, elapsed = self._line(kind, data)
            self._late += line
            self._add(entry, elapsed)
        return not self._late

    def _line(self, kind: str, data: dict[str, Any]) -> tuple[JournalEntry, bytes, float]:
        """The next entry, its line, and its time by the monotonic clock."""
        seq = self._entries[-1].seq + 1 if self._entries else 1
        now, elapsed = self._clock.now(), self._clock.elapsed()
        entry = JournalEntry(seq=seq, time=now, kind=kind, data=data)
        line = json.dumps(entry.model_dump(mode="json"), separators=(",", ":")) + "\n"
        return entry, line.encode(), elapsed

    def _add(self, entry: JournalEntry, elapsed: float) -> None:
        self._entries.append(entry)
        self._written[entry.seq] = elapsed

    def _write(self, lines: bytes) -> None:
        with disk_errors("write the run's journal", self._path.parent):
            fd = self._open()
            try:
                write_all(fd, lines)
                flush(fd)
            except OSError:
                os.ftruncate(fd, self._length)
                raise
        self._length += len(lines)

    def entries(self) -> list[JournalEntry]:
        return list(self._entries)

    def age(self, entry: JournalEntry) -> float:
        """Seconds since one of the entries was written, sleep of this computer included. Independent of changes of the
        clock, unless one happened between another process's write and this one's read."""
        return max(0.0, self._clock.elapsed() - self._written[entry.seq])

    def close(self) -> None:
        """What could not be written before is written now, if there is room."""
        if self._late:
            with suppress(DiskError):
                self._write(self._late)
                self._late = b""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        if self._fd is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(self._path, flags, 0o644)
            os.ftruncate(self._fd, self._length)
            sync_folder(self._path.parent)
        return self._fd


def _read(path: Path) -> tuple[list[JournalEntry], int]:
    """Returns the whole lines and their length in bytes; a damaged line among them is skipped."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return [], 0
    entries: list[JournalEntry] = []
    length = position = 0
    for line in content.splitlines(keepends=True):
        position += len(line)
        try:
            entry = JournalEntry.model_validate_json(line)
        except ValidationError:
            continue
        if line.endswith(b"\n"):
            entries.append(entry)
            length = position
    return entries, length
