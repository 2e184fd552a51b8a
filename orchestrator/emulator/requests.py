"""The requests that change an instance's power, disks, snapshots and addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.emulator import catalog, disks, power
from orchestrator.emulator.call import Call
from orchestrator.emulator.refusals import invalid, link, not_found, not_ready, path_of
from orchestrator.emulator.world import Machine, Operation, Plan, World, new_resource, step, wait

_CHANGING = ("STOPPING", "PROVISIONING", "STAGING", "SUSPENDING", "REPAIRING")


def _power(call: Call, machine: Machine, kind: str, plan: Plan) -> dict[str, Any]:
    undo: Plan = [(0.0, "mark", {"status": machine.status})]
    return call.begin(kind, machine.path, plan, target_id=machine.resource["id"], undo=undo)


def _is_changing(call: Call, machine: Machine) -> bool:
    """Whether it is between two states; an accepted request that is pending counts."""
    kinds = ("insert", "start", "stop", "suspend", "resume", "delete")
    return machine.status in _CHANGING or any(
        operation.target == machine.path and not operation.done and operation.resource["operationType"] in kinds
        for operation in call.world.operations.values()
    )


def start(call: Call) -> dict[str, Any]:
    machine = call.machine()
    if _is_changing(call, machine):
        raise not_ready(machine.path)
    if machine.status == "SUSPENDED":
        raise invalid("status", "SUSPENDED", "A suspended instance is resumed, not started.")
    return _power(call, machine, "start", [] if machine.status == "RUNNING" else power.starting(call.world))


def stop(call: Call) -> dict[str, Any]:
    """Accepted during a start, too. No effect on an instance that is stopping or stopped."""
    machine = call.machine()
    if machine.status == "SUSPENDING":
        raise not_ready(machine.path)
    starts = machine.status == "TERMINATED" and _is_changing(call, machine)
    done = machine.status in ("STOPPING", "TERMINATED") and not starts
    return _power(call, machine, "stop", [] if done else power.stopping(call.world))


def suspend(call: Call) -> dict[str, Any]:
    return _only_from("RUNNING", "Only a running instance can be suspended.", call, "suspend", power.suspending)


def resume(call: Call) -> dict[str, Any]:
    return _only_from("SUSPENDED", "Only a suspended instance can be resumed.", call, "resume", power.resuming)


def _only_from(status: str, why: str, call: Call, kind: str, plan: Callable[[World], Plan]) -> dict[str, Any]:
    machine = call.machine()
    if _is_changing(call, machine):
        raise not_ready(machine.path)
    if machine.status != status:
        raise invalid("status", machine.status, why)
    return _power(call, machine, kind, plan(call.world))


def delete_instance(call: Call) -> dict[str, Any]:
    return _power(call, call.machine(), "delete", power.deleting(call.world))


def wait_operation(call: Call) -> dict[str, Any]:
    """Blocks; called without the lock."""
    path = call.path.removesuffix("/wait")
    operation = call.world.operations.get(path)
    if operation is None:
        raise not_found(path)
    wait(call.world, operation)
    return operation.resource


# -------------------------------------------------------------------------------------------------- disks, snapshots
def insert_disk(call: Call) -> dict[str, Any]:
    given = {**call.body, "sourceImage": call.query.get("sourceImage") or call.body.get("sourceImage")}
    disk = disks.new_disk(call.world, call.zone, str(call.body.get("name")), given, boot_image=False)
    path = f"{call.zone}/disks/{disk['name']}"
    plan: Plan = [(call.world.scenario.latency.disk, "disk_ready", {"path": path})]
    return call.begin("insert", path, plan, target_id=disk["id"], undo=[(0.0, "delete_disk", {"path": path})])


def delete_disk(call: Call) -> dict[str, Any]:
    disk = disks.check_deletable(call.world, call.path)
    return _deletion(call, "delete_disk", disk)


def _deletion(call: Call, name: str, resource: dict[str, Any]) -> dict[str, Any]:
    plan: Plan = [(call.world.scenario.latency.delete, name, {"path": call.path})]
    return call.begin("delete", call.path, plan, target_id=resource["id"])


def create_snapshot(call: Call) -> dict[str, Any]:
    disk = call.path.removesuffix("/createSnapshot")
    snapshot, plan = disks.new_snapshot(call.world, disk, call.body)
    undo: Plan = [(0.0, "delete_snapshot", {"path": f"{call.project}/global/snapshots/{snapshot['name']}"})]
    return call.begin("createSnapshot", disk, plan, target_id=snapshot["id"], undo=undo)


def delete_snapshot(call: Call) -> dict[str, Any]:
    return _deletion(call, "delete_snapshot", _found(call.world.snapshots, call.path))


def _found(resources: dict[str, dict[str, Any]], path: str) -> dict[str, Any]:
    if path not in resources:
        raise not_found(path)
    return resources[path]


# ---------------------------------------------------------------------------------------------------------- addresses
def insert_address(call: Call) -> dict[str, Any]:
    """A static address; nothing answers there."""
    region, world = call.at["region"], call.world
    place = f"{call.project}/regions/{region}"
    if region not in catalog.regions(world.scenario.zones):
        raise not_found(place)
    address = {
        **new_resource(world, "address", f"{place}/addresses", call.body, world.addresses),
        "region": link(place),
        "status": "RESERVED",
        "address": f"203.0.113.{len(world.addresses) % 254 + 1}",  # RFC 5737: for documentation
        "addressType": "EXTERNAL",
        "networkTier": "PREMIUM",
    }
    path = path_of(address["selfLink"])
    world.addresses[path] = address
    return call.begin("insert", path, [], target_id=address["id"])


def delete_address(call: Call) -> dict[str, Any]:
    return _deletion(call, "release_address", _found(call.world.addresses, call.path))


@step
def release_address(world: World, _operation: Operation, path: str) -> None:
    world.addresses.pop(path, None)
