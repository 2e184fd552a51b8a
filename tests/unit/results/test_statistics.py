"""Effects on data whose truth is known. Seeds are fixed: these tests say the same every time."""

from __future__ import annotations

import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from benchmarks.change_points import FLAT, STEPS
from benchmarks.tables import PAGE
from benchmarks.verdicts import APART, SCENARIOS, Scenario, drifting, measure
from orchestrator.results.compare import effect as effects
from orchestrator.results.compare import ranks as blocks
from orchestrator.results.compare.effect import MIN_LAUNCHES, SPREAD, Effect, Launch, Spread, effect
from orchestrator.results.compare.ranks import holm, midranks, rank_test


def launch(p50: float, n: int = 112, noise: float = 0.003, seed: int = 0) -> Launch:
    rng = np.random.default_rng(seed)
    return Launch(tuple((p50 * np.exp(rng.normal(0, noise, n))).tolist()))


def compared(old: list[Launch], new: list[Launch], **how: object) -> Effect:
    found = effect(old, new, **how)  # type: ignore[arg-type]
    assert found is not None
    return found


# ------------------------------------------------------------------------------------------------ ranks
@pytest.mark.parametrize("seed", range(40))
def test_the_rank_test_is_scipys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=rng.integers(2, 25)), rng.normal(0.7, size=rng.integers(2, 25))
    tied = bool(seed % 2)
    if tied:
        a, b = a.round(1), b.round(1)
    tied = len({*a, *b}) < a.size + b.size
    method = "asymptotic" if tied else "exact"
    expected = stats.mannwhitneyu(a, b, method=method).pvalue
    assert rank_test(a.tolist(), b.tolist()) == pytest.approx(expected, abs=1e-12)


