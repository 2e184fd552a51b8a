"""What a target's machine costs as spot beside on demand, by the price list. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.machines.cloud import region_of
from orchestrator.machines.targets import CloudTarget
from orchestrator.money.prices.table import Price, PriceTable


@dataclass(frozen=True)
class SpotPreview:
    """List prices of an hour in the zone that is tried first."""

    zone: str
    on_demand: Price
    spot: Price

    @property
    def less_pct(self) -> int:
        return round(100 * (1 - self.spot.usd / self.on_demand.usd))

    @property
    def text(self) -> str:
        """``spot: $0.42/h, 40 % less than on demand ($0.71/h); the cloud may take a spot machine back at any time``."""
        less = f"{self.less_pct} % less" if self.less_pct >= 0 else f"{-self.less_pct} % more"
        return (
            f"spot: ${self.spot.usd:.2f}/h, {less} than on demand (${self.on_demand.usd:.2f}/h);"
            " the cloud may take a spot machine back at any time"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "zone": self.zone,
            "spot_usd_per_hour": self.spot.usd,
            "on_demand_usd_per_hour": self.on_demand.usd,
            "less_pct": self.less_pct,
            "date": self.spot.date,
        }


def spot_preview(target: CloudTarget, table: PriceTable) -> SpotPreview | None:
    """Both prices of the machine that ``target`` describes; None if the list lacks one of them."""
    if target.accelerators:
        return None
    zone, name = target.zones[0], target.machine_type
    on_demand, spot = table.machine(name, region_of(zone)), table.machine(name, region_of(zone), "spot")
    return SpotPreview(zone, on_demand, spot) if on_demand is not None and spot is not None else None
