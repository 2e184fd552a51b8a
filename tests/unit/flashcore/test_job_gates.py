"""The shipped jobs: they parse, and their gates pass and fail on the documents the kernels' commands write."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote.gates import evaluate as gates
from orchestrator.runs.job import job

JOBS = Path(__file__).resolve().parents[3] / "jobs"
NAMES = sorted(path.stem for path in JOBS.glob("*.yaml"))


def resolved(name: str) -> job.Job:
    def load(wanted: str) -> job.JobFile:
        path = JOBS / f"{wanted}.yaml"
        return job.parse(path.read_text(encoding="utf-8"), f"jobs/{path.name}", wanted)

    return job.resolve(name, load)


def documents(**changes: Any) -> dict[str, Any]:
    """What a good run on an L4 leaves, with some values replaced."""
    value = {
        "registers": 100, "spills": 0, "stack": 0, "passed": 20, "max_err": 1e-3, "null": 1.0, "ratio": 0.05,
        "p50": 28.0, "n": 100, "tensor": 60.0, "dram": 70.0, "gpu": "NVIDIA L4", "fastest": 0.5, "eager": 0.6,
        "sanitizer": "passed", "tiling": "passed", "mma": 100.0, "smem": 49152, "both": 20, "cycles": 16.0, "fp8": 0.8,
        "complete": 90, "tuned": 0.85, "tuned_high": 0.88, "over_a": 16.0, **changes,
    }  # fmt: skip
    kernel = {
        "name": "flashcore_wmma", "arch": "sm_89",
        "registers": value["registers"], "stack_bytes": value["stack"], "spill_store_bytes": value["spills"],
        "spill_load_bytes": 0, "smem_bytes": 49152,
    }  # fmt: skip
    rows = [{"name": n, "stats": {"n": value["n"], "p50": value["p50"]}} for n in ("mission", "mission/sdpa")]
    ratios = {"mission": value["null"], "mission/sdpa": 1.0, "mission/baseline": value["ratio"]}
    ratios["4,16,2048,64/flagship"] = value["fp8"]
    build = {"kernels": [kernel]}
    metrics = {
        "tensor_active_pct": value["tensor"], "dram_throughput_pct": value["dram"], "smem_static": 0,
        "smem_dynamic": value["smem"],
    }  # fmt: skip
    return {
        "build": build,
        "steps": {"resources": {"build": build}, "compile": {"build": build}},
        "correctness": {
            "asked": "all",
            "summary": {
                "total": 20,
                "passed": value["passed"],
                "failed": 20 - value["passed"],
                "max_err": value["max_err"],
            },
            "sanitizer": [{"tool": "memcheck", "status": value["sanitizer"]}],
            "tilings": [{"name": "64x16x64,1,2pt", "status": status} for status in (value["tiling"], "unavailable")],
        },
        "metrics": {
            "metrics": {
                "mma_f32_tflops": value["mma"],
                "dram_copy_gbps": value["mma"],
                "mma_f32_cycles": value["cycles"],
                "configurations": 1,
                "fewest_both": value["both"],
                "best_over_baseline_a": value["over_a"],
            }
        },
        "benchmark": {
            "device": "cuda",
            "torch": "2.11.0",
            "benchmarks": rows,
            "comparisons": [{"against": a, "ratio": r} for a, r in ratios.items()],
            "fastest": [
                {"benchmark": "mission", "ci_high": value["fastest"]},
                {"benchmark": "mission/eager", "ci_high": value["eager"]},
            ],
        },
        "profile": {"kernels": [{"metrics": metrics}]},
        "tuning": {
            "summary": {"states": {"complete": value["complete"]}},
            "final": [{"held_out": {"ratio": value["tuned"], "ci_high": value["tuned_high"]}}],
        },
        "host": {"gpu": {"name": value["gpu"]}},
        "env": {"DEBUG": "0"},
    }


def judged(gates_of: Iterable[job.Step], context: dict[str, Any]) -> list[tuple[str, str]]:
    """Verdict and expression of each gate of these steps."""
    specs = [gate for step in gates_of for gate in step.spec().gates]
    return [(gates.evaluate(spec, context).verdict, spec.expr) for spec in specs]


def verdicts(name: str, **changes: Any) -> list[tuple[str, str]]:
    return judged(resolved(name).steps, documents(**changes))


def test_all_jobs_of_the_brief_are_there() -> None:
    phases = {"phase0", "phase1", "phase2", "phase3", "phase4", "stage5"}
    assert {"preflight", "build", "test", "bench", "peaks", "ncu", "evidence", "sweep", *phases} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_gate_has_a_hint_and_passes_on_a_good_run(name: str) -> None:
    assert [gate.expr for step in resolved(name).steps for gate in step.gates if not gate.hint] == []
    assert [v for v in verdicts(name) if v[0] != "pass"] == []


@pytest.mark.parametrize(
    ("name", "changes", "broken"),
    [
        ("phase0", {"passed": 19}, ["summary.failed == 0"]),
        ("phase3", {"tiling": "failed"}, ["correctness.tilings"]),
        ("phase3", {"tiling": "unavailable"}, ["correctness.tilings"]),
        ("evidence", {"tiling": "failed"}, ["correctness.tilings"]),
        ("phase0", {"spills": 8}, ["spill_store_bytes == 0"]),
        ("phase0", {"stack": 16}, ["stack_bytes == 0"]),
        ("phase0", {"null": 1.5}, ["0.9 <="]),
        ("phase0", {"n": 50}, ["stats.n"]),
        ("phase1", {"registers": 124}, ["compile.build.kernels[*].registers) <= 120", "resources.build"]),
        ("phase1", {"ratio": 0.2}, ["1 / 7"]),
        ("phase1", {"tensor": 3.0}, ["tensor_active_pct"]),
        ("phase1", {"smem": 70000}, ["smem_dynamic"]),
        ("evidence", {"both": 18}, ["fewest_both >= 19"]),
        ("phase1", {"p50": 250.0}, ["< 200"]),
        ("phase2", {"p50": 60.0, "ratio": 0.07}, ["< 58", "1 / 15"]),
        ("phase2", {"dram": 20.0}, ["dram_throughput_pct"]),
        ("stage5", {"over_a": 14.9}, ["best_over_baseline_a >= 15"]),
        ("phase3", {"fastest": 1.02}, ['benchmark="mission"']),
        ("phase3", {"eager": 1.2}, ["mission/eager"]),
        ("phase3", {"p50": 31.0}, ["<= 30"]),
        ("phase3", {"tensor": 0.0}, ["tensor_active_pct"]),
        ("phase4", {"tuned": 0.95, "tuned_high": 0.96}, ["<= 0.9"]),
        ("phase4", {"tuned_high": 1.01}, ["ci_high < 1"]),
        ("stage5", {"complete": 0}, ["states.complete"]),
        ("stage5", {"null": 0.8}, ["0.9 <="]),
        ("stage5", {"stack": 8}, ["stack_bytes"]),
        ("evidence", {"sanitizer": "failed"}, ["sanitizer"]),
        ("evidence", {"passed": 19}, ["passed >= 20"]),
        ("evidence", {"registers": 124}, ["<= 120"]),
        ("evidence", {"stack": 8}, ["stack_bytes"]),
        ("evidence", {"null": 0.8}, ["0.9 <="]),
        ("evidence", {"null": 1.2}, ["<= 1.1"]),
        ("peaks", {"mma": 0.0}, ["mma_f32_tflops"]),
        ("l4-first", {"cycles": 50.0}, ["<= 34"]),
        ("l4-first", {"fastest": 0.8}, ["<= 0.79"]),
        ("l4-first", {"fp8": 1.2}, ["/flagship"]),
        ("l4-first", {"spills": 8}, ["spill_store_bytes"]),
    ],
)
def test_what_is_wrong_breaks_its_own_gate_only(name: str, changes: dict[str, Any], broken: list[str]) -> None:
    failed = [expr for verdict, expr in verdicts(name, **changes) if verdict != "pass"]
    assert len(failed) == len(broken)
    for part in broken:
        assert any(part in expr for expr in failed)


def test_a_busy_processor_is_no_reason_to_fail() -> None:
    """The comparison of a kernel with itself wavers on shared cores; on a GPU it has no excuse."""
    context = documents(null=1.5)
    context["benchmark"]["device"] = "cpu"
    assert [v for v, _ in judged(resolved("bench").steps, context)] == ["pass", "pass", "not_applicable"]


def test_an_l4s_absolute_times_do_not_apply_elsewhere_and_ratios_do() -> None:
    for phase, bound in (("phase1", "< 200"), ("phase2", "< 58"), ("phase3", "<= 30")):
        found = {expr: verdict for verdict, expr in verdicts(phase, gpu="NVIDIA H200", p50=999.0)}
        assert [v for expr, v in found.items() if bound in expr] == ["not_applicable"]
        if phase == "phase1":
            assert found['benchmark.comparisons[against="mission/baseline"].ratio <= 1 / 7'] == "pass"


def test_what_is_expected_of_an_l4_first_is_not_asked_of_other_gpus() -> None:
    found = verdicts("l4-first", gpu="NVIDIA H200", cycles=6.6, fastest=0.9, fp8=1.5)
    assert [v for v, _ in found].count("not_applicable") == 3
    assert {v for v, _ in found} == {"pass", "not_applicable"}


GPU_JOBS = (
    "bench", "cycle", "evidence", "l4-first", "ncu", "peaks", "stage5", "sweep", "test",
    *(f"phase{n}" for n in range(5)),
)  # fmt: skip


@pytest.mark.parametrize("name", GPU_JOBS)
def test_preflight_is_the_first_step_on_the_machine(name: str) -> None:
    assert next(step.id for step in resolved(name).steps if step.where == "host") == "preflight"


def test_gates_follow_what_was_asked() -> None:
    context, last = documents(), resolved("test").steps[-1:]
    context["correctness"].update(asked="mission/1", summary={"total": 1, "passed": 1, "failed": 0, "max_err": 1e-3})
    by_expr = {expr: verdict for verdict, expr in judged(last, context)}
    assert by_expr.pop("correctness.summary.total == 20") == "not_applicable"
    assert set(by_expr.values()) == {"pass"}
    context["correctness"]["summary"].update(total=0, passed=0)
    assert "fail" in [verdict for verdict, _ in judged(last, context)]


@pytest.mark.parametrize("name", ["cycle", *(f"phase{n}" for n in range(5))])
def test_a_phase_checks_all_cases_whatever_it_times(name: str) -> None:
    """``--set SHAPE`` of a phase is what it times."""
    job_ = resolved(name)
    assert job_.env["TESTED"] == "all"
    assert '"${TESTED:-$SHAPE}"' in next(step.run for step in job_.steps if step.id == "test")


def test_resources_of_a_debug_build_are_not_judged() -> None:
    context = {**documents(stack=16, spills=8), "env": {"DEBUG": "1"}}
    found = judged([step for step in resolved("build").steps if step.id == "resources"], context)
    assert [verdict for verdict, _ in found] == ["not_applicable", "not_applicable", "pass"]
