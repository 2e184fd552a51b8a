"""What a search expects of configurations that it has not tried."""

from __future__ import annotations

import random

import pytest

from fcctl_tune.search import surrogate
from fcctl_tune.search.records import TrialRecord
from fcctl_tune.search.space import Params, Space
from fcctl_tune.search.surrogate import acquisition_scores, exploration_weight

SPACE = Space.from_dict({"parameters": {"A": [1, 2, 4, 8], "B": ["row", "col", "tile"], "C": [False, True]}})
ALL = [dict(one) for one in SPACE.all]


def record(number: int, params: Params, value: float | None) -> TrialRecord:
    return TrialRecord(number, params, "complete" if value else "crashed", value=value)


def scores(
    records: list[TrialRecord],
    candidates: list[Params],
    exploration: float = 0.0,
    pending: list[Params] | None = None,
    seed: int = 0,
) -> list[float]:
    return acquisition_scores(SPACE, records, pending or [], candidates, exploration, random.Random(seed))


def seconds(params: Params) -> float | None:
    """Tiles crash; large A and C are slow."""
    return None if params["B"] == "tile" else float(params["A"]) * (2.0 if params["C"] else 1.0)


def test_fast_beats_slow_and_a_crash_counts_as_slowest() -> None:
    known = [record(n, one, seconds(one)) for n, one in enumerate(ALL) if one["A"] != 2]
    fast, slow, crash = scores(
        known, [{"A": 2, "B": "row", "C": False}, {"A": 2, "B": "row", "C": True}, {"A": 2, "B": "tile", "C": False}]
    )
    assert fast > slow > crash


def test_what_was_tried_is_expected_again() -> None:
    known = [record(n, one, 1.0 + n % 5) for n, one in enumerate(ALL)]
    found = scores(known, ALL)
    order = sorted(range(len(ALL)), key=lambda n: -found[n])
    assert {n % 5 for n in order[:4]} == {0}, "the fastest first"


def test_exploration_prefers_what_is_far_from_tried_and_pending_trials() -> None:
    known = [record(0, ALL[0], 1.0), record(1, {"A": 8, "B": "col", "C": True}, 2.0)]
    near, far = {"A": 1, "B": "col", "C": False}, {"A": 2, "B": "tile", "C": True}
    assert scores(known, [near, far], 100.0)[0] < scores(known, [near, far], 100.0)[1]
    alone, beside = scores(known, [far], 1.0), scores(known, [far], 1.0, pending=[far])
    assert beside < alone
    assert scores(known, [far], 0.0, pending=[far]) == pytest.approx(scores(known, [far], 0.0))


def test_one_trial_is_enough_and_says_nothing_of_speed() -> None:
    assert scores([record(0, ALL[0], 2.0)], ALL) == pytest.approx([0.0] * len(ALL))


def test_of_a_long_search_the_seed_draws_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surrogate, "MOST_TRIALS", 6)
    known = [record(n, one, 1.0 + n % 5) for n, one in enumerate(ALL)]
    assert scores(known, ALL, seed=1) == scores(known, ALL, seed=1) != scores(known, ALL, seed=2)


def test_a_larger_budget_explores_more_and_its_end_not_at_all() -> None:
    assert exploration_weight(0, 8) == 1.0
    assert exploration_weight(0, 32) < exploration_weight(0, 128) < exploration_weight(0, 512)
    assert exploration_weight(128, 128) == exploration_weight(200, 128) == 0.0
