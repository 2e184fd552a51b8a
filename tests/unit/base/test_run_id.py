"""What a run's id says of it."""

from __future__ import annotations

import pytest

from orchestrator.base import run_id


@pytest.mark.parametrize("now", [0.0, 1_795_348_931.0])
def test_an_id_says_when_it_was_made(now: float) -> None:
    made = run_id.new("phase1", "l4", now)
    assert run_id.is_valid(made)
    assert run_id.began(made) == now


def test_an_id_of_a_day_that_there_is_not_says_nothing() -> None:
    odd = "20261399t995999z-j-vm-3fa9c1"
    assert run_id.is_valid(odd)
    assert run_id.began(odd) == 0.0
