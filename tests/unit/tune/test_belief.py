"""What a search expects of configurations, held against models that are plainer and slower."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fcctl_tune.search import surrogate as belief
from fcctl_tune.search.records import TrialRecord
from fcctl_tune.search.space import Space
from fcctl_tune.search.surrogate import SurrogateModel, effects, forest

SPACE = Space.from_dict({"parameters": {"A": [1, 2, 4, 8], "B": ["row", "col", "tile"], "C": [False, True]}})


def chance(seed: int = 0) -> np.random.RandomState:
    return np.random.RandomState(seed)


def drawn(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """So many different rows of five columns, and a target for each."""
    rng = chance(seed)
    every = np.stack(np.meshgrid(*[np.arange(4)] * 5), -1).reshape(-1, 5)
    return every[rng.permutation(len(every))[:count]], rng.standard_normal(count)


def record(number: int, a: int, b: str, c: bool, value: float | None) -> TrialRecord:
    params = {"A": a, "B": b, "C": c}
    return TrialRecord(number, params, "complete" if value else "crashed", value=value)


@pytest.mark.parametrize("count", [1, 2, 3, 40, belief.MOST_ROWS])
def test_every_tree_knows_what_was_tried(count: int) -> None:
    rows, targets = drawn(count)
    found = forest(rows, targets, rows, chance())
    assert found.shape == (belief.TREES, count)
    assert np.allclose(found, targets)


def test_of_many_trials_each_tree_knows_others() -> None:
    rows, targets = drawn(4 * belief.MOST_ROWS)
    found = forest(rows, targets, rows, chance())
    knows = np.isclose(found, targets)
    assert np.all(knows.sum(axis=1) >= belief.MOST_ROWS)
    assert knows.any(axis=0).mean() > 0.9
    assert np.corrcoef(found.mean(axis=0), targets)[0, 1] > 0.5


def test_rows_that_nothing_tells_apart_count_alike() -> None:
    rows, targets = np.zeros((4, 3), np.int64), np.array([1.0, 2.0, 3.0, 6.0])
    assert np.allclose(forest(rows, targets, np.array([[0, 0, 0], [5, 5, 5]]), chance()), 3.0)


def test_what_was_not_tried_is_expected_from_what_is_beside_it_and_trees_differ() -> None:
    rows, noise = drawn(300)
    targets = rows[:, 0] + 0.1 * noise  # one column says nearly all
    asked = np.array([[a, 3 - a, a, 1, 2] for a in range(4)])
    found = forest(rows, targets, asked, chance())
    assert np.allclose(found.mean(axis=0), [0, 1, 2, 3], atol=0.6)
    assert found.std(axis=0).max() > 0


def test_a_tree_takes_the_best_of_its_cuts() -> None:
    """Where one column matters and four do not, it is cut more often than chance would have it."""
    rows, _ = drawn(300)
    targets = (rows[:, 0] > 1) * 1.0
    far = forest(rows, targets, np.array([[0, 0, 0, 0, 0], [3, 0, 0, 0, 0]]), chance(1))
    assert far[:, 0].mean() < 0.1
    assert far[:, 1].mean() > 0.9


def test_effects_are_those_of_a_plain_fit_in_turns() -> None:
    rows, targets = drawn(60)
    left, plain = list(targets), {(c, v): 0.0 for c in range(5) for v in range(4)}
    for _ in range(belief.SWEEPS):
        for (column, level), known in plain.items():
            places = [i for i, one in enumerate(rows) if one[column] == level]
            step = sum(left[i] for i in places) / (len(places) + belief.SHRINK)
            plain[column, level] = known + step
            for i in places:
                left[i] -= step
    asked, _ = drawn(50, seed=9)
    assert np.allclose(
        effects(rows, targets, asked), [sum(plain[c, int(v)] for c, v in enumerate(one)) for one in asked]
    )


def test_a_value_that_was_never_tried_has_no_effect() -> None:
    rows, targets = np.array([[0, 0], [1, 0]]), np.array([-1.0, 1.0])
    assert effects(rows, targets, np.array([[3, 2]])) == [0.0]


def test_faster_is_more_promising_and_a_crash_is_not() -> None:
    records = [
        record(n, a, b, c, None if b == "tile" else a * (2.0 if c else 1.0))
        for n, (a, b, c) in enumerate(
            (a, b, c) for a in (1, 4, 8) for b in ("row", "col", "tile") for c in (False, True)
        )
    ]
    many = [
        {"A": 1, "B": "row", "C": False}, {"A": 8, "B": "row", "C": True}, {"A": 1, "B": "tile", "C": False},
    ]  # fmt: skip
    fast, slow, crash = SurrogateModel.of(SPACE, records).promises(many, 0.0, random.Random(0))
    assert fast > slow
    assert fast > crash


def test_one_trial_is_enough_and_the_seed_says_it_all() -> None:
    many = [dict(one) for one in SPACE.all]
    alone = SurrogateModel.of(SPACE, [record(0, 1, "row", False, 2.0)])
    assert alone.promises(many, 4.0, random.Random(0)) == pytest.approx([0.0] * len(many))
    two = SurrogateModel.of(SPACE, [record(0, 1, "row", False, 2.0), record(1, 8, "col", True, 1.0)])
    first, again, other = (two.promises(many, 4.0, random.Random(seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_larger_budget_affords_more_curiosity_and_its_end_none() -> None:
    assert belief.exploration_weight(0, 8) == 1.0
    assert belief.exploration_weight(0, 32) < belief.exploration_weight(0, 128) < belief.exploration_weight(0, 512)
    assert belief.exploration_weight(128, 128) == belief.exploration_weight(200, 128) == 0.0
