"""A run out of an archive: written beside the others under a name that is no run's, and made one at the end."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

from orchestrator.base.errors import ConflictError, FcctlError
from orchestrator.base.files import disk_errors, sync_folder, sync_tree, write_all
from orchestrator.base.open_beneath import opened
from orchestrator.base.safe_paths import RESERVED
from orchestrator.results.records import RunRecord
from orchestrator.results.store.intake import FolderIntake, Limits
from orchestrator.results.store.rows import DamagedRecord, read_record

#: Folders of runs that are not whole yet; whatever is called so is nobody's if its maker has gone.
PREFIX = ".import-"


class IncomingRun:
    """It is none of the store's until :meth:`finish`."""

    def __init__(self, root: Path, run_id: str, limits: Limits, index: Callable[[RunRecord], None]) -> None:
        self.run_id = run_id
        self._final = root / "runs" / run_id
        self._folder = root / "runs" / f"{PREFIX}{run_id}-{secrets.token_hex(4)}"
        self._index = index
        self._intake = FolderIntake(self._folder, limits)

    def write(self, path: str, offset: int, data: bytes) -> None:
        """Put ``data`` at ``offset``, which is the present size.

        Raises:
            HostFault: an unacceptable name, or over the limits.
            FcctlError: the disk is full.
        """
        if path not in RESERVED:
            self._intake.write(path, offset, data)
            return
        # What a host may not send, a store may: its own files are part of an archive.
        with (
            disk_errors("store the run", self._folder),
            opened(self._folder, path, os.O_WRONLY, create=True) as fd,
        ):
            if os.fstat(fd).st_size != offset:
                raise ValueError(f"{path}: out of order")
            os.lseek(fd, offset, os.SEEK_SET)
            write_all(fd, data)

    def check(self) -> None:
        """Whether :meth:`finish` can be called: for all runs of an archive, before it is for any.

        Raises:
            FcctlError: this is no complete run.
            ConflictError: something has its name by now.
        """
        if self._final.exists():
            raise ConflictError(f"run {self.run_id} exists already", hint=f"look at it: ls {self._final}")
        try:
            read_record(self._folder, self.run_id)
        except DamagedRecord as exc:
            raise FcctlError(
                f"the archive's run {self.run_id} is none",
                cause=str(exc),
                hint="export it again where it was collected: fcctl results export",
            ) from exc

    def finish(self) -> Path:
        """Make it a run of the store, flushed and indexed. After :meth:`check`."""
        with disk_errors("store the run", self._folder):
            sync_tree(self._folder)
            os.rename(self._folder, self._final)  # noqa: PTH104
            sync_folder(self._final.parent)
            self._index(read_record(self._final, self.run_id))
        return self._final

    def discard(self) -> None:
        """Remove what was written, if it has not become a run."""
        shutil.rmtree(self._folder, ignore_errors=True)
