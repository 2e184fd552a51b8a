"""What a month of a disk, a snapshot or a static address costs: as its target says, else as the price list has it."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.machines.cloud import MANAGED_LABEL, WORKSPACE_LABEL, BillableResource, Machine, region_of
from orchestrator.machines.targets import CloudTarget
from orchestrator.money.billable import Kind, ResourceRecord
from orchestrator.money.prices.table import ADDRESS_IN_USE_USD_PER_HOUR, HOURS_PER_MONTH, PriceTable


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


# --------------------------------------------------------------------------------------------------- what was seen
def is_ours(resource: BillableResource, names: frozenset[str], workspace: str | None = None) -> bool:
    """Whether a resource is fcctl's or of one of the machines ``names``; with ``workspace``, without those of other
    workspaces."""
    called_after = any(resource.name == name or resource.name.startswith(f"{name}-") for name in names)
    if called_after or resource.source in names or names.intersection(resource.users):
        return True
    whose = resource.labels.get(WORKSPACE_LABEL)
    return MANAGED_LABEL in resource.labels and (workspace is None or whose in (None, workspace))


def target_of(resource: BillableResource, targets: Iterable[CloudTarget]) -> CloudTarget | None:
    """The target whose machine uses the resource, or whose name it has."""

    def means(target: CloudTarget) -> bool:
        name = target.instance
        return name in (*resource.users, resource.name, resource.source) or resource.name.startswith(f"{name}-")

    return next((target for target in targets if means(target)), None)


def of_resource(
    resource: BillableResource, target: CloudTarget | None, machines: Iterable[Machine], table: PriceTable, now: float,
    *, emulated: bool,
) -> ResourceRecord:  # fmt: skip
    """The record of a resource from its own entry."""
    user = next((m for m in machines if m.name in resource.users and m.zone == resource.place), None)
    attached = next((d for d in user.disks if d.name == resource.name), None) if user is not None else None
    return ResourceRecord(
        project=resource.project, kind=resource.kind, place=resource.place, name=resource.name,
        target=target.name if target is not None else "", gb=resource.gb, type=resource.type,
        in_use=bool(resource.users), machine_id=user.id if user is not None else "",
        auto_delete=attached is not None and attached.auto_delete, created=resource.created, seen=now,
        usd_per_month=monthly_usd(resource, table, target), emulated=emulated,
    )  # fmt: skip


def of_machine(
    machine: Machine, target: CloudTarget, table: PriceTable, now: float, *, emulated: bool
) -> list[ResourceRecord]:
    """What a machine says of its disks: their names and sizes, not their types."""
    region = region_of(machine.zone)
    return [
        ResourceRecord(
            project=machine.project, kind="disk", place=machine.zone, name=disk.name, target=target.name, gb=disk.gb,
            type=target.disk_type, in_use=True, machine_id=machine.id, auto_delete=disk.auto_delete,
            created=machine.created, seen=now, by_machine=True,
            usd_per_month=monthly("disk", target.disk_type, disk.gb, region, True, table, target),
            emulated=emulated,
        )
        for disk in machine.disks
        if disk.name and disk.gb
    ]  # fmt: skip
