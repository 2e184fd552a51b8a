from __future__ import annotations

import random

from fcctl_tune.engine.pace import Halving


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
