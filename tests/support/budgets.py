"""A budget that reckons with Google's list prices, as a workspace's does whose user fetched no newer ones."""

from __future__ import annotations

from typing import Any

from orchestrator.money.caps import Budget
from orchestrator.providers.gcp.list_prices import LIST_PRICES


def listed(**caps: Any) -> Budget:
    return Budget(**caps).with_prices(lambda: LIST_PRICES)
