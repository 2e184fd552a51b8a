"""Instance requests: insert, changes other than power, guest attributes."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from orchestrator.emulator import disks, power, scenario
from orchestrator.emulator.call import Call
from orchestrator.emulator.refusals import (
    ApiError,
    check_fingerprint,
    check_metadata,
    fingerprint,
    invalid,
    labelled,
    last,
    link,
    not_found,
    path_of,
)
from orchestrator.emulator.world import REQUESTED, Machine, Operation, World, new_resource, step

#: Metadata items that the emulator adds to every answer: how to reach the sshd. Dropped from requests.
SSH_PORT = "fcctl-emulator-ssh-port"
SSH_USER = "fcctl-emulator-ssh-user"


def view(world: World, machine: Machine) -> dict[str, Any]:
    """The resource as clients get it. While it is off or boots, it has no port: at the next boot, another program may
    have the one that it had."""
    login = world.hypervisor.login(machine)
    if login is None:
        return machine.resource
    ours = [{"key": key, "value": str(value)} for key, value in zip((SSH_PORT, SSH_USER), login, strict=True)]
    metadata = machine.resource["metadata"]
    return {**machine.resource, "metadata": {**metadata, "items": [*metadata.get("items", []), *ours]}}


def get(call: Call) -> dict[str, Any]:
    is_late, before = call.world.late(call.path)
    if not is_late:
        return view(call.world, call.machine())
    if before is None:
        raise not_found(call.path)
    return before


def insert(call: Call) -> dict[str, Any]:
    body, zone = call.body, call.zone
    resource = _resource(call.world, zone, body)
    path = path_of(resource["selfLink"])
    resource["disks"] = _attach(call, path, body)
    call.world.machines[path] = Machine(path, resource)
    paths = [path_of(attached["source"]) for attached in resource["disks"]]
    created = [path for path in paths if call.world.disks[path]["status"] == "CREATING"]
    ready = [(0.0, "disk_ready", {"path": path}) for path in paths]
    visible, *starting = power.starting(call.world, created)
    plan = [visible, *ready, *starting]
    undo = [(0.0, "forget", {"created": created})]
    return call.begin("insert", path, plan, target_id=resource["id"], undo=undo)


def _machine_type(given: Any, field: str) -> str:
    name = last(str(given or ""))
    if name not in scenario.machine_types():
        raise invalid(field, given, "The referenced resource does not exist.")
    return name


def _accelerators(zone: str, machine_type: str, given: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The GPUs that are part of the machine type, else those that the request names."""
    if gpus := scenario.gpus_of(machine_type):
        given = [{"acceleratorType": scenario.GPU, "acceleratorCount": gpus}]
    kinds = f"{zone}/acceleratorTypes"
    return [
        {**one, "acceleratorType": link(f"{kinds}/{last(str(one['acceleratorType']))}")}
        for one in given
        if one.get("acceleratorType")
    ]


def _resource(world: World, zone_path: str, body: dict[str, Any]) -> dict[str, Any]:
    begun = new_resource(world, "instance", f"{zone_path}/instances", body, world.machines)
    path = path_of(begun["selfLink"])
    machine_type = _machine_type(body.get("machineType"), "resource.machineType")
    accelerators = _accelerators(zone_path, machine_type, body.get("guestAccelerators", []))
    items = _without_ours(check_metadata(body.get("metadata")))
    tags = (body.get("tags") or {}).get("items", [])
    return {
        **begun,
        "description": body.get("description", ""),
        "zone": link(zone_path),
        "machineType": link(f"{zone_path}/machineTypes/{machine_type}"),
        "status": REQUESTED,
        "cpuPlatform": "Intel Cascade Lake" if scenario.gpus_of(machine_type) else "Intel Broadwell",
        "metadata": {"kind": "compute#metadata", "fingerprint": fingerprint(items), "items": items},
        "tags": {"items": tags, "fingerprint": fingerprint(tags)},
        "scheduling": power.checked_scheduling(body.get("scheduling"), gpus=len(accelerators)),
        "guestAccelerators": accelerators,
        "serviceAccounts": body.get("serviceAccounts", []),
        "networkInterfaces": _interfaces(world, path, body),
        "canIpForward": False,
        "startRestricted": False,
        "fingerprint": fingerprint([path, begun["labels"], items]),
    }


