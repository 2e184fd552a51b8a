"""The record of a schedule's firings: ``results/schedules/<name>.jsonl``, one flushed line each, and two locks."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from orchestrator.base.files import disk_errors, flush, make_folders, sync_folder, write_all, write_atomic
from orchestrator.base.journal import OwnerLock
from orchestrator.schedules.due import Firing

#: So much of a record is read, from its end.
_NEWEST_BYTES = 4 << 20

#: Whoever looks whether a firing is at work has its lock for a moment; a firing that begins just then does not take
#: that for another one, seconds.
_LOOKERS_S = 1.0


class FiringRecords:
    """Append-only; safe with many processes, and after a crash in the middle of a line."""

    def __init__(self, results_dir: Path) -> None:
        self._folder = results_dir / "schedules"

    def read(self, name: str, *, whole: bool = False) -> list[Firing]:
        """Returns the schedule's firings, oldest first, without damaged lines; of a long record only the end unless
        ``whole``."""
        try:
            with self._path(name).open("rb") as file:
                file.seek(0 if whole else max(0, os.fstat(file.fileno()).st_size - _NEWEST_BYTES))
                lines = file.read().split(b"\n")
        except FileNotFoundError:
            return []
        return [firing for line in lines if (firing := _firing(line)) is not None]

    def append(self, name: str, firings: tuple[Firing, ...]) -> None:
        """On disk when this returns. A refusal for the same reason as the one before it only raises its count."""
        with disk_errors("write a schedule's record", self._folder):
            make_folders(self._folder)
            path = self._path(name)
            if len(firings) == 1 and firings[0].outcome == "refused" and self._counted(path, firings[0]):
                return
            fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                # A line that a crash cut short must not swallow this one; an empty line more is nothing.
                text = "".join(f"{json.dumps(f.model_dump(exclude_none=True))}\n" for f in firings)
                write_all(fd, f"\n{text}".encode() if _torn(fd) else text.encode())
                flush(fd)
            finally:
                os.close(fd)
            sync_folder(self._folder)

    def _counted(self, path: Path, refused: Firing) -> bool:
        """Whether the last line is the same refusal, and has it counted now."""
        try:
            before, _, last = path.read_bytes().rstrip(b"\n").rpartition(b"\n")
        except FileNotFoundError:
            return False
        known = _firing(last)
        same = ("outcome", "reason", "key")
        if known is None or any(getattr(known, name) != getattr(refused, name) for name in same):
            return False
        line = json.dumps(refused.model_copy(update={"count": known.count + 1}).model_dump(exclude_none=True))
        write_atomic(path.parent, path.name, b"".join([before, b"\n" if before else b"", line.encode(), b"\n"]))
        return True

    @contextmanager
    def deciding(self) -> Iterator[bool]:
        """Whether this process alone decides what is due; the lock ends with the process."""
        with self._held("tick") as held:
            yield held

    @contextmanager
    def firing(self, name: str) -> Iterator[bool]:
        """The lock of a firing of ``name``; False: another one is active."""
        with self._held(f"{name}.firing", _LOOKERS_S) as held:
            yield held

    def at_work(self, name: str) -> bool:
        with self._held(f"{name}.firing") as free:
            return not free

    @contextmanager
    def _held(self, name: str, patience_s: float = 0.0) -> Iterator[bool]:
        path, limit = self._folder / f"{name}.lock", time.monotonic() + patience_s
        with disk_errors("lock the schedules", self._folder):
            make_folders(self._folder)
            while (lock := OwnerLock.take(path, 0.0)) is None and time.monotonic() < limit:
                time.sleep(0.01)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                lock.release()

    def log_path(self, name: str) -> Path:
        """The file of a firing's output."""
        make_folders(self._folder)
        return self._folder / f"{name}.log"

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"


def _torn(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size > 0 and os.pread(fd, 1, size - 1) != b"\n"


def _firing(line: bytes) -> Firing | None:
    try:
        return Firing.model_validate_json(line) if line.strip() else None
    except ValidationError:
        return None
