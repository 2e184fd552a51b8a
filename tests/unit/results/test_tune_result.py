"""Searches' results: what is printed of a document that makes things up stays short; two of one name compared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from orchestrator.results import tuning as tune_result
from orchestrator.results.compare.facts import searches
from orchestrator.views.table import show_blocks
from orchestrator.views.tables.documents import tuning
from tests.support.measured_runs import searched

RATIO = {"ratio": 0.5, "ci_low": 0.4, "ci_high": 0.6}
MANY = {f"k{n}": 1 for n in range(20_000)}
ELITE = {"trial": 1, **RATIO, "params": {"A": 2}}


@pytest.mark.parametrize(
    "changes",
    [
        {"summary": {"states": MANY}},
        {"trials": [{"number": n, "state": f"s{n}", "gpu": f"g{n}"} for n in range(20_000)], "summary": {}},
        {"final": [{**ELITE, "params": MANY}]},
        {"final": [{**ELITE, "per_case": dict.fromkeys(MANY, RATIO)}]},
        {"final": [ELITE] * 20_000},
        {"metric": {"cases": list(MANY)}},
        {"controls": [{"strategy": key, "curve": [1.0]} for key in MANY]},
    ],
)
def test_what_a_host_makes_up_without_end_is_cut_short(changes: dict[str, Any]) -> None:
    content = {"tune": "t", "complete": True, "summary": {"states": {"complete": 2}}, "final": [ELITE], **changes}
    result = tune_result.read(content)
    assert len(result.elites) <= tune_result.MAX_ELITES
    assert len(repr(result)) < 500_000
    console = Console(width=100)
    with console.capture() as captured:
        show_blocks(console, tuning(content))
    assert 0 < len(captured.get()) < 20_000


def test_numbers_too_long_to_print_are_none() -> None:
    """Each can be read, and their sum could not be written: Python refuses to, beyond 4300 digits."""
    states = json.loads(f'{{"complete": {"9" * 4300}, "pruned": {"9" * 4300}, "wrong": 3}}')
    result = tune_result.read({"summary": {"states": states}, "search": {"budget": states["pruned"]}})
    assert (result.states, result.trials, result.budget) == ({"wrong": 3}, 3, None)


def test_what_was_held_out_judges_the_best_and_does_not_choose_it() -> None:
    """The least of several figures is better than it is true: what chooses among the elites proves nothing of them."""
    held = [{"ratio": r, "ci_low": r - 0.1, "ci_high": r + 0.1} for r in (0.95, 0.7)]
    final = [{**ELITE, "held_out": held[0]}, {**ELITE, "trial": 2, "ratio": 0.55, "held_out": held[1]}]
    result = tune_result.read({"final": final})
    assert (result.best.trial, result.best.verdict) == (1, "undecided")


def test_the_best_of_each_is_shown_by_what_differs() -> None:
    found = searches([searched()], [searched(0.7, 3.6, 32)])
    assert {(d.name, d.fact): (d.old, d.new) for d in found} == {
        ("saxpy", "best"): ("TILE=128", "TILE=32"),
        ("saxpy", "time over default, on what was searched"): (0.8, 0.7),
        ("saxpy", "best on mission, us"): (4.2, 3.6),
    }
    assert searches([searched()], [searched()]) == []


@pytest.mark.parametrize("other", [{"tune": "gemm"}, {"final": []}, {"final": None, "metric": 7, "search": []}])
def test_what_one_side_does_not_have_is_none_of_its(other: dict[str, Any]) -> None:
    found = searches([searched()], [searched(**other)])
    assert {d.name for d in found} == {"saxpy", *([other["tune"]] if "tune" in other else [])}
    assert all(d.old is None or d.new is None for d in found if d.fact != "strategy")
