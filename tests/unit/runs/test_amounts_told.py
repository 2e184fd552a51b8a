"""How much is on its way is told in the unit that fits."""

from __future__ import annotations

import pytest

from orchestrator.runs.collect import amount


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 bytes"), (999, "999 bytes"), (7841, "7.8 kB"), (62_916_019, "62.9 MB"), (3_000_000_000, "3.0 GB")],
)
def test_an_amount(size: int, said: str) -> None:
    assert amount(size) == said
