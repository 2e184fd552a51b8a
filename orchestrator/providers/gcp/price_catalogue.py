"""Converts rows of Google's price catalogue (Cloud Billing) to a price table. Pure.

A row (SKU) is identified by the beginning of its description; its regions are in its own list, because descriptions
name continents or towns. If two rows match one price, the dearer one counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.money.prices.table import _SANE_USD, PriceTable, Rates

#: Compute Engine, among the services of the catalogue.
SERVICE = "services/6F81-5844-456A"
_GIB_PER_VCPU = 4


@dataclass(frozen=True)
class Sku:
    """The fields of a row that are used."""

    description: str
    usage_type: str  # OnDemand, Preemptible, Commit1Yr, ...
    regions: tuple[str, ...]
    unit: str  # h, GiBy.h, GiBy.mo
    usd: float  # for one unit, beyond the free tier


#: The rows of a price: (beginning of the description, usage type, unit).
_ROWS: dict[str, tuple[re.Pattern[str], str, str]] = {
    "core": (re.compile(r"G2 Instance Core running in "), "OnDemand", "h"),
    "ram": (re.compile(r"G2 Instance Ram running in "), "OnDemand", "GiBy.h"),
    "l4": (re.compile(r"Nvidia L4 GPU running in "), "OnDemand", "h"),
    "spot_core": (re.compile(r"Spot Preemptible G2 Instance Core running in "), "Preemptible", "h"),
    "spot_ram": (re.compile(r"Spot Preemptible G2 Instance Ram running in "), "Preemptible", "GiBy.h"),
    "spot_l4": (re.compile(r"Nvidia L4 GPU attached to Spot Preemptible VMs running in "), "Preemptible", "h"),
    "pd_balanced": (re.compile(r"Balanced PD Capacity( in |$)"), "OnDemand", "GiBy.mo"),
    "pd_ssd": (re.compile(r"SSD backed PD Capacity( in |$)"), "OnDemand", "GiBy.mo"),
    "pd_standard": (re.compile(r"Storage PD Capacity( in |$)"), "OnDemand", "GiBy.mo"),
    "snapshot": (re.compile(r"Storage PD Snapshot( in |$)"), "OnDemand", "GiBy.mo"),
    "address_unused": (re.compile(r"Static Ip Charge( in |$)"), "OnDemand", "h"),
}
_MACHINE = ("core", "ram", "l4", "spot_core", "spot_ram", "spot_l4")


def table_of(skus: Iterable[Sku], date: str, older: PriceTable) -> PriceTable:
    """The prices of every region whose G2 machines the catalogue prices whole; ``older`` stands in for the rest.

    Args:
        date: of the catalogue, ISO 8601.

    Raises ValueError: it has no such region: then its descriptions are not those that this version knows.
    """
    by_region: dict[str, dict[str, float]] = {}
    for sku in skus:
        what = _what(sku)
        if what is not None:
            for region in sku.regions:
                row = by_region.setdefault(region, {})
                row[what] = max(sku.usd, row.get(what, 0.0))
    regions = {name: _rates(row) for name, row in sorted(by_region.items()) if all(part in row for part in _MACHINE)}
    if not regions:
        raise ValueError("no region of it has a price for all parts of a g2 machine")
    return PriceTable("Google's price catalogue (Cloud Billing)", date, regions, older)


def _what(sku: Sku) -> str | None:
    low, high = _SANE_USD
    for name, (pattern, usage_type, unit) in _ROWS.items():
        if pattern.match(sku.description) and (sku.usage_type, sku.unit) == (usage_type, unit) and low < sku.usd < high:
            return name
    return None


def _rates(row: Mapping[str, float]) -> Rates:
    return Rates(
        vcpu=round(row["core"] + _GIB_PER_VCPU * row["ram"], 9),
        l4=row["l4"],
        spot_vcpu=round(row["spot_core"] + _GIB_PER_VCPU * row["spot_ram"], 9),
        spot_l4=row["spot_l4"],
        pd_balanced=row.get("pd_balanced"),
        pd_ssd=row.get("pd_ssd"),
        pd_standard=row.get("pd_standard"),
        snapshot=row.get("snapshot"),
        address_unused=row.get("address_unused"),
    )
