from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from fcctl_tune.errors import TuneError
from fcctl_tune.search import optimizer
from fcctl_tune.search import optimizer as search
from fcctl_tune.search.optimizer import expected_improvements
from fcctl_tune.search.records import TrialRecord
from fcctl_tune.search.space import Params, Space

SPACE = Space.from_dict(
    {
        "parameters": {"A": [1, 2, 4, 8], "B": [1, 2, 3, 4, 5, 6], "C": [False, True], "D": ["row", "col", "tile"]},
        "constraints": ["A * B <= 24"],
    }
)
Outcome = Callable[[Params], "float | str"]


def bowl(params: Params) -> float:
    """Best at A=4, B=5, C=true, D=tile."""
    depth = abs(int(params["A"]) - 4) / 4 + abs(int(params["B"]) - 5) / 5
    return 1 + depth + 0.2 * (not params["C"]) + 0.3 * (params["D"] != "tile")


def told(number: int, params: Params, outcome: float | str) -> TrialRecord:
    if isinstance(outcome, str):
        return TrialRecord(number, params, outcome, "why")
    return TrialRecord(number, params, "complete", value=outcome)


def history_of(
    space: Space, records: list[TrialRecord], pending: Sequence[Params] = (), budget: int = 128
) -> search.History:
    tried = {space.key(params) for params in (*(r.params for r in records), *pending)}
    return search.History(space, tuple(records), tuple(pending), tried, budget)


def play(
    strategy: str, seed: int, budget: int, outcome: Outcome = bowl, space: Space = SPACE, first: int | None = None
) -> list[TrialRecord]:
    """The records of a search, or of its ``first`` trials."""
    records = [told(0, space.default, outcome(space.default))]
    for number in range(1, first or budget):
        history = history_of(space, records, budget=budget)
        proposal = search.propose(strategy, history, search.rng_of(seed, number))
        if proposal is None:
            break
        records.append(told(number, proposal.params, outcome(proposal.params)))
    return records


def keys(records: list[TrialRecord]) -> list[str]:
    return [SPACE.key(record.params) for record in records]


@pytest.mark.parametrize("strategy", search.STRATEGIES)
@pytest.mark.parametrize("outcome", [bowl, lambda _: "crashed"], ids=["works", "nothing works"])
def test_every_configuration_once_then_the_end(strategy: str, outcome: Outcome) -> None:
    found = keys(play(strategy, 1, 1000, outcome))
    assert len(found) == len(set(found)) == SPACE.size


@pytest.mark.parametrize("strategy", search.STRATEGIES)
def test_a_seed_says_it_all(strategy: str) -> None:
    assert keys(play(strategy, 5, 40)) == keys(play(strategy, 5, 40))
    assert (keys(play(strategy, 5, 40)) != keys(play(strategy, 6, 40))) is (strategy != "exhaustive")


def test_what_is_under_way_is_not_proposed() -> None:
    records = play("evolution", 0, 30)
    *pending, left = [params for params in SPACE.all if SPACE.key(params) not in keys(records)]
    history = history_of(SPACE, records, pending, 200)
    proposal = search.propose("evolution", history, random.Random(0))
    assert proposal.params == left


def test_children_come_from_the_elites_and_say_of_which() -> None:
    records = play("evolution", 3, 60)
    born = [record for record in records if record.number > search.spread(60)]
    assert born
    history = history_of(SPACE, records[:20], budget=60)
    best = sorted(records[:20], key=lambda r: r.value or 0)[:2]
    for chance in range(30):
        proposal = search.propose("evolution", history, random.Random(chance), elites=2)
        if proposal.source.startswith("of "):
            assert set(map(int, proposal.source[3:].split(" and "))) <= {r.number for r in best}


@pytest.mark.full
def test_failures_teach_without_poisoning() -> None:
    """A third of the space crashes, next to the best: it is avoided, and the best is found all the same."""

    def cliff(params: Params) -> float | str:
        return "crashed" if params["B"] == 6 or params["A"] == 8 else bowl(params)

    share = sum(isinstance(cliff(params), str) for params in SPACE.all) / len(SPACE.all)
    found = [play("evolution", seed, 40, cliff) for seed in range(10)]
    late = [record.is_invalid for records in found for record in records[12:]]
    assert sum(late) / len(late) < share / 2
    assert all(min(record.value or 9 for record in records) < 1.05 for records in found)


