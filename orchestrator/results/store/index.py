"""The index: SQLite beside the runs, so that listing ten thousand of them opens none.

It is never trusted to be there, whole or up to date. Missing, damaged, or of another version: it is built anew from
``runs/``. Behind (a controller was killed between renaming a folder and indexing it; folders were copied in or
deleted): the time ``runs/`` changed says so, and the difference is made up before anything is answered.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from pydantic import ValidationError

from orchestrator.base import run_id as run_ids
from orchestrator.base.clock import wait_for
from orchestrator.base.errors import FcctlError
from orchestrator.base.files import disk_errors, make_folders
from orchestrator.results.records import RunRecord, RunRow
from orchestrator.results.store import rows
from orchestrator.results.store.rows import RECORD, DamagedRecord, read_record, row_of
from orchestrator.results.timings import Measurement

T = TypeVar("T")

BUSY_S = 60.0
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FORMAT})
_OF_DISK = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
#: A folder changed again within this time may keep its old time stamp (HFS+ counts whole seconds).
_SETTLED_NS = 2_000_000_000
#: Runs whose rows are held in memory at once while the index is built.
_MAX_BATCH = 500
_MAX_NAMES = 5000


class Skipped(NamedTuple):
    """A folder of ``runs/`` that is no complete run, and why."""

    run_id: str
    reason: str


class Index:
    """One row a run. Every call opens its own connection, so it may be used from any thread and after a fork."""

    def __init__(self, path: Path, runs: Path, note: Callable[[str], None]) -> None:
        self._path = path
        self._runs = runs
        self._note = note

    def rows(self, limit: int | None, filters: dict[str, str], search: rows.Search = rows.EVERYTHING) -> list[RunRow]:
        """``filters`` are columns out of :data:`rows.FILTERS` and the values they must equal."""
        parameters: list[object] = [*filters.values(), *search.parameters]
        if limit is not None:
            parameters.append(limit)
        query = rows.select(
            "runs", list(filters), rows.ORDERS[search.order], limited=limit is not None, more=search.condition
        )

        def read(db: sqlite3.Connection) -> list[RunRow]:
            found = db.execute(query, parameters)
            return [RunRow.model_validate(dict(zip(rows.COLUMNS, row, strict=True))) for row in found]

        return self._with(read)

    def measurements(self, limit: int, filters: dict[str, str]) -> list[Measurement]:
        """Newest first; ``filters`` are columns out of :data:`rows.MEASURED_FILTERS` and the values they equal."""
        query = rows.select("benchmarks", list(filters), "created DESC, run_id DESC, place DESC", limited=True)

        def read(db: sqlite3.Connection) -> list[Measurement]:
            return [_measurement(row) for row in db.execute(query, (*filters.values(), limit))]

        return self._with(read)

    def benchmarks(self) -> list[tuple[str, str]]:
        """(benchmark, variant) of all that was ever measured, in order, at most :data:`_MAX_NAMES`."""

        def read(db: sqlite3.Connection) -> list[tuple[str, str]]:
            found: list[tuple[str, str]] = []
            # From one pair to the next through the primary key: a DISTINCT would read a million rows for a few names.
            row = db.execute(rows.FIRST_NAME).fetchone()
            while row and len(found) < _MAX_NAMES:
                at = (str(row[0]), str(row[1]))
                found.append(at)
                row = db.execute(rows.NEXT_NAME, at).fetchone()
            return found

        return self._with(read)

    def query(self, sql: str, parameters: Sequence[str | int]) -> list[tuple[Any, ...]]:
        """The rows of a SELECT."""
        return self._with(lambda db: db.execute(sql, parameters).fetchall())

    def remove(self, run_ids_gone: list[str]) -> None:
        """Forget runs whose folders are gone. Never fails: the next reader notices by itself."""
        try:
            with self._connection() as db, _writing(db):
                _drop(db, run_ids_gone)
        except (sqlite3.Error, OSError) as exc:
            self._note(f"the index still lists deleted runs ({exc}); the next listing removes them")

    def skipped(self) -> list[Skipped]:
        """The folders that are left out, as known since they were last looked at."""
        return self._with(lambda db: [Skipped(*row) for row in db.execute("SELECT run_id, reason FROM skipped")])

    def insert(self, record: RunRecord) -> None:
        """Add a run. Never fails: the run is complete without it, and the next reader makes up for what is missing."""
        try:
            with self._connection() as db, _writing(db):
                _drop(db, [record.run_id])
                self._insert(db, [record])
        except (sqlite3.Error, OSError) as exc:
            self._note(f"the run is complete but not in the index yet ({exc}); the next listing adds it")

    def rebuild(self) -> tuple[int, list[Skipped]]:
        """Build it anew; how many runs it holds now, and what was left out."""
        with self._exclusive():
            try:
                with closing(self._connect("rwc")) as db:
                    self._fill(db)
            except sqlite3.DatabaseError as exc:
                if not _is_damage(exc):
                    raise self._failure(exc) from exc
                self._remove()
                with closing(self._connect("rwc")) as db:
                    self._fill(db)
        return self._with(lambda db: (int(db.execute("SELECT count(*) FROM runs").fetchone()[0]), self.skipped()))

    def _with(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """``read`` on an index that is whole and up to date; in memory, if the real one cannot be written."""
        for last in (False, True):
            facts = _facts(self._path)
            try:
                with self._connection() as db:
                    self._catch_up(db)
                    return read(db)
            except (sqlite3.DatabaseError, ValidationError) as exc:
                if isinstance(exc, sqlite3.Error) and not _is_damage(exc):
                    if _code(exc) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
                        raise self._failure(exc) from exc
                    return self._in_memory(read, exc)
                if last:
                    raise self._failure(exc) from exc
                self._replace(facts, exc)
            except OSError as exc:
                return self._in_memory(read, exc)
        raise AssertionError("unreachable")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A connection to an index of this version, built if need be."""
        if not self._path.exists():
            self._build("the index of the runs does not exist yet")
        db = self._connect("rw")
        try:
            if _version(db) != rows.VERSION:
                db.close()
                self._build("the index of the runs has another version")
                db = self._connect("rw")
            yield db
        finally:
            db.close()

    def _connect(self, mode: str) -> sqlite3.Connection:
        url = f"file:{quote(str(self._path))}?mode={mode}"
        db = sqlite3.connect(url, uri=True, timeout=BUSY_S, isolation_level=None)
        # What a power cut takes from the index comes back with the next catch-up.
        db.execute("PRAGMA synchronous = NORMAL")
        return db

    def _build(self, why: str) -> None:
        with self._exclusive(), closing(self._connect("rwc")) as db:
            if _version(db) == rows.VERSION:
                return  # another process was faster
            if len(_folders(self._runs, _names(self._runs))) > 1:  # the very first run needs no explanation
                self._note(f"{why}: building it")
            self._fill(db)

    def _replace(self, damaged: os.stat_result | None, why: Exception) -> None:
        """Begin anew in place of the ``damaged`` file, unless another process has done so already."""
        with self._exclusive():
            present = _facts(self._path)
            if (present and present.st_ino) != (damaged and damaged.st_ino):
                return
            self._note(f"the index of the runs is damaged ({str(why).splitlines()[0]}): building a new one")
            self._remove()
            with closing(self._connect("rwc")) as db:
                self._fill(db)

    def _remove(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One builder at a time; SQLite's own locks do not cover the file's replacement."""
        make_folders(self._path.parent)  # runs and records will rely on it
        lock = self._path.with_name(self._path.name + ".lock")
        # Not the host program's lock: that deletes a link which stands there, and here it is the user's folder.
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            if not wait_for(lambda: _try_lock(fd), BUSY_S, pause_s=0.01):
                raise OSError(
                    errno.ETIMEDOUT, f"another fcctl process has been building it for {BUSY_S:g} s", str(lock)
                )
            yield
        finally:
            os.close(fd)

    def _in_memory(self, read: Callable[[sqlite3.Connection], T], why: Exception) -> T:
        self._note(f"the index of the runs cannot be written ({why}); reading every run instead")
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            self._fill(db)
            return read(db)

    def _failure(self, exc: Exception) -> FcctlError:
        hint = f"delete the index and build a new one: rm {self._path}* && fcctl results reindex"
        if isinstance(exc, sqlite3.Error) and _code(exc) in _OF_DISK:
            hint = f"check the disk and its free space: df -h {self._path.parent}; then: fcctl results reindex"
        cause = f"{self._path}: {str(exc).splitlines()[0]}"
        return FcctlError("the index of the runs cannot be used", cause=cause, hint=hint)

    def _fill(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode = WAL")
        with _writing(db):
            for statement in (*rows.DROP, *rows.CREATE):
                db.execute(statement)
            changed = _mtime_ns(self._runs)
            self._add(db, _folders(self._runs, _names(self._runs)))
            self._remember(db, changed)
            db.execute(f"PRAGMA user_version = {rows.VERSION:d}")

    def _catch_up(self, db: sqlite3.Connection) -> None:
        """Make the index agree with the names in ``runs/``, and look again at folders skipped earlier."""
        changed = _mtime_ns(self._runs)
        seen = db.execute("SELECT runs_mtime_ns FROM seen").fetchone()
        skipped = dict(db.execute("SELECT run_id, stamp FROM skipped").fetchall())
        again = [name for name, stamp in skipped.items() if _stamp(self._runs, name) != stamp]
        if seen is not None and seen[0] == changed and not again:
            return
        with _writing(db):
            # Under the write lock: what others index by now has its folder, so that nothing new looks gone.
            listed = {row[0] for row in db.execute("SELECT run_id FROM runs")}
            known = listed | skipped.keys()
            # Names alone, as long as nothing is new: asking what each of a hundred thousand is would take longer.
            names = _names(self._runs)
            gone, new = known - names, set(_folders(self._runs, names - known))
            _drop(db, [*gone, *again])
            left_out = self._add(db, [*new, *_folders(self._runs, names.intersection(again))])
            self._remember(db, changed)
        if left_out:
            self._note(f"skipped {left_out} of the folders in {self._runs}; see why: fcctl results reindex")

    def _add(self, db: sqlite3.Connection, names: Iterable[str]) -> int:
        """Index these folders; how many were skipped."""
        records: list[RunRecord] = []
        skipped = []
        for name in names:
            try:
                if not run_ids.is_valid(name):
                    raise DamagedRecord("its name is not a run id")
                records.append(read_record(f"{self._runs}/{name}", name))
            except DamagedRecord as exc:
                skipped.append((name, str(exc), _stamp(self._runs, name)))
            if len(records) >= _MAX_BATCH:
                self._insert(db, records)
                records.clear()
        self._insert(db, records)
        db.executemany("INSERT OR REPLACE INTO skipped VALUES (?, ?, ?)", skipped)
        return len(skipped)

    def _insert(self, db: sqlite3.Connection, records: list[RunRecord]) -> None:
        from orchestrator.results.store.rows import measured

        lines = [row_of(record) for record in records]
        db.executemany(rows.INSERT, [tuple(getattr(row, name) for name in rows.COLUMNS) for row in lines])
        for record, row in zip(records, lines, strict=True):
            db.executemany(rows.INSERT_USAGE, rows.usage_values(record, row))
            found, parents = measured(f"{self._runs}/{record.run_id}", record, row)
            db.executemany(rows.INSERT_MEASURED, [(*astuple(one), place) for place, one in enumerate(found)])
            db.executemany(rows.INSERT_PARENT, [(record.run_id, parent) for parent in parents])

    def _remember(self, db: sqlite3.Connection, changed: int) -> None:
        # Real time, not the port's: it is compared with the file system's.
        settled = time.time_ns() - changed > _SETTLED_NS
        db.execute("UPDATE seen SET runs_mtime_ns = ?", (changed if settled else -1,))


def _try_lock(fd: int) -> bool:
    """Takes the lock unless another process has it; returns whether this process has it now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _writing(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _drop(db: sqlite3.Connection, run_ids_gone: list[str]) -> None:
    for table in rows.TABLES:
        drop = f"DELETE FROM {table} WHERE run_id = ?"  # noqa: S608  names of our own
        db.executemany(drop, [(name,) for name in run_ids_gone])


def _measurement(row: tuple[Any, ...]) -> Measurement:
    found = dict(zip(rows.MEASURED, row, strict=True))
    if not isinstance(found["p50"], float) or not isinstance(found["n"], int):
        raise sqlite3.DatabaseError("a measurement is not a number")
    return Measurement(**{**found, "reference": bool(found["reference"])})


def _names(runs: Path) -> set[str]:
    with disk_errors("list the runs", runs):
        try:
            return set(os.listdir(runs))  # noqa: PTH208  names alone, at once
        except FileNotFoundError:
            return set()


def _folders(runs: Path, names: Iterable[str]) -> list[str]:
    """Those of ``names`` that are folders and should be complete runs; links are not followed."""
    return [
        n
        for n in names
        if not n.endswith(".partial")
        and not n.startswith(".")
        and (facts := _facts(f"{runs}/{n}"))
        and stat.S_ISDIR(facts.st_mode)
    ]


def _stamp(runs: Path, name: str) -> str:
    """Changes when a skipped folder's run.json does."""
    facts = _facts(f"{runs}/{name}/{RECORD}")
    return f"{facts.st_mtime_ns}:{facts.st_size}:{facts.st_mode}" if facts else "absent"


def _facts(path: Path | str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except OSError:
        return None


def _mtime_ns(path: Path) -> int:
    with disk_errors("list the runs", path):
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return 0


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _code(exc: sqlite3.Error) -> int:
    return getattr(exc, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _is_damage(exc: sqlite3.Error) -> bool:
    """Whether building anew would help: the file is no database, is torn, or lacks a table or column."""
    return _code(exc) in _DAMAGE
