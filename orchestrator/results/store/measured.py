"""The benchmark documents of a complete run, read for the index. A host wrote them: an odd one is left out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from orchestrator.base import open_beneath as beneath
from orchestrator.base import safe_paths as paths
from orchestrator.base.errors import FcctlError
from orchestrator.results.measurement import Measurement
from orchestrator.results.records import RunRecord, RunRow

MAX_BYTES = 64 * 1024 * 1024
#: Benchmark documents of one run that are looked at.
MAX_DOCUMENTS = 500


def measured(folder: str, record: RunRecord, row: RunRow) -> list[Measurement]:
    """What the run measured, in the order of its documents."""
    named = [d.path for step in record.steps for d in step.documents if d.kind == "benchmark"]
    if not named:
        return []
    from orchestrator.results.measure import measurements  # with it comes the statistics, for runs that timed

    gpu = record.host.get("gpu")
    driver = gpu.get("driver") if isinstance(gpu, dict) else None
    known = driver[:200] if isinstance(driver, str) else None
    return [m for path in named[:MAX_DOCUMENTS] for m in measurements(_content(Path(folder), path), row, known)]


def _content(folder: Path, path: str) -> dict[str, Any]:
    """An empty document in place of one that cannot be read."""
    if paths.fault(path):
        return {}
    try:
        with beneath.opened(folder, path, os.O_RDONLY) as fd:
            if os.fstat(fd).st_size > MAX_BYTES:
                return {}
            with os.fdopen(os.dup(fd), "rb") as stream:
                value = json.loads(stream.read(MAX_BYTES))
    except (OSError, ValueError, RecursionError, FcctlError):
        return {}
    return value if isinstance(value, dict) else {}
