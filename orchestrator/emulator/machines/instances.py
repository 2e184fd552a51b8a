"""Instances as clients see them: insert, the changes that are not about power, guest attributes."""

from __future__ import annotations

import copy
from fnmatch import fnmatchcase
from typing import Any

from orchestrator.emulator.core import catalog
from orchestrator.emulator.core.call import Call
from orchestrator.emulator.core.clock import timestamp
from orchestrator.emulator.core.operations import step
from orchestrator.emulator.core.refusals import ApiError, invalid, not_found
from orchestrator.emulator.core.resources import (
    check_fingerprint,
    check_labels,
    check_metadata,
    check_name,
    fingerprint,
    last,
    link,
    new_id,
    path_of,
)
from orchestrator.emulator.core.world import Machine, Operation, World
from orchestrator.emulator.machines import disks, power, reservations, scheduling
from orchestrator.emulator.machines.guest import login_name

#: Metadata items the emulator adds to every answer: how to reach the sshd. Sent back, they are dropped again.
SSH_PORT = "fcctl-emulator-ssh-port"
SSH_USER = "fcctl-emulator-ssh-user"


def view(machine: Machine) -> dict[str, Any]:
    """The resource as a client gets it."""
    resource = copy.deepcopy(machine.resource)
    if machine.port is not None:
        resource["metadata"].setdefault("items", []).extend(
            [{"key": SSH_PORT, "value": str(machine.port)}, {"key": SSH_USER, "value": login_name()}]
        )
    return resource


def insert(call: Call) -> dict[str, Any]:
    body, zone = call.body, call.zone
    path = f"{zone}/instances/{check_name(body.get('name'))}"
    if path in call.world.machines:
        raise ApiError("alreadyExists", f"The resource '{path}' already exists")
    machine_type = last(str(body.get("machineType", "")))
    if machine_type not in catalog.machine_types():
        raise invalid("resource.machineType", body.get("machineType"), "The referenced resource does not exist.")
    resource = _resource(call.world, path, body, machine_type)
    model = resource["scheduling"]["provisioningModel"]
    resource["reservationAffinity"] = reservations.checked_affinity(call, body.get("reservationAffinity"), model)
    wait_s = reservations.wait_s(body.get("params"), model)
    resource["disks"] = _attach(call, path, body)
    call.world.machines[path] = Machine(path, resource)
    paths = [path_of(attached["source"]) for attached in resource["disks"]]
    created = [path for path in paths if call.world.disks[path]["status"] == "CREATING"]
    ready = [(0.0, "disk_ready", {"path": path}) for path in paths]
    plan = [*ready, *power.starting(call.world, created, wait_s)]
    undo = [(0.0, "forget", {"created": created})]
    return call.begin("insert", path, plan, target_id=resource["id"], undo=undo)


def _resource(world: World, path: str, body: dict[str, Any], machine_type: str) -> dict[str, Any]:
    zone_path = "/".join(path.split("/")[:4])
    gpus = catalog.gpus_of(machine_type)
    accelerators = [
        {**a, "acceleratorType": link(f"{zone_path}/acceleratorTypes/{last(str(a['acceleratorType']))}")}
        for a in body.get("guestAccelerators", [])
        if a.get("acceleratorType")
    ]
    if gpus:
        kind = link(f"{zone_path}/acceleratorTypes/{catalog.GPU}")
        accelerators = [{"acceleratorType": kind, "acceleratorCount": gpus}]
    labels, items = check_labels(body.get("labels") or {}), _without_ours(check_metadata(body.get("metadata")))
    tags = (body.get("tags") or {}).get("items", [])
    return {
        "kind": "compute#instance",
        "id": new_id(),
        "creationTimestamp": timestamp(world.now()),
        "name": body["name"],
        "description": body.get("description", ""),
        "zone": link(zone_path),
        "selfLink": link(path),
        "machineType": link(f"{zone_path}/machineTypes/{machine_type}"),
        "status": "PROVISIONING",
        "cpuPlatform": "Intel Cascade Lake" if gpus else "Intel Broadwell",
        "labels": labels,
        "labelFingerprint": fingerprint(labels),
        "metadata": {"kind": "compute#metadata", "fingerprint": fingerprint(items), "items": items},
        "tags": {"items": tags, "fingerprint": fingerprint(tags)},
        "scheduling": scheduling.checked(body.get("scheduling"), gpus=len(accelerators)),
        "guestAccelerators": accelerators,
        "serviceAccounts": body.get("serviceAccounts", []),
        "networkInterfaces": _interfaces(world, path, body),
        "deletionProtection": bool(body.get("deletionProtection")),
        "canIpForward": False,
        "startRestricted": False,
        "fingerprint": fingerprint([path, labels, items]),
    }


