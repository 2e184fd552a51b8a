from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.change_points import Flat, Stepped, delays, ever_alarmed
from orchestrator.base.errors import NotFoundError
from orchestrator.results.compare import ranks
from orchestrator.results.compare.history import Series, best, changes, history, ladder, series
from orchestrator.results.compare.ranks import ALPHA, LEAST, change_points
from orchestrator.results.store.store import FileStore
from orchestrator.results.timings import Measurement
from tests.support.measured_runs import measured, simple
from tests.support.tiers import sampled


def point(i: int, p50: float, **changed: object) -> Measurement:
    values: dict[str, object] = {
        "run_id": f"20261121t{i:06d}z-bench-l4-{i:06x}", "created": f"2026-11-21T{i:06d}", "job": "bench",
        "target": "l4", "status": "passed", "benchmark": "mission", "variant": "fused", "mode": "hot", "unit": "us",
        "shape": "1,8,512,64", "method": "v3", "reference": False, "p50": p50, "n": 100, "gpu": "NVIDIA L4",
        "driver": "550", "git_commit": f"{i // 5:040x}", "tree_sha256": f"{i:064x}",
    }  # fmt: skip
    return Measurement(**{**values, **changed})  # type: ignore[arg-type]


def made(values: list[float]) -> Series:
    return Series(tuple(point(i, value) for i, value in enumerate(values)))


def noisy(levels: list[tuple[int, float]], noise: float = 0.01, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(level * np.exp(rng.normal(0, noise))) for count, level in levels for _ in range(count)]


def by_definition(logs: np.ndarray) -> np.ndarray:
    """The logarithms of the factors of a step, from the likelihoods themselves: no sums over tails."""
    n = logs.size
    flat, stepped = [], []
    for memory in ranks.MEMORIES:
        white = np.eye(n) - memory * np.eye(n, k=-1)
        white[0, 0] = math.sqrt(1 - memory**2)
        one, series = white @ np.ones(n), white @ logs
        level = one @ series / (one @ one)
        without = np.sum((series - level * one) ** 2)
        about = math.log(white[0, 0]) - math.log(one @ one) / 2
        flat.append(about - (n - 1) / 2 * math.log(without))
        row = []
        for number, at in enumerate(range(LEAST, n - LEAST + 1)):
            step = white @ (np.arange(n) >= at)
            beside = step - one * (one @ step) / (one @ one)
            prior = ranks.SIZE / (1 - memory**2)
            size = beside @ beside
            left = without - (beside @ series) ** 2 / (size + 1 / prior)
            early = ranks.EARLY / ((ranks.EARLY + number) * (ranks.EARLY + number + 1))
            row.append(about + math.log(early) - math.log(1 + prior * size) / 2 - (n - 1) / 2 * math.log(left))
        stepped.append(row)
    return np.asarray(np.logaddexp.reduce(stepped, axis=0) - np.logaddexp.reduce(flat))


@pytest.mark.parametrize("seed", range(3))
def test_the_factors_of_a_step_are_those_of_their_definition(seed: int) -> None:
    logs = np.log(noisy([(9 + seed, 10.0), (7, 10.2)], seed=seed))
    assert ranks._factors(logs) == pytest.approx(by_definition(logs), rel=1e-6)
    places = sum(ranks.EARLY / ((ranks.EARLY + k) * (ranks.EARLY + k + 1)) for k in range(100_000))
    assert places == pytest.approx(1.0, abs=1e-4), "however long the series becomes"


def test_only_a_run_that_differs_from_both_neighbours_the_same_way_is_odd() -> None:
    """The usual difference is the median one: here 0.01, and six of them are odd."""
    usual = 1.4826 * 0.01
    plain = np.array([0.0, 0.01, 0.0, 0.01, 0.0, 0.01, 0.0, 0.01, 0.0, 0.01, 0.0])
    for moved, odd in ((5.9 * usual, False), (6.1 * usual, True), (-5.9 * usual, False), (-6.1 * usual, True)):
        logs = plain.copy()
        logs[4] = 0.01 + moved
        expected = logs.copy()
        expected[4] = 0.01 if odd else logs[4]
        assert ranks._without_odd(logs) == pytest.approx(expected)
    ramp = np.array([0.0, 0.01, 0.0, 0.01, 0.0, 1.0, 2.0, 2.01, 2.0, 2.01, 2.0])
    assert ranks._without_odd(ramp) == pytest.approx(ramp), "a step is no odd run"


