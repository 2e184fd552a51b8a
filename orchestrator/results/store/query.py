"""SQL of a user's on the index: reading only, in bounded time and memory."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.base.errors import FcctlError, UsageError

MAX_VALUE_BYTES = 10_000_000
_STEPS = 20_000  # of SQLite's virtual machine between looks at the clock: a few milliseconds
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_FORBIDDEN = frozenset({"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"})


def run(path: Path, sql: str, limit_s: float, max_rows: int) -> tuple[list[str], list[tuple[Any, ...]], bool]:
    """Column names, rows, and whether there would have been more rows.

    Three locks, each of which would do: the file is opened for reading, the connection answers queries only, and an
    authorizer lets nothing through but SELECT on the index's own tables.

    Raises:
        UsageError: no query, or not one that is allowed, or one that takes too long.
        FcctlError: the index cannot be read.
    """
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
        raise UsageError("that is no query", hint='for instance: fcctl results sql "SELECT job, count(*) FROM runs"')
    rows = cursor.fetchmany(max_rows + 1)
    return [column[0] for column in cursor.description], rows[:max_rows], len(rows) > max_rows


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:  # noqa: ARG001
    if action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _FORBIDDEN):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _explained(exc: sqlite3.Error, limit_s: float) -> FcctlError:
    said = str(exc).splitlines()[0][:300] if str(exc) else type(exc).__name__
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_INTERRUPT:
        return UsageError(
            f"the query took longer than {limit_s:g} s", hint="narrow it down, or give it more: --time-limit 60"
        )
    if code in (sqlite3.SQLITE_AUTH, sqlite3.SQLITE_READONLY) or "prohibited" in said or "not authorized" in said:
        return UsageError("only SELECT is allowed", cause=said, hint="the index is disposable; the runs are the truth")
    return UsageError(f"SQLite says: {said}", hint="tables: runs, benchmarks; fcctl results sql --schema shows them")
