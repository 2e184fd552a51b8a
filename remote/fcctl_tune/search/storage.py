"""A search's file: Optuna's journal, for one process at a time, valid after any kill. This module imports Optuna."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from typing import Any, Dict, Iterator, List

from optuna.storages.journal import BaseJournalBackend

from fcctl_remote.base import files
from fcctl_tune.errors import StudyLocked, TuneError


class Journal(BaseJournalBackend):
    """Optuna's operations as JSON lines, appended.

    Optuna's own file backend has a lock *file* for each line, which a killed process leaves behind, and stops at a line
    that was cut short. Here the kernel's lock ends with the process, and opening the file removes an incomplete last
    line. Lines reach the disk at :meth:`sync`, in order.
    """

    def __init__(self, path: str) -> None:
        """Raises: StudyLocked; TuneError, if the file is no journal or cannot be written."""
        self.path = path
        try:
            files.make_folders(os.path.dirname(os.path.abspath(path)))
            self._lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            with contextlib.ExitStack() as ending:
                ending.callback(os.close, self._lock)
                self._take()
                self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                ending.callback(os.close, self._fd)
                files.sync_folder(os.path.dirname(os.path.abspath(path)))
                self._starts = self._repaired()
                ending.pop_all()
        except OSError as error:
            raise TuneError(f"{path} cannot be opened: {error.strerror}") from None

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(self._lock, 20).decode("ascii", "replace").strip()
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise StudyLocked(f"{who} uses {self.path}", "wait until that process ends, or end it") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)

    def _repaired(self) -> List[int]:
        """The offset of each line, and the end; cuts off what follows the last whole line. Raises: TuneError, if whole
        lines follow a broken one."""
        starts, end, broken = [0], 0, 0
        with open(self.path, "rb") as stream:
            for line in stream:
                if broken or not _is_operation(line):
                    broken = broken or len(starts)
                    if _is_operation(line):
                        hint = "to start the search from the beginning, move this file away"
                        raise TuneError(f"{self.path} is damaged at line {broken}", hint)
                    continue
                end += len(line)
                starts.append(end)
        if os.fstat(self._fd).st_size > end:
            os.ftruncate(self._fd, end)
        return starts

    def read_logs(self, log_number_from: int) -> Iterator[Dict[str, Any]]:
        last = len(self._starts) - 1
        start, end = self._starts[min(log_number_from, last)], self._starts[last]
        content = b""
        while len(content) < end - start:
            piece = os.pread(self._fd, end - start - len(content), start + len(content))
            if not piece:
                raise TuneError(f"{self.path} became shorter during the search")
            content += piece
        for line in content.splitlines():
            yield json.loads(line)

    def append_logs(self, logs: List[Dict[str, Any]]) -> None:
        """Raises: TuneError, if the disk is full; then nothing is added."""
        lines = [json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs]
        try:
            files.write_all(self._fd, b"".join(lines))
        except OSError as error:
            os.ftruncate(self._fd, self._starts[-1])
            raise TuneError(f"{self.path} cannot be written: {error.strerror}") from None
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))

    def sync(self) -> None:
        files.flush(self._fd)

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._lock)


def _is_operation(line: bytes) -> bool:
    if not line.endswith(b"\n"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
