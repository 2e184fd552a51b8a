"""The store of one workspace: files, with an index in SQLite."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcctl_remote.base.files import sync_folder
from orchestrator.base import run_id as run_ids
from orchestrator.base.clock import Clock
from orchestrator.base.errors import ConflictError, FcctlError, RunNotFinished, RunNotFound
from orchestrator.base.files import alone_in, disk_error, disk_errors, make_folders, write_atomic
from orchestrator.base.journal import FileJournal, JournalEntry, OwnerLock, read_object
from orchestrator.results.records import RunRecord, RunRow
from orchestrator.results.store.active import DONE, JOURNAL, LOCK, PLAN, FileActiveRun, RunPaths
from orchestrator.results.store.intake import PREFIX, IncomingRun
from orchestrator.results.store.names import (
    MAX_TAGS_BYTES,
    TAGS,
    Tag,
    read_tags,
    resolve,
    tags_text,
    with_tag,
    without_tag,
)
from orchestrator.results.store.rows import DamagedRecord, is_complete, read_record

if TYPE_CHECKING:
    from orchestrator.results.store.index import Index, Skipped
    from orchestrator.results.store.rows import Search
    from orchestrator.results.timings import Measurement

#: An active folder that is being made; without its final name it is no run.
NEW = ".new-"
#: A complete run that is being deleted; and how long an import may stand still before it counts as dead, seconds.
PRUNED, IMPORT_S = ".pruned-", 86_400.0
#: Pending releases; see :meth:`FileStore.add_pending_release`.
PENDING = "active/.owed"


class FileStore:
    """``root`` is the workspace's ``results`` folder; it is created when the first run begins.

    Several processes may use one store at once. ``note`` hears what was repaired or skipped, one line at a time;
    stderr by default.
    """

    def __init__(self, root: Path, clock: Clock, *, note: Callable[[str], None] | None = None) -> None:
        self.root = root
        self._clock = clock
        self._note = note or _to_stderr

    @cached_property
    def _index(self) -> Index:
        """Not before it is used: a run needs SQLite at its end."""
        from orchestrator.results.store.index import Index

        return Index(self.root / "index.sqlite", self.root / "runs", self._note)

    def begin(self, run_id: str, plan: dict[str, Any]) -> FileActiveRun:
        """A new active run, owned by this process, its plan on disk. Raises ConflictError: a run of that id exists;
        FcctlError: the disk is full or not writable."""
        places = self._places(run_id)
        if places.active.exists() or places.final.exists():
            raise ConflictError(f"run {run_id} already exists", hint="start the run again: it then gets a new id")
        fresh = self.root / "active" / f"{NEW}{run_id}"
        with disk_errors("write the run's plan", self.root, again="start the run again"):
            self._sweep()
            make_folders(self.root / "runs")
            make_folders(fresh.parent)
            fresh.mkdir(exist_ok=True)
            lock = OwnerLock.take(fresh / LOCK, self._clock.now())
            if lock is None:
                raise ConflictError(f"another fcctl is creating run {run_id}", hint="start the run again")
            try:
                (fresh / JOURNAL).touch()
                write_atomic(fresh, PLAN, json.dumps(plan, indent=1).encode())
                os.rename(fresh, places.active)  # noqa: PTH104  the crash tests count the os calls
                sync_folder(places.active.parent)
            except BaseException:
                lock.release()
                shutil.rmtree(fresh, ignore_errors=True)
                raise
        return self._active(places, lock)

    def active(self) -> list[str]:
        """Ids of the runs that are not complete, oldest first. One that was killed after its last rename is ended."""
        try:
            names = sorted(p.name for p in (self.root / "active").iterdir() if run_ids.is_valid(p.name))
        except FileNotFoundError:
            return []
        except OSError as exc:
            raise disk_error(exc, "list the active runs", self.root / "active") from exc
        return [name for name in names if not self._ended(name)]

    def claim(self, run_id: str) -> FileActiveRun | None:
        """Take over an active run; None while another live process owns it. Raises RunNotFound: it
        is not active (any more)."""
        run = self._claim(run_id)
        if run is not None and is_complete(self._places(run_id).final):
            run.finish_and_release()
            raise _not_active(run_id)
        return run

    def is_followed(self, run_id: str) -> bool:
        """Whether a live process owns the run. False if it is not active."""
        path = self._places(run_id).active / LOCK
        with disk_errors("see who follows the run", path):
            return OwnerLock.is_taken(path)

    def plan_of(self, run_id: str) -> dict[str, Any] | None:
        """An active run's saved plan, without claiming it; None if it has none."""
        return read_object(self._places(run_id).active / PLAN)

    def journal_of(self, run_id: str) -> list[JournalEntry]:
        """A run's journal, active or complete, without claiming it; empty if there is no such run."""
        places = self._places(run_id)
        # Its owner may complete it meanwhile: the final folder is there before the active one goes.
        active = FileJournal(places.active / JOURNAL, self._clock).entries()
        return active or FileJournal(places.final / JOURNAL, self._clock).entries()

    def add_pending_release(self, run_id: str, entry: dict[str, Any]) -> None:
        """Record that the release of a machine that ``run_id`` started is pending."""
        folder = self.root / PENDING
        with disk_errors("record the pending release", folder):
            make_folders(folder)
            write_atomic(folder, f"{self._places(run_id).run_id}.json", json.dumps(entry).encode())

    def pending_releases(self) -> dict[str, dict[str, Any]]:
        """The pending releases, by run id."""
        pending = {}
        for path in sorted((self.root / PENDING).glob("*.json")):
            with suppress(OSError, ValueError):
                entry = json.loads(path.read_bytes())
                if run_ids.is_valid(path.stem) and isinstance(entry, dict):
                    pending[path.stem] = entry
        return pending

    def remove_pending_release(self, run_id: str) -> None:
        """Remove the pending release of ``run_id``; if the disk refuses, its machine is checked again."""
        note = self.root / PENDING / f"{self._places(run_id).run_id}.json"
        with suppress(OSError):
            note.unlink()
            sync_folder(note.parent)

    def has(self, run_id: str) -> bool:
        """Whether the run is active, with its plan, or complete; true also while its owner completes it."""
        return self.plan_of(run_id) is not None or self.is_complete(run_id)

    def is_complete(self, run_id: str) -> bool:
        """Whether the run's results are here, whole."""
        return run_ids.is_valid(run_id) and is_complete(self._places(run_id).final)

    def get(self, run_id: str) -> RunRecord:
        """A complete run's record. Raises RunNotFinished: it is active; RunNotFound: there is no such run; FcctlError:
        its run.json is damaged."""
        is_active = run_ids.is_valid(run_id) and self._places(run_id).active.is_dir()  # first: it may be completed then
        if not self.is_complete(run_id):
            if is_active:
                raise RunNotFinished(
                    f"run {run_id} is not complete yet",
                    hint=f"follow it: fcctl attach {run_id}; or collect its results: fcctl pull-results {run_id}",
                )
            raise RunNotFound(f"this workspace has no run {run_id[:80]!r}", hint="see the runs: fcctl results ls")
        try:
            return read_record(self._places(run_id).final, run_id)
        except DamagedRecord as exc:
            raise FcctlError(
                f"run {run_id} cannot be read",
                cause=str(exc),
                hint=f"its other files are in {self.folder(run_id)}; see all damaged runs: fcctl results reindex",
            ) from exc

    def resolve(self, name: str) -> str:
        """A full run id from an id, a unique prefix or suffix, ``last`` or ``last:<job>``; complete or active. Raises
        RunNotFound: with the nearest id as a hint."""
        return resolve(name, self)

    def rows(self, *, limit: int | None = None, **filters: str | None) -> list[RunRow]:
        """Complete runs, newest first; filters are ``run_id``, ``job``, ``target``, ``status``, ``gpu``,
        ``git_commit``."""
        from orchestrator.results.store.rows import Search

        return self.search(Search(), limit=limit, **filters)

    def search(self, search: Search, *, limit: int | None = None, **filters: str | None) -> list[RunRow]:
        """The same for runs that ``search`` finds, in its order."""
        from orchestrator.results.store.rows import FILTERS

        return self._index.rows(limit, _given(filters, FILTERS), search)

    def measurements(self, *, limit: int = 1000, **filters: str | None) -> list[Measurement]:
        """What complete runs measured, newest first, out of the index.

        Filters are ``benchmark``, ``variant``, ``mode``, ``gpu``, ``job``, ``target`` and ``run_id``.
        """
        from orchestrator.results.store.rows import MEASURED_FILTERS

        return self._index.measurements(limit, _given(filters, MEASURED_FILTERS))

    def benchmarks(self) -> list[tuple[str, str]]:
        """(benchmark, variant) of all that complete runs measured, in order."""
        return self._index.benchmarks()

    def query(self, sql: str, parameters: Sequence[str | int] = ()) -> list[tuple[Any, ...]]:
        """The rows of a SELECT on the index's tables ``runs`` and ``benchmarks``."""
        return self._index.query(sql, parameters)

    def incoming(self, run_id: str) -> IncomingRun:
        """A run that is about to be written from an archive. Raises RunNotFound: ``run_id`` is none; ConflictError: a
        run of that id is active here."""
        places = self._places(run_id)
        if places.active.exists():
            raise ConflictError(f"run {run_id} is still active", hint=f"collect it: fcctl pull-results {run_id}")
        return IncomingRun(self.root, places.run_id, self._insert)

    def best(self, count: int) -> set[str]:
        """The runs that hold one of the ``count`` best times of any benchmark of ours."""
        from orchestrator.results.store.rows import BEST

        return {row[0] for row in self.query(BEST, (count,))}

    def size(self, run_id: str) -> int:
        """Bytes of a complete run's files on the disk."""
        total = 0
        for top, _folders, names in os.walk(self._places(run_id).final):
            for name in names:
                with suppress(FileNotFoundError):
                    total += (Path(top) / name).lstat().st_blocks * 512
        return total

    def delete(self, run_ids_gone: Sequence[str]) -> None:
        """Delete complete runs for good, and what a killed deletion or import left. Each is renamed first, so that
        none is ever half there."""
        runs = self.root / "runs"
        if not runs.is_dir():
            return
        with disk_errors("delete runs", runs):
            for run_id in run_ids_gone:
                doomed = runs / f"{PRUNED}{run_id}"
                with suppress(FileNotFoundError):
                    os.rename(self._places(run_id).final, doomed)  # noqa: PTH104
            if run_ids_gone:
                sync_folder(runs)
                self._index.remove(list(run_ids_gone))
            for folder in runs.iterdir():
                if folder.name.startswith(PRUNED) or (folder.name.startswith(PREFIX) and _is_old(folder, IMPORT_S)):
                    shutil.rmtree(folder, ignore_errors=True)

    def tags(self) -> dict[str, Tag]:
        """Names that people gave to runs. Raises ConfigError: results/tags.toml is damaged."""
        path = self.root / TAGS
        if path.is_fifo():  # to open it would wait for its other end
            return read_tags("\0", str(path))
        try:
            with path.open("rb") as stream:
                text = stream.read(MAX_TAGS_BYTES).decode()
        except FileNotFoundError:
            return {}
        except UnicodeDecodeError:
            text = "\0"  # no TOML either
        except OSError:
            with disk_errors("read the tags", path):
                raise
        return read_tags(text, str(path))

    def tag(self, tag: Tag, *, move: bool) -> None:
        """Add a name, or with ``move`` let it stand for other runs than before. Raises ConflictError: it stands for
        other runs, and may not be moved."""
        self._change_tags(lambda tags: with_tag(tags, tag, move=move))

    def untag(self, name: str) -> None:
        """Forget a name. Raises NotFoundError: there is none."""
        self._change_tags(lambda tags: without_tag(tags, name))

    def _change_tags(self, how: Callable[[dict[str, Tag]], dict[str, Tag]]) -> None:
        """Nobody else changes them meanwhile; a damaged file is left as it is."""
        with disk_errors("write the tags", self.root):
            make_folders(self.root)
            with alone_in(self.root):
                old = self.tags()
                new = how(old)
                if new != old:
                    write_atomic(self.root, TAGS, tags_text(new).encode())

    def folder(self, run_id: str) -> Path:
        """Where the run's files are: the complete folder, or the partial one while that is all there is."""
        places = self._places(run_id)
        return places.partial if not places.final.is_dir() and places.partial.is_dir() else places.final

    def reindex(self) -> tuple[int, list[Skipped]]:
        """Build the index anew from the runs' folders: how many runs it holds, and what was skipped, and why."""
        with disk_errors("build the index of the runs", self.root):
            return self._index.rebuild()

    def _places(self, run_id: str) -> RunPaths:
        if not run_ids.is_valid(run_id):  # it is about to become a path
            raise RunNotFound(f"{run_id[:80]!r} is not a run id", hint="see the runs: fcctl results ls")
        return RunPaths(self.root, run_id)

    def _active(self, places: RunPaths, lock: OwnerLock) -> FileActiveRun:
        return FileActiveRun(places, lock, self._clock, self._insert)

    def _insert(self, record: RunRecord) -> None:
        self._index.insert(record)

    def _claim(self, run_id: str) -> FileActiveRun | None:
        places = self._places(run_id)
        with disk_errors("lock the run", places.active):
            if not places.active.is_dir():
                raise _not_active(run_id)
            try:
                lock = OwnerLock.within(places.active / LOCK, 0.0, self._clock.now())
            except FileNotFoundError:
                raise _not_active(run_id) from None
            return None if lock is None else self._active(places, lock)

    def _ended(self, run_id: str) -> bool:
        """Whether an active folder is of a complete run; what its controller could not finish is finished here."""
        if not is_complete(self._places(run_id).final):
            return False
        with suppress(FcctlError):  # its owner is about to do it, or has just done it
            run = self._claim(run_id)
            if run is not None:
                run.finish_and_release()
        return True

    def _sweep(self) -> None:
        """Delete folders that a killed controller was making or deleting."""
        with suppress(FileNotFoundError):
            for folder in (self.root / "active").iterdir():
                if folder.name.startswith(DONE) or (folder.name.startswith(NEW) and _is_old(folder)):
                    self._sweep_one(folder)

    def _sweep_one(self, folder: Path) -> None:
        with suppress(OSError):
            lock = OwnerLock.take(folder / LOCK, self._clock.now())
            if lock is not None:  # else its maker lives
                shutil.rmtree(folder, ignore_errors=True)
                lock.release()


def _given(filters: dict[str, str | None], known: frozenset[str]) -> dict[str, str]:
    """The filters that have a value. Raises TypeError: one is not known."""
    if unknown := filters.keys() - known:
        raise TypeError(f"unknown filters: {', '.join(sorted(unknown))}")
    return {name: value for name, value in filters.items() if value is not None}


def _not_active(run_id: str) -> RunNotFound:
    return RunNotFound(
        f"run {run_id} is not active", hint="see active runs: fcctl ps; see finished runs: fcctl results ls"
    )


def _is_old(folder: Path, seconds: float = 60) -> bool:
    """Whether whoever was making it is not about to lock it. Real time: the file system's."""
    try:
        return time.time() - folder.stat().st_mtime > seconds
    except FileNotFoundError:
        return False


def _to_stderr(message: str) -> None:
    sys.stderr.write(f"note: {message}\n")
