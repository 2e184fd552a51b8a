"""What the index of the store keeps of each benchmark of each run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.base.json_text import pick
from orchestrator.results.records import RunRow

#: The next step where nothing was measured.
HOW_TO = "let a step write a benchmark, or collect one (google-benchmark, nvbench, pytest-benchmark): docs/jobs.md"


@dataclass(frozen=True)
class Measurement:
    """One benchmark of one run, as the index of the store holds it. ``p50`` in ``unit``."""

    run_id: str
    created: str  # ISO 8601, UTC
    job: str
    target: str
    status: str
    benchmark: str
    variant: str
    mode: str
    unit: str
    shape: str  # 1,8,512,64; empty if not said
    method: str
    reference: bool  # code that is not ours, timed beside ours
    p50: float
    n: int
    gpu: str | None
    driver: str | None
    git_commit: str | None
    tree_sha256: str
    #: Its time over that of the fastest reference beside it, as measured in pairs where it was; None without one.
    ratio: float | None = None
    settings: str = ""  # what --set replaced: TILE=64 STAGES=2


#: Benchmarks of one document that the index keeps, and characters of a name.
MAX_ROWS, TEXT = 5000, 200


def measurements(
    document: dict[str, Any], run: RunRow, driver: str | None, settings: str = ""
) -> list[Measurement]:  # fmt: skip
    """Every benchmark of ``document`` that has a median, or, where its tool reports none, a mean."""
    from orchestrator.results.compare.rows import controls, method_of  # with the statistics: only for runs that timed
    from orchestrator.results.timings import Peers, entries, shape_text

    timed = entries(document)[:MAX_ROWS]
    theirs = {id(t) for t in controls(timed)}
    environment = document.get("environment")
    stated = environment.get("driver") if isinstance(environment, dict) else None
    device = document.get("device")
    method = method_of(document)
    measured = []
    peers = Peers(timed, document)
    for timing in timed:
        middle = timing.stats.get("p50") or timing.stats.get("mean")
        if middle is None or middle <= 0:
            continue
        ratio = next((peers.ratio(timing, reference) for reference in peers.references(timing)), None)
        measured.append(
            Measurement(
                **pick(run, "run_id created job target status git_commit tree_sha256"),
                benchmark=timing.name[:TEXT],
                variant=timing.variant[:TEXT],
                mode=timing.mode[:TEXT],
                unit=timing.unit[:TEXT],
                shape=shape_text(timing.shape)[:TEXT],
                method=method[:TEXT],
                reference=id(timing) in theirs,
                p50=middle,
                n=max(0, min(int(timing.stats.get("n", 0)), 2**31)),
                gpu=device[:TEXT] if isinstance(device, str) and device else run.gpu,
                driver=stated[:TEXT] if isinstance(stated, str) and stated else driver,
                ratio=ratio.value if ratio else None,
                settings=settings[:TEXT],
            )
        )
    return measured
