"""The tables of ``index.sqlite``, and a user's SELECT on them.

There are no migrations: another version is dropped and built again from the runs.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.base.errors import FcctlError, UsageError
from orchestrator.results.measurement import Measurement
from orchestrator.results.records import RunRow

#: Raise it with any change below, or of what a row says.
VERSION = 5

COLUMNS = tuple(RunRow.model_fields)
MEASURED = tuple(field.name for field in fields(Measurement))

CREATE = (
    """CREATE TABLE runs (
        run_id TEXT PRIMARY KEY, job TEXT NOT NULL, target TEXT NOT NULL, status TEXT NOT NULL,
        exit_code INTEGER NOT NULL, created TEXT NOT NULL, finished TEXT NOT NULL, duration_s REAL NOT NULL,
        gpu TEXT, git_commit TEXT, usd REAL NOT NULL, tree_sha256 TEXT NOT NULL, dirty INTEGER NOT NULL
    ) WITHOUT ROWID""",
    # Newest first is how rows are asked for; ids carry whole seconds only, so `created` decides and the id breaks ties.
    "CREATE INDEX by_created ON runs (created, run_id)",
    "CREATE INDEX by_job ON runs (job, created, run_id)",
    "CREATE INDEX by_target ON runs (target, created, run_id)",
    "CREATE INDEX by_status ON runs (status, created, run_id)",
    # All that a history needs, in the order it is asked for: no run's folder is opened to draw one. `place` tells
    # apart what one run measured several times.
    """CREATE TABLE benchmarks (
        run_id TEXT NOT NULL, created TEXT NOT NULL, job TEXT NOT NULL, target TEXT NOT NULL, status TEXT NOT NULL,
        benchmark TEXT NOT NULL, variant TEXT NOT NULL, mode TEXT NOT NULL, unit TEXT NOT NULL, shape TEXT NOT NULL,
        method TEXT NOT NULL, reference INTEGER NOT NULL, p50 REAL NOT NULL, n INTEGER NOT NULL, gpu TEXT, driver TEXT,
        git_commit TEXT, tree_sha256 TEXT NOT NULL, ratio REAL, settings TEXT NOT NULL,
        place INTEGER NOT NULL,
        PRIMARY KEY (benchmark, variant, mode, created, run_id, place)
    ) WITHOUT ROWID""",
    "CREATE INDEX of_run ON benchmarks (run_id)",
    # Folders that hold no usable run.json: `stamp` tells when there is reason to look again.
    "CREATE TABLE skipped (run_id TEXT PRIMARY KEY, reason TEXT NOT NULL, stamp TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE seen (runs_mtime_ns INTEGER NOT NULL)",
    "INSERT INTO seen VALUES (-1)",
)
TABLES = ("runs", "benchmarks", "skipped")
DROP = tuple(f"DROP TABLE IF EXISTS {table}" for table in (*TABLES, "seen"))

INSERT = f"INSERT OR REPLACE INTO runs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608
INSERT_MEASURED = (
    f"INSERT OR REPLACE INTO benchmarks ({', '.join((*MEASURED, 'place'))}) "  # noqa: S608
    f"VALUES ({', '.join('?' * (len(MEASURED) + 1))})"
)
FIRST_NAME = "SELECT benchmark, variant FROM benchmarks ORDER BY benchmark, variant LIMIT 1"
NEXT_NAME = (
    "SELECT benchmark, variant FROM benchmarks WHERE (benchmark, variant) > (?, ?) ORDER BY benchmark, variant LIMIT 1"
)
BEST = """
    SELECT DISTINCT run_id FROM (
        SELECT run_id, row_number() OVER (
            PARTITION BY benchmark, variant, mode, unit, shape, method, gpu ORDER BY p50, created
        ) AS place FROM benchmarks WHERE NOT reference
    ) WHERE place <= ?
