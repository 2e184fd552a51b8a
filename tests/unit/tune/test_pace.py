from __future__ import annotations

import random

import pytest

from fcctl_tune.engine.pace import AHEAD, FACTORS, LEAST_S, LONGEST_S, Halving, Throughput


def pace_of(build_s: float, repeat_s: float, check_s: float, *, usable: int = 10, rising: int = 3) -> Throughput:
    """Of a search in which ``usable`` of ten builds can be timed and every ``rising``-th of those rises."""
    pace = Throughput(Halving())
    for trial in range(200):
        pace.built(build_s, trial * usable % 10 < usable)
        pace.timed(3, 3 * repeat_s, check_s)
        pace.ended(trial % rising == 0)
    return pace


def trial_s(pace: Throughput, factor: int, repeat_s: float, check_s: float, rising: int) -> float:
    """What a trial takes of a GPU, on average, seconds."""
    return check_s + factor * repeat_s * (3 + 9 / rising)


@pytest.mark.parametrize("is_behind", [True, False])
def test_a_quick_kernel_is_timed_for_as_long_as_what_leads_to_that_is_worth(is_behind: bool) -> None:
    pace = pace_of(0.3, 0.0009, 0.01)  # as FlashCore's flagship: builders could bring in more in that time
    takes = trial_s(pace, pace.factor(1, 15, is_behind=is_behind), 0.0009, 0.01, 3)
    assert LEAST_S <= takes < 1.25 * LEAST_S
    assert pace.under_way(1, 15) <= AHEAD + 1 + 0.3 / LEAST_S


def test_it_stays_within_bounds_however_long_builds_take() -> None:
    assert pace_of(9000.0, 0.001, 0.01).factor(1, 15) == FACTORS[-1]
    assert pace_of(9000.0, 1.0, 0.01).factor(1, 15) == 1
    assert 1 < pace_of(9000.0, 0.01, 0.01).factor(1, 15) <= LONGEST_S / (0.01 * 3)


@pytest.mark.parametrize("repeat_s", [1e-4, 1e-3, 1e-2, 0.1])
def test_longer_timings_do_not_look_like_slow_builders(repeat_s: float) -> None:
    """What is measured longer, since builders are slow, changes nothing of what is planned."""
    pace = pace_of(2.0, repeat_s, 0.01)
    planned = (pace.factor(1, 15), pace.under_way(1, 15))
    for _ in range(50):
        repeats = 3 * pace.factor(1, 15)
        pace.timed(repeats, repeats * repeat_s, 0.01)
        assert (pace.factor(1, 15), pace.under_way(1, 15)) == planned


@pytest.mark.parametrize(
    ("repeat_s", "check_s", "enough"), [(1e-4, 0.001, AHEAD + 15), (0.11, 0.5, AHEAD + 2), (10.0, 10.0, AHEAD + 1)]
)
def test_no_more_is_under_way_than_a_gpu_can_time_meanwhile(repeat_s: float, check_s: float, enough: int) -> None:
    assert pace_of(2.0, repeat_s, check_s).under_way(1, 15) == enough


def climbed(values: list[float], halving: Halving) -> dict[int, int]:
    """The rung at which each trial was left, timed without noise."""
    found = {}
    for number, value in enumerate(values):
        rung = 0
        while halving.rises(number, rung, value):
            rung += 1
        found[number] = rung
    return found


def test_the_default_and_the_best_are_timed_in_full_and_most_are_not() -> None:
    chance = random.Random(3)
    values = [chance.random() for _ in range(128)]
    values[0] = 9.0
    found = climbed(values, Halving())
    assert found[0] == 2
    assert found[values.index(min(values))] == 2
    brief = sum(rung == 0 for rung in found.values())
    assert 128 * 0.55 < brief < 128 * 0.75
    timings = sum(sum((3, 9, 27)[: rung + 1]) for rung in found.values())
    assert timings < 0.35 * 128 * (3 + 9 + 27)


def test_a_trial_among_the_best_of_three_rises() -> None:
    halving = Halving(keep=3)
    for number, value in enumerate([5.0, 6.0, 7.0, 8.0, 9.0]):
        halving.rises(number, 0, value)
    assert not halving.rises(5, 0, 6.5)
    assert halving.rises(6, 0, 4.0)
    assert not halving.rises(6, 2, 0.1)  # there is nothing above the top


def test_one_rung_prunes_nothing() -> None:
    assert set(climbed([3.0, 2.0, 1.0], Halving((5,))).values()) == {0}
