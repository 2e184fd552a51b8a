"""What two searches of one name came to."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.results.compare.facts import searches
from tests.support.measured_runs import searched


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
