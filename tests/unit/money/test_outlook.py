"""What may still be planned under a cap."""

from __future__ import annotations

import pytest

from orchestrator.runs.cost.outlook import CapRow


@pytest.mark.parametrize(
    ("cap", "spent", "reserved", "free"),
    [
        (10.0, 4.0, None, 6.0),
        (10.0, 4.0, 1.5, 4.5),
        (10.0, 9.0, 2.0, 0.0),
        (None, 4.0, None, None),
        (9.0, None, 1.0, None),
    ],
)
def test_what_is_free(cap: float | None, spent: float | None, reserved: float | None, free: float | None) -> None:
    assert CapRow("day", cap, spent, reserved=reserved).free == free
