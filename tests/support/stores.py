"""A store, and runs in it, for tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from orchestrator.base import run_id as run_ids
from orchestrator.base.clock import iso
from orchestrator.results.records import RunRecord, SourceRecord
from orchestrator.results.store.active import FileActiveRun
from orchestrator.results.store.store import FileStore

NOVEMBER = 1795250000.0


def make_id(job: str = "phase1", target: str = "l4", at: float = NOVEMBER, token: str | None = None) -> str:
    return run_ids.new(job, target, at, token or f"{random.getrandbits(24):06x}")


def make_record(run_id: str, **changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "run_id": run_id, "job": "phase1", "target": "l4", "status": "passed", "exit_code": 0,
        "created": iso(NOVEMBER), "finished": iso(NOVEMBER + 60.5), "source": SourceRecord(tree_sha256="ab" * 32),
        "host": {"gpu": {"name": "NVIDIA L4"}},
    }  # fmt: skip
    return RunRecord.model_validate({**values, **changes})


def begin(store: FileStore, run_id: str | None = None, job: str = "phase1") -> FileActiveRun:
    run_id = run_id or make_id(job)
    return store.begin(run_id, {"plan": {"run_id": run_id, "job": job}})


def completed(store: FileStore, run_id: str | None = None, **changes: Any) -> str:
    """A complete run with one collected file."""
    run = begin(store, run_id, changes.get("job", "phase1"))
    run.intake().write("steps/build/log.txt", 0, b"built\n")
    run.complete(make_record(run.run_id, **changes))
    return run.run_id


def written(root: Path, record: RunRecord) -> Path:
    """A complete run's folder made by hand, as if copied from another machine."""
    folder = root / "runs" / record.run_id
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(record.model_dump_json())
    return folder
