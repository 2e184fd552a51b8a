"""Complete runs with benchmark documents, for tests of what is compared, drawn, exported and pruned."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from orchestrator.base.clock import iso
from orchestrator.base.run_id import new
from orchestrator.results.records import DocumentRecord, SourceRecord, StepRecord
from orchestrator.results.store.store import FileStore
from tests.support.stores import NOVEMBER, make_record

COMMITS = {name: f"{i:x}" * 40 for i, name in enumerate("abcdef", start=10)}


def samples(p50: float, n: int = 112, noise: float = 0.002, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [round(p50 * rng.gauss(1.0, noise), 4) for _ in range(n)]


def entry(name: str, values: Sequence[float], **changes: Any) -> dict[str, Any]:
    ordered = sorted(values)
    middle, most = ordered[len(ordered) // 2], ordered[9 * len(ordered) // 10]
    stats = {"n": len(ordered), "p50": middle, "p90": most, "min": ordered[0], "max": ordered[-1]}
    shape = {"B": 1, "H": 8, "S": 512, "D": 64}
    plain = {"name": name, "variant": "fused", "mode": "hot", "unit": "us", "shape": shape, "stats": stats}
    return {**plain, "samples": list(values), **changes}


def document(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    environment = {"device": "NVIDIA L4", "driver": "550.54.15"}
    plain = {
        "kind": "benchmark", "schema_version": 1, "method_version": 3, "variant": "fused", "device": "NVIDIA L4",
        "environment": environment, "benchmarks": list(entries), "comparisons": [],
    }  # fmt: skip
    return {**plain, **changes}


def simple(p50: float, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """One kernel on the mission shape beside SDPA, which always takes 20 us."""
    ours = entry("mission", samples(p50, seed=seed))
    theirs = entry("mission/sdpa", samples(20.0, seed=seed + 1000), variant="sdpa")
    return document(ours, theirs, **changes)


def _ratio(value: float) -> dict[str, float]:
    return {"ratio": value, "ci_low": value - 0.01, "ci_high": value + 0.01}


def searched(value: float = 0.8, us: float = 4.2, tile: int = 128, **more: Any) -> dict[str, Any]:
    """A search whose best takes ``value`` of its default's time."""
    elite = {"trial": 2, **_ratio(value), "held_out": _ratio(0.9), "per_case": {"mission": {"us": us, **_ratio(value)}}}
    trials = [{"number": 2, "params": {"TILE": tile, "STAGES": 1}, "state": "complete", "gpu": "NVIDIA L4"}]
    return {
        "kind": "tuning", "tune": "saxpy", "metric": {"unit": "us", "cases": ["mission"]},
        "search": {"strategy": "evolution"}, "summary": {"trials": 128, "states": {"complete": 128}},
        "default": {"params": {"TILE": 64, "STAGES": 1}}, "trials": trials, "final": [elite], "complete": True, **more,
    }  # fmt: skip


def measured(
    store: FileStore, documents: Sequence[dict[str, Any]], *, at: float = 0.0, commit: str | None = "a",
    tree: str | None = None, token: str | None = None, **changes: Any,
) -> str:  # fmt: skip
    """A complete run of job ``bench``, ``at`` seconds after noon, whose step wrote ``documents``; its id."""
    when = NOVEMBER + at
    run_id = new("bench", "l4", when, token or f"{int(at) & 0xFFFFFF:06x}")
    run = store.begin(run_id, {"plan": {"run_id": run_id, "job": "bench"}})
    intake = run.intake()
    named = []
    for i, content in enumerate(documents):
        path = f"steps/bench/out/{content['kind']}_{i}.json"
        intake.write(path, 0, json.dumps(content).encode())
        named.append(DocumentRecord(kind=content["kind"], path=path))
    step = StepRecord(
        id="bench", status="passed", exit_code=0, documents=named, started=iso(when + 1), finished=iso(when + 30)
    )
    source = SourceRecord(tree_sha256=(tree or commit or "e") * 64, git_commit=COMMITS.get(commit or ""))
    host = {"gpu": {"name": "NVIDIA L4", "driver": "550.54.15", "present": True}}
    values = {"job": "bench", "steps": [step], "source": source, "host": host, "created": iso(when),
              "finished": iso(when + 40)}  # fmt: skip
    run.complete(make_record(run_id, **{**values, **changes}))
    return run_id
