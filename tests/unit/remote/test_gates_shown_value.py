"""The number a person sees beside a gate is the measured one, on whichever side of the comparison it stands."""

from __future__ import annotations

import pytest

from fcctl_remote import wire
from fcctl_remote.gates import evaluate as gates

CONTEXT = {"benchmark": {"ratio": 1.01, "limit": 2}}


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        ("benchmark.ratio <= 3", 1.01),
        ("0.8 <= benchmark.ratio <= 1.25", 1.01),
        ("3 >= benchmark.ratio", 1.01),
        ("benchmark.limit > benchmark.ratio", 2),
        ("1 < 2", 1),
    ],
)
def test_what_the_comparison_is_about(expr: str, value: object) -> None:
    result = gates.evaluate(wire.GateSpec(expr), CONTEXT)
    assert (result.verdict, result.value) == ("pass", value)
