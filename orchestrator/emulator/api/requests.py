"""The requests that change something, by the API's names, and what each does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from orchestrator.emulator.core import listing, operations
from orchestrator.emulator.core.call import Call
from orchestrator.emulator.core.operations import Plan
from orchestrator.emulator.core.refusals import invalid, not_found, not_ready
from orchestrator.emulator.core.resources import check_fingerprint, check_labels, fingerprint
from orchestrator.emulator.core.world import Machine, Operation, World
from orchestrator.emulator.machines import disks, instances, power

_PASSING = ("STOPPING", "PROVISIONING", "STAGING", "SUSPENDING", "REPAIRING")


def _power(call: Call, machine: Machine, kind: str, plan: Plan) -> dict[str, Any]:
    undo: Plan = [(0.0, "mark", {"status": machine.status})]
    return call.begin(kind, machine.path, plan, target_id=machine.resource["id"], undo=undo)


def _busy(call: Call, machine: Machine) -> bool:
    """Whether it is on its way from one state to another, an accepted request that has not begun included."""
    kinds = ("insert", "start", "stop", "suspend", "resume", "delete")
    waiting = (
        operation.target == machine.path and not operation.done and operation.resource["operationType"] in kinds
        for operation in call.world.operations.values()
    )
    return machine.status in _PASSING or any(waiting)


def start(call: Call) -> dict[str, Any]:
    machine = call.machine()
    if _busy(call, machine):
        raise not_ready(machine.path)
    if machine.status == "SUSPENDED":
        raise invalid("status", "SUSPENDED", "A suspended instance is resumed, not started.")
    return _power(call, machine, "start", [] if machine.status == "RUNNING" else power.starting(call.world))


def stop(call: Call) -> dict[str, Any]:
    """Accepted while starting too. One that stops or has stopped already has nothing to do."""
    machine = call.machine()
    if machine.status in ("SUSPENDING", "PENDING"):  # one that is queued can only be deleted
        raise not_ready(machine.path)
    done = machine.status in ("STOPPING", "TERMINATED") and not _starts(call, machine)
    return _power(call, machine, "stop", [] if done else power.stopping(call.world))


def _starts(call: Call, machine: Machine) -> bool:
    return machine.status == "TERMINATED" and _busy(call, machine)


def suspend(call: Call) -> dict[str, Any]:
    return _only_from("RUNNING", "Only a running instance can be suspended.", call, "suspend", power.suspending)


def resume(call: Call) -> dict[str, Any]:
    return _only_from("SUSPENDED", "Only a suspended instance can be resumed.", call, "resume", power.resuming)


def _only_from(status: str, why: str, call: Call, kind: str, plan: Callable[[World], Plan]) -> dict[str, Any]:
    machine = call.machine()
    if _busy(call, machine):
        raise not_ready(machine.path)
    if machine.status != status:
        raise invalid("status", machine.status, why)
    return _power(call, machine, kind, plan(call.world))


def reset(call: Call) -> dict[str, Any]:
    """The button on the front: no shutdown, another boot."""
    return _only_from("RUNNING", "Only a running instance can be reset.", call, "reset", power.resetting)


def delete_instance(call: Call) -> dict[str, Any]:
    machine = call.machine()
    if machine.resource["deletionProtection"]:
        raise invalid("resource", machine.path, "Resource cannot be deleted if it's protected against deletion.")
    return _power(call, machine, "delete", power.deleting(call.world))


def get_instance(call: Call) -> dict[str, Any]:
    return instances.view(call.machine())


def list_instances(call: Call) -> dict[str, Any]:
    rows = _below(call, f"{call.zone}/instances/")
    return listing.page(call, "compute#instance", f"{call.zone}/instances", rows)


def aggregated_instances(call: Call) -> dict[str, Any]:
    return listing.aggregated(call, "compute#instance", "instances", _below(call, f"{call.project}/"))


def _below(call: Call, prefix: str) -> list[dict[str, Any]]:
    return [instances.view(machine) for path, machine in call.world.machines.items() if path.startswith(prefix)]


# -------------------------------------------------------------------------------------------------------- operations
def get_operation(call: Call) -> dict[str, Any]:
    return copy.deepcopy(_operation(call).resource)


def wait_operation(call: Call) -> dict[str, Any]:
    """The server calls this without the lock: it blocks."""
    operation = _operation(call)
    operations.wait(call.world, operation)
    with call.world.lock:
        return copy.deepcopy(operation.resource)


def list_operations(call: Call) -> dict[str, Any]:
    prefix = call.path.removesuffix("/") + "/"
    rows = [operation.resource for path, operation in call.world.operations.items() if path.startswith(prefix)]
    return copy.deepcopy(listing.page(call, "compute#operation", call.path, rows))


def aggregated_operations(call: Call) -> dict[str, Any]:
    rows = [row.resource for path, row in call.world.operations.items() if path.startswith(f"{call.project}/")]
    return copy.deepcopy(listing.aggregated(call, "compute#operation", "operations", rows))


def _operation(call: Call) -> Operation:
    path = call.path.removesuffix("/wait")
    found = call.world.operations.get(path)
    if found is None:
        raise not_found(path)
    return found


# -------------------------------------------------------------------------------------------------- disks, snapshots
def insert_disk(call: Call) -> dict[str, Any]:
    given = {**call.body, "sourceImage": call.query.get("sourceImage") or call.body.get("sourceImage")}
    disk = disks.new_disk(call.world, call.zone, str(call.body.get("name")), given, boot_image=False)
    path = f"{call.zone}/disks/{disk['name']}"
    plan: Plan = [(call.world.scenario.latency.disk, "disk_ready", {"path": path})]
    return call.begin("insert", path, plan, target_id=disk["id"], undo=[(0.0, "delete_disk", {"path": path})])


def get_disk(call: Call) -> dict[str, Any]:
    return copy.deepcopy(disks.find(call.world, f"{call.zone}/disks/{call.at['name']}"))


def list_disks(call: Call) -> dict[str, Any]:
    prefix = f"{call.zone}/disks/"
    rows = [disk for path, disk in call.world.disks.items() if path.startswith(prefix)]
    return copy.deepcopy(listing.page(call, "compute#disk", f"{call.zone}/disks", rows))


def aggregated_disks(call: Call) -> dict[str, Any]:
    rows = [disk for path, disk in call.world.disks.items() if path.startswith(f"{call.project}/")]
    return copy.deepcopy(listing.aggregated(call, "compute#disk", "disks", rows))


def resize_disk(call: Call) -> dict[str, Any]:
    """Disks only grow."""
    path = f"{call.zone}/disks/{call.at['name']}"
    disk, size = disks.find(call.world, path), call.body.get("sizeGb")
    if not str(size).isdigit() or int(str(size)) <= int(disk["sizeGb"]):
        raise invalid("sizeGb", size, f"New disk size must be larger than the current one ({disk['sizeGb']} GB).")
    disk["sizeGb"] = str(size)
    return call.begin("resizeDisk", path, [], target_id=disk["id"])


def delete_disk(call: Call) -> dict[str, Any]:
    path = f"{call.zone}/disks/{call.at['name']}"
    disk = disks.check_deletable(call.world, path)
    plan: Plan = [(call.world.scenario.latency.delete, "delete_disk", {"path": path})]
    return call.begin("delete", path, plan, target_id=disk["id"])


def create_snapshot(call: Call) -> dict[str, Any]:
    return _snapshot(call, f"{call.zone}/disks/{call.at['name']}")


def insert_snapshot(call: Call) -> dict[str, Any]:
    source = str(call.body.get("sourceDisk", ""))
    if "zones/" not in source:
        raise invalid("resource.sourceDisk", source, "Must be a zonal disk.")
    return _snapshot(call, f"{call.project}/zones/{source.split('zones/')[1]}")


def _snapshot(call: Call, disk_path: str) -> dict[str, Any]:
    snapshot, plan = disks.new_snapshot(call.world, disk_path, call.body)
    path = f"{call.project}/global/snapshots/{snapshot['name']}"
    target = path if call.action == "snapshots.insert" else disk_path
    kind = "insert" if call.action == "snapshots.insert" else "createSnapshot"
    return call.begin(kind, target, plan, target_id=snapshot["id"], undo=[(0.0, "delete_snapshot", {"path": path})])


def get_snapshot(call: Call) -> dict[str, Any]:
    return copy.deepcopy(_find_snapshot(call))


def list_snapshots(call: Call) -> dict[str, Any]:
    prefix = f"{call.project}/global/snapshots"
    rows = [snapshot for path, snapshot in call.world.snapshots.items() if path.startswith(prefix)]
    return copy.deepcopy(listing.page(call, "compute#snapshot", prefix, rows))


def delete_snapshot(call: Call) -> dict[str, Any]:
    snapshot = _find_snapshot(call)
    path = f"{call.project}/global/snapshots/{call.at['name']}"
    plan: Plan = [(call.world.scenario.latency.delete, "delete_snapshot", {"path": path})]
    return call.begin("delete", path, plan, target_id=snapshot["id"])


def _find_snapshot(call: Call) -> dict[str, Any]:
    path = f"{call.project}/global/snapshots/{call.at['name']}"
    if path not in call.world.snapshots:
        raise not_found(path)
    return call.world.snapshots[path]


def set_resource_labels(call: Call) -> dict[str, Any]:
    """Labels of a disk or a snapshot."""
    found = _find_snapshot(call) if call.action.startswith("snapshots") else disks.find(
        call.world, f"{call.zone}/disks/{call.at['name']}"
    )  # fmt: skip
    message = "Labels fingerprint either invalid or resource labels have changed"
    check_fingerprint(call.body.get("labelFingerprint"), found["labelFingerprint"], message)
    labels = check_labels(call.body.get("labels") or {})
    found.update(labels=labels, labelFingerprint=fingerprint(labels))
    path = call.path.rsplit("/", 1)[0]
    return call.begin("setLabels", path, [], target_id=found["id"])