def _interfaces(world: World, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    project, region = path.split("/")[1], catalog.region_of(path.split("/")[3])
    found = []
    for number, given in enumerate(body.get("networkInterfaces") or [{}]):
        access = [
            {"kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "name": config.get("name") or "external-nat"}
            for config in given.get("accessConfigs", [])
        ]
        network = last(str(given.get("network") or "default"))
        found.append(
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
    return found


def _attach(call: Call, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    given = body.get("disks") or []
    if not given or not given[0].get("boot"):
        raise invalid("resource.disks", "", "The first disk must be a boot disk.")
    attached = []
    for number, wish in enumerate(given):
        source = wish.get("source")
        if source:
            disk = disks.check_deletable(call.world, f"{call.zone}/disks/{last(source)}")
        else:
            parameters = wish.get("initializeParams") or {}
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
                "autoDelete": bool(wish.get("autoDelete", False)),
                "deviceName": wish.get("deviceName") or ("persistent-disk-0" if number == 0 else disk["name"]),
                "source": disk["selfLink"],
                "diskSizeGb": disk["sizeGb"],
            }
        )
    return attached


# ---------------------------------------------------------------------------------------------------------- changes
def set_labels(call: Call) -> dict[str, Any]:
    machine = call.machine()
    message = "Labels fingerprint either invalid or resource labels have changed"
    check_fingerprint(call.body.get("labelFingerprint"), machine.resource["labelFingerprint"], message)
    labels = check_labels(call.body.get("labels") or {})
    return begin_change(call, machine, "setLabels", {"labels": labels, "labelFingerprint": fingerprint(labels)})


def set_metadata(call: Call) -> dict[str, Any]:
    machine = call.machine()
    message = "Supplied fingerprint does not match current metadata fingerprint."
    check_fingerprint(call.body.get("fingerprint"), machine.resource["metadata"]["fingerprint"], message)
    items = _without_ours(check_metadata(call.body))
    metadata = {"kind": "compute#metadata", "fingerprint": fingerprint(items), "items": items}
    return begin_change(call, machine, "setMetadata", {"metadata": metadata})


def set_scheduling(call: Call) -> dict[str, Any]:
    machine = call.machine()
    wanted = scheduling.checked(call.body, gpus=len(machine.resource["guestAccelerators"]))
    if machine.status != "TERMINATED":
        raise ApiError("badRequest", f"Scheduling of '{machine.path}' can only be changed while it is TERMINATED.")
    return begin_change(call, machine, "setScheduling", {"scheduling": wanted})


def begin_change(call: Call, machine: Machine, kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """The operation that puts ``values`` into the resource."""
    plan = [(call.world.scenario.latency.change, "change", {"values": values})]
    return call.begin(kind, machine.path, plan, target_id=machine.resource["id"])


@step
def change(world: World, operation: Operation, values: dict[str, Any]) -> None:
    machine = world.machines.get(operation.target)
    if machine is not None:
        machine.resource.update(values)
        if "metadata" in values:
            power.authorize(world, machine)


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
    found = machine.guest_attributes
    if path in found:
        return {**answer, "variableKey": path, "variableValue": found[path]}
    entries = [key.partition("/") for key in sorted(found) if key.startswith(path)]
    if not entries:
        raise not_found(f"{machine.path}/guestAttributes/{path}")
    items = [{"namespace": space, "key": key, "value": found[f"{space}/{key}"]} for space, _, key in entries]
    return {**answer, "queryPath": path, "queryValue": {"items": items}}


def test_permissions(call: Call) -> dict[str, Any]:
    """Those of the permissions asked for that the caller has. A machine that is not there gives nobody any."""
    if not any(path == f"{call.zone}/instances/{call.at['name']}" for path in call.world.machines):
        return {"kind": "compute#testPermissionsResponse"}
    asked, denied = call.body.get("permissions") or [], call.world.scenario.denied
    held = [one for one in asked if not any(fnmatchcase(one, f"compute.{pattern}") for pattern in denied)]
    return {"kind": "compute#testPermissionsResponse", "permissions": held}


def serial_port(call: Call) -> dict[str, Any]:
    machine = call.machine()
    guest = call.world.running.get(machine.path)
    text = (guest.volatile / "sshd.log").read_text(errors="replace") if guest is not None else ""
    start = int(call.query.get("start") or 0)
    return {
        "kind": "compute#serialPortOutput",
        "selfLink": link(f"{machine.path}/serialPort"),
        "contents": text[start:],
        "start": str(start),
        "next": str(len(text)),
    }
