from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flashcore import bench, capture, documents, inputs, reference, sampling, separate, shapes, stats, timing
from orchestrator.results.timings import entries


def test_percentiles_and_spread() -> None:
    found = stats.summary(np.arange(1.0, 102.0))
    assert (found["n"], found["p50"], found["p90"], found["p99"]) == (101, 51.0, 91.0, 100.0)
    assert (found["min"], found["max"], found["mean"]) == (1.0, 101.0, 51.0)
    assert stats.summary(np.array([3.0]))["stddev"] == 0.0


SHAPE = (bench.REPLICATES, 2, 2 * bench.RUN)


def null_run(rng: np.random.Generator, truth: float = 1.0, heavy: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Two sides whose placement differs by 0.3 % for as long as a replicate lasts, on a machine whose slow noise they
    share, with noise of their own that is autocorrelated (0.9 from sample to sample) and, if ``heavy``, has outliers.
    """
    replicates, blocks, per_block = SHAPE
    drift = np.exp(np.cumsum(rng.normal(0, 0.004, (replicates, blocks, 1)), axis=1))
    sides = []
    for level in (truth, 1.0):
        noise = np.empty((replicates, blocks * per_block))
        noise[:, 0] = rng.normal(0, 0.002, replicates)
        for n in range(1, noise.shape[1]):
            noise[:, n] = 0.9 * noise[:, n - 1] + rng.normal(0, 0.002 * np.sqrt(1 - 0.9**2), replicates)
        placement = rng.normal(0, 0.003, (replicates, 1, 1))
        side = 10 * level * drift * np.exp(placement + noise.reshape(SHAPE))
        if heavy:
            side = np.where(rng.random(SHAPE) < 0.02, 3 * side, side)
        sides.append(side)
    return sides[0], sides[1]


def test_drift_cancels_in_the_paired_ratio() -> None:
    rng = np.random.default_rng(5)
    drift = np.linspace(1, 3, SHAPE[0] * SHAPE[1]).reshape(*SHAPE[:2], 1)  # the machine becomes three times slower
    found = stats.paired_ratio(50 * drift * rng.normal(1, 0.01, SHAPE), 100 * drift * rng.normal(1, 0.01, SHAPE))
    assert found["ci_low"] <= 0.5 <= found["ci_high"]
    assert found["ci_high"] - found["ci_low"] < 0.01


@pytest.mark.parametrize(
    ("call_us", "hot", "cold"),
    [(0.1, 200, 200), (20.0, 50, 50), (100.0, 10, 32), (192.0, 6, 32), (1000.0, 1, 6), (9000.0, 1, 1)],
)
def test_a_graph_lasts_long_enough_and_a_cold_one_has_launches_enough_to_compare(
    call_us: float, hot: int, cold: int
) -> None:
    assert (timing.launches(call_us, cold=False), timing.launches(call_us, cold=True)) == (hot, cold)


@pytest.mark.full
@pytest.mark.parametrize("heavy", [False, True], ids=["plain", "outliers"])
def test_the_interval_of_equals_contains_1_as_often_as_it_says(heavy: bool) -> None:
    rng = np.random.default_rng(6)
    found = [stats.paired_ratio(*null_run(rng, heavy=heavy), seed=n) for n in range(1000)]
    covering = sum(f["ci_low"] <= 1 <= f["ci_high"] for f in found)
    assert 920 <= covering <= 990, covering
    assert sum(abs(f["ratio"] - 1) < 0.01 for f in found) >= 999
    assert np.median([f["ci_high"] - f["ci_low"] for f in found]) < 0.008


def test_an_interval_of_samples_as_if_independent_would_be_too_narrow() -> None:
    """The same runs with the replicates' blocks taken for replicates: what the simulation must be able to show."""
    rng = np.random.default_rng(6)
    hits = 0
    for n in range(300):
        a, b = (side.reshape(-1, 1, side.shape[2]) for side in null_run(rng))
        found = stats.paired_ratio(a, b, seed=n)
        hits += found["ci_low"] <= 1 <= found["ci_high"]
    assert hits < 276


@pytest.mark.parametrize("truth", [0.98, 1.02])
def test_two_percent_are_told_from_nothing(truth: float) -> None:
    rng = np.random.default_rng(7)
    floors = [stats.floor_of(stats.paired_ratio(*null_run(rng))) for _ in range(100)]
    found = [stats.paired_ratio(*null_run(rng, truth), floor=floor) for floor in floors]
    assert sum(not f["ci_low"] <= 1 <= f["ci_high"] for f in found) >= 99
    assert sum(f["ci_low"] <= truth <= f["ci_high"] for f in found) >= 92


def test_the_null_puts_a_floor_under_other_intervals() -> None:
    rng = np.random.default_rng(8)
    a, b = null_run(rng, 1.5)
    plain, floored = stats.paired_ratio(a, b), stats.paired_ratio(a, b, floor=0.02)
    assert floored["ratio"] == plain["ratio"]
    assert floored["ci_high"] / floored["ratio"] == pytest.approx(1.02, abs=1e-4)
    assert floored["ratio"] / floored["ci_low"] == pytest.approx(1.02, abs=1e-4)
    assert stats.paired_ratio(a, b, floor=1e-6) == plain
    assert stats.floor_of({"ratio": 1.004, "ci_low": 1.003, "ci_high": 1.005}) == pytest.approx(0.004)
    assert stats.floor_of({"ratio": 1.001, "ci_low": 0.995, "ci_high": 1.007}) == pytest.approx(0.006)
    assert stats.floor_of({"ratio": 1.0001, "ci_low": 1.0, "ci_high": 1.0002}) == stats.FINEST


def test_no_side_has_an_advantage_by_its_turn() -> None:
    """Each side comes first equally often, in the blocks of a replicate and in the capture of the graphs."""
    blocks = bench.blocks_for(bench.MIN_ITERATIONS)
    assert blocks % 2 == bench.REPLICATES % 2 == 0
    assert bench.REPLICATES >= 10
    assert bench.REPLICATES * blocks * 2 * bench.RUN >= bench.MIN_ITERATIONS
    taken: list[str] = []

    class Source:
        call_us = 1e6

        def __init__(self, name: str) -> None:
            self.name = name

        def timer(self, replicate: int, side: int) -> object:
            taken.append(f"{self.name}{replicate}.{side}")
            return Fixed(1.0 + side)

    class Fixed:
        def __init__(self, value: float) -> None:
            self.value = value

        def lead_in(self) -> None:
            pass

        def sample(self) -> float:
            return self.value

    subject = bench.Bench.__new__(bench.Bench)
    subject.mode, subject.blocks, subject.clocks = "wall", blocks, bench.Clocks()
    paired = subject._measure(Source("a"), Source("b"))  # type: ignore[arg-type]
    assert paired.a.shape == paired.b.shape == (bench.REPLICATES, blocks, 2 * bench.RUN)
    assert stats.paired_ratio(paired.a, paired.b)["ratio"] == 0.5
    assert taken[:4] == ["a0.0", "b0.1", "b1.1", "a1.0"]
    assert len(taken) == len(set(taken)) == 2 * bench.REPLICATES
    assert len(subject._audited) == 3


def test_both_sides_share_a_place_and_exchange_their_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []

    class Runner(separate.Runner):
        """Takes the plans, and what their samples take for 1 us."""

        def __init__(self) -> None:
            self._numbers, self._memory, self.empty_us = iter(range(99)), None, 0.0

        def ask(self, op: str, **what: Any) -> separate.Reply:
            if op == "plan":
                asked.append(sorted(tensors[0][0] for tensors in what["sets"]))  # where q is
            return separate.Reply({"launches": 1, "graphs": 3})

        def go(self, plan: int, count: int = 1) -> tuple[float, list[float]]:
            return 1.0, [1.0] * count

    monkeypatch.setattr(timing, "rotation", lambda _shape: 3)
    subject = separate.Subject(Runner(), 0)
    for mode in ("hot", "cold"):
        asked.clear()
        source = sampling.Source(mode, subject, sampling.places(shapes.Shape(1, 1, 16, 64), "cpu", mode))
        for replicate in (0, 1):
            for side in (0, 1):
                source.timer(replicate, side)
        places = asked[1:]
        if mode == "hot":  # the same inputs, then others
            assert places[0] == places[1] != places[2] == places[3]
        else:  # one rotation each, then the other's
            assert places[0] == places[3] != places[1] == places[2]
            assert len(places[0]) == 3


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
        comparison(f"/{reference.FLEX}/eager", 0.4, "eager"),
    ])  # fmt: skip
    assert [(f["benchmark"], f["against"], f["ci_high"]) for f in found] == [
        ("1,8,2048,64", "1,8,2048,64/sdpa-flash", pytest.approx(0.81)),
        ("1,8,2048,64/eager", "1,8,2048,64/torch-flex/eager", pytest.approx(0.41)),
    ]


