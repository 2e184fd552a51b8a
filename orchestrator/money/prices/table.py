"""A dated table of prices by region, and the price of a machine from it. A provider has its own; a target's
``usd_per_hour`` counts first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Model = Literal["on_demand", "spot"]

#: Hours of a month, as Google counts them in its prices.
HOURS_PER_MONTH = 730.0
#: A static external address in use (attached to a machine, running or stopped), dollars an hour, in every region.
ADDRESS_IN_USE_USD_PER_HOUR = 0.005

#: vCPUs and L4s of the G2 family; each vCPU brings 4 GiB of memory.
#: https://cloud.google.com/compute/docs/accelerator-optimized-machines
G2: dict[str, tuple[int, int]] = {
    "g2-standard-4": (4, 1), "g2-standard-8": (8, 1), "g2-standard-12": (12, 1), "g2-standard-16": (16, 1),
    "g2-standard-24": (24, 2), "g2-standard-32": (32, 1), "g2-standard-48": (48, 4), "g2-standard-96": (96, 8),
}  # fmt: skip
#: vCPUs of machine types without a GPU, each with 4 GiB, as for steps that only compile.
#: https://cloud.google.com/compute/docs/general-purpose-machines
E2: dict[str, int] = {"e2-standard-4": 4, "e2-standard-8": 8, "e2-standard-16": 16}
#: Disks with a price for the GiB alone; a hyperdisk's parts are priced apart.
DISKS = ("pd-balanced", "pd-ssd", "pd-standard")
#: The sizes whose own price the source lists.
_READ = frozenset({"g2-standard-4", "g2-standard-32", "e2-standard-4"})


#: Of a price; one outside is a mistake.
SANE_USD = (0.0, 1000.0)
Usd = Annotated[float, Field(gt=SANE_USD[0], lt=SANE_USD[1])]


@dataclass(frozen=True)
class Rates:
    """One region's prices in dollars: of machines by the hour, of disks by the GiB and month."""

    vcpu: Usd  # one vCPU and its 4 GiB
    l4: Usd
    spot_vcpu: Usd
    spot_l4: Usd
    # None: the source does not say.
    pd_balanced: Usd | None = None
    pd_ssd: Usd | None = None
    pd_standard: Usd | None = None
    snapshot: Usd | None = None
    address_unused: Usd | None = None  # a reserved static address that no machine has, an hour
    e2_vcpu: Usd | None = None  # one vCPU of an E2 and its 4 GiB
    spot_e2_vcpu: Usd | None = None

    def machine(self, machine_type: str, model: Model) -> float | None:
        """An hour of a machine; None without a price."""
        on_demand = model == "on_demand"
        if machine_type in E2:
            e2_vcpu = self.e2_vcpu if on_demand else self.spot_e2_vcpu
            return None if e2_vcpu is None else round(E2[machine_type] * e2_vcpu, 6)
        if machine_type not in G2:
            return None
        vcpus, gpus = G2[machine_type]
        vcpu, l4 = (self.vcpu, self.l4) if on_demand else (self.spot_vcpu, self.spot_l4)
        return round(vcpus * vcpu + gpus * l4, 6)


@dataclass(frozen=True)
class Price:
    """Dollars for one ``unit``, and where the figure comes from."""

    usd: float
    unit: Literal["hour", "GiB-month"]
    how: Literal["list", "derived", "configured"]
    source: str
    date: str | None = None  # ISO 8601; None for what the user says himself


@dataclass(frozen=True)
class PriceTable:
    """Prices of one source and one day, and an older table for what it does not say."""

    source: str
    date: str
    regions: Mapping[str, Rates]
    older: PriceTable | None = None

    def machine(self, machine_type: str, region: str, model: Model = "on_demand") -> Price | None:
        """An hour of a machine while it is on; None where the table has none."""
        rates = self.regions.get(region)
        usd = rates.machine(machine_type, model) if rates is not None else None
        if usd is None:
            return None if self.older is None else self.older.machine(machine_type, region, model)
        return Price(usd, "hour", "list" if machine_type in _READ else "derived", self.source, self.date)

    def disk(self, disk_type: str, region: str) -> Price | None:
        """A GiB of a disk for a month, whether or not its machine runs; None where the table has none."""
        return self._of_region(region, disk_type.replace("-", "_"), "GiB-month") if disk_type in DISKS else None

    def snapshot(self, region: str) -> Price | None:
        """A GiB stored in a snapshot for a month; in a multi-region (us, eu, asia) that of its dearest region."""
        within = f"{'europe' if region == 'eu' else region}-"
        names = [name for name in self.region_names() if name == region or name.startswith(within)]
        prices = filter(None, (self._of_region(name, "snapshot", "GiB-month") for name in names))
        return max(prices, key=lambda price: price.usd, default=None)

    def unused_address(self, region: str) -> Price | None:
        """An hour of a static address that no machine has."""
        return self._of_region(region, "address_unused", "hour")

    def _of_region(self, region: str, name: str, unit: Literal["hour", "GiB-month"]) -> Price | None:
        for table in (self, self.older):
            usd = getattr(table.regions.get(region), name, None) if table is not None else None
            if table is not None and usd is not None:
                return Price(usd, unit, "list", table.source, table.date)
        return None

    def region_names(self) -> list[str]:
        """All that this table or the older one knows."""
        return sorted({*self.regions, *(self.older.regions if self.older else ())})

    def machines(self, region: str) -> Iterator[tuple[str, Price, Price]]:
        """(machine type, on demand, spot) of all that the region has."""
        for name in (*G2, *E2):
            on_demand, spot = self.machine(name, region), self.machine(name, region, "spot")
            if on_demand is not None and spot is not None:
                yield name, on_demand, spot


# ------------------------------------------------------------------------------------------------------- on disk
class _Stored(BaseModel):
    """A table without the older one."""

    model_config = ConfigDict(strict=True)

    schema_version: Literal[1] = 1
    source: Annotated[str, Field(max_length=200)]
    date: Annotated[str, Field(max_length=10)]
    regions: Annotated[dict[str, Rates], Field(max_length=500)]


def to_json(table: PriceTable) -> str:
    """Without the older table."""
    return _Stored(source=table.source, date=table.date, regions=dict(table.regions)).model_dump_json(indent=1)


def from_json(text: str, older: PriceTable) -> PriceTable:
    """Reads what :func:`to_json` made. Raises ValueError."""
    stored = _Stored.model_validate_json(text)
    return PriceTable(stored.source, stored.date, stored.regions, older)
