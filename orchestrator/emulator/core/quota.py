"""Quotas in use, and whether one more machine fits: first the zone's stock, then the quotas."""

from __future__ import annotations

from typing import Any

from orchestrator.emulator.core import catalog
from orchestrator.emulator.core.refusals import OperationError, quota_exceeded, stockout
from orchestrator.emulator.core.resources import last
from orchestrator.emulator.core.world import Machine, World

#: Only these hold a GPU.
POWERED = ("PROVISIONING", "STAGING", "RUNNING", "STOPPING", "SUSPENDING", "REPAIRING")


def gpus_of(machine: Machine) -> int:
    return sum(int(a.get("acceleratorCount", 0)) for a in machine.resource.get("guestAccelerators", []))


def is_preemptible(machine: Machine) -> bool:
    """Whether it counts against the preemptible quota; flex-start machines do, too."""
    scheduling = machine.resource["scheduling"]
    return bool(scheduling.get("preemptible")) or scheduling.get("provisioningModel") in ("SPOT", "FLEX_START")


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
    machine.reservation = _free_reservation(world, machine)
    if machine.reservation is None and (_named(machine) or not in_stock(world, machine.zone, machine)):
        raise no_stock(world, machine)
    project, region = machine.path.split("/")[1], catalog.region_of(machine.zone)
    regional = "PREEMPTIBLE_NVIDIA_L4_GPUS" if is_preemptible(machine) else "NVIDIA_L4_GPUS"
    for metric, where in ((regional, region), ("GPUS_ALL_REGIONS", None)):
        limit = world.scenario.quota(metric, where)
        if used(world, project, metric, where) > limit:
            raise quota_exceeded(metric, limit, where)


def in_use(world: World, zone: str, reservation: str) -> int:
    """How many machines have a reservation's capacity."""
    return sum(m.reservation == reservation for m in world.machines.values() if m.zone == zone and m.status in POWERED)


def _named(machine: Machine) -> str | None:
    """The reservation that the instance asks for by name."""
    affinity = machine.resource.get("reservationAffinity") or {}
    named = affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION"
    return last(affinity["values"][0]) if named else None


def _free_reservation(world: World, machine: Machine) -> str | None:
    """One whose capacity the instance gets: what it names, or any that is open to it and not used up."""
    affinity, named = machine.resource.get("reservationAffinity") or {}, _named(machine)
    if affinity.get("consumeReservationType") == "NO_RESERVATION" or (is_preemptible(machine) and named is None):
        return None
    machine.reservation = None  # of its last start
    for name, reservation in world.scenario.reservations.get(machine.zone, {}).items():
        fits = reservation.machine_type == last(machine.resource["machineType"])
        meant = name == named or (named is None and not reservation.specific)
        if fits and meant and in_use(world, machine.zone, name) < reservation.count:
            return name
    return None


def in_stock(world: World, zone: str, machine: Machine) -> bool:
    stock = world.scenario.stock.get(zone)
    if stock is None:
        return zone in world.scenario.zones
    here = [m for m in world.machines.values() if m.zone == zone and m.status in POWERED and m.reservation is None]
    taken = sum(gpus_of(m) for m in here)
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