def test_one_bad_trial_of_the_best_values_does_not_rule_them_out() -> None:
    def unlucky(params: Params) -> float | str:
        return "hung" if params == {"A": 4, "B": 4, "C": True, "D": "tile"} else bowl(params)

    assert all(min(r.value or 9 for r in play("evolution", seed, 40, unlucky)) < 1.05 for seed in range(5))


def test_the_first_trials_are_spread() -> None:
    """Each value of each parameter is met sooner than by chance."""

    def met(strategy: str) -> int:
        first = [play(strategy, seed, 32, first=8) for seed in range(20)]
        return sum(len({item for r in records for item in r.params.items()}) for records in first)

    assert met("evolution") > met("random")


def test_a_huge_space_is_searched_without_walking_it() -> None:
    wide = Space.from_dict({"parameters": {f"P{i}": list(range(1, 9)) for i in range(10)}})

    def outcome(params: Params) -> float:
        return 1 + sum(abs(int(v) - 6) for v in params.values())

    best = {s: min(r.value or 0 for r in play(s, 0, 120, outcome, wide)) for s in ("evolution", "random")}
    assert best["evolution"] < best["random"] / 1.5


def test_auto_is_exhaustive_where_the_budget_covers_the_space() -> None:
    size = SPACE.size or 0
    assert search.choose("auto", SPACE, size) == "exhaustive"
    assert search.choose("auto", SPACE, size - 1) == "evolution"
    assert search.choose("random", SPACE, 1000) == "random"
    with pytest.raises(TuneError, match="unknown strategy"):
        search.choose("clever", SPACE, 10)


SMALL = Space.from_dict({"parameters": {"A": [1, 2, 4, 8], "B": ["row", "col", "tile"], "C": [False, True]}})
EACH = [dict(one) for one in SMALL.all]


def tried(number: int, params: Params, value: float | None) -> TrialRecord:
    return TrialRecord(number, params, "complete" if value else "crashed", value=value)


def scores(
    records: list[TrialRecord], candidates: list[Params], pending: list[Params] | None = None, seed: int = 0
) -> list[float]:
    return expected_improvements(SMALL, records, pending or [], candidates, random.Random(seed))


def seconds(params: Params) -> float | None:
    """Tiles crash; large A and C are slow."""
    return None if params["B"] == "tile" else float(params["A"]) * (2.0 if params["C"] else 1.0)


def test_fast_beats_slow_and_a_crash_counts_as_slowest() -> None:
    known = [tried(n, one, seconds(one)) for n, one in enumerate(EACH) if one["A"] != 2]
    fast, slow, crash = scores(
        known, [{"A": 2, "B": "row", "C": False}, {"A": 2, "B": "row", "C": True}, {"A": 2, "B": "tile", "C": False}]
    )
    assert fast > slow > crash


def test_what_was_tried_is_expected_again() -> None:
    known = [tried(n, one, 1.0 + n % 5) for n, one in enumerate(EACH)]
    found = scores(known, EACH)
    order = sorted(range(len(EACH)), key=lambda n: -found[n])
    assert {n % 5 for n in order[:4]} == {0}, "the fastest first"


def test_what_is_far_from_tried_and_pending_trials_may_be_better() -> None:
    known = [tried(0, EACH[0], 1.0), tried(1, {"A": 8, "B": "col", "C": True}, 1.1)]
    near, far = {"A": 8, "B": "row", "C": True}, {"A": 2, "B": "tile", "C": True}
    assert scores(known, [near, far])[0] < scores(known, [near, far])[1]
    assert scores(known, [far], pending=[far]) < scores(known, [far])


def test_a_parameter_that_does_not_matter_is_found_out() -> None:
    """Only A counts: an untried B and C of the best A is promising, whatever they were with others."""
    known = [tried(n, one, 9.0 - float(one["A"])) for n, one in enumerate(EACH) if one["A"] != 8 or one["B"] == "row"]
    best, slow = {"A": 8, "B": "tile", "C": False}, {"A": 4, "B": "tile", "C": False}
    expected, other = scores([*known], [best, slow])
    assert expected > 10 * other


def test_one_trial_is_enough() -> None:
    first, *others = scores([tried(0, EACH[0], 2.0)], EACH)
    assert first < min(others)


def test_of_a_long_search_the_seed_draws_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "MODELLED_TRIALS", 6)
    known = [tried(n, one, 1.0 + n % 5) for n, one in enumerate(EACH)]
    assert scores(known, EACH, seed=1) == scores(known, EACH, seed=1) != scores(known, EACH, seed=2)