def test_replicates_on_a_throttled_gpu_are_marked_and_the_others_compared_alone() -> None:
    slow = np.zeros((10, 2), dtype=bool)
    slow[:3, 1] = True
    a, b = np.full((10, 2, 4), 5.0), np.full((10, 2, 4), 10.0)
    a[slow] *= 3  # throttled while the kernel ran
    paired = bench.Paired(a, b, [{"throttled": ["sw_thermal"] if s else []} for s in slow.reshape(-1)])
    assert paired.throttled.tolist() == slow.tolist()
    subject = bench.Bench.__new__(bench.Bench)
    subject.name, subject.mode, subject.device = "mission", "wall", "cpu"
    found = subject._compare("sdpa", paired, 0.001)
    assert (found["throttled_blocks"], found["against"], found["floor"]) == (3, "mission/sdpa", 0.001)
    assert found["unthrottled"]["ratio"] == 0.5
    assert len(found["block_ratios"]) == len(found["clocks"]) == 20
    quiet = subject._compare("", bench.Paired(a, b, []))
    assert (quiet["throttled_blocks"], quiet["unthrottled"], quiet["null"], quiet["floor"]) == (0, None, True, None)


def test_a_graph_is_not_counted_without_a_driver_or_a_capture() -> None:
    assert capture.nodes(0) is None


