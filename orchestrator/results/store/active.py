"""A run that is not complete: its folder, its owner, and the way it becomes a complete one."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fcctl_remote.base.files import sync_folder
from orchestrator.base.clock import Clock
from orchestrator.base.errors import ConflictError, FcctlError
from orchestrator.base.files import disk_errors, make_folders, sync_tree, write_atomic
from orchestrator.base.journal import FileJournal, OwnerLock, read_object
from orchestrator.base.safe_paths import UNFINISHED
from orchestrator.results.records import RunRecord
from orchestrator.results.store.intake import FolderIntake, Limits
from orchestrator.results.store.rows import RECORD, DamagedRecord, is_complete, read_record

PLAN, JOURNAL, LOCK = "plan.json", "journal.jsonl", "lock"
#: An active folder on its way out: renamed first, so that a crash while deleting it leaves no half of a run.
DONE = ".done-"


class RunPaths:
    """Every path of one run."""

    def __init__(self, root: Path, run_id: str) -> None:
        self.root, self.run_id = root, run_id
        self.active = root / "active" / run_id
        self.done = root / "active" / f"{DONE}{run_id}"
        self.damaged = root / "active" / f".damaged-{run_id}"
        self.partial = root / "runs" / f"{run_id}.partial"
        self.final = root / "runs" / run_id


class FileActiveRun:
    """A run this controller owns until it is complete. Made by the store, which holds the lock it is given."""

    def __init__(self, places: RunPaths, lock: OwnerLock, clock: Clock, index: Callable[[RunRecord], None]) -> None:
        self.run_id = places.run_id
        self._places = places
        self._lock = lock
        self._index = index
        self._plan: dict[str, Any] | None = None
        self.journal = FileJournal(places.active / JOURNAL, clock)

    @property
    def plan(self) -> dict[str, Any]:
        """The plan that ``begin`` saved; the copy in memory if its file was deleted since. Raises FcctlError: it is
        missing or damaged."""
        self._plan = read_object(self._places.active / PLAN) or self._plan
        if self._plan is None:
            raise FcctlError(
                f"run {self.run_id} has no plan", hint=f"it never started; delete it: rm -r {self._places.active}"
            )
        return self._plan

    def intake(self, most: int | None = None) -> FolderIntake:
        """Args: most: of what the host sends, bytes; None: as many as the store allows."""
        limits = Limits()
        return FolderIntake(
            self._places.partial, limits if most is None else replace(limits, bytes=min(most, limits.bytes))
        )

    def add(self, make: Callable[[Path], Mapping[str, bytes]]) -> None:
        """Files of our own beside the collected ones: ``make`` gets their folder, and gives paths and contents. A file
        that the host sent under such a name gives way. Raises FcctlError: the disk is full; or the host left something
        else than a file there."""
        if is_complete(self._places.final):
            return
        intake = self.intake()
        for path, content in make(self._places.partial).items():
            intake.discard(path)
            intake.write(path, 0, content)

    def complete(self, record: RunRecord) -> Path:
        """Make the run complete; safe to repeat after a crash at any point of it. Returns the run's folder.

        The order is what makes it safe: (1) journal, plan and run.json join the results, flushed; (2) one rename makes
        them final; (3) the index learns of it, or does so at the next listing; (4) the active folder goes. Raises
        ConflictError: another folder has the run's name; FcctlError: the disk is full or not writable; the run is still
        active and nothing of it is lost."""
        if record.run_id != self.run_id:
            raise ValueError(f"the record belongs to {record.run_id}, not to {self.run_id}")
        with disk_errors("complete the run", self._places.root, again=f"fcctl pull-results {self.run_id}"):
            if not is_complete(self._places.final):
                self._gather(record)
                self._publish()
            self.finish()
        return self._places.final

    def finish(self) -> None:
        """Syncs the name of the final folder to disk, adds the run to the index, and removes the active run."""
        with disk_errors("complete the run", self._places.root, again=f"fcctl pull-results {self.run_id}"):
            sync_folder(self._places.final.parent)
        with suppress(DamagedRecord):  # damaged after it was written: listings say so
            self._index(read_record(self._places.final, self.run_id))
        with disk_errors("end the active run", self._places.active):
            self._end()

    def finish_and_release(self) -> None:
        """The same by who only found the run: if it fails, the next command tries again."""
        try:
            self.finish()
        finally:
            self.release()

    def discard(self) -> None:
        """Remove an active run that has no plan: it was killed while being made, and never was.

        One whose plan is there but unreadable, or which has a journal, is put aside instead, under
        ``active/.damaged-<run-id>``.
        """
        active, plan = self._places.active, self._places.active / PLAN
        with disk_errors("remove the active run", active):
            if self._lock.held and (self.journal.entries() or (plan.is_file() and plan.stat().st_size)):
                os.rename(active, self._places.damaged)  # noqa: PTH104
                self.release()
            else:
                self._end()

    def release(self) -> None:
        """Let another controller claim the run (a detached run stays active)."""
        self.journal.close()
        self._lock.release()

    def _gather(self, record: RunRecord) -> None:
        active, partial = self._places.active, self._places.partial
        make_folders(partial)
        for left in partial.glob(f"{UNFINISHED}*"):  # by an fcctl that was killed here
            left.unlink()
        # From memory if somebody deleted the active run: what was collected is whole with them.
        plan = (active / PLAN).read_bytes() if (active / PLAN).exists() else json.dumps(self.plan).encode()
        write_atomic(partial, PLAN, plan)
        write_atomic(partial, JOURNAL, self.journal.content())
        write_atomic(partial, RECORD, record.model_dump_json(indent=1).encode() + b"\n")
        # Collected files are flushed here, all at once: the host may forget the run as soon as this returns.
        sync_tree(partial)

    def _publish(self) -> None:
        partial, final = self._places.partial, self._places.final
        try:
            os.rename(partial, final)  # noqa: PTH104  the crash tests count the os calls
        except OSError as exc:
            if exc.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise
            raise ConflictError(
                f"could not write the run's results: {final} already exists",
                cause=f"it has no {RECORD}, so it is not a complete run",
                hint=f"move it elsewhere, then: fcctl pull-results {self.run_id}",
            ) from exc

    def _end(self) -> None:
        active, done = self._places.active, self._places.done
        self.journal.close()
        if active.is_dir() and self._lock.held:
            shutil.rmtree(done, ignore_errors=True)
            os.rename(active, done)  # noqa: PTH104
            shutil.rmtree(done, ignore_errors=True)
        self._lock.release()
