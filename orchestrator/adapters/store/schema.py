"""The tables of ``index.sqlite``. There are no migrations: another version is dropped and built anew from the runs."""

from __future__ import annotations

from orchestrator.domain.records import RunRow

#: Raise it with any change below, or of what a row says.
VERSION = 1

COLUMNS = tuple(RunRow.model_fields)

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
    # Folders that hold no usable run.json: `stamp` tells when there is reason to look again.
    "CREATE TABLE skipped (run_id TEXT PRIMARY KEY, reason TEXT NOT NULL, stamp TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE seen (runs_mtime_ns INTEGER NOT NULL)",
    "INSERT INTO seen VALUES (-1)",
)
DROP = tuple(f"DROP TABLE IF EXISTS {table}" for table in ("runs", "skipped", "seen"))

INSERT = f"INSERT OR REPLACE INTO runs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608
FILTERS = frozenset({"job", "target", "status", "gpu", "git_commit"})


def select(where: list[str], limited: bool) -> str:
    """The query for rows newest first, ``where`` being names of columns out of :data:`FILTERS`."""
    condition = f" WHERE {' AND '.join(f'{name} = ?' for name in where)}" if where else ""
    end = " LIMIT ?" if limited else ""
    return f"SELECT {', '.join(COLUMNS)} FROM runs{condition} ORDER BY created DESC, run_id DESC{end}"  # noqa: S608


def values(row: RunRow) -> tuple[object, ...]:
    return tuple(getattr(row, column) for column in COLUMNS)
