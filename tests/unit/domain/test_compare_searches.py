"""What two searches of one name came to."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.domain.compare_facts import searches


def ratio(value: float) -> dict[str, float]:
    return {"ratio": value, "ci_low": value - 0.01, "ci_high": value + 0.01}


def document(value: float = 0.8, us: float = 4.2, tile: int = 128, **more: Any) -> dict[str, Any]:
    elite = {"trial": 2, **ratio(value), "held_out": ratio(0.9), "per_case": {"mission": {"us": us, **ratio(value)}}}
    trials = [{"number": 2, "params": {"TILE": tile, "STAGES": 1}, "state": "complete", "gpu": "NVIDIA L4"}]
    return {
        "kind": "tuning", "tune": "saxpy", "metric": {"unit": "us", "cases": ["mission"]},
        "search": {"strategy": "evolution"}, "summary": {"trials": 128, "states": {"complete": 128}},
        "default": {"params": {"TILE": 64, "STAGES": 1}}, "trials": trials, "final": [elite], "complete": True, **more,
    }  # fmt: skip


def test_the_best_of_each_is_shown_by_what_differs() -> None:
    found = searches([document()], [document(0.7, 3.6, 32)])
    assert {(d.name, d.fact): (d.old, d.new) for d in found} == {
        ("saxpy", "best"): ("TILE=128", "TILE=32"),
        ("saxpy", "time over default, on what was searched"): (0.8, 0.7),
        ("saxpy", "best on mission, us"): (4.2, 3.6),
    }
    assert searches([document()], [document()]) == []


@pytest.mark.parametrize("other", [{"tune": "gemm"}, {"final": []}, {"final": None, "metric": 7, "search": []}])
def test_what_one_side_does_not_have_is_none_of_its(other: dict[str, Any]) -> None:
    found = searches([document()], [document(**other)])
    assert {d.name for d in found} == {"saxpy", *([other["tune"]] if "tune" in other else [])}
    assert all(d.old is None or d.new is None for d in found if d.fact != "strategy")