def _interfaces(world: World, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    project, region = path.split("/")[1], scenario.region_of(path.split("/")[3])
    interfaces = []
    for number, given in enumerate(body.get("networkInterfaces") or [{}]):
        access = [
            {"kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "name": config.get("name") or "external-nat"}
            for config in given.get("accessConfigs", [])
        ]
        network = last(str(given.get("network") or "default"))
        interfaces.append(
            {
                "kind": "compute#networkInterface",
                "name": f"nic{number}",
                "network": link(f"projects/{project}/global/networks/{network}"),
                "subnetwork": link(f"projects/{project}/regions/{region}/subnetworks/{network}"),
                "networkIP": f"10.128.0.{2 + len(world.machines) % 250}",
                "stackType": "IPV4_ONLY",
                "fingerprint": fingerprint([path, number]),
                **({"accessConfigs": access} if access else {}),
            }
        )
    return interfaces


def _attach(call: Call, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    given = body.get("disks") or []
    if not given or not given[0].get("boot"):
        raise invalid("resource.disks", "", "The first disk must be a boot disk.")
    attached = []
    for number, one in enumerate(given):
        source = one.get("source")
        if source:
            disk = disks.check_deletable(call.world, f"{call.zone}/disks/{last(source)}")
        else:
            parameters = one.get("initializeParams") or {}
            name = parameters.get("diskName") or (body["name"] if number == 0 else f"{body['name']}-{number}")
            disk = disks.new_disk(call.world, call.zone, name, parameters, boot_image=number == 0)
        disk["users"] = [link(path)]
        attached.append(
            {
                "kind": "compute#attachedDisk",
                "index": number,
                "type": "PERSISTENT",
                "mode": "READ_WRITE",
                "interface": "SCSI",
                "boot": number == 0,
                "autoDelete": bool(one.get("autoDelete", False)),
                "deviceName": one.get("deviceName") or ("persistent-disk-0" if number == 0 else disk["name"]),
                "source": disk["selfLink"],
                "diskSizeGb": disk["sizeGb"],
            }
        )
    return attached


# ---------------------------------------------------------------------------------------------------------- changes
def set_labels(call: Call) -> dict[str, Any]:
    machine = call.machine()
    return _begin_change(call, machine, "setLabels", labelled(call.body, machine.resource["labelFingerprint"]))


def set_metadata(call: Call) -> dict[str, Any]:
    machine = call.machine()
    message = "Supplied fingerprint does not match current metadata fingerprint."
    check_fingerprint(call.body.get("fingerprint"), machine.resource["metadata"]["fingerprint"], message)
    items = _without_ours(check_metadata(call.body))
    metadata = {"kind": "compute#metadata", "fingerprint": fingerprint(items), "items": items}
    return _begin_change(call, machine, "setMetadata", {"metadata": metadata})


def set_scheduling(call: Call) -> dict[str, Any]:
    machine = call.machine()
    checked = power.checked_scheduling(call.body, gpus=len(machine.resource["guestAccelerators"]))
    if machine.status != "TERMINATED":
        raise ApiError("badRequest", f"Scheduling of '{machine.path}' can only be changed while it is TERMINATED.")
    return _begin_change(call, machine, "setScheduling", {"scheduling": checked})


def set_machine_type(call: Call) -> dict[str, Any]:
    """Only while it is TERMINATED. GPUs of a machine type change with it; others stay."""
    machine = call.machine()
    name = _machine_type(call.body.get("machineType"), "machineType")
    if machine.status != "TERMINATED":
        why = f"The machine type of '{machine.path}' can only be changed while it is TERMINATED."
        raise ApiError("badRequest", why)
    before = last(machine.resource["machineType"])
    accelerators = [] if scenario.gpus_of(before) else machine.resource["guestAccelerators"]
    values = {
        "machineType": link(f"{call.zone}/machineTypes/{name}"),
        "guestAccelerators": _accelerators(call.zone, name, accelerators),
    }
    return _begin_change(call, machine, "setMachineType", values)


def _begin_change(call: Call, machine: Machine, kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """The operation that puts ``values`` into the resource."""
    plan = [(call.world.scenario.latency.change, "change", {"values": values})]
    return call.begin(kind, machine.path, plan, target_id=machine.resource["id"])


@step
def change(world: World, operation: Operation, values: dict[str, Any]) -> None:
    machine = world.machines.get(operation.target)
    if machine is not None:
        machine.resource.update(values)
        if "metadata" in values:
            world.hypervisor.authorize(machine)


def _without_ours(items: list[dict[str, str]]) -> list[dict[str, str]]:
    return [item for item in items if item["key"] not in (SSH_PORT, SSH_USER)]


# ------------------------------------------------------------------------------------------------------ looking inside
def guest_attributes(call: Call) -> dict[str, Any]:
    """``queryPath=hostkeys/`` lists a namespace; ``variableKey`` or a full path asks for one value."""
    machine = call.machine()
    if machine.metadata().get("enable-guest-attributes", "").upper() != "TRUE":
        raise ApiError("forbidden", "Guest attributes endpoint access is disabled.")
    path = call.query.get("variableKey") or call.query.get("queryPath") or ""
    answer: dict[str, Any] = {
        "kind": "compute#guestAttributes",
        "selfLink": link(f"{machine.path}/getGuestAttributes?queryPath={path}"),
    }
    attributes = machine.guest_attributes
    if path in attributes:
        return {**answer, "variableKey": path, "variableValue": attributes[path]}
    entries = [key.partition("/") for key in sorted(attributes) if key.startswith(path)]
    if not entries:
        raise not_found(f"{machine.path}/guestAttributes/{path}")
    items = [{"namespace": space, "key": key, "value": attributes[f"{space}/{key}"]} for space, _, key in entries]
    return {**answer, "queryPath": path, "queryValue": {"items": items}}


def test_permissions(call: Call) -> dict[str, Any]:
    """Those of the permissions asked for that the caller has. A machine that is not there gives nobody any."""
    if not any(path == f"{call.zone}/instances/{call.at['name']}" for path in call.world.machines):
        return {"kind": "compute#testPermissionsResponse"}
    permissions, denied = call.body.get("permissions") or [], call.world.scenario.denied
    held = [one for one in permissions if not any(fnmatchcase(one, f"compute.{pattern}") for pattern in denied)]
    return {"kind": "compute#testPermissionsResponse", "permissions": held}


def serial_port(call: Call) -> dict[str, Any]:
    machine = call.machine()
    text = machine.boot_error or call.world.hypervisor.serial_output(machine)
    start = int(call.query.get("start") or 0)
    return {
        "kind": "compute#serialPortOutput",
        "selfLink": link(f"{machine.path}/serialPort"),
        "contents": text[start:],
        "start": str(start),
        "next": str(len(text)),
    }
