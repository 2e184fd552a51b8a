"""The CUDA kernels, and kernels that cheat, on a real GPU; skipped where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcore import bench, check, inputs, peaks, registry, roundings, sampling, sanitize, separate, shapes
from flashcore.build import build
from flashcore.errors import AuditFailed
from flashcore.launch import DTYPES, Kernel
from flashcore.reference import expected
from tests.support.flagship_tilings import BEHIND, SKIPPING

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("builds"),
]

ROOT = Path(__file__).resolve().parents[3]
CUDA = [v.name for v in registry.VARIANTS.values() if v.device == "cuda"]
BASELINE = registry.VARIANTS["baseline"]
#: Long enough for work left behind to show.
LONG = {"long": shapes.Shape(1, 8, 1024, 64)}
HONEST, OTHER_STREAM, NOT_JOINED, REMEMBERS, PARTIAL, EVERY_SECOND = range(6)


@pytest.fixture(autouse=True)
def ended() -> Any:
    yield
    separate.end()


def judged(kernel: Kernel) -> separate.Kernel:
    """The same library in a process of its own."""
    return separate.Runner("cuda").kernel(kernel.built)


@pytest.fixture(scope="module")
def ceilings(builds: None) -> dict[str, Any]:
    return peaks.run()


@pytest.fixture(scope="module")
def cheater(builds: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Kernel]:
    def build_one(number: int) -> Kernel:
        text = BASELINE.source.read_text().replace("FLASHCORE_API int flashcore_forward", "static int real_forward")
        source = tmp_path_factory.mktemp("cheat") / f"cheat{number}.cu"
        source.write_text(f"#define CHEAT {number}\n{text}\n{Path(__file__).with_name('cheats.h').read_text()}")
        return Kernel(build(replace(BASELINE, name=f"cheat{number}", source=source)))

    return build_one


# ------------------------------------------------------------------------------------------------ right kernels
@pytest.mark.parametrize("name", CUDA)
def test_the_kernel_is_right(name: str) -> None:
    variant = registry.VARIANTS[name]
    document = check.run(Kernel(build(variant)), shapes.SHAPES)
    failed = [
        f"{case['name']}, seed {case['seed']}: {case['message']}" for case in document["cases"] if not case["passed"]
    ]
    assert not failed, "; ".join(failed)
    assert document["summary"]["passed"] == document["summary"]["total"] == 20
    if not variant.eight_bits:
        assert document["summary"]["brief_passed"] == 20


@pytest.mark.parametrize("tile", [pytest.param(one, id=name) for name, one in {**SKIPPING, **BEHIND}.items()])
def test_no_warp_leaves_its_output_where_another_still_reads_keys(tile: dict[str, int]) -> None:
    flagship = registry.VARIANTS["flagship"]
    c = flagship.configure(tile)
    D, dtype, groups = c["HEAD_DIM"], DTYPES[c["BFLOAT16"]], c["WARPS_KV"]
    needed = 2 * D * c["TILE_M"] + groups * (8 * c["TILE_M"] + 4 * D * c["STAGES"] * c["TILE_N"])
    major, minor = torch.cuda.get_device_capability()
    if needed > 99 * 1024 and ((major == 8 and minor in (6, 9)) or major >= 12):
        pytest.skip("unavailable: shared memory for this tiling")
    kernel = Kernel(build(flagship, tile))
    (seed,) = inputs.fresh_seeds(1)
    for S, values in ((193, "hot_row"), (193, "plain"), (640, "plain")):
        q, k, v = (x.to(dtype) for x in inputs.draw(shapes.Shape(1, 2, S, D), seed, "cuda", values))
        right = expected(q, k, v, causal=True)
        first = kernel(q, k, v, causal=True)
        for launch in range(30):
            out = kernel(q, k, v, out=torch.full_like(q, torch.nan), causal=True)
            assert roundings.judge(out.double(), right).fault is None, (S, values, seed, launch)
            assert torch.equal(out, first), (S, values, seed, launch)


@pytest.mark.parametrize("name", CUDA)
def test_the_kernel_passes_the_audit_in_every_mode(name: str, ceilings: dict[str, Any]) -> None:
    kernel = Kernel(build(registry.VARIANTS[name]))
    document, _ = bench.run(judged(kernel), {"mission": shapes.SHAPES["mission"]}, backends=["sdpa"], ceilings=ceilings)
    found = {audit["mode"]: audit for audit in document["audits"]}
    assert found["eager"]["ordered"] is True
    assert found["hot"]["nodes_per_launch"] >= 1
    assert all(one["outputs_checked"] == 2 * sampling.KEPT for one in found.values())
    for row in document["benchmarks"]:
        assert row["launches"] >= 100
        # Of eager calls the processor has its part, which may have been slower when the ceilings were measured.
        assert 0 < row["roofline"]["pct"] <= (130 if row["mode"] == "eager" else 111), row["name"]


def test_hot_cold_and_eager_times_are_of_the_same_kernel(ceilings: dict[str, Any]) -> None:
    document, _ = bench.run(
        judged(Kernel(build(BASELINE))), {"mission": shapes.SHAPES["mission"]}, backends=["sdpa"], ceilings=ceilings
    )
    p50 = {row["name"]: row["stats"]["p50"] for row in document["benchmarks"]}
    assert p50["mission"] <= 1.05 * p50["mission/cold"]
    assert p50["mission"] <= 1.05 * p50["mission/eager"]
    assert all(0.9 < c["ratio"] < 1.1 for c in document["comparisons"] if c["null"] and c["mode"] != "eager")
    assert all(len(c["clocks"]) == len(c["block_ratios"]) for c in document["comparisons"])


@pytest.mark.full
@pytest.mark.parametrize("mode", ["hot", "cold", "eager"])
def test_a_kernel_against_itself_is_1_in_19_of_20_repeats(mode: str) -> None:
    found = bench.null(judged(Kernel(build(BASELINE))), "mission", shapes.SHAPES["mission"], mode, 20)
    assert found["both"] >= 19, found
    assert found["widest"] <= 0.02, found  # an interval that says nothing contains 1, too


# ------------------------------------------------------------------------------------------------ kernels that cheat
def test_a_kernel_on_a_stream_of_its_own_may_if_it_waits_and_is_waited_for(
    cheater: Callable[[int], Kernel], ceilings: dict[str, Any]
) -> None:
    document, _ = bench.run(judged(cheater(HONEST)), LONG, backends=["sdpa"], ceilings=ceilings)
    assert [audit["mode"] for audit in document["audits"]] == ["hot", "cold", "eager"]


@pytest.mark.parametrize(
    ("cheat", "mode", "said"),
    [
        (OTHER_STREAM, "hot", "added nothing to the CUDA graph"),
        (OTHER_STREAM, "cold", "added nothing to the CUDA graph"),
        (OTHER_STREAM, "eager", "started before the earlier work"),
        (NOT_JOINED, "hot", "cannot be captured"),
        (NOT_JOINED, "eager", "the device worked|started before the earlier work"),
        (REMEMBERS, "hot", "added nothing to the CUDA graph"),
        (REMEMBERS, "eager", "wrong results|added nothing to the CUDA graph"),
        (PARTIAL, "hot", "wrong results"),
        (PARTIAL, "cold", "wrong results"),
        (PARTIAL, "eager", "wrong results"),
        (EVERY_SECOND, "hot", "added nothing to the CUDA graph"),
    ],
)
def test_a_kernel_that_cheats_gets_no_figure(
    cheat: int, mode: str, said: str, cheater: Callable[[int], Kernel], ceilings: dict[str, Any]
) -> None:
    with pytest.raises(AuditFailed, match=said):
        bench.run(judged(cheater(cheat)), LONG, backends=["sdpa"], modes=[mode], ceilings=ceilings)
    torch.cuda.synchronize()  # an abandoned capture leaves the device usable


@pytest.mark.parametrize("cheat", [OTHER_STREAM, NOT_JOINED, REMEMBERS, PARTIAL, EVERY_SECOND])
def test_the_check_notices_a_kernel_that_cheats(cheat: int, cheater: Callable[[int], Kernel]) -> None:
    document = check.run(judged(cheater(cheat)), {"small": shapes.Shape(1, 2, 64, 64)})
    assert document["summary"]["failed"] > 0


# ------------------------------------------------------------------------------------------------ the machine
def test_the_ceilings_are_those_of_a_gpu(ceilings: dict[str, Any]) -> None:
    m = ceilings["metrics"]
    assert 2 <= m["mma_f32_cycles"] <= 40
    assert 0.9 <= m["mma_f32_over_f16_cycles"] <= 2.2
    assert 0 < m["mma_f32_tflops_sustained"] <= 1.05 * m["mma_f32_tflops"] <= 2000
    assert 8 <= m["exp2_per_clock_sm"] <= 34
    assert 100 <= m["dram_copy_gbps"] <= 1.2 * m["l2_copy_gbps"]
    assert 0.3 <= m["empty_graph_us"] <= m["empty_eager_us"] <= 100
    clock_mhz = m["mma_f32_tflops"] * 1e6 / (m["sms"] * 4 * peaks.MMA_FLOP / m["mma_f32_cycles"])
    assert clock_mhz == pytest.approx(m["clock_mhz"], rel=0.01)  # both figures of one loop are of the same clock
    assert 300 <= m["clock_mhz_sustained"] <= 1.02 * m["max_clock_mhz"] <= 4000


def test_ceilings_are_the_same_after_a_pause(ceilings: dict[str, Any]) -> None:
    """An idle GPU lowers its clock, and raises it only while there is work."""
    time.sleep(3)
    again = peaks.run()["metrics"]["mma_f32_tflops"]
    assert again == pytest.approx(ceilings["metrics"]["mma_f32_tflops"], rel=0.02)


def test_no_call_of_a_kernel_is_faster_than_that_of_an_empty_one(ceilings: dict[str, Any]) -> None:
    """The floor of eager rows was measured the way kernels are called: through C here."""
    kernel = Kernel(build(registry.VARIANTS["flagship"]))
    assert kernel.dispatch_missing == ""
    document, _ = bench.run(
        judged(kernel), {"s64": shapes.SHAPES["s64"]}, backends=[], modes=["eager"], ceilings=ceilings
    )
    assert document["benchmarks"][0]["roofline"]["pct"] <= 102


def test_a_check_works_with_expandable_segments(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        "PYTHONPATH": str(ROOT / "kernels"),
    }
    command = [sys.executable, "-m", "flashcore", "check", "baseline", "--out", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
def test_compute_sanitizer_finds_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "kernels")}
    argv = [
        sys.executable,
        "-m",
        "flashcore",
        "check",
        "baseline",
        "--shape",
        "s64",
        "--sanitize",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "correctness-baseline.json").read_text())["sanitizer"]
    assert [p["tool"] for p in parts] == list(sanitize.TOOLS)
    if any(p["status"] == "unavailable" for p in parts):
        pytest.skip(f"unavailable: {parts[0]['message']}")
    assert {p["status"] for p in parts} == {"passed"}
