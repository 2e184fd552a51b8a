from __future__ import annotations

import pytest

from fcctl_tune.halving import Halving
from fcctl_tune.pace import FACTORS, LONGEST_S, USED, Pace


def search(
    build_every_s: float, repeat_s: float, check_s: float, gpus: int, trials: int = 60, rising: int = 3
) -> tuple[Pace, float]:
    """A search in which every ``rising``-th trial rises; what share of a GPU its second half takes."""
    halving = Halving()
    pace = Pace(halving)
    busy, began = 0.0, trials // 2
    for trial in range(trials):
        pace.built(trial * build_every_s)
        rung, check = 0, check_s
        while True:
            repeats = halving.repeats[rung] * pace.factor(gpus)
            pace.timed(repeats, repeats * repeat_s, check if rung == 0 else None)
            busy += (repeats * repeat_s + (check if rung == 0 else 0.0)) * (trial >= began)
            if rung == halving.top or trial % rising ** (rung + 1):
                break
            rung += 1
        pace.ended(rung)
    return pace, busy / (gpus * build_every_s * (trials - began))


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("rising", [3, 60])
def test_where_builds_are_slow_a_gpu_times_most_of_the_while(gpus: int, rising: int) -> None:
    pace, share = search(0.16 / gpus, 0.0005, 0.01, gpus, rising=rising)
    assert pace.factor(gpus) > 4
    assert 0.6 < share < 1.0


def test_where_timing_is_slower_than_building_nothing_is_added() -> None:
    pace, _ = search(0.05, 0.02, 0.2, 1)
    assert pace.factor(1) == 1


def test_nothing_is_known_at_the_beginning() -> None:
    pace = Pace(Halving())
    assert pace.factor(8) == 1
    pace.built(10.0)
    pace.timed(3, 0.1, 0.1)
    pace.ended(0)
    assert pace.factor(8) == 1  # one build has no interval


def test_it_stays_within_bounds_however_long_builds_take() -> None:
    pace, _ = search(600.0, 0.001, 0.01, 1)
    assert pace.factor(1) == FACTORS[-1]
    pace, _ = search(600.0, 1.0, 0.01, 1)
    assert pace.factor(1) == 1
    pace, _ = search(600.0, 0.01, 0.01, 1)
    assert 1 < pace.factor(1) <= LONGEST_S / (0.01 * 3)


def test_its_plan_leaves_room_for_bursts() -> None:
    assert 0.6 < USED < 1