def test_math_on_large_shapes_is_left_out_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.reference, "names", lambda _device, _shape: ["sdpa", "sdpa-math"])

    class Cpu:
        class variant:
            device = "cpu"

    class Backends(separate.Runner):
        def __init__(self) -> None:
            pass

        def backend(self, name: str) -> separate.Subject:
            return separate.Subject(self, 0)

    rivals, skipped = bench._rivals(Cpu, shapes.Shape(1, 1, 16, 64), (), None, Backends())  # type: ignore[arg-type]
    assert [r.name for r in rivals] == ["sdpa", "sdpa-math"]
    monkeypatch.setattr(bench, "MAX_MATH_SCORES", 255)
    rivals, skipped = bench._rivals(Cpu, shapes.Shape(1, 1, 16, 64), (), None, Backends())  # type: ignore[arg-type]
    assert [r.name for r in rivals] == ["sdpa"]
    assert [(s["rival"], "memory" in s["reason"]) for s in skipped] == [("sdpa-math", True)]


def test_flex_attention_is_a_reference_of_what_it_can_hide() -> None:
    (timed,) = entries({"benchmarks": [{"name": "w/torch-flex", "variant": reference.FLEX}]})
    assert timed.is_reference  # to fcctl, too
    hides, plain = (shapes.parse(text)[text] for text in ("1,2,8,64,w3", "1,2,8,64"))
    assert reference.FLEX in reference.names("cuda", hides)
    assert reference.FLEX not in reference.names("cuda", plain)


def test_the_export_answers_the_users_jq_paths() -> None:
    def row(name: str, p50: float) -> dict[str, object]:
        return {"name": name, "mode": "hot", "stats": {"p50": p50, "p90": p50 + 1, "p99": p50 + 2}}

    document = {
        "variant": "baseline",
        "device": "cpu",
        "config": {"B": 1, "H": 8, "S": 512, "D": 64},
        "benchmarks": [row("mission", 40.0), row("mission/sdpa", 20.0), row("mission/cold", 50.0)],
    }
    export = documents.export(document, {"mission": shapes.SHAPES["mission"]})
    assert [export["results"]["mission"]["flashcore"][p] for p in ("p50", "p90", "p99")] == [40.0, 41.0, 42.0]
    assert export["results"]["mission"]["pytorch"]["p50"] == 20.0
    assert export["config"] == {"B": 1, "H": 8, "S": 512, "D": 64}
    assert export["speedup"] == 0.5


def test_the_parts_of_large_inputs_are_never_the_same_numbers_at_the_same_places() -> None:
    for _ in range(20):
        chosen = sampling.pieces(300)
        assert all(0 <= piece < sampling.PIECES for piece in chosen)
        near = [chosen[first : first + 100] for first in range(200)]
        assert min(abs(a - b) for some in near for a in some[:1] for b in some[1:]) >= sampling.APART > 256
