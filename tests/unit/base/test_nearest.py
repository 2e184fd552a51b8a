from __future__ import annotations

import pytest

from orchestrator.base.errors import did_you_mean, nearest


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("prot", ["root", "port", "user"], "port"),
        ("l5", ["l4", "local"], "l4"),
        ("per_run", ["per_run_usd", "per_day_usd"], "per_run_usd"),
        ("benchmrk", ["benchmark", "build"], "benchmark"),
        ("phas0", ["phase0", "phase1"], "phase0"),
        ("zzz", ["phase0", "bench"], None),
        ("a", ["b"], None),
        ("x", [], None),
    ],
)
def test_nearest(typed: str, known: list[str], meant: str | None) -> None:
    assert nearest(typed, known) == meant


def test_hint_lists_all_where_none_is_near() -> None:
    assert did_you_mean("zzz", ["b", "a"]) == "known: a, b"
    assert did_you_mean("zzz", []) == "none exist"
