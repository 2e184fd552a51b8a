"""From a benchmark document to the measurements that the index keeps of it."""

from __future__ import annotations

from typing import Any

from orchestrator.results.compare.rows import controls, method_of
from orchestrator.results.measurement import Measurement
from orchestrator.results.records import RunRow
from orchestrator.results.timings import entries

#: Benchmarks of one document that the index keeps, and characters of a name.
MAX_ROWS, TEXT = 5000, 200


def measurements(document: dict[str, Any], run: RunRow, driver: str | None) -> list[Measurement]:
    """Every benchmark of ``document`` that has a median, or, where its tool reports none, a mean."""
    timed = entries(document)[:MAX_ROWS]
    theirs = {id(t) for t in controls(timed)}
    environment = document.get("environment")
    stated = environment.get("driver") if isinstance(environment, dict) else None
    device = document.get("device")
    method = method_of(document)
    found = []
    for timing in timed:
        middle = timing.stats.get("p50") or timing.stats.get("mean")
        if middle is None or middle <= 0:
            continue
        shape = ",".join(str(timing.shape[k]) for k in "BHSD") if timing.shape else ""
        found.append(
            Measurement(
                run_id=run.run_id,
                created=run.created,
                job=run.job,
                target=run.target,
                status=run.status,
                benchmark=timing.name[:TEXT],
                variant=timing.variant[:TEXT],
                mode=timing.mode[:TEXT],
                unit=timing.unit[:TEXT],
                shape=shape[:TEXT],
                method=method[:TEXT],
                reference=id(timing) in theirs,
                p50=middle,
                n=max(0, min(int(timing.stats.get("n", 0)), 2**31)),
                gpu=device[:TEXT] if isinstance(device, str) and device else run.gpu,
                driver=stated[:TEXT] if isinstance(stated, str) and stated else driver,
                git_commit=run.git_commit,
                tree_sha256=run.tree_sha256,
            )
        )
    return found
