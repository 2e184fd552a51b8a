"""One request: its method, path and body, the fault that applies to it, and the quotas that it meets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.emulator import catalog
from orchestrator.emulator.refusals import OperationError, last, not_found, quota_exceeded, stockout
from orchestrator.emulator.scenario import Fault
from orchestrator.emulator.world import REQUESTED, Machine, Plan, World, begin

#: Only these hold a GPU.
POWERED = ("PROVISIONING", "STAGING", "RUNNING", "STOPPING", "SUSPENDING", "REPAIRING")


def gpus_of(machine: Machine) -> int:
    return sum(int(a.get("acceleratorCount", 0)) for a in machine.resource.get("guestAccelerators", []))


def is_preemptible(machine: Machine) -> bool:
    """Whether it counts against the preemptible quota."""
    scheduling = machine.resource["scheduling"]
    return bool(scheduling.get("preemptible")) or scheduling.get("provisioningModel") == "SPOT"


def used(world: World, project: str, metric: str, region: str | None) -> float:
    """How much of a quota powered machines use."""
    return sum(
        _share(machine, metric)
        for machine in world.machines.values()
        if machine.path.startswith(f"projects/{project}/")
        and machine.status in POWERED
        and region in (None, catalog.region_of(machine.zone))
    )


def _share(machine: Machine, metric: str) -> float:
    gpus = gpus_of(machine)
    if metric == "GPUS_ALL_REGIONS":
        return gpus
    if metric == "CPUS":
        return float(catalog.machine_types().get(last(machine.resource["machineType"]), {}).get("guestCpus", 1))
    return gpus if (metric == "PREEMPTIBLE_NVIDIA_L4_GPUS") == is_preemptible(machine) else 0


def quotas(world: World, project: str, region: str | None) -> list[dict[str, Any]]:
    """The ``quotas`` of a region, or with None of the project."""
    metrics = ("GPUS_ALL_REGIONS",) if region is None else ("CPUS", "NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS")
    return [
        {
            "metric": metric,
            "limit": world.scenario.quota(metric, region),
            "usage": float(used(world, project, metric, region)),
        }
        for metric in metrics
    ]


def admit(world: World, machine: Machine) -> None:
    """Raises OperationError if no machine is available. ``machine`` counts as powered already.

    A stockout is reported before a quota: that is how a quota of 0 hides behind a stockout.
    """
    gpus = gpus_of(machine)
    if not gpus:
        return
    if not in_stock(world, machine.zone, machine):
        raise no_stock(world, machine)
    project, region = machine.path.split("/")[1], catalog.region_of(machine.zone)
    regional = "PREEMPTIBLE_NVIDIA_L4_GPUS" if is_preemptible(machine) else "NVIDIA_L4_GPUS"
    for metric, where in ((regional, region), ("GPUS_ALL_REGIONS", None)):
        limit = world.scenario.quota(metric, where)
        if used(world, project, metric, where) > limit:
            raise quota_exceeded(metric, limit, where)


def in_stock(world: World, zone: str, machine: Machine) -> bool:
    stock = world.scenario.stock.get(zone)
    if stock is None:
        return zone in world.scenario.zones
    taken = sum(gpus_of(m) for m in world.machines.values() if m.zone == zone and m.status in POWERED)
    return taken + (0 if zone == machine.zone else gpus_of(machine)) <= stock


def no_stock(
    world: World, machine: Machine, zones: list[str] | None = None, *, detailed: bool = True
) -> OperationError:
    """The stockout this machine meets; ``zones`` are those to recommend, by default those of its region with stock."""
    region = catalog.region_of(machine.zone)
    if zones is None:
        near = [z for z in world.scenario.zones if catalog.region_of(z) == region and z != machine.zone]
        zones = [zone for zone in near if in_stock(world, zone, machine)]
    accelerators = machine.resource.get("guestAccelerators", [])
    first = accelerators[0] if accelerators else None
    accelerator = (last(first["acceleratorType"]), int(first["acceleratorCount"])) if first else None
    zone_path = "/".join(machine.path.split("/")[:4])
    return stockout(zone_path, last(machine.resource["machineType"]), accelerator, zones, detailed=detailed)


@dataclass
class Call:
    """``action`` is the API's method (``instances.start``), ``at`` the names in the path: project, zone, name, ..."""

    world: World
    action: str
    path: str
    at: dict[str, str]
    query: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    fault: Fault | None = None

    @property
    def project(self) -> str:
        return f"projects/{self.at['project']}"

    @property
    def zone(self) -> str:
        """``projects/P/zones/Z``. Raises ApiError if there is no such zone."""
        self.check_zone()
        return f"{self.project}/zones/{self.at['zone']}"

    def check_zone(self) -> None:
        """Raises ApiError if the path names a zone that does not exist."""
        name = self.at.get("zone")
        if name is not None and name not in self.world.scenario.zones:
            raise not_found(f"{self.project}/zones/{name}")

    def machine(self) -> Machine:
        """The instance the path names. Raises ApiError (404)."""
        place, name = f"{self.zone}/instances", self.at["name"]
        for path, machine in self.world.machines.items():  # the API takes the id in place of the name
            is_it = path == f"{place}/{name}" or (path.startswith(f"{place}/") and machine.resource["id"] == name)
            if is_it and machine.status != REQUESTED:
                return machine
        raise not_found(f"{place}/{name}")

    def begin(self, kind: str, target: str, plan: Plan, *, target_id: str = "", undo: Plan = ()) -> dict[str, Any]:
        """Start the operation that answers this request, with the fault in its way."""
        error = self._error(self.world.machines.get(target))
        operation = begin(self.world, kind, target, plan, target_id=target_id, undo=undo, fault=self.fault, error=error)
        if self.query.get("requestId"):
            operation.resource["clientOperationId"] = self.query["requestId"]
        return operation.resource

    def _error(self, machine: Machine | None) -> OperationError | None:
        if self.fault is None:
            return None
        do = self.fault.do
        if do.stockout is not None and machine is not None:
            return no_stock(self.world, machine, do.stockout.zones, detailed=do.stockout.detailed)
        if do.quota is not None and machine is not None:
            region = None if do.quota == "GPUS_ALL_REGIONS" else catalog.region_of(machine.zone)
            return quota_exceeded(do.quota, 0.0, region)
        return do.operation.error() if do.operation is not None else None