def test_the_rank_test_of_little() -> None:
    for some in ([], [1.0], [1.0, 2.0], [1.0, 1.0], [float(i) for i in range(60)]):
        assert rank_test([], some) == rank_test(some, []) == 1.0
    assert rank_test([2.0, 2.0], [2.0, 2.0]) == 1.0
    assert rank_test([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1), "three a side never reach 5 %"
    assert rank_test([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)
    assert MIN_LAUNCHES == 4


@pytest.mark.parametrize("seed", range(5))
def test_midranks_are_scipys(seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 8, 20).astype(float)
    assert midranks(values.tolist())[0] == stats.rankdata(values).tolist()


def test_holm_is_the_published_procedure() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


# ------------------------------------------------------------------------------------------------ blocks
def test_a_block_bootstrap_knows_a_mean_of_remembering_samples_less_well() -> None:
    rng = np.random.default_rng(2)
    values = np.repeat(np.exp(rng.normal(0, 0.01, 40)), 10)
    single = blocks.draws(values, "mean", 1, 2000, np.random.default_rng(0)).std()
    joined = blocks.draws(values, "mean", 10, 2000, np.random.default_rng(0)).std()
    true = 0.01 / np.sqrt(40)
    assert single < 0.5 * true
    assert joined == pytest.approx(true, rel=0.3)


@pytest.mark.parametrize(("metric", "n", "length"), [("p50", 112, 8), ("p50", 301, 150), ("p90", 112, 9)])
def test_resamples_are_blocks_with_the_ends_joined(metric: str, n: int, length: int) -> None:
    samples = np.random.default_rng(n).lognormal(1, 0.1, n).round(2)  # with ties
    starts = np.random.default_rng(5).integers(0, n, size=(300, math.ceil(n / length), 1))
    picked = samples[((starts + np.arange(length)) % n).reshape(300, -1)[:, :n]]
    plain = np.log(np.percentile(picked, float(metric[1:]), axis=1))
    drawn = blocks.draws(samples, metric, length, 300, np.random.default_rng(5))
    assert drawn == pytest.approx(plain, rel=1e-12)


def test_a_drift_is_seen_through_noise() -> None:
    still = np.exp(np.random.default_rng(3).normal(0, 0.002, 200))
    assert blocks.drift(still) < 0.001
    assert blocks.drift(still * np.exp(np.linspace(0, 0.05, 200))) == pytest.approx(0.05 / np.sqrt(12), rel=0.25)


def remembering(memory: float, n: int, seed: int) -> np.ndarray:
    """Times of which each remembers so much of the one before."""
    steps, values = np.random.default_rng(seed).normal(size=n), np.zeros(n)
    for i in range(1, n):
        values[i] = memory * values[i - 1] + steps[i]
    return np.exp(0.01 * values)


@pytest.mark.parametrize("memory", [0.6, 0.9])
def test_a_block_is_as_long_as_politis_and_white_say(memory: float) -> None:
    """For a known correlation their optimum has a closed form; the estimate is near it in the median of many series.

    Not for a short memory: their rule counts lags up to twice the last that stands out, and the optimum counts all.
    """
    n = 1000
    lengths = [blocks.block_length(remembering(memory, n, seed)) for seed in range(40)]
    slope = 2 * memory / (1 - memory) ** 2  # sum over all lags of |lag| * memory ** |lag|
    level = (1 + memory) / (1 - memory)
    assert np.median(lengths) == pytest.approx((2 * slope**2 / (4 / 3 * level**2) * n) ** (1 / 3), rel=0.25)


def published_length(samples: np.ndarray) -> int:
    """Politis and White 2004, with the constants of 2009, straight from the definitions; on ranks, at most n / 5."""
    n, ranks = samples.size, stats.rankdata(samples) - (samples.size + 1) / 2
    of_lag = [float(ranks[: n - k] @ ranks[k:]) / float(ranks @ ranks) for k in range(n)]
    last = next(m for m in range(n) if all(abs(r) < 2 * math.sqrt(math.log10(n) / n) for r in of_lag[m + 1 : m + 6]))
    window = [(k, min(1.0, 2 * (1 - k / (2 * last)))) for k in range(1, 2 * last + 1)]
    g, spectrum = sum(2 * w * k * of_lag[k] for k, w in window), 1 + sum(2 * w * of_lag[k] for k, w in window)
    return 1 if spectrum <= 0 else max(1, min(round((1.5 * (g / spectrum) ** 2 * n) ** (1 / 3)), n // 5))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("memory", [-0.6, -0.3, 0.0, 0.3, 0.6, 0.9])
def test_blocks_are_of_the_published_length(memory: float, seed: int) -> None:
    samples = remembering(memory, 300, seed)
    assert blocks.block_length(samples) == published_length(samples)


@pytest.mark.parametrize(
    ("samples", "length"),
    [([1.0, 2.0] * 3, 1), ([2.0] * 50, 1), ([*range(1, 8)], 1), ([*range(1, 51)], 10)],
    ids=["few", "one value", "seven", "a trend: at most a fifth"],
)
def test_blocks_of_plain_series(samples: list[float], length: int) -> None:
    assert blocks.block_length(np.array(samples, dtype=float)) == length


@pytest.mark.parametrize(
    ("samples", "grain"),
    [
        ([1.0] * 9, 0.0),
        ([1.0, 2.0, 3.0, 4.0], 0.0),
        ([1.0, 1.0, 2.0, 2.0], 1 / 1.5 / math.sqrt(12)),
        ([10.0, 10.0, 10.0, 10.5, 10.5, 12.0], 0.5 / 10.25 / math.sqrt(12)),
    ],
    ids=["one value", "all differ", "half of them differ", "the smallest tick"],
)
def test_the_grain_is_the_deviation_within_a_tick(samples: list[float], grain: float) -> None:
    assert blocks.grain(np.array(samples)) == pytest.approx(grain)


def test_a_drift_needs_three_batches_and_exceeds_their_scatter() -> None:
    steps = [1.0] * 4 + [1.1] * 4 + [1.21] * 4
    assert blocks.drift(np.array(steps[:-1])) == 0.0
    assert blocks.drift(np.array(steps)) == pytest.approx(math.log(1.1)), "the deviation of 0, 1 and 2 steps is one"
    logs = np.array([-0.5, -0.2, 0.2, 0.5] * 3)
    assert blocks.drift(np.exp(logs) * np.array(steps)) == 0.0
    error = math.sqrt(math.pi / 2) * 0.55 / (2 * stats.norm.ppf(0.75)) / math.sqrt(4)  # of a median, by the quartiles
    moved = np.exp(logs + np.repeat([0.0, 0.5, 1.0], 4))
    assert blocks.drift(moved) == pytest.approx(math.sqrt(0.5**2 - error**2), rel=1e-3)


def test_many_samples_are_thinned_from_the_first_to_the_last() -> None:
    most = blocks.MAX_SAMPLES
    assert blocks.thinned(np.arange(most)).tolist() == list(range(most))
    thin = blocks.thinned(np.arange(10 * most))
    assert (thin.size, thin[0], thin[-1]) == (most, 0, 10 * most - 1)
    assert set(np.diff(thin)) == {10, 11} or set(np.diff(thin)) == {10}


# ------------------------------------------------------------------------------------------------ effects
def test_one_launch_a_side_assumes_how_far_launches_differ() -> None:
    found = compared([launch(10)], [launch(10.5, seed=1)])
    assert (found.basis, found.spread_from) == ("samples", "assumed")
    assert found.ratio == pytest.approx(1.05, abs=0.002)
    assert found.low == pytest.approx(1.05 * np.exp(-1.96 * SPREAD.share * np.sqrt(2)), abs=0.005)
    assert found.launches == (1, 1)
    narrow, wide = (compared([launch(10)], [launch(10.5, seed=1)], spread=Spread(s)) for s in (0.002, 0.03))
    assert narrow.p < found.p < wide.p
    assert wide.low < 1 < narrow.low


def test_launches_count_and_groups_within_one_are_its_blocks() -> None:
    for count in (1, 2, 3):
        found = compared([launch(10)] * count, [launch(10.5)] * count, spread=Spread(SPREAD.share, "stated"))
        assert math.log(found.high / found.low) == pytest.approx(2 * 1.96 * SPREAD.share * (2 / count) ** 0.5, rel=0.1)
    old, new = (Launch(launch(p50).samples, groups=2) for p50 in (10, 12))
    assert compared([old], [new]).rank_p == pytest.approx(1 / 3), "two against two"


def test_samples_however_many_are_no_launches() -> None:
    """A hundred times the samples does not make two single launches any surer than the assumption."""
    few = compared([launch(10, 100)], [launch(10.2, 100, seed=1)], spread=Spread(0.01))
    many = compared([launch(10, 5000)], [launch(10.2, 5000, seed=1)], spread=Spread(0.01))
    assert many.high - many.low > 0.9 * (few.high - few.low)
    assert many.p > 0.05


def test_four_launches_a_side_measure_it() -> None:
    old = [launch(10 * f, seed=i) for i, f in enumerate((1.0, 1.004, 0.997, 1.001))]
    found = compared(old, [launch(10.3 * f, seed=9 + i) for i, f in enumerate((1.0, 1.003, 0.998, 1.002))])
    assert found.basis == "launches"
    assert found.spread == pytest.approx(0.003, abs=0.001)
    assert found.low > 1.02
    assert found.rank_p == pytest.approx(2 / 70)


@pytest.mark.parametrize("counts", [(4, 4), (4, 7), (9, 5)])
def test_the_interval_and_p_of_launches_are_welchs(counts: tuple[int, int]) -> None:
    """As SciPy computes them from the launches' logarithms: each launch counts once, whatever its samples."""
    old, new = (
        [Launch(stats={"p50": float(p)}) for p in 10 * np.exp(0.02 * np.random.default_rng(n).normal(size=n))]
        for n in counts
    )
    found = compared(old, new)
    expected = stats.ttest_ind(*(np.log([x.stats["p50"] for x in side]) for side in (new, old)), equal_var=False)
    interval, inner = (expected.confidence_interval(level) for level in (0.95, 0.9))
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6)
    assert math.log(found.ratio) == pytest.approx((interval.low + interval.high) / 2)
    for low, high, of in ((found.low, found.high, interval), (found.inner_low, found.inner_high, inner)):
        assert math.log(high / low) == pytest.approx(of.high - of.low, rel=0.1)
        assert math.log(low) == pytest.approx(of.low, abs=0.1 * (of.high - of.low))


def test_no_number_of_launches_sees_below_the_ticks_of_the_timer() -> None:
    """All launches of a side agree: what is left is the rounding, uniform over a tick, whose variance is a twelfth."""
    old, new = [Launch((10.0,) * 6 + (11.0,) * 5)] * 4, [Launch((10.0,) * 5 + (11.0,) * 6)] * 4
    found = compared(old, new)
    rounding = [1 / 12 / p50**2 / 4 for p50 in (10, 11)]
    freedom = sum(rounding) ** 2 / sum(v**2 / 3 for v in rounding)
    t = math.log(1.1) / math.sqrt(sum(rounding))
    assert found.p == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-3)
    wide = 2 * stats.t.ppf(0.975, freedom) * math.sqrt(sum(rounding))
    assert math.log(found.high / found.low) == pytest.approx(wide, rel=0.1)
    assert found.ratio == pytest.approx(1.1)


def test_launches_that_disagree_widen_what_was_assumed() -> None:
    some = Spread(0.01)
    calm = compared([launch(10), launch(10.01, seed=1)], [launch(10.5, seed=2), launch(10.51, seed=3)], spread=some)
    wild = compared([launch(10), launch(11, seed=1)], [launch(10.5, seed=2), launch(11.5, seed=3)], spread=some)
    assert calm.basis == wild.basis == "samples"
    assert wild.spread > 0.06 > 0.011 > calm.spread
    assert wild.low < 1 < calm.low


def test_too_little_is_said_to_be_too_little() -> None:
    assert effect([Launch()], [launch(1)]) is None
    assert effect([Launch((1.0, -1.0))], [launch(1)]) is None
    bare = Launch(stats={"p50": 10.0, "n": 5})
    assert compared([bare], [launch(12)]).lacks.startswith("no raw samples")
    assert compared([launch(10, 9)], [launch(12)]).lacks.startswith("9 samples")
    assert compared([launch(10, 1)], [launch(12)]).lacks.startswith("1 sample in a launch: 10 are needed")
    assert (compared([launch(10, 10)], [launch(12)]).lacks, compared([bare], [launch(12)]).basis) == ("", "none")
    assert compared([bare] * 4, [Launch(stats={"p50": p}) for p in (12.0, 12.1, 12.2, 12.1)]).basis == "launches"
    assert effect([launch(10, 100)], [launch(10, 100)], metric="p99") is not None
    assert effect([launch(10, 99)], [launch(10, 100)], metric="p99") is None, "no sample lies beyond the p99 of 99"


def test_what_there_was_of_each_side_is_told() -> None:
    found = compared([launch(10, 20), launch(40, 30)], [launch(30, 40, noise=0.0)] * 3)
    assert (found.launches, found.samples) == ((2, 3), (50, 120))
    assert (found.old, found.new, found.ratio) == pytest.approx((20.0, 30.0, 1.5), rel=0.01)
    summary = Launch(stats={"p50": 10.0, "n": 7.0})
    assert compared([summary], [summary, summary]).samples == (7, 14)


def test_a_drift_between_the_sides_widens_also_many_launches() -> None:
    old = [launch(10, seed=i) for i in range(8)]
    new = [launch(10.2, seed=20 + i) for i in range(8)]
    still, moving = compared(old, new), compared(old, new, drift=Spread(0.02))
    assert still.low > 1.015
    assert moving.low < 1 < moving.high
    assert moving.p == pytest.approx(2 * stats.norm.sf(np.log(1.02) / 0.02), rel=0.05)
    few = compared(old, new, drift=Spread(0.02, "history", 3))
    assert few.high - 1 > 1.3 * (moving.high - 1), "a drift known from four runs is known less well"


def test_a_spread_known_from_few_runs_widens_as_student_says() -> None:
    for freedom in (3, 7):
        found = compared([launch(10)], [launch(10.5, seed=1)], spread=Spread(0.02, "history", freedom))
        wide = 2 * stats.t.ppf(0.975, freedom) * 0.02 * math.sqrt(2)
        assert math.log(found.high / found.low) == pytest.approx(wide, rel=0.12)
        assert found.p == pytest.approx(2 * stats.t.sf(math.log(1.05) / 0.0283, freedom), rel=0.15)


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """What intervals and p are made of, each time."""
    found: list[SimpleNamespace] = []

    def keep(_sides: object, _metric: str, difference: float, drawn: np.ndarray, freedom: float, _confidence: float,
             **more: object) -> None:  # fmt: skip
        found.append(SimpleNamespace(difference=difference, drawn=drawn, freedom=freedom, **more))

    monkeypatch.setattr(effects, "_effect", keep)
    return found


def welch(variances: list[float], freedoms: list[float]) -> float:
    return sum(variances) ** 2 / sum(v**2 / f for v, f in zip(variances, freedoms, strict=True))


@pytest.mark.parametrize(("spread", "drift"), [(0.004, 0.0), (0.0001, 0.003)])
def test_few_launches_are_as_sure_as_their_blocks_their_spread_and_the_drift(
    judged: list[SimpleNamespace], spread: float, drift: float
) -> None:
    """Blocks of each launch, launches of each side, and the sides themselves are drawn apart from each other."""
    count = effects.RESAMPLES
    sides = [[Launch(launch(10, 24, seed=1).samples, groups=3), Launch(launch(10.01, 24, seed=2).samples, groups=2)],
             [Launch(launch(10.4, 40, seed=3).samples, groups=4)]]  # fmt: skip
    assumed = Spread(0.001) if drift else Spread(spread, "history", 5)
    effects._from_samples(sides, "p50", assumed, Spread(drift, "history", 7), 0.95, np.random.default_rng(4))
    logs = [np.log([float(np.median(one.samples)) for one in side]) for side in sides]
    own = abs(logs[0][0] - logs[0][1]) / math.sqrt(2)  # the deviation of two
    between = max(assumed.share, own)
    rng, variances, freedoms = np.random.default_rng(4), [], []
    drawn = rng.normal(0, 0.0, count)  # what is assumed of launches, or known from history, has the drift in it
    for sign, side in zip((-1, 1), sides, strict=True):
        known = [effects._known(one, "p50", rng) for one in side]
        drawn += sign * sum(one.drawn for one in known) / len(side)
        drawn += rng.normal(0, math.sqrt((between**2 + max(one.extra for one in known)) / len(side)), count)
        variances.append(sum(one.variance for one in known) / len(side) ** 2)
        freedoms.append(min(one.blocks for one in known) - 1.0)
    (found,) = judged
    assert found.difference == pytest.approx(logs[1].mean() - logs[0].mean())
    assert found.drawn == pytest.approx(drawn)
    assert found.error == pytest.approx(float(drawn.std()))
    expected = welch([*variances, between**2 * 1.5], [*freedoms, assumed.freedom])
    assert found.freedom == pytest.approx(min(expected, assumed.freedom))
    assert (freedoms, found.basis, found.lacks) == ([1.0, 3.0], "samples", "")


def test_many_launches_are_drawn_among_themselves(judged: list[SimpleNamespace]) -> None:
    sides = [[launch(10 * f, seed=i) for i, f in enumerate(fs)]
             for fs in ((1.0, 1.004, 0.997, 1.001), (1.02, 1.03, 1.01, 1.025, 1.04))]  # fmt: skip
    effects._from_launches(sides, "p50", Spread(0.002, "history", 7), 0.95, np.random.default_rng(4))
    logs = [np.log([float(np.median(one.samples)) for one in side]) for side in sides]
    rng, drawn, count = np.random.default_rng(4), np.zeros(effects.RESAMPLES), effects.RESAMPLES
    for sign, values in zip((-1, 1), logs, strict=True):
        picked = values[rng.integers(0, values.size, size=(count, values.size))].mean(axis=1) - values.mean()
        drawn += sign * picked * math.sqrt(values.size / (values.size - 1))
        drawn += sign * rng.normal(0, 1e-5 / math.sqrt(values.size), count)
    drawn += rng.normal(0, 0.002, count)
    (found,) = judged
    assert found.drawn == pytest.approx(drawn)
    variances = [float(values.var(ddof=1) + 1e-10) / values.size for values in logs] + [0.002**2]
    assert found.error == pytest.approx(math.sqrt(sum(variances)))
    assert found.freedom == pytest.approx(welch(variances, [3.0, 4.0, 7.0]))


def test_degrees_of_freedom_are_welchs_and_satterthwaites() -> None:
    assert effects._freedom([1.0, 1.0], [3.0, 3.0]) == 6.0
    assert effects._freedom([1.0, 4.0], [2.0, 8.0]) == 10.0
    assert effects._freedom([2.0, 0.0], [5.0, 0.0]) == 5.0, "what is not there has no freedom"
    assert effects._freedom([0.0, 0.0], [3.0, 3.0]) == effects._freedom([1.0], [math.inf]) == math.inf


def test_what_is_known_of_launches_is_pooled() -> None:
    sides = [np.array([0.0, 0.2]), np.array([0.1, 0.2, 0.3])]
    assert effects._pooled(sides) == Spread(pytest.approx(math.sqrt(0.04 / 3)), "launches", 3)
    assert effects._pooled([np.array([1.0]), np.array([2.0])]) == Spread(0.0, "launches", 0)
    assert effects._pooled([np.array([1.0, 1.0]), np.array([2.0])]) == Spread(1e-5, "launches", 1)
    assert Spread(0.01).at_least(0.01) == Spread(0.01)
    assert Spread(0.01, "history", 5).at_least(0.02) == Spread(0.02, "history", 5)


def test_a_launch_is_known_as_well_as_its_blocks_say() -> None:
    samples = launch(10, 40).samples
    for groups, blocks_ in ((2, 2), (4, 4), (1, 40)):
        known = effects._known(Launch(samples, groups=groups), "p50", np.random.default_rng(0))
        length = 40 // blocks_
        plain = blocks.draws(np.array(samples), "p50", length, effects.RESAMPLES, np.random.default_rng(0))
        spread = (plain - plain.mean()) * math.sqrt(blocks_ / (blocks_ - 1))
        extra = blocks.drift(np.array(samples)) ** 2 + max(1e-5, blocks.grain(np.array(samples))) ** 2
        assert known.drawn == pytest.approx(spread)
        assert (known.blocks, known.extra) == (blocks_, pytest.approx(extra))
        assert known.variance == pytest.approx(float(spread.var()) + extra)
        pieces = [samples[i : i + length] for i in range(0, 40, length)]
        assert known.medians == pytest.approx([float(np.median(piece)) for piece in pieces])
    bare = effects._known(Launch(stats={"p50": 1.0}), "p50", np.random.default_rng(0))
    assert (bare.blocks, bare.variance, bare.extra, bare.medians, bare.drawn.any()) == (0, 0.0, 0.0, [], False)


@pytest.mark.parametrize(
    ("time", "is_one"), [(1e-15, False), (2e-15, True), (9e14, True), (1e15, False), (-1.0, False)]
)
def test_what_can_be_a_time(time: float, is_one: bool) -> None:
    assert Launch((time,) * 3).value("p50") == Launch(stats={"p50": time}).value("p50") == (time if is_one else None)


def test_launches_of_one_side_replace_what_was_assumed() -> None:
    old = [launch(10 * f, seed=i) for i, f in enumerate((1.0, 1.004, 0.997, 1.001))]
    found = compared(old, [launch(10.3, seed=9)])
    assert (found.basis, found.spread_from) == ("samples", "launches")
    assert found.spread == pytest.approx(0.003, abs=0.001)
    assert found.low > 1
    assert compared(old, [launch(10.3, seed=9)], drift=Spread(0.02)).low < 1
    assert compared(old, [launch(10.3, seed=9)], spread=Spread(0.02, "stated")).low < 1, "what somebody said stands"


def test_the_mean_of_a_launch_is_the_one_that_tools_report() -> None:
    skewed = (1.0,) * 90 + (10.0,) * 10
    assert Launch(skewed).value("mean") == Launch(stats={"mean": 1.9}).value("mean") == 1.9


def test_the_same_input_gives_the_same_answer() -> None:
    one = compared([launch(10)], [launch(10.1, seed=1)])
    assert one == compared([launch(10)], [launch(10.1, seed=1)])


@pytest.mark.parametrize("metric", blocks.METRICS)
def test_every_metric_finds_what_moves_all_samples(metric: str) -> None:
    old, new = launch(10, 500), Launch(tuple(1.2 * s for s in launch(10, 500).samples))
    assert compared([old], [new], metric=metric).ratio == pytest.approx(1.2)


# ------------------------------------------------------------------------------------------------ rates
@pytest.mark.parametrize(
    ("name", "launches", "power"),
    [
        ("launches differ by 2 %", (1, 1), 0.0),
        ("autocorrelated (0.9)", (1, 1), 0.0),
        ("8 runs known, launches differ by 0.7 %", (1, 1), 0.9),
        ("heavy tails", (5, 5), 0.95),
        ("launches differ by 2 %", (5, 5), 0.6),
        pytest.param("12 benchmarks, autocorrelated", (5, 5), 0.95, marks=pytest.mark.full),
        (f"{APART}, 1 % drift", (4, 4), 0.9),
        (f"{APART}, 1 % drift", (8, 8), 0.9),
        (f"{APART}, 1 % drift, a control", (4, 4), 0.8),
        (f"{APART}, 3 % drift, a control", (4, 4), 0.0),
        ("the lowest of 112 samples", (5, 5), 0.9),
    ],
)
def test_false_alarms_stay_below_the_stated_rate_and_slowdowns_are_found(
    name: str, launches: tuple[int, int], power: float
) -> None:
    scenario = next(s for s in SCENARIOS if (s.name, s.launches) == (name, launches))
    rates = measure(scenario, trials=24, seed=7)
    # Five or more of 24 would come of a true 5 % once in forty times; `make calibrate` tries 1,000 a row.
    assert rates.false_alarms <= 4 / 24
    assert rates.found >= power
    assert rates.misjudged <= 0.05


def test_the_page_has_every_row_of_the_calibration() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for scenario in SCENARIOS:
        launches = " and ".join(dict.fromkeys(map(str, scenario.launches)))
        name = f"*{scenario.name}*" if scenario.beyond else scenario.name
        assert page.count(f"\n| {launches} | {name} | {scenario.benchmarks} | ") == 1
    for flat in FLAT:
        assert page.count(f"\n| {flat.name} | ") == 1
    for step in STEPS:
        assert page.count(f"\n| {100 * step.noise:g} % | {step.before} | {step.memory:g} | ") == 1
    assert "1000 pairs a row" in page
    assert "1000 series a row" in page


@pytest.mark.full
@pytest.mark.parametrize(("program", "named_by"), [("verdicts", 3), ("change_points", 1)])
def test_the_command_prints_the_rows_of_the_page(program: str, named_by: int) -> None:
    command = [sys.executable, f"benchmarks/{program}.py", "--trials", "2"]
    found = subprocess.run(command, cwd=PAGE.parents[1], capture_output=True, text=True, check=True).stdout
    begin, end = f"<!-- rates: benchmarks/{program}.py --write -->", f"<!-- end of rates: benchmarks/{program}.py -->"
    page = PAGE.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    printed, published = (
        [line.split("|")[1 : 1 + named_by] for line in text.splitlines() if line.startswith("|")]
        for text in (found, page)
    )
    assert printed == published
    assert len(printed) > 25


@pytest.mark.full
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.launches[0]}+{s.launches[1]} {s.name}")
def test_every_row_of_the_calibration(scenario: Scenario) -> None:
    # 15 or more of 120 would come of a true 5 % once in a thousand times.
    rates = measure(scenario, trials=120 if scenario.benchmarks == 1 else 40, seed=11)
    assert scenario.beyond or rates.false_alarms <= 14 / 120
    assert scenario.beyond or rates.misjudged <= 0.05


def test_the_rates_can_fail() -> None:
    """Launches that differ by twice what is assumed, and a drift that nothing shows, do raise false alarms."""
    assert measure(Scenario("wild", between=0.08), trials=16, seed=7).false_alarms > 0.2
    assert measure(Scenario("unseen", launches=(8, 8), apart=True, drift=0.03), trials=16, seed=7).false_alarms > 0.5
    assert measure(Scenario("wild", drifting, (5, 5), between=0.05), trials=16, seed=7).false_alarms <= 0.2
