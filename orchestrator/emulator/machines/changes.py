"""Changes of an instance that fcctl never asks for, but people at ``gcloud`` do: its shape, tags, its disks' fate."""

from __future__ import annotations

import copy
from typing import Any

from orchestrator.emulator.core import catalog
from orchestrator.emulator.core.call import Call
from orchestrator.emulator.core.refusals import ApiError, invalid
from orchestrator.emulator.core.resources import check_fingerprint, fingerprint, last, link
from orchestrator.emulator.machines import instances


def set_machine_type(call: Call) -> dict[str, Any]:
    """Only while it is TERMINATED. GPUs that are part of a machine type come and go with it; others stay."""
    machine = call.machine()
    given = call.body.get("machineType")
    name = last(str(given or ""))
    if name not in catalog.machine_types():
        raise invalid("machineType", given, "The referenced resource does not exist.")
    if machine.status != "TERMINATED":
        why = f"The machine type of '{machine.path}' can only be changed while it is TERMINATED."
        raise ApiError("badRequest", why)
    accelerators = machine.resource["guestAccelerators"]
    if catalog.gpus_of(last(machine.resource["machineType"])):
        accelerators = []
    if gpus := catalog.gpus_of(name):
        kind = link(f"{call.zone}/acceleratorTypes/{catalog.GPU}")
        accelerators = [{"acceleratorType": kind, "acceleratorCount": gpus}]
    values = {"machineType": link(f"{call.zone}/machineTypes/{name}"), "guestAccelerators": accelerators}
    return instances.begin_change(call, machine, "setMachineType", values)


def set_tags(call: Call) -> dict[str, Any]:
    machine = call.machine()
    message = "Supplied fingerprint does not match current tags fingerprint."
    check_fingerprint(call.body.get("fingerprint"), machine.resource["tags"]["fingerprint"], message)
    items = [str(item) for item in call.body.get("items") or []]
    tags = {"items": items, "fingerprint": fingerprint(items)}
    return instances.begin_change(call, machine, "setTags", {"tags": tags})


def set_deletion_protection(call: Call) -> dict[str, Any]:
    """``deletionProtection`` in the query; left out, it is true."""
    machine = call.machine()
    value = call.query.get("deletionProtection", "true").lower() == "true"
    return instances.begin_change(call, machine, "setDeletionProtection", {"deletionProtection": value})


def set_disk_auto_delete(call: Call) -> dict[str, Any]:
    """Of the attached disk that ``deviceName`` of the query names: whether it goes with the instance."""
    machine = call.machine()
    device = call.query.get("deviceName", "")
    attached = copy.deepcopy(machine.resource["disks"])
    found = next((disk for disk in attached if disk["deviceName"] == device), None)
    if found is None:
        raise invalid("deviceName", device, f"No attached disk found with device name '{device}'")
    found["autoDelete"] = call.query.get("autoDelete", "").lower() == "true"
    return instances.begin_change(call, machine, "setDiskAutoDelete", {"disks": attached})
