"""From ``run.json`` on disk to a record, and from a record to the rows of ``index.sqlite``: ``runs`` has the fields of
RunRow, ``benchmarks`` those of Measurement.

There are no migrations: another version is dropped and built again from the runs.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import ValidationError

from orchestrator.base import json_text, models
from orchestrator.base import run_id as run_ids
from orchestrator.base.json_text import Budget
from orchestrator.base.safe_paths import open_plain
from orchestrator.base.sanitize import listed, part, worded
from orchestrator.results.records import RunRecord, RunRow
from orchestrator.results.timings import Measurement, measurements

MAX_RECORD_BYTES = 16 * 1024 * 1024
#: What a record may take in memory once it is read.
MAX_RECORD_MEMORY = 96 * 1024 * 1024
RECORD = "run.json"
_TEXT = 200  # characters of a name the index keeps; run.json has them all
_ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")


class DamagedRecord(ValueError):
    """A run's folder whose run.json is absent, torn, hostile, or another run's."""


def is_complete(folder: str | Path) -> bool:
    """Whether ``folder`` holds a ``run.json``, whose presence means the run is complete."""
    try:
        return stat.S_ISREG(os.lstat(f"{folder}/{RECORD}").st_mode)
    except OSError:
        return False


def read_record(folder: str | Path, run_id: str) -> RunRecord:
    """The validated ``run.json`` of ``folder``. Raises DamagedRecord: with the reason, on one line."""
    content = _read_bounded(f"{folder}/{RECORD}")
    if not fits(content):
        raise DamagedRecord(f"{RECORD} needs more than {MAX_RECORD_MEMORY} bytes of memory")
    try:
        record = RunRecord.model_validate_json(content)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = f"{models.dotted(first['loc'])}: " if first["loc"] else ""
        raise DamagedRecord(f"{RECORD}: {where}{models.reason(first)}"[:300]) from None
    if record.run_id != run_id:
        raise DamagedRecord(f"{RECORD} belongs to another run: {record.run_id[:70]!r}")
    return record


def fits(content: bytes) -> bool:
    """Whether a record's text, as it is written, can be read again."""
    return len(content) < MAX_RECORD_BYTES and json_text.resident_bytes(content) <= MAX_RECORD_MEMORY


def row_of(record: RunRecord) -> RunRow:
    """The line of ``fcctl results ls``; odd values of a hostile record become plain ones."""
    created = record.created if _ISO.fullmatch(record.created) else _created_by_id(record.run_id)
    return RunRow(
        run_id=record.run_id,
        job=record.job[:_TEXT],
        target=record.target[:_TEXT],
        status=record.status,
        exit_code=max(-(2**31), min(record.exit_code, 2**31)),
        created=created,
        finished=record.finished[:_TEXT],
        duration_s=_duration_s(record),
        gpu=gpu_name(record.host),
        git_commit=record.source.git_commit[:_TEXT] if record.source.git_commit else None,
        usd=record.cost.usd if math.isfinite(record.cost.usd) and not record.cost.emulated else 0.0,
        tree_sha256=record.source.tree_sha256[:_TEXT],
        dirty=record.source.dirty,
    )


def gpu_name(host: dict[str, Any]) -> str | None:
    """The GPU of a host record, wherever that names it: ``gpu.name``, ``gpu`` or ``gpu_name``."""
    gpu = host.get("gpu", host.get("gpu_name"))
    return worded(gpu.get("name") if isinstance(gpu, dict) else gpu, _TEXT)


def _read_bounded(path: str) -> bytes:
    try:
        stream, size = open_plain(path)
    except FileNotFoundError:
        raise DamagedRecord(f"no {RECORD}") from None
    except OSError as exc:
        raise DamagedRecord(f"{RECORD} cannot be read: {exc.strerror}") from None
    except ValueError:
        raise DamagedRecord(f"{RECORD} is not a regular file") from None
    with stream:
        if size > MAX_RECORD_BYTES:
            raise DamagedRecord(f"{RECORD} has {size} bytes, more than {MAX_RECORD_BYTES}")
        return stream.read()


def _created_by_id(run_id: str) -> str:
    stamp = run_id[:16]
    if not run_ids.is_valid(run_id):
        return "1970-01-01T00:00:00.000Z"
    day = f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]}"
    return f"{day}T{stamp[9:11]}:{stamp[11:13]}:{stamp[13:15]}.000Z"


