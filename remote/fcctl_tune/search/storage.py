"""A search's file: Optuna's journal, for one process at a time, valid after any kill. This module imports Optuna."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Dict, List

from optuna.storages.journal import JournalFileBackend

from fcctl_remote.base import files
from fcctl_tune.errors import StudyLocked, TuneError


class Journal(JournalFileBackend):
    """Optuna's operations as JSON lines, appended.

    Optuna's own locks are a *file* for each line, which a killed process leaves behind, and it stops at a line that was
    cut short. Here the kernel's lock ends with the process, and opening the file removes an incomplete last line. Lines
    reach the disk at :meth:`sync`, in order.
    """

    def __init__(self, path: str) -> None:
        """Raises: StudyLocked; TuneError, if the file is no journal or cannot be written."""
        self.path = path
        self._open(os.path.dirname(os.path.abspath(path)))
        super().__init__(path)

    def _open(self, folder: str) -> None:
        path = self.path
        try:
            files.make_folders(folder)
            held = files.try_lock(path + ".lock")
            if held is None:
                holder = files.read_plain(path + ".lock", 32).decode("ascii", "replace").strip()
                who = f"process {holder}" if holder.isdigit() else "another process"
                raise StudyLocked(f"{who} uses {path}", "wait until that process ends, or end it")
            with contextlib.ExitStack() as ending:
                ending.callback(os.close, held)
                os.ftruncate(held, 0)
                os.pwrite(held, b"%d\n" % os.getpid(), 0)
                self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
                ending.callback(os.close, self._fd)
                files.sync_folder(folder)
                self._repair()
                self._ending = ending.pop_all()
        except OSError as error:
            raise TuneError(f"{path} cannot be opened: {error.strerror}") from None

    def _repair(self) -> None:
        """Cut off what follows the last whole line. Raises: TuneError, if whole lines follow a broken one."""
        end = broken = 0
        with open(self.path, "rb") as stream:
            for number, line in enumerate(stream, 1):
                is_whole = _is_operation(line)
                if is_whole and broken:
                    hint = "to start the search from the beginning, move this file away"
                    raise TuneError(f"{self.path} is damaged at line {broken}", hint)
                end += len(line) * is_whole
                broken = broken or (0 if is_whole else number)
        if os.fstat(self._fd).st_size > end:
            os.ftruncate(self._fd, end)

    def append_logs(self, logs: List[Dict[str, Any]]) -> None:
        """Raises: TuneError, if the disk is full; then nothing is added."""
        lines = [json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in logs]
        before = os.fstat(self._fd).st_size
        try:
            files.write_all(self._fd, b"".join(lines))
        except OSError as error:
            os.ftruncate(self._fd, before)
            raise TuneError(f"{self.path} cannot be written: {error.strerror}") from None

    def sync(self) -> None:
        files.flush(self._fd)

    def close(self) -> None:
        self._ending.close()


def _is_operation(line: bytes) -> bool:
    if not line.endswith(b"\n"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
