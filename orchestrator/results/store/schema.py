"""The tables of ``index.sqlite``. There are no migrations: another version is dropped and built anew from the runs."""

from __future__ import annotations

from dataclasses import astuple, fields

from orchestrator.results.measurement import Measurement
from orchestrator.results.records import RunRow

#: Raise it with any change below, or of what a row says.
VERSION = 3

COLUMNS = tuple(RunRow.model_fields)
MEASURED = tuple(field.name for field in fields(Measurement))

CREATE = (
    """CREATE TABLE runs (
        run_id TEXT PRIMARY KEY, job TEXT NOT NULL, target TEXT NOT NULL, status TEXT NOT NULL,
        exit_code INTEGER NOT NULL, created TEXT NOT NULL, finished TEXT NOT NULL, duration_s REAL NOT NULL,
        gpu TEXT, git_commit TEXT, usd REAL NOT NULL, tree_sha256 TEXT NOT NULL
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
        git_commit TEXT, tree_sha256 TEXT NOT NULL, place INTEGER NOT NULL,
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
FILTERS = frozenset({"job", "target", "status", "gpu", "git_commit"})
MEASURED_FILTERS = frozenset({"benchmark", "variant", "mode", "gpu", "job", "target", "run_id"})


def select(where: list[str], limited: bool) -> str:
    """The query for rows newest first, ``where`` being names of columns out of :data:`FILTERS`."""
    return _select("runs", COLUMNS, where, "created DESC, run_id DESC", limited)


def select_measured(where: list[str]) -> str:
    """The query for the newest measurements, newest first, ``where`` out of :data:`MEASURED_FILTERS`; limited."""
    return _select("benchmarks", MEASURED, where, "created DESC, run_id DESC, place DESC", limited=True)


def _select(table: str, columns: tuple[str, ...], where: list[str], order: str, limited: bool) -> str:
    condition = f" WHERE {' AND '.join(f'{name} = ?' for name in where)}" if where else ""
    end = " LIMIT ?" if limited else ""
    return f"SELECT {', '.join(columns)} FROM {table}{condition} ORDER BY {order}{end}"  # noqa: S608


def values(row: RunRow) -> tuple[object, ...]:
    return tuple(getattr(row, column) for column in COLUMNS)


def measured_values(measurements: list[Measurement]) -> list[tuple[object, ...]]:
    """Rows of ``benchmarks``, numbered in the order they were measured."""
    return [(*astuple(m), place) for place, m in enumerate(measurements)]
