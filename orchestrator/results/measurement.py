"""What the index of the store keeps of each benchmark of each run."""

from __future__ import annotations

from dataclasses import dataclass

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