def _duration_s(record: RunRecord) -> float:
    try:
        began = datetime.fromisoformat(record.started or record.created)
        seconds = (datetime.fromisoformat(record.finished) - began).total_seconds()
    except (ValueError, TypeError):  # TypeError: one has a time zone and the other none
        return 0.0
    return max(0.0, seconds)


#: Benchmark documents of one run that are looked at; benchmarks and parents that are kept of it.
MAX_DOCUMENTS, MAX_MEASURED, MAX_PARENTS = 500, 20_000, 50


def measured(folder: str, record: RunRecord, row: RunRow) -> tuple[list[Measurement], list[str]]:
    """The run's measurements, in the order of its documents, and the ids of its parents: the runs that it continues,
    and the searches that its benchmarks name in ``parameters_from``."""
    named = [d.path for step in record.steps for d in step.documents if d.kind == "benchmark"]
    parents = dict.fromkeys(record.parents)
    known = worded(part(record.host, "gpu", "driver"), _TEXT)
    settings = " ".join(f"{key}={value}" for key, value in sorted(record.settings.items()))
    found: list[Measurement] = []
    for path in named[:MAX_DOCUMENTS]:
        content = _content(Path(folder), path)
        found += islice(measurements(content, row, known, settings), MAX_MEASURED - len(found))
        parents |= dict.fromkeys(str(name) for name in listed(content.get("parameters_from"))[:MAX_PARENTS])
    valid = [name for name in parents if run_ids.is_valid(name) and name != record.run_id]
    return found, valid[:MAX_PARENTS]


def _content(folder: Path, path: str) -> dict[str, Any]:
    """One at a time, with all the memory for itself; an empty document in place of one that cannot be read."""
    from orchestrator.results import documents

    try:
        return documents.read(folder, path, Budget())
    except (OSError, ValueError):
        return {}


#: Raise it with any change below, of a field of RunRow or Measurement, or of what a row says.
VERSION = 8
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
    # Of runs that cost something, the part of their record that the ledger needs, as JSON.
    "CREATE TABLE usages (run_id TEXT NOT NULL PRIMARY KEY, usage TEXT NOT NULL) WITHOUT ROWID",
    # Folders that hold no usable run.json: `stamp` tells when there is reason to look again.
    "CREATE TABLE skipped (run_id TEXT PRIMARY KEY, reason TEXT NOT NULL, stamp TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE seen (runs_mtime_ns INTEGER NOT NULL)",
    "INSERT INTO seen VALUES (-1)",
)
TABLES = ("runs", "benchmarks", "parents", "usages", "skipped")
DROP = tuple(f"DROP TABLE IF EXISTS {table}" for table in (*TABLES, "seen"))

INSERT = f"INSERT OR REPLACE INTO runs ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"  # noqa: S608
INSERT_MEASURED = (
    f"INSERT OR REPLACE INTO benchmarks ({', '.join((*MEASURED, 'place'))}) "  # noqa: S608
    f"VALUES ({', '.join('?' * (len(MEASURED) + 1))})"
)
INSERT_USAGE = "INSERT OR REPLACE INTO usages (run_id, usage) VALUES (?, ?)"
_USAGE = {"run_id", "job", "target", "created", "started", "cost", "machine"}
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


def select(table: str, where: list[str], order: str, *, limited: bool, more: str = "") -> str:
    """The query for rows of ``runs`` or ``benchmarks``; ``where``: names of columns that have given values."""
    conditions = [*(f"{name} = ?" for name in where), *([more] if more else [])]
    condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    columns = ", ".join(COLUMNS if table == "runs" else MEASURED)
    return f"SELECT {columns} FROM {table}{condition} ORDER BY {order}{' LIMIT ?' if limited else ''}"  # noqa: S608


def usage_values(record: RunRecord, row: RunRow) -> list[tuple[str, str]]:
    """The row of ``usages``; none for a run that was free or emulated, as most may be."""
    usage = record.model_dump(mode="json", include=_USAGE)  # as text, a host's Infinity stays what it is
    return [(record.run_id, json.dumps(usage))] if row.usd > 0 else []
