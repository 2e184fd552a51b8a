from __future__ import annotations

import csv
import io
import json
import math

import pytest

from fcctl_tune.search.records import Summary, TrialRecord, best_so_far, eligible, objective, ranked, topk
from fcctl_tune.search.spec import Spec

SPEC = Spec.from_dict(
    {
        "tune": "saxpy",
        "parameters": {"BLOCK": [64, 128, 256, 512], "FAST": [True, False], "NAME": ["=cmd", "b"]},
        "serve": "none",
        "cases": ["n20", "n24"],
        "held_out": ["n22"],
        "trials": 8,
        "elites": 3,
    }
)


def record(number: int, state: str = "complete", value: float | None = None, reason: str = "") -> TrialRecord:
    params = SPEC.known_space.all[number]
    times, base = ({"n20": 4.0, "n24": 9.0}, {"n20": 5.0, "n24": 10.0}) if value else ({}, {})
    took = {"build": 1.5}
    return TrialRecord(number, params, state, reason, value, 0, times, took, "NVIDIA L4", "gpu-0", "random", base)


RECORDS = (
    record(0, value=1.0), record(1, "build_failed", reason="error:\n  x"), record(2, value=0.7),
    record(3, "pruned", 0.5), record(4, value=0.9), record(5, "build_failed", reason="error:\n  x"),
)  # fmt: skip


def test_the_objective_is_the_geometric_mean_of_ratios() -> None:
    assert objective({"a": 2.0, "b": 8.0}, {"a": 1.0, "b": 2.0}) == pytest.approx(math.sqrt(8))
    assert objective({"a": 2.0}, {"a": 1.0}, "max") == pytest.approx(0.5)
    assert objective({"a": 3.0, "other": 9.0}, {"a": 3.0}) == 1.0
    for per_case in ({}, {"a": 0.0}, {"a": -1.0}, {"a": math.nan}, {"a": math.inf}):
        with pytest.raises(ValueError, match="case a"):
            objective(per_case, {"a": 1.0})
    with pytest.raises(ValueError, match="no case"):
        objective({}, {})


def test_the_best_so_far_is_told_as_elites_are_chosen() -> None:
    """Parents of further trials are timed in full, all of them."""
    assert [r.number for r in ranked(RECORDS)] == [2, 4, 0]
    assert best_so_far(RECORDS) == pytest.approx([1.0, 1.0, 0.7, 0.525, 0.525, 0.525])
    assert best_so_far(RECORDS[1:2]) == [None]


@pytest.mark.parametrize(
    ("state", "value"), [("done", None), ("complete", None), ("complete", 0.0), ("pruned", math.nan)]
)
def test_what_is_no_outcome(state: str, value: float | None) -> None:
    with pytest.raises(ValueError, match="trial 0"):
        TrialRecord(0, {}, state, value=value)


def test_a_record_survives_json() -> None:
    for one in RECORDS:
        entry = json.loads(json.dumps(one.to_dict()))
        assert TrialRecord.from_dict({**entry, "newer": 1}) == one


def test_the_log_has_a_line_for_each_trial_and_no_formulas() -> None:
    text = Summary(SPEC, "random", 4, "budget", tuple(reversed(RECORDS))).log_csv()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["trial"] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert rows[0]["NAME"] == "'=cmd"
    assert rows[1]["reason"] == "error: x"
    assert (rows[2]["value"], rows[2]["time:n24"], rows[2]["build_s"], rows[2]["FAST"]) == ("0.7", "9", "1.5", "false")
    assert (rows[2]["default:n20"], rows[2]["default:n24"]) == ("5", "10")
    assert rows[1]["time:n20"] == rows[1]["default:n20"] == ""


def test_the_documents() -> None:
    summary = Summary(SPEC, "evolution", 4, "budget", RECORDS)
    control = Summary(SPEC, "random", 4, "budget", RECORDS[:2]).control()
    document = summary.document(machine={"gpu": "NVIDIA L4", "sms": 58}, controls=[control])
    assert json.loads(json.dumps(document)) == document
    assert (document["kind"], document["schema_version"], document["complete"]) == ("tuning", 1, True)
    assert document["summary"]["states"] == {"complete": 3, "pruned": 1, "build_failed": 2}
    assert document["summary"]["best"] == pytest.approx(0.525)
    assert [elite["trial"] for elite in document["elites"]] == [3, 2, 4]
    assert document["controls"][0]["curve"] == [1.0, 1.0]
    assert [TrialRecord.from_dict(entry) for entry in document["trials"]] == list(RECORDS)
    top = topk(summary.document(final=[{"trial": 2}]))
    assert top["elites"][1]["key"] == 'BLOCK=64 FAST=false NAME="=cmd"'
    assert top["final"] == [{"trial": 2}]
    assert "trials" not in top


def test_what_the_last_measurement_found_wrong_was_never_the_best() -> None:
    summary = Summary(SPEC, "evolution", 4, "budget", RECORDS)
    wrong = {"verdict": "failed", "state": "wrong", "reason": "n22: max err 3"}
    final = [*({"trial": n, **wrong} for n in (2, 3)), {"trial": 4, "verdict": "faster"}]
    refuted = summary.refuted(final)
    document = summary.knowing(refuted).document(final=final)
    assert (document["summary"]["best"], document["summary"]["states"]) == (
        0.9, {"complete": 2, "build_failed": 2, "wrong": 2},
    )  # fmt: skip
    assert document["curve"] == [1.0, 1.0, 1.0, 1.0, 0.9, 0.9]
    assert [elite["trial"] for elite in document["elites"]] == [4]
    told = list(csv.DictReader(io.StringIO(summary.knowing(refuted).log_csv())))[2]
    assert (told["state"], told["value"], told["reason"]) == ("wrong", "", "the last measurement: n22: max err 3")
    control = Summary(SPEC, "random", 4, "budget", RECORDS[:4]).knowing(refuted).control()
    assert (control["best"], control["curve"]) == (1.0, [1.0] * 4)
    assert summary.knowing({}) is summary


def test_elites_are_the_best_by_value_and_what_was_timed_briefly_must_be_clearly_better() -> None:
    early, late = [record(1, value=0.95), record(2, value=0.9)], [record(3, "pruned", 0.11), record(4, "pruned", 0.89)]
    assert [r.number for r in eligible([record(0, value=1.0), *early, *late])] == [3, 2, 4, 1]
    assert [r.number for r in eligible([record(0, value=1.0), record(1, "wrong"), *early[1:]])] == [2]
    assert [r.number for r in Summary(SPEC, "random", 0, "running", RECORDS[1:4]).elites] == [3, 2]