def test_changes_are_found_where_they_are() -> None:
    found = change_points(noisy([(40, 10.0), (30, 10.5), (25, 9.0)]))
    assert [step.start for step in found] == pytest.approx([40, 70], abs=1)
    assert all(step.p <= ALPHA and step.end is None for step in found)
    (step,) = change_points([10.0] * 20 + [20.0] * 20)
    assert (step.start, step.p < 1e-9) == (20, True)


@pytest.mark.parametrize("seed", range(10))
def test_a_change_of_five_percent_is_found_within_five_runs(seed: int) -> None:
    values = noisy([(25, 10.0), (5, 10.5)], noise=0.007, seed=seed)
    assert [step.start for step in change_points(values)] == pytest.approx([25], abs=1)
    assert change_points(values[:27]) == [], "two runs could be two odd ones"


@pytest.mark.parametrize(
    "flat", sampled([Flat(memory=m) for m in (0.3, 0.6, 0.9)] + [Flat(tails=2)], [Flat(memory=0.9)])
)
def test_of_flat_series_that_are_looked_at_after_each_run_few_ever_alarm(flat: Flat) -> None:
    # Of a true 5 % seven or more of 50 would alarm once in eighty times; `make calibrate` tries 1,000.
    assert ever_alarmed(flat, trials=50, seed=3) <= 6 / 50


def test_the_rate_of_alarms_can_fail() -> None:
    """With an alpha that promises nothing the check above would notice."""
    assert ever_alarmed(Flat(memory=0.9), trials=40, seed=3, alpha=0.99) > 6 / 50


def test_what_was_told_stays_told_at_the_next_run() -> None:
    values = noisy([(20, 10.0), (15, 10.4), (15, 9.8)], noise=0.007)
    told = [[step.start for step in change_points(values[:n])] for n in range(len(values) + 1)]
    assert told[-1] == pytest.approx([20, 35], abs=1)
    for earlier, later in itertools.pairwise(told):
        assert later[: len(earlier)] == earlier


