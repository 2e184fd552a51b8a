"""Three locks on a user's query, each of which would do; and what its errors say."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.base.errors import FcctlError, UsageError
from orchestrator.results.store import schema

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    path = tmp_path / "in dex?.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE runs (job)")
        db.executemany("INSERT INTO runs VALUES (?)", [("a",), ("b",), ("c",)])
        db.commit()
    return path


@pytest.mark.parametrize(
    ("most", "rows", "more"),
    [(2, [("a",), ("b",)], True), (3, [("a",), ("b",), ("c",)], False), (4, [("a",), ("b",), ("c",)], False)],
)
def test_rows_up_to_a_limit(index: Path, most: int, rows: list[tuple[str]], more: bool) -> None:
    assert schema.run_select(index, "SELECT job AS j FROM runs ORDER BY 1", 60.0, most) == (["j"], rows, more)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC", "SQLite reports: near"),
        ("SELECT * FROM nowhere", "SQLite reports: no such table"),
        ("", "this is not a query"),
        ("PRAGMA query_only = OFF", "only SELECT is allowed"),
        ("ATTACH ':memory:' AS other", "only SELECT is allowed"),
        ("DELETE FROM runs", "only SELECT is allowed"),
        ("SELECT load_extension('x')", "only SELECT is allowed"),
        ("SELECT LOAD_EXTENSION('x')", "only SELECT is allowed"),
        (f"SELECT zeroblob({schema.MAX_VALUE_BYTES + 1})", "SQLite reports: string or blob too big"),
        (ENDLESS, "the query took longer than 0.05 s"),
    ],
)
def test_what_is_refused(index: Path, sql: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        schema.run_select(index, sql, 0.05, 10)
    assert message in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("action", "allowed"),
    [
        (sqlite3.SQLITE_SELECT, True), (sqlite3.SQLITE_READ, True), (sqlite3.SQLITE_RECURSIVE, True),
        (sqlite3.SQLITE_PRAGMA, False), (sqlite3.SQLITE_ATTACH, False), (sqlite3.SQLITE_INSERT, False),
        (sqlite3.SQLITE_UPDATE, False), (sqlite3.SQLITE_DELETE, False), (sqlite3.SQLITE_TRANSACTION, False),
    ],
)  # fmt: skip
def test_the_authorizer_lets_nothing_through_but_select(action: int, allowed: bool) -> None:
    assert (schema._authorize(action, None, None, None, None) == sqlite3.SQLITE_OK) == allowed


@pytest.mark.parametrize(("name", "allowed"), [("min", True), ("load_extension", False), ("WriteFile", False)])
def test_nor_functions_that_reach_outside(name: str, allowed: bool) -> None:
    answer = schema._authorize(sqlite3.SQLITE_FUNCTION, None, name, None, None)
    assert (answer == sqlite3.SQLITE_OK) == allowed


def test_the_file_is_open_for_reading_and_none_is_made(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FcctlError, match="unable to open"):
        schema.run_select(tmp_path / "absent.sqlite", "SELECT 1", 1.0, 1)
    assert list(tmp_path.iterdir()) == [index]
    monkeypatch.setattr(schema, "_authorize", lambda *_: sqlite3.SQLITE_OK)
    with pytest.raises(UsageError, match="only SELECT"):
        schema.run_select(index, "DELETE FROM runs", 1.0, 1)
