"""A budget that reckons with Google's list prices, as a workspace's does whose user fetched no newer ones."""

from __future__ import annotations

from typing import Any

from orchestrator.machines.cloud import Hardware
from orchestrator.machines.targets import GcpTarget
from orchestrator.money.caps import Budget
from orchestrator.money.prices.machine import MachinePrice, machine_price
from orchestrator.providers.gcp.list_prices import LIST_PRICES


def list_price(target: GcpTarget, hardware: Hardware) -> MachinePrice:
    """The price of a target's machine with that list."""
    return machine_price(hardware, listed(), target)


def listed(**caps: Any) -> Budget:
    return Budget(**caps).with_prices(lambda: LIST_PRICES)
