"""Which of a search's winners may come into a table, and what speaks against the others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fcctl_tune.search.space import Space
from orchestrator.results import tuning as tune_result
from orchestrator.tune import adoption
from orchestrator.tune.adoption import Adoption, Row, of_result

RUN = "20261121t081530z-tune-l4-3fa9c1"


def final(trial: int, held_out: float, high: float | None = None, **cases: float) -> dict[str, Any]:
    def figures(ratio: float, top: float | None = None) -> dict[str, float]:
        return {"us": 10 * ratio, "ratio": ratio, "ci_low": ratio - 0.01, "ci_high": top or ratio + 0.01}

    per_case = {name: figures(ratio) for name, ratio in cases.items()}
    searched = figures(sum(cases.values()) / len(cases))
    return {"trial": trial, **searched, "per_case": per_case, "held_out": figures(held_out, high), "verdict": "x"}


def document(*elites: dict[str, Any], **changes: Any) -> dict[str, Any]:
    trials = [
        {"number": n, "params": {"TILE": t}, "state": "complete", "value": 1.0, "gpu": "NVIDIA L4", "reason": ""}
        for n, t in ((0, 64), (1, 32), (2, 128))
    ]
    return {
        "kind": "tuning", "tune": "saxpy", "gpu": {"name": "NVIDIA L4", "sms": 58}, "complete": True,
        "search": {"strategy": "evolution", "seed": 1, "budget": 3, "ended": "budget", "space": {"size": 9}},
        "metric": {"unit": "us", "direction": "min", "cases": ["a", "b"], "held_out": ["c"]},
        "summary": {"trials": 3, "states": {"complete": 3}}, "default": {"params": {"TILE": 64}},
        "curve": [1.0, 0.9, 0.8], "trials": trials, "final": list(elites), "controls": [], **changes,
    }  # fmt: skip


def of(content: dict[str, Any]) -> Adoption:
    return of_result(tune_result.read(content), RUN, {"N": "1"})


def test_each_case_gets_the_elite_that_is_fastest_there() -> None:
    made = of(document(final(1, 0.8, a=0.7, b=0.9, c=0.8), final(2, 0.85, a=0.95, b=0.8, c=0.85)))
    assert made.doubts == ()
    assert [(row.case, row.params["TILE"]) for row in made.rows] == [("a", 32), ("b", 128)]
    assert made.rows[0].as_dict() == {
        "gpu": "NVIDIA L4", "sms": 58, "case": "a", "params": {"TILE": 32}, "run": RUN, "ratio": [0.7, 0.69, 0.71],
        "held_out": [0.8, 0.79, 0.81],
    }  # fmt: skip


def test_one_that_is_not_faster_on_what_was_held_out_wins_nothing() -> None:
    made = of(document(final(1, 0.99, 1.01, a=0.5, b=0.5), final(2, 0.85, a=0.95, b=0.8)))
    assert [(row.case, row.params["TILE"]) for row in made.rows] == [("a", 128), ("b", 128)]
    none = of(document(final(1, 0.99, 1.01, a=0.5, b=0.5)))
    assert "0.990 [0.980, 1.010] of the default's time on the held-out cases" in none.doubts[0]
    assert "interval contains 1" in none.doubts[0]
    assert [row.case for row in none.rows] == ["a", "b"]  # for whoever insists
    assert (
        "it is slower on the held-out cases, and faster only on"
        in of(document(final(1, 1.2, 1.3, a=0.5, b=0.5))).doubts[0]
    )
    slow = final(1, 0.9, a=4.0, b=4.0)
    assert "no configuration is certainly faster on any case" in of(document(slow)).doubts[0]


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({"complete": False}, "is not complete"),
        ({"gpu": None, "trials": []}, "does not name the GPU"),
        ({"final": []}, "no configuration passed"),
        (  # an interval beside its ratio is none
            {"final": [{**final(1, 0.8, a=0.7), "held_out": {"ratio": 5.0, "ci_low": 0.7, "ci_high": 0.9}}]},
            "not measured interleaved",
        ),
        ({"trials": [{"number": n, "params": {}, "gpu": g} for n, g in ((1, "L4"), (2, "H100"))]}, "L4, H100"),
    ],
)
def test_what_speaks_against_it(changes: dict[str, Any], doubt: str) -> None:
    good = final(1, 0.8, a=0.7, b=0.9)
    assert any(doubt in said for said in of({**document(good), **changes}).doubts)


def test_a_host_that_makes_no_sense_gives_a_result_all_the_same() -> None:
    for junk in ({}, {"trials": 5, "final": [3, {"per_case": [], "ratio": "x"}], "curve": "a", "summary": []}):
        assert of(junk).doubts  # type: ignore[arg-type]
    nan = document(final(1, float("nan"), a=float("inf"), b=-1.0))
    assert of(nan).doubts


def test_what_was_to_be_held_out_cannot_be_left_out() -> None:
    elite = {**final(1, 0.8, a=0.7, b=0.9), "held_out": None}
    result = tune_result.read(document(elite))
    assert of_result(result, RUN, {}).doubts == ()
    made = of_result(result, RUN, {}, ["c"])
    assert "not measured on the held-out cases" in made.doubts[0]
    assert [row.case for row in made.rows] == ["a", "b"]  # for whoever insists
    assert of_result(result, RUN, {}, ["b"]).doubts == (), "it was searched on after all"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"params": {"TILE": 48}}, "TILE=48 is not a configuration of the search"),
        ({"params": {"TILE": 32, "EVIL": 1}}, "is not a configuration"),
        ({"params": {}}, "must have 1 to 64 names"),
        ({"params": {"TILE": "32\n#include </etc/passwd>"}}, "is not a valid value"),
        ({"params": {"TILE\n": 32}}, "is not a valid name for an environment variable"),
        ({"params": {"TILE": float("nan")}}, "is not a valid value"),
        ({"params": {"TILE": 10**400}}, "is not a valid value"),
        ({"gpu": "L4\x1b]0;owned\x07"}, "the name of its GPU is invalid"),
        ({"case": "a" * 101}, "the name of its case is invalid"),
    ],
)
def test_a_row_that_the_search_cannot_have_come_to(changes: dict[str, Any], said: str) -> None:
    space = Space.from_dict({"parameters": {"TILE": [64, 32, 128]}})
    good = Row("NVIDIA L4", 58, "1,8,512,64", {"TILE": 32}, RUN)
    assert adoption.fault(good, space) == adoption.fault(good, None) == ""
    bad = replace(good, **changes)
    assert said in adoption.fault(bad, space)
    listed_there = "is not a configuration" in said  # only who knows the space can tell
    assert (adoption.fault(bad, None) == "") == listed_there


def test_our_own_table_keeps_what_it_had() -> None:
    first = of(document(final(1, 0.8, a=0.7, b=0.9)))
    text = adoption.table("", "saxpy", first.rows)
    newer = of(document(final(2, 0.8, a=0.6)))
    after = adoption.table(text, "saxpy", newer.rows)
    rows = json.loads(after)["rows"]
    assert [(row["case"], row["params"]["TILE"]) for row in rows] == [("a", 128), ("b", 32)]
    assert adoption.table(after, "saxpy", newer.rows) == after
    other = adoption.table(after, "saxpy", newer.rows, {"OPT": "-O0"})
    assert [(row["case"], row.get("env")) for row in json.loads(other)["rows"]] == [
        ("a", None), ("a", {"OPT": "-O0"}), ("b", None),
    ]  # fmt: skip
    assert adoption.table(other, "saxpy", newer.rows, {"OPT": "-O0"}) == other
    more = after.replace('"schema_version": 1', '"schema_version": 1, "for": ["us"]')
    assert json.loads(adoption.table(more, "saxpy", newer.rows)) == {**json.loads(after), "for": ["us"]}
    for broken in ("[]", '{"schema_version": 2}', '{"schema_version": 1, "rows": 5}', "x"):
        with pytest.raises(ValueError):
            adoption.table(broken, "saxpy", first.rows)
