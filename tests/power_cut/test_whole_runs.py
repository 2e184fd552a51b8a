"""Power cuts in the middle of the simulation's episodes; and faults planted to see that they are found."""

from __future__ import annotations

import pytest

from tests.power_cut.mutants import IN_WHOLE_RUNS, Mutant
from tests.power_cut.whole_runs import EPISODES, play_power_cut
from tests.support.tiers import sampled

CHUNK = 10


@pytest.mark.parametrize("first", sampled(range(0, EPISODES, CHUNK), keep=(0,)))
def test_a_laptop_that_loses_its_power_loses_no_money_and_no_result(first: int) -> None:
    for seed in range(first, first + CHUNK):
        violation = play_power_cut(seed)
        assert violation is None, violation


@pytest.mark.full
@pytest.mark.parametrize(("mutant", "seed"), IN_WHOLE_RUNS, ids=lambda value: getattr(value, "name", ""))
def test_a_planted_fault_is_noticed(mutant: Mutant, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant.plant(monkeypatch)
    assert any(play_power_cut(near) for near in range(seed, seed + 5))