def test_the_delay_at_a_step_is_the_one_stated() -> None:
    found = delays(Stepped(memory=0.3), trials=30, seed=3)
    assert sorted(found)[len(found) // 2] == LEAST
    assert sum(delay <= 5 for delay in found) >= 0.8 * len(found)


@pytest.mark.parametrize("length", [3, 6])
def test_a_level_that_returns_soon_was_an_episode(length: int) -> None:
    values = noisy([(20, 10.0), (length, 13.0), (20, 10.0), (10, 10.5)])
    assert [(step.start, step.end) for step in change_points(values)] == [(20, 20 + length), (40 + length, None)]
    longer = change_points(noisy([(20, 10.0), (7, 13.0), (20, 10.0)]))
    assert [(step.start, step.end) for step in longer] == [(20, None), (27, None)], "six runs, and no more"
    (now,) = change_points(values[: 20 + length])
    assert now.end is None, "nobody knows yet that it will return"
    episode, step = changes(made(values))
    assert (episode.ratio, step.ratio) == (pytest.approx(1.3, rel=0.02), pytest.approx(1.05, rel=0.02))


def test_single_odd_runs_and_short_series_make_no_change() -> None:
    values = noisy([(30, 10.0)], noise=0.001)
    values[10] = 25.0
    values[22] = 5.0
    assert change_points(values) == []
    values[11] = 25.0
    assert change_points(values) == [], "nor do two in a row"
    assert change_points([]) == change_points([1.0, 2.0, 3.0, 4.0, 5.0]) == []
    assert change_points([10.0] * 50) == []


def test_a_change_names_its_commits() -> None:
    (found,) = changes(made(noisy([(20, 10.0), (20, 12.0)], noise=0.002)))
    assert found.ratio == pytest.approx(1.2, rel=0.01)
    assert found.first_after.run_id.endswith("000014")
    assert found.commits == f"{3:040x}..{4:040x}"
    assert replace(found, last_before=found.first_after, first_after=found.last_before).commits == f"{4:040x}..{3:040x}"
    assert replace(found, last_before=found.first_after).commits is None
    assert found.why == ()


def test_a_change_without_a_commit_says_what_else_changed() -> None:
    values = noisy([(10, 10.0), (10, 12.0)], noise=0.002)
    points = [
        point(i, v, git_commit=None, tree_sha256="t", driver="550" if i < 10 else "560") for i, v in enumerate(values)
    ]
    (found,) = changes(Series(tuple(points)))
    assert found.commits is None
    assert found.why == ("driver 550 -> 560", "the source is the same")


def test_negligible_changes_are_not_told() -> None:
    assert changes(made(noisy([(30, 10.0), (30, 10.01)], noise=0.0001))) == []


@pytest.mark.parametrize(("level", "told"), [(10.06, True), (10.04, False), (9.94, True), (9.96, False)])
def test_a_change_of_half_a_percent_is_told(level: float, told: bool) -> None:
    assert bool(changes(made(noisy([(30, 10.0), (30, level)], noise=0.0001)))) is told


def test_after_an_episode_the_level_is_the_one_since() -> None:
    """And before a change it is that of the runs since the last one."""
    found = changes(made(noisy([(20, 10.0), (20, 12.0), (20, 15.0)], noise=0.001)))
    levels = [(pytest.approx(10.0, rel=0.01), pytest.approx(12.0, rel=0.01)),
              (pytest.approx(12.0, rel=0.01), pytest.approx(15.0, rel=0.01))]  # fmt: skip
    assert [(change.before, change.after) for change in found] == levels
    assert [change.index for change in found] == [20, 40]
    assert [change.last_before.run_id for change in found] == [point(19, 1.0).run_id, point(39, 1.0).run_id]


def test_a_rung_is_half_a_percent() -> None:
    assert [rung.index for rung in ladder(made([10.0, 10.0 / 1.0049, 9.0, 9.0 / 1.0051]))] == [0, 2, 3]


def test_the_ladder_leaves_out_luck() -> None:
    of = made([10.0, 9.999, 9.0, 9.5, 8.0, 7.99, 12.0])
    assert [(rung.index, round(rung.gain, 3)) for rung in ladder(of)] == [(0, 1.0), (2, 1.111), (4, 1.125)]
    assert best(of).p50 == 7.99
    assert best(made([9.0, 8.0, 8.0])).run_id.endswith("1"), "the oldest of equals"


def test_what_nobody_measured_is_said(store: FileStore) -> None:
    for known, said in ((False, "no run has a measurement yet"), (True, "no run measured 'missio'")):
        if known:
            measured(store, [simple(10.0)])
        with pytest.raises(NotFoundError, match=said):
            history(store, "missio")
    with pytest.raises(NotFoundError, match="no run measured 'mission' of 'fuse'"):
        history(store, "mission", variant="fuse")
    for asked in ({"gpu": "H200"}, {"gpu": "H200", "variant": "fused"}):
        with pytest.raises(NotFoundError, match="no run measured 'mission' with these filters"):
            history(store, "mission", **asked)  # type: ignore[arg-type]
    assert len(history(store, "mission", variant="fused")) == 1


def test_what_cannot_be_compared_is_a_series_of_its_own() -> None:
    points = [point(1, 10.0), point(2, 5.0, gpu="NVIDIA H200"), point(3, 11.0), point(4, 9.0, method="v4")]
    found = series(points)
    assert [len(s.points) for s in found] == [1, 2, 1]
    assert found[0].points[0].method == "v4", "the newest first"
    emulated = [point(i, 10.0, gpu=None, target=target) for i, target in enumerate(("here", "sandbox", "here"))]
    assert [len(s.points) for s in series(emulated)] == [2, 1], "without a GPU's name the target tells them apart"


def test_launches_of_one_run_are_one_point() -> None:
    (found,) = series([point(1, 8.0), point(1, 18.0), point(2, 10.0)])
    assert found.values == pytest.approx([12.0, 10.0])
    assert found.points[0].n == 200