"""
FILTERS = frozenset({"run_id", "job", "target", "status", "gpu", "git_commit"})
MEASURED_FILTERS = frozenset({"benchmark", "variant", "mode", "gpu", "job", "target", "run_id"})


#: The orders that runs can be listed in.
ORDERS = {
    "newest": "created DESC, run_id DESC",
    "oldest": "created, run_id",
    "longest": "duration_s DESC, created DESC",
    "most expensive": "usd DESC, created DESC",
}
_SEARCHED = "lower(run_id || ' ' || status || ' ' || coalesce(gpu, '') || ' ' || coalesce(git_commit, ''))"


@dataclass(frozen=True)
class Search:
    """Runs that have each of ``words`` in their names, or are of one of ``commits``; in an order of :data:`ORDERS`."""

    words: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    order: str = "newest"

    @property
    def condition(self) -> str:
        named = " AND ".join(f"instr({_SEARCHED}, ?) > 0" for _ in self.words)
        return f"({named} OR git_commit IN ({', '.join('?' * len(self.commits))}))" if named else ""

    @property
    def parameters(self) -> tuple[str, ...]:
        return (*(word.lower() for word in self.words), *self.commits) if self.words else ()


#: No search.
EVERYTHING = Search()


def select(where: list[str], limited: bool, search: Search = EVERYTHING) -> str:
    """The query for rows, ``where`` being names of columns out of :data:`FILTERS`."""
    return _select("runs", COLUMNS, where, ORDERS[search.order], limited, search.condition)


def select_measured(where: list[str]) -> str:
    """The query for the newest measurements, newest first, ``where`` out of :data:`MEASURED_FILTERS`; limited."""
    return _select("benchmarks", MEASURED, where, "created DESC, run_id DESC, place DESC", limited=True)


def _select(
    table: str, columns: tuple[str, ...], where: list[str], order: str, limited: bool, more: str = ""
) -> str:  # fmt: skip
    conditions = [*(f"{name} = ?" for name in where), *([more] if more else [])]
    condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    end = " LIMIT ?" if limited else ""
    return f"SELECT {', '.join(columns)} FROM {table}{condition} ORDER BY {order}{end}"  # noqa: S608


def values(row: RunRow) -> tuple[object, ...]:
    return tuple(getattr(row, column) for column in COLUMNS)


def measured_values(measurements: list[Measurement]) -> list[tuple[object, ...]]:
    """Rows of ``benchmarks``, numbered in the order they were measured."""
    return [(*astuple(m), place) for place, m in enumerate(measurements)]


MAX_VALUE_BYTES = 10_000_000
_STEPS = 20_000  # of SQLite's virtual machine between looks at the clock: a few milliseconds
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_FORBIDDEN = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})


def run_select(path: Path, sql: str, limit_s: float, max_rows: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """Column names, rows, and whether there would have been more rows.

    Three locks, each of which would do: the file is opened for reading, the connection answers queries only, and an
    authorizer lets nothing through but SELECT on the index's own tables. Raises UsageError: no query, or not one that
    is allowed, or one that takes too long; FcctlError: the index cannot be read."""
    url = f"file:{quote(str(path))}?mode=ro"
    try:
        with closing(sqlite3.connect(url, uri=True, timeout=limit_s)) as db:
            db.execute("PRAGMA query_only = ON")
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            db.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            db.set_authorizer(_authorize)
            deadline = time.monotonic() + limit_s
            db.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            return _fetch(db, sql, max_rows)
    except sqlite3.Error as exc:
        raise _explained(exc, limit_s) from exc


def _fetch(db: sqlite3.Connection, sql: str, max_rows: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    cursor = db.execute(sql)
    if cursor.description is None:
        raise UsageError("this is not a query", hint='for example: fcctl results sql "SELECT job, count(*) FROM runs"')
    rows = cursor.fetchmany(max_rows + 1)
    return [column[0] for column in cursor.description], rows[:max_rows], len(rows) > max_rows


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:  # noqa: ARG001
    if action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _explained(exc: sqlite3.Error, limit_s: float) -> FcctlError:
    reason = str(exc).splitlines()[0][:300] if str(exc) else type(exc).__name__
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_INTERRUPT:
        return UsageError(
            f"the query took longer than {limit_s:g} s",
            hint="make the query smaller, or allow more time: --time-limit 60",
        )
    if code in (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY) or "prohibited" in reason or "not authorized" in reason:
        return UsageError("only SELECT is allowed", cause=reason, hint="the index is only a copy of the runs' data")
    return UsageError(
        f"SQLite reports: {reason}",
        hint="the tables are runs and benchmarks; see their columns: fcctl results sql --schema",
    )
