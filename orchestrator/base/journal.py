"""The journal of an active run, one JSON line per intent, on disk before the deed; and who owns the run: a kernel lock
on ``active/<run-id>/lock``, gone with its process however that dies."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from fcctl_remote.base.files import flush, sync_folder, write_all
from orchestrator.base.clock import Clock
from orchestrator.base.errors import DiskError
from orchestrator.base.files import disk_errors
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
        return entry, _encoded(entry), elapsed

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
                # The next append opens the file anew and cuts away what is beyond its length, should this fail, too.
                with suppress(OSError):
                    os.ftruncate(fd, self._length)
                os.close(fd)
                self._fd = None
                raise
        self._length += len(lines)

    def entries(self) -> list[JournalEntry]:
        return list(self._entries)

    def content(self) -> bytes:
        """The file; if somebody deleted it, the same lines from memory."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b"".join(map(_encoded, self._entries))

    def age(self, entry: JournalEntry) -> float:
        """Seconds since one of the entries was written, sleep of this computer included. Independent of changes of the
        clock, unless one happened between another process's write and this one's read."""
        return self._clock.elapsed() - self._written[entry.seq]

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
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            fd = os.open(self._path, flags, 0o644)
            try:
                os.ftruncate(fd, self._length)
                sync_folder(self._path.parent)
            except OSError:
                os.close(fd)
                raise
            self._fd = fd
        return self._fd


def _encoded(entry: JournalEntry) -> bytes:
    return json.dumps(entry.model_dump(mode="json"), separators=(",", ":")).encode() + b"\n"


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


#: How long ``ps``, which asks each host for at most 5 s, may own a run or a session.
LOOK_S = 6.0
#: So long at most an owner waits for those that only ask whether a lock is taken, seconds. They have it for a moment,
#: which on a busy computer may last.
ASKERS_S = 60.0
_held: weakref.WeakSet[OwnerLock] = weakref.WeakSet()


class OwnerLock:
    """A lock until :meth:`release` or the process's end. No child inherits it: else it would own the run after its
    parent."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        _held.add(self)

    @classmethod
    def take(cls, path: Path, started: float) -> OwnerLock | None:
        """The lock on ``path``; None while another process has it. Raises FileNotFoundError if the folder is gone."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)  # a file that is there can be locked on any disk
            except OSError:
                raise error from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The owner may have finished the run, and with it this very file, while we were opening it.
            if not _is_still(path, fd):
                os.close(fd)
                return None
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
            with contextlib.suppress(OSError):  # for messages only: a full disk does not prevent the lock
                os.ftruncate(fd, 0)
                write_all(fd, json.dumps(owner).encode())
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    @classmethod
    def within(cls, path: Path, seconds: float, started: float | None = None) -> OwnerLock | None:
        """The same; None if another process owns it after ``seconds``. One that asks (:meth:`is_taken`) owns nothing;
        for such processes it waits :data:`ASKERS_S`."""
        began = time.monotonic()
        while (lock := cls.take(path, time.time() if started is None else started)) is None:
            waited = time.monotonic() - began
            if waited >= seconds and (waited >= ASKERS_S or cls.is_taken(path)):
                return None
            time.sleep(0.005)
        return lock

    @staticmethod
    def is_taken(path: Path) -> bool:
        """Whether a process owns ``path``; False if the file is gone. Asks with a shared lock: two that ask at the same
        time both get the right answer."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    @property
    def held(self) -> bool:
        return self._fd is not None

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file, as of a lock's owner: its pid, host and start time. None: there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
