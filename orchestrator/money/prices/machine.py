"""The price of a machine by what it is made of, and of disks, snapshots and static addresses by the month: as its
target or ``[budget]`` says, else the list price. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from orchestrator.base.errors import ConfigError
from orchestrator.machines.cloud import BillableResource, Hardware, Kind, Machine, region_of
from orchestrator.machines.targets import CloudTarget
from orchestrator.money.caps import Budget
from orchestrator.money.prices.table import (
    ADDRESS_IN_USE_USD_PER_HOUR,
    DISKS,
    G2,
    HOURS_PER_MONTH,
    Model,
    Price,
    PriceTable,
)

_L4 = "nvidia-l4"


@dataclass(frozen=True)
class MachinePrice:
    """Dollars an hour of one machine while it is on."""

    machine: Price
    disks_usd: float
    address_usd: float
    #: Types of its disks that have no price of their own, and count as the dearest disk of the list.
    guessed: tuple[str, ...] = ()

    @property
    def usd(self) -> float:
        """The machine with its GPUs."""
        return self.machine.usd

    @property
    def rest_usd(self) -> float:
        """Its disks and its external address."""
        return self.disks_usd + self.address_usd


def machine_price(hardware: Hardware, budget: Budget, target: CloudTarget | None = None) -> MachinePrice:
    """Returns the price of a machine; the prices of its ``target`` count first. Raises ConfigError if no price is
    known."""
    configured = _configured(budget, target)
    listed = list_price(hardware, budget.prices) if configured is None else None
    machine = configured or listed
    if machine is None:
        date, name = budget.prices.date, target.name if target is not None else "NAME"
        raise ConfigError(
            f"no price is known for {hardware.text} in {hardware.zone}, so fcctl cannot check a cap for {name}",
            cause=f"the price table of {date} has only g2 and e2-standard machines, in the regions that offer a g2",
            hint=f"set the price of an hour: usd_per_hour = ... in [targets.{name}]",
        )
    disks, guessed = 0.0, []
    for kind, gib in hardware.disks:
        kind = kind or (target.disk_type if target is not None else "")  # noqa: PLW2901 - what nobody told
        usd, known = _disk_usd_per_month(kind, gib, region_of(hardware.zone), budget.prices, target)
        disks += usd / HOURS_PER_MONTH
        guessed += [] if known else [kind]
    address = monthly("address", "", 0, "", True, budget.prices, target) if hardware.address else None
    return MachinePrice(machine, disks, (address or 0.0) / HOURS_PER_MONTH, tuple(guessed))


def _configured(budget: Budget, target: CloudTarget | None) -> Price | None:
    if target is not None and target.usd_per_hour is not None:
        return Price(target.usd_per_hour, "hour", "configured", f"usd_per_hour of [targets.{target.name}]")
    if budget.usd_per_hour is not None:
        return Price(budget.usd_per_hour, "hour", "configured", "usd_per_hour of [budget]")
    return None


def list_price(hardware: Hardware, table: PriceTable) -> Price | None:
    """An hour of the machine with its GPUs as the list has it; None where it has none."""
    part_of_it = (_L4, G2.get(hardware.machine_type, (0, 0))[1])
    if any(gpu != part_of_it for gpu in hardware.accelerators):
        return None
    model: Model = "spot" if hardware.spot else "on_demand"
    return table.machine(hardware.machine_type, region_of(hardware.zone), model)


def _disk_usd_per_month(
    kind: str, gib: int, region: str, table: PriceTable, target: CloudTarget | None
) -> tuple[float, bool]:
    """Dollars, and whether that is its own price; else it is that of the dearest disk of the list."""
    usd = monthly("disk", kind, gib, region, True, table, target)
    if usd is not None:
        return usd, True
    known = [monthly("disk", one, gib, region, True, table, None) for one in DISKS]
    return max((one for one in known if one is not None), default=0.0), False


# --------------------------------------------------------------------------------------------- spot beside on demand
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
        """``spot: $0.42/h, 40 % less than on demand ($0.71/h); the cloud may stop a Spot machine at any time``."""
        less = f"{self.less_pct} % less" if self.less_pct >= 0 else f"{-self.less_pct} % more"
        return (
            f"spot: ${self.spot.usd:.2f}/h, {less} than on demand (${self.on_demand.usd:.2f}/h); the cloud may stop "
            "a Spot machine at any time"
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


# ------------------------------------------------------------------------------- disks, snapshots, static addresses
def monthly_usd(resource: BillableResource, table: PriceTable, target: CloudTarget | None = None) -> float | None:
    """Dollars per month; None if unknown."""
    return monthly(resource.kind, resource.type, resource.gb, resource.region, bool(resource.users), table, target)


def monthly(
    kind: Kind, disk_type: str, gb: int, region: str, in_use: bool, table: PriceTable, target: CloudTarget | None
) -> float | None:
    """Dollars per month of one resource in a region; None if unknown."""
    if kind == "address":
        unused = table.unused_address(region)
        listed = ADDRESS_IN_USE_USD_PER_HOUR if in_use else None if unused is None else unused.usd
        own = target.address_usd_per_hour if target is not None else None
        hourly = listed if own is None else own
        return None if hourly is None else hourly * HOURS_PER_MONTH
    if kind == "disk":
        own = target.disk_usd_per_gib_month if target is not None else None
        price = table.disk(disk_type, region)
    else:
        own = target.snapshot_usd_per_gib_month if target is not None else None
        price = table.snapshot(region)
    of_gib = own if own is not None else None if price is None else price.usd
    return None if of_gib is None else of_gib * gb


def of_a_stopped_machine(
    machine: Machine, things: Iterable[BillableResource], table: PriceTable, target: CloudTarget | None
) -> float | None:
    """Dollars per month of the machine's disks and addresses; None if one has no price."""
    places = {"disk": machine.zone, "address": region_of(machine.zone)}
    own = [one for one in things if machine.name in one.users and places.get(one.kind) == one.place]
    usd = [monthly_usd(one, table, target) for one in own]
    return None if None in usd or not usd else sum(one or 0.0 for one in usd)
