"""The benchmark documents of a complete run, read for the index. A host wrote them: an odd one is left out."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from orchestrator.base.text.json_text import Budget
from orchestrator.results.measurement import Measurement
from orchestrator.results.records import RunRecord, RunRow

#: Benchmark documents of one run that are looked at, and benchmarks that are kept of it.
MAX_DOCUMENTS, MAX_MEASURED = 500, 20_000


def measured(folder: str, record: RunRecord, row: RunRow) -> list[Measurement]:
    """What the run measured, in the order of its documents."""
    named = [d.path for step in record.steps for d in step.documents if d.kind == "benchmark"]
    if not named:
        return []
    from orchestrator.results.measure import measurements  # with it comes the statistics, for runs that timed

    gpu = record.host.get("gpu")
    driver = gpu.get("driver") if isinstance(gpu, dict) else None
    known = driver[:200] if isinstance(driver, str) else None
    contents = (_content(Path(folder), path) for path in named[:MAX_DOCUMENTS])
    return list(islice((m for content in contents for m in measurements(content, row, known)), MAX_MEASURED))


def _content(folder: Path, path: str) -> dict[str, Any]:
    """One at a time, with all the memory for itself; an empty document in place of one that cannot be read."""
    from orchestrator.results import documents

    try:
        return documents.read(folder, path, Budget())
    except (OSError, ValueError):
        return {}
