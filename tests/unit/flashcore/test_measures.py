from __future__ import annotations

import numpy as np
import pytest
import torch

from flashcore import bench, capture, compare, inputs, reference, shapes, stats


def test_percentiles_and_spread() -> None:
    found = stats.summary(np.arange(1.0, 102.0))
    assert (found["n"], found["p50"], found["p90"], found["p99"]) == (101, 51.0, 91.0, 100.0)
    assert (found["min"], found["max"], found["mean"]) == (1.0, 101.0, 51.0)
    assert stats.summary(np.array([3.0]))["stddev"] == 0.0


def test_drift_cancels_in_the_paired_ratio() -> None:
    rng = np.random.default_rng(5)
    drift = np.linspace(1, 3, 40)[:, None]  # the machine becomes three times slower
    a = 50 * drift * rng.normal(1, 0.01, (40, 4))
    b = 100 * drift * rng.normal(1, 0.01, (40, 4))
    found = stats.paired_ratio(a, b)
    assert found["ci_low"] <= 0.5 <= found["ci_high"]
    assert found["ci_high"] - found["ci_low"] < 0.01


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(6)
    hits = 0
    for _ in range(200):
        found = stats.paired_ratio(rng.normal(1, 0.05, (25, 4)), rng.normal(1, 0.05, (25, 4)))
        hits += found["ci_low"] <= 1 <= found["ci_high"]
    assert 180 <= hits <= 199


def test_unwritten_outputs_are_counted_and_refused() -> None:
    out = torch.zeros(4, 4)
    out[1, 2] = float("nan")
    out[3, 3] = float("inf")
    error = compare.measure(out, torch.zeros(4, 4, dtype=torch.float64))
    assert (error.nan, error.inf) == (1, 1)
    assert "1 NaN and 1 infinite" in str(compare.Tolerance(1, 1).refusal(error))
    everywhere = compare.measure(torch.full((2,), float("nan")), torch.ones(2, dtype=torch.float64))
    assert compare.Tolerance(1e9, 1e9).refusal(everywhere) is not None


@pytest.mark.parametrize(
    ("shift", "refused"), [(0.0, None), (2e-4, "relative RMS"), (0.5, "max error")], ids=["exact", "biased", "wrong"]
)
def test_each_tolerance_is_asked_on_its_own(shift: float, refused: str | None) -> None:
    right = torch.full((8, 8), 0.1, dtype=torch.float64)
    error = compare.measure(right + shift, right)
    said = compare.Tolerance(0.06, 1e-3).refusal(error)
    assert (said is None) if refused is None else (refused in str(said))


def test_the_tolerance_follows_sdpa_but_has_a_floor_and_the_briefs_ceiling() -> None:
    right = torch.ones(4, dtype=torch.float64)
    assert compare.tolerance(right + 0.01, right).max_err == pytest.approx(0.02)
    assert compare.tolerance(right, right).max_err == pytest.approx(2**-11 + 1e-5)
    assert compare.tolerance(right + 9, right).max_err == 0.06


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_is_attention(causal: bool) -> None:
    q, k, v = (t.double() for t in inputs.draw(shapes.Shape(2, 3, 33, 64, 57), 7, "cpu"))
    theirs = reference.sdpa(q, k, v, causal=causal, scale=0.2)
    assert torch.allclose(reference.attention64(q, k, v, causal=causal, scale=0.2), theirs, atol=1e-12)


