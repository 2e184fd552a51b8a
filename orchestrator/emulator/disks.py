"""Disks and snapshots."""

from __future__ import annotations

from typing import Any

from orchestrator.emulator import scenario
from orchestrator.emulator.refusals import ApiError, invalid, last, link, not_found, path_of
from orchestrator.emulator.world import Operation, Plan, World, new_resource, step


def find(resources: dict[str, dict[str, Any]], path: str) -> dict[str, Any]:
    """Raises ApiError (404)."""
    if path not in resources:
        raise not_found(path)
    return resources[path]


def new_disk(world: World, zone_path: str, name: str, given: dict[str, Any], *, boot_image: bool) -> dict[str, Any]:
    """Record a disk in status CREATING. ``given`` has sourceImage or sourceSnapshot, diskSizeGb or sizeGb, type. Raises
    ApiError: it exists, or its source does not."""
    disk = {
        **new_resource(world, "disk", f"{zone_path}/disks", {**given, "name": name}, world.disks),
        "zone": link(zone_path),
        "status": "CREATING",
        "type": link(f"{zone_path}/diskTypes/{last(given.get('diskType') or given.get('type') or 'pd-standard')}"),
        "physicalBlockSizeBytes": "4096",
    }
    smallest = _apply_source(world, zone_path.split("/")[1], disk, given, boot_image=boot_image)
    size = int(given.get("diskSizeGb") or given.get("sizeGb") or smallest)
    if size < smallest:
        raise invalid("resource.sizeGb", size, f"Cannot be smaller than its source ({smallest} GB).")
    disk["sizeGb"] = str(size)
    world.disks[path_of(disk["selfLink"])] = disk
    return disk


def _apply_source(world: World, project: str, disk: dict[str, Any], given: dict[str, Any], *, boot_image: bool) -> int:
    """Sets the source of the disk; returns the least size in GB that it needs."""
    snapshot_url, image_url = given.get("sourceSnapshot"), given.get("sourceImage")
    if snapshot_url:
        path = f"projects/{project}/global/snapshots/{last(snapshot_url)}"
        snapshot = world.snapshots.get(path)
        if snapshot is None:
            raise not_found(path)
        disk.update(sourceSnapshot=link(path), sourceSnapshotId=snapshot["id"])
        return int(snapshot["diskSizeGb"])
    if not image_url:
        if boot_image:
            raise invalid("resource.disks[0].initializeParams", "", "A boot disk needs an image or a snapshot.")
        return 10
    parts = path_of(image_url).split("/")
    image_project = parts[1] if parts[0] == "projects" else project
    by_family = "family" in parts or "imageFamilyViews" in parts
    image = scenario.image(image_project, **{"family" if by_family else "name": parts[-1]})
    if image is None:
        raise not_found(path_of(image_url))
    disk["sourceImage"] = link(f"projects/{image_project}/global/images/{image['name']}")
    return int(image["diskSizeGb"])


@step
def disk_ready(world: World, _operation: Operation, path: str) -> None:
    disk = world.disks.get(path)
    if disk is not None and disk["status"] != "READY":
        world.hypervisor.fill_disk(disk)
        disk["status"] = "READY"


@step
def delete_disk(world: World, _operation: Operation, path: str) -> None:
    disk = world.disks.pop(path, None)
    if disk is not None:
        world.hypervisor.delete_disk(disk)


def check_deletable(world: World, path: str) -> dict[str, Any]:
    """Raises ApiError: not there, or some instance uses it."""
    disk = find(world.disks, path)
    if disk.get("users"):
        users = ", ".join(path_of(user) for user in disk["users"])
        raise ApiError(
            "resourceInUseByAnotherResource", f"The disk resource '{path}' is already being used by '{users}'"
        )
    return disk


# ------------------------------------------------------------------------------------------------------- snapshots
def new_snapshot(world: World, disk_path: str, body: dict[str, Any]) -> tuple[dict[str, Any], Plan]:
    """Record a snapshot in status CREATING, and the steps that make it. Raises ApiError: no such disk, a wrong name, or
    the snapshot exists."""
    disk = find(world.disks, disk_path)
    folder = f"projects/{disk_path.split('/')[1]}/global/snapshots"
    snapshot = {
        **new_resource(world, "snapshot", folder, body, world.snapshots),
        "status": "CREATING",
        "sourceDisk": link(disk_path),
        "sourceDiskId": disk["id"],
        "diskSizeGb": disk["sizeGb"],
        "storageBytes": "0",
        "storageLocations": [scenario.region_of(disk_path.split("/")[3])],
    }
    path = path_of(snapshot["selfLink"])
    world.snapshots[path] = snapshot
    return snapshot, [(world.scenario.latency.disk, "take_snapshot", {"path": path, "disk": disk_path})]


@step
def take_snapshot(world: World, _operation: Operation, path: str, disk: str) -> None:
    snapshot, source = world.snapshots.get(path), world.disks.get(disk)
    if snapshot is None or source is None:
        return
    snapshot.update(status="READY", storageBytes=str(world.hypervisor.take_snapshot(snapshot, source)))


@step
def delete_snapshot(world: World, _operation: Operation, path: str) -> None:
    snapshot = world.snapshots.pop(path, None)
    if snapshot is not None:
        world.hypervisor.delete_snapshot(snapshot)
