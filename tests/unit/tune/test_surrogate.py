"""What a search expects of configurations that it has not tried."""

from __future__ import annotations

import random

import pytest

from fcctl_tune.search import optimizer
from fcctl_tune.search.optimizer import expected_improvements
from fcctl_tune.search.records import TrialRecord
from fcctl_tune.search.space import Params, Space

SPACE = Space.from_dict({"parameters": {"A": [1, 2, 4, 8], "B": ["row", "col", "tile"], "C": [False, True]}})
ALL = [dict(one) for one in SPACE.all]


def record(number: int, params: Params, value: float | None) -> TrialRecord:
    return TrialRecord(number, params, "complete" if value else "crashed", value=value)


def scores(
    records: list[TrialRecord], candidates: list[Params], pending: list[Params] | None = None, seed: int = 0
) -> list[float]:
    return expected_improvements(SPACE, records, pending or [], candidates, random.Random(seed))


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


def test_what_is_far_from_tried_and_pending_trials_may_be_better() -> None:
    known = [record(0, ALL[0], 1.0), record(1, {"A": 8, "B": "col", "C": True}, 1.1)]
    near, far = {"A": 8, "B": "row", "C": True}, {"A": 2, "B": "tile", "C": True}
    assert scores(known, [near, far])[0] < scores(known, [near, far])[1]
    assert scores(known, [far], pending=[far]) < scores(known, [far])


def test_a_parameter_that_does_not_matter_is_found_out() -> None:
    """Only A counts: an untried B and C of the best A is promising, whatever they were with others."""
    known = [record(n, one, 9.0 - float(one["A"])) for n, one in enumerate(ALL) if one["A"] != 8 or one["B"] == "row"]
    best, slow = {"A": 8, "B": "tile", "C": False}, {"A": 4, "B": "tile", "C": False}
    expected, other = scores([*known], [best, slow])
    assert expected > 10 * other


def test_one_trial_is_enough() -> None:
    first, *others = scores([record(0, ALL[0], 2.0)], ALL)
    assert first < min(others)


def test_of_a_long_search_the_seed_draws_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "MODELLED_TRIALS", 6)
    known = [record(n, one, 1.0 + n % 5) for n, one in enumerate(ALL)]
    assert scores(known, ALL, seed=1) == scores(known, ALL, seed=1) != scores(known, ALL, seed=2)