@pytest.mark.parametrize("values", ["plain", *inputs.HOSTILE])
def test_inputs_repeat_by_seed_and_stay_finite(values: str) -> None:
    shape = shapes.Shape(1, 2, 40, 64)
    first, again, other = (inputs.draw(shape, seed, "cpu", values) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert all(torch.isfinite(t).all() for t in first)


def test_seeds_are_fresh() -> None:
    assert len({*inputs.fresh_seeds(3), *inputs.fresh_seeds(3)}) == 6


def test_the_fastest_backend_is_the_one_the_kernel_has_the_least_lead_on() -> None:
    def comparison(against: str, ratio: float, mode: str = "hot") -> dict[str, object]:
        benchmark = "1,8,2048,64" + ("/eager" if mode == "eager" else "")
        span = {"ratio": ratio, "ci_low": ratio - 0.01, "ci_high": ratio + 0.01}
        return {"benchmark": benchmark, "against": f"1,8,2048,64{against}", "mode": mode, **span}

    found = bench.fastest([
        comparison("", 1.0), comparison("/sdpa-math", 0.1), comparison("/sdpa-flash", 0.8), comparison("/sdpa", 0.7),
        comparison("/baseline", 2.0), comparison("/sdpa-math/eager", 0.3, "eager"),
    ])  # fmt: skip
    assert [(f["benchmark"], f["against"], f["ci_high"]) for f in found] == [
        ("1,8,2048,64", "1,8,2048,64/sdpa-flash", pytest.approx(0.81)),
        ("1,8,2048,64/eager", "1,8,2048,64/sdpa-math/eager", pytest.approx(0.31)),
    ]


def test_blocks_on_a_throttled_gpu_are_marked_and_the_others_compared_alone() -> None:
    slow = np.arange(20) % 4 == 0
    a, b = np.full((20, 4), 5.0), np.full((20, 4), 10.0)
    a[slow] *= 3  # throttled while the kernel ran
    paired = bench.Paired(a, b, [{"throttled": ["sw_thermal"] if s else []} for s in slow])
    assert paired.throttled.tolist() == slow.tolist()
    clocks = bench.Clocks()
    subject = bench.Bench.__new__(bench.Bench)
    subject.name, subject.mode, subject.device, subject.clocks = "mission", "wall", "cpu", clocks
    found = subject._compare("sdpa", paired)
    assert (found["throttled_blocks"], found["against"]) == (5, "mission/sdpa")
    assert found["unthrottled"]["ratio"] == 0.5
    quiet = subject._compare("", bench.Paired(a, b, []))
    assert (quiet["throttled_blocks"], quiet["unthrottled"], quiet["null"]) == (0, None, True)


def test_a_graph_is_not_counted_without_a_driver_or_a_capture() -> None:
    assert capture.nodes(0) is None


def test_math_on_large_shapes_is_left_out_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.reference, "names", lambda _device: ["sdpa", "sdpa-math"])

    class Cpu:
        class variant:
            device = "cpu"

    rivals, skipped = bench._rivals(Cpu, shapes.Shape(1, 1, 16, 64), (), None)  # type: ignore[arg-type]
    assert [r.name for r in rivals] == ["sdpa", "sdpa-math"]
    monkeypatch.setattr(bench, "MAX_MATH_SCORES", 255)
    rivals, skipped = bench._rivals(Cpu, shapes.Shape(1, 1, 16, 64), (), None)  # type: ignore[arg-type]
    assert [r.name for r in rivals] == ["sdpa"]
    assert [(s["rival"], "memory" in s["reason"]) for s in skipped] == [("sdpa-math", True)]


def test_the_export_answers_the_users_jq_paths() -> None:
    def row(name: str, p50: float) -> dict[str, object]:
        return {"name": name, "mode": "hot", "stats": {"p50": p50, "p90": p50 + 1, "p99": p50 + 2}}

    document = {
        "variant": "baseline",
        "device": "cpu",
        "config": {"B": 1, "H": 8, "S": 512, "D": 64},
        "benchmarks": [row("mission", 40.0), row("mission/sdpa", 20.0), row("mission/cold", 50.0)],
    }
    export = bench.export(document, {"mission": shapes.SHAPES["mission"]})
    assert [export["results"]["mission"]["flashcore"][p] for p in ("p50", "p90", "p99")] == [40.0, 41.0, 42.0]
    assert export["results"]["mission"]["pytorch"]["p50"] == 20.0
    assert export["config"] == {"B": 1, "H": 8, "S": 512, "D": 64}
    assert export["speedup"] == 0.5
