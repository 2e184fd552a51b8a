"""The tables of ``index.sqlite``: ``runs`` has the fields of RunRow, ``benchmarks`` those of Measurement.

There are no migrations: another version is dropped and built again from the runs.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import get_args, get_type_hints

from orchestrator.results.measurement import Measurement
from orchestrator.results.records import RunRow

#: Raise it with any change below, of a field of RunRow or Measurement, or of what a row says.
VERSION = 6
_TYPES = {str: "TEXT", int: "INTEGER", bool: "INTEGER", float: "REAL"}


def _columns(row: type) -> dict[str, str]:
    """The columns of a table of such rows, each with its declaration; ``X | None`` may be NULL."""
    declared = {}
    for name, hint in get_type_hints(row).items():
        if hint in _TYPES:
            declared[name] = f"{name} {_TYPES[hint]} NOT NULL"
        elif type(None) in get_args(hint):
            declared[name] = f"{name} {_TYPES[get_args(hint)[0]]}"
    return declared


_RUNS, _BENCHMARKS = _columns(RunRow), _columns(Measurement)
_KEY = "PRIMARY KEY (benchmark, variant, mode, created, run_id, place)"
COLUMNS, MEASURED = tuple(_RUNS), tuple(_BENCHMARKS)

CREATE = (
    f"CREATE TABLE runs ({', '.join(_RUNS.values())}, PRIMARY KEY (run_id)) WITHOUT ROWID",
    # Newest first is how rows are asked for; ids carry whole seconds only, so `created` decides and the id breaks ties.
    "CREATE INDEX by_created ON runs (created, run_id)",
    "CREATE INDEX by_job ON runs (job, created, run_id)",
    "CREATE INDEX by_target ON runs (target, created, run_id)",
    "CREATE INDEX by_status ON runs (status, created, run_id)",
    # All that a history needs, in the order it is asked for: no run's folder is opened to draw one. `place` tells
    # apart what one run measured several times.
    f"CREATE TABLE benchmarks ({', '.join(_BENCHMARKS.values())}, place INTEGER NOT NULL, {_KEY}) WITHOUT ROWID",
    "CREATE INDEX of_run ON benchmarks (run_id)",
    # Which runs a run continues or has its parameters from.
    "CREATE TABLE parents (run_id TEXT NOT NULL, parent TEXT NOT NULL, PRIMARY KEY (run_id, parent)) WITHOUT ROWID",
    "CREATE INDEX by_parent ON parents (parent, run_id)",
    # Folders that hold no usable run.json: `stamp` tells when there is reason to look again.
    "CREATE TABLE skipped (run_id TEXT PRIMARY KEY, reason TEXT NOT NULL, stamp TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE seen (runs_mtime_ns INTEGER NOT NULL)",
    "INSERT INTO seen VALUES (-1)",
)
TABLES = ("runs", "benchmarks", "parents", "skipped")
DROP = tuple(f"DROP TABLE IF EXISTS {table}" for table in (*TABLES, "seen"))

INSERT = f"INSERT OR REPLACE INTO runs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608
INSERT_MEASURED = (
    f"INSERT OR REPLACE INTO benchmarks ({', '.join((*MEASURED, 'place'))}) "  # noqa: S608
    f"VALUES ({', '.join('?' * (len(MEASURED) + 1))})"
)
INSERT_PARENT = "INSERT OR IGNORE INTO parents (run_id, parent) VALUES (?, ?)"
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
