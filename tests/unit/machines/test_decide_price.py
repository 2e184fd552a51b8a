"""A machine that costs more than was planned is not started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from orchestrator.machines.cloud import Hardware
from orchestrator.machines.provision.actions import MachineRequest, PlannedPrice, too_dear

BIG = Hardware("us-west1-c", "g2-standard-96", False, (("nvidia-l4", 8),), (("pd-ssd", 200),), address=True)


@pytest.mark.parametrize(
    ("usd", "rest_usd", "planned", "dear"),
    [
        (0.7, 0.02, PlannedPrice(0.7, 0.02), False),
        (0.7 + 1e-9, 0.02, PlannedPrice(0.7, 0.02), False),
        (0.71, 0.01, PlannedPrice(0.7, 0.02), False),  # all together it is what was planned
        (0.6, 0.2, PlannedPrice(0.7, 0.02), True),
        (8.0, 0.02, PlannedPrice(0.7, 0.02), True),
        (0.7, 0.5, PlannedPrice(0.7), False),  # a plan of before
        (0.8, 0.0, PlannedPrice(0.7), True),
        (8.0, 0.5, None, False),  # nobody pays
    ],
)
def test_all_of_an_hour_is_held_to_the_plan(
    usd: float, rest_usd: float, planned: PlannedPrice | None, dear: bool
) -> None:
    price = SimpleNamespace(usd=usd, rest_usd=rest_usd)
    assert (too_dear("vm", BIG, price, MachineRequest(60, 0.0, planned=planned)) is not None) == dear


def test_both_prices_and_the_option_that_accepts_are_named() -> None:
    price = SimpleNamespace(usd=8.003, rest_usd=0.05)
    refusal = too_dear("vm", BIG, price, MachineRequest(60, 0.0, planned=PlannedPrice(0.707, 0.019)))
    assert refusal is not None
    assert (refusal.problem, "--accept-price" in (refusal.hint or "")) == ("budget", True)
    assert "vm in us-west1-c costs $8.053 an hour, but the plan allows $0.726" in refusal.message
    assert "g2-standard-96 (on demand): $8.003, and $0.050 for its disks (200 GiB) and its address" in (
        refusal.cause or ""
    )
