"""A finished run with documents, as phase0 leaves one, for tests of what is shown and exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.results.records import DocumentRecord, GateRecord, OmittedRecord, RunRecord, SourceRecord, StepRecord

RUN_ID = "20261121t081530z-phase0-local-3fa9c1"
SHAPES = {"mission": (1, 8, 512, 64), "s64": (1, 8, 64, 64), "s128": (1, 8, 128, 64), "batch2": (2, 8, 512, 64)}

ENVIRONMENT: dict[str, Any] = {
    "kind": "environment",
    "schema_version": 1,
    "checks": [
        {"section": "GPU Hardware", "id": "gpu", "status": "warn", "message": "no NVIDIA GPU found",
         "hint": "CUDA steps are unavailable on this machine; choose a GPU target: --on NAME"},
        {"section": "CUDA Toolkit", "id": "nvcc", "status": "pass", "message": "13.0"},
    ],
    "summary": {"status": "warn", "passed": 14, "warnings": 1, "errors": 0},
    "gpu": {"present": False},
    "cuda": {"version": "13.0"},
    "torch": {"version": "2.13.0"},
    "cpu": {"model": "AMD EPYC 7B13"},
}  # fmt: skip
BUILD: dict[str, Any] = {
    "kind": "build",
    "schema_version": 1,
    "variant": "baseline",
    "tool": "nvcc 13.0",
    "archs": ["sm_89"],
    "duration_s": 2.9,
    "cached": False,
    "kernels": [
        {"name": "attention_baseline", "arch": "sm_89", "registers": 43, "stack_bytes": 0, "spill_store_bytes": 0,
         "spill_load_bytes": 8, "smem_bytes": 768, "barriers": 1},
    ],
}  # fmt: skip


def correctness(failing: str | None = None) -> dict[str, Any]:
    cases = []
    for name, (b, h, s, d) in SHAPES.items():
        for seed in (1, 2, 3):
            case = f"{name}/{seed}"
            cases.append(
                {"name": case, "shape": {"B": b, "H": h, "S": s, "D": d}, "seed": seed, "passed": case != failing,
                 "max_err": 1.2e-4 * seed, "mean_err": 3e-6, "rel_rms": 2e-4, "nan": 0, "inf": 0,
                 "tolerance": {"max_err": 4e-4, "rel_rms": 1e-3}, "message": "max error is above 4.0e-04"}
            )  # fmt: skip
    for name in ("edges", "causal", "values", "layout", "repeat"):
        cases.append({"name": name, "seed": 1, "passed": True, "max_err": 2e-4, "mean_err": 1e-6, "rel_rms": 1e-4,
                      "tolerance": {"max_err": 4e-4}, "message": "worst: plain"})  # fmt: skip
    passed = sum(c["passed"] for c in cases)
    summary = {"total": len(cases), "passed": passed, "failed": len(cases) - passed, "skipped": 0, "max_err": 3.6e-4}
    return {"kind": "correctness", "schema_version": 1, "variant": "cpu", "cases": cases, "summary": summary}


def benchmark() -> dict[str, Any]:
    entries, comparisons = [], []
    for i, (name, shape) in enumerate(SHAPES.items()):
        for variant, factor in (("cpu", 1.0), ("sdpa", 1.5)):
            p50 = 1000.0 * (i + 1) * factor
            stats = {
                "n": 200,
                "p50": p50,
                "p90": p50 * 1.1,
                "p99": p50 * 1.3,
                "min": p50 * 0.9,
                "max": p50 * 2,
                "mean": p50,
            }
            shown = name if variant == "cpu" else f"{name}/sdpa"
            entries.append({"name": shown, "variant": variant, "shape": dict(zip("BHSD", shape, strict=True)),
                            "mode": "eager", "unit": "us", "stats": stats})  # fmt: skip
        comparisons.append(
            {"benchmark": name, "against": f"{name}/sdpa", "ratio": 0.66, "ci_low": 0.64, "ci_high": 0.68}
        )
    return {"kind": "benchmark", "schema_version": 1, "benchmarks": entries, "comparisons": comparisons}


def record(**changes: Any) -> RunRecord:
    def step(name: str, seconds: float, *kinds: str, **more: Any) -> StepRecord:
        documents = [DocumentRecord(kind=k, path=f"steps/{name}/out/{k}.json") for k in kinds]
        return StepRecord(
            id=name, duration_s=seconds, documents=documents, log=f"steps/{name}/log.txt",
            **{"status": "passed", "exit_code": 0, "attempts": 1, **more},
        )  # fmt: skip

    passed = GateRecord(expr="correctness.summary.passed == 17", value=17, verdict="pass")
    slow = GateRecord(
        expr='benchmark.benchmarks[name="mission"].stats.p50 < 900',
        value=1000.0,
        verdict="fail",
        hint="profile it: fcctl run ncu",
    )
    off = GateRecord(expr="host.gpu.count == 1", verdict="not_applicable", when="host.gpu.present")
    steps = [
        step("preflight", 0.9, "environment", status="warned", exit_code=1),
        step("build", 3.1, "build", gates=[off]),
        step("profile", 0.0, status="unavailable", message="ncu is not installed", hint="install Nsight Compute"),
        step("test", 10.2, "correctness", gates=[passed]),
        step("bench", 12.0, "benchmark", gates=[slow], status="failed", message="1 gate failed"),
    ]
    values: dict[str, Any] = {
        "run_id": RUN_ID, "job": "phase0", "title": "the baseline", "target": "local",
        "status": "failed", "exit_code": 100,
        "created": "2026-11-21T08:15:30.123Z", "started": "2026-11-21T08:15:31.000Z",
        "finished": "2026-11-21T08:15:57.500Z",
        "source": SourceRecord(tree_sha256="ab" * 32, git_commit="0123456789abcdef" * 2, dirty=True),
        "host": {"gpu": None, "hostname": "laptop"}, "steps": steps,
        "omitted": [OmittedRecord(path="artifacts/core", reason="too_large")],
    }  # fmt: skip
    return RunRecord.model_validate({**values, **changes})


def write_documents(folder: Path, documents: dict[str, dict[str, Any]] | None = None) -> None:
    """Put the documents where :func:`record` says they are."""
    chosen = documents or {
        "preflight": ENVIRONMENT, "build": BUILD, "test": correctness(), "bench": benchmark(),
    }  # fmt: skip
    for step, content in chosen.items():
        out = folder / "steps" / step / "out"
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{content['kind']}.json").write_text(json.dumps(content))
        (folder / "steps" / step / "log.txt").write_text(f"log of {step}\n")
