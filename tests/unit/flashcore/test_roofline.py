from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from flashcore import peaks, roofline
from flashcore.errors import UsageError
from flashcore.grades import grade
from flashcore.shapes import SHAPES, Shape

#: About an L4's, by its datasheet: 121 TFLOP/s, 300 GB/s, 48 MB of cache.
L4 = {
    "mma_f32_tflops": 121.0, "exp2_gops": 1890.0, "dram_copy_gbps": 300.0, "l2_copy_gbps": 1500.0,
    "empty_graph_us": 1.0, "empty_eager_us": 6.0, "l2_bytes": 48 * 2**20,
    "mma_f32_cycles": 16.0, "mma_f16_cycles": 16.0, "max_clock_mhz": 2040.0, "sms": 58,
}  # fmt: skip
MISSION = SHAPES["mission"]


def test_the_missions_floors_are_those_of_the_arithmetic() -> None:
    found = roofline.floors(MISSION, "hot", L4)
    assert found["tensor"] == pytest.approx(536_870_912 / 121e6, rel=1e-6)  # 4.4 us
    assert found["exp2"] == pytest.approx(2_097_152 / 1890e3, rel=1e-6)
    assert found["memory"] == pytest.approx(2_097_152 / 1.5e6, rel=1e-6)  # fits the cache
    assert roofline.floors(MISSION, "cold", L4)["memory"] == pytest.approx(0.75 * 2_097_152 / 0.3e6, rel=1e-6)  # 5.2 us


def test_what_does_not_fit_the_cache_comes_from_dram_even_if_warm() -> None:
    """A kernel that finds 52 of 67 MB in the cache was 109 % of the roofline otherwise."""
    large, cached = Shape(4, 16, 4096, 64), 48 * 2**20
    expected = (large.tensor_bytes - cached) / 0.3e6 + cached / 1.5e6
    assert roofline.floors(large, "hot", L4)["memory"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("mode", "bound", "us"), [("hot", "tensor", 4.4369), ("cold", "memory", 5.2429), ("eager", "launch", 6.0)]
)
def test_the_largest_floor_is_the_bound(mode: str, bound: str, us: float) -> None:
    found = roofline.distance(MISSION, mode, L4, 10.0)
    assert (found["bound"], found["us"], found["pct"]) == (bound, us, round(10 * us, 2))
    assert found["tflops"] == pytest.approx(53.687, abs=1e-3)


def test_nothing_is_faster_than_the_tensor_cores_at_the_highest_clock() -> None:
    least = 131_072 / (4 * 58) * 16 / 2040  # 4.43 us
    assert roofline.impossible(MISSION, "hot", L4, 0.97 * least)
    assert roofline.impossible(MISSION, "hot", L4, float("nan"))
    assert not roofline.impossible(MISSION, "hot", L4, least)


def test_a_kernel_at_95_percent_of_the_peak_is_believed_whatever_the_clock_was_at_the_ceilings() -> None:
    """An H100's first burst, before its clock rose, was 439 TFLOP/s; 568 were sustained, 644 are there at 1980 MHz."""
    h100 = {**L4, "mma_f32_cycles": 6.654, "mma_f16_cycles": 6.654, "max_clock_mhz": 1980.0, "sms": 132}
    flop = 4 * 4 * 16 * 2048**2 * 64
    for measured in (439.0, 568.0):
        row = flop / (0.95 * 644e6)
        assert not roofline.impossible(Shape(4, 16, 2048, 64), "hot", {**h100, "mma_f32_tflops": measured}, row)
    assert roofline.impossible(Shape(4, 16, 2048, 64), "hot", h100, flop / (1.05 * 644e6))


def test_fp16_sums_and_operands_of_8_bits_are_held_against_their_own_rates() -> None:
    at_half_rate = {**L4, "mma_f32_cycles": 32.0}
    assert not roofline.impossible(MISSION, "hot", at_half_rate, 4.5)
    assert roofline.impossible(MISSION, "hot", L4, 3.0)
    assert not roofline.impossible(MISSION, "hot", L4, 3.0, bits=8)
    assert roofline.impossible(MISSION, "hot", L4, 2.0, bits=8)


def test_a_document_of_peaks_is_read_and_anything_else_refused(tmp_path: Path) -> None:
    path = tmp_path / "peaks.json"
    path.write_text(json.dumps({"kind": "metrics", "metrics": L4}))
    assert roofline.load(str(path))["metrics"] == L4
    for text in ("{}", "[1]", "no", json.dumps({"metrics": {**L4, "exp2_gops": 0}}), json.dumps({"metrics": []})):
        path.write_text(text)
        with pytest.raises(UsageError, match="python -m flashcore peaks"):
            roofline.load(str(path))
    with pytest.raises(UsageError):
        roofline.load(str(tmp_path / "nothing"))


def test_a_processor_has_a_ceiling_too() -> None:
    measured = peaks.processor()["metrics"]
    assert 0.001 < measured["matmul_tflops"] < 1000
    ceilings = {"matmul_tflops": 0.1}
    least = roofline.floors(MISSION, "wall", ceilings)["arithmetic"]
    assert least == pytest.approx(536_870_912 / 0.1e12 * 1e6)
    assert roofline.impossible(MISSION, "wall", ceilings, 0.8 * least)
    assert not roofline.impossible(MISSION, "wall", ceilings, 0.95 * least)


@pytest.mark.parametrize(
    ("p50", "letter"),
    [
        (4.6, "A+"), (39.9, "A+"), (40, "A+"), (50, "A+"), (50.1, "A"), (70, "A"), (70.1, "B+"), (100, "B+"),
        (100.1, "B"), (150, "B"), (150.1, "C"), (200, "C"), (200.1, "D"), (1397.7, "D"),
    ],
)  # fmt: skip
def test_each_bound_belongs_to_the_better_grade(p50: float, letter: str) -> None:
    found = grade(p50, "NVIDIA L4")
    assert found is not None
    assert found.letter == letter
    assert found.next_step


@pytest.mark.parametrize("gpu", ["NVIDIA H200", "NVIDIA L40S", "", None])
def test_there_is_no_grade_off_the_l4(gpu: str | None) -> None:
    assert grade(45.0, gpu) is None


@pytest.mark.parametrize("p50", [math.nan, math.inf, 0.0, -1.0])
def test_there_is_no_grade_without_a_time(p50: float) -> None:
    assert grade(p50, "NVIDIA L4") is None
