"""Paths below ``/compute/v1/`` and the API's method behind each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator.emulator.api import reads, requests
from orchestrator.emulator.api.reads import Collection
from orchestrator.emulator.core.call import Call
from orchestrator.emulator.machines import instances

Handler = Callable[[Call], dict[str, Any]]
_ZONE, _INSTANCE, _DISK = "zones/{zone}/", "zones/{zone}/instances/{name}", "zones/{zone}/disks/{name}"
_SNAPSHOT = "global/snapshots/{name}"


class Route(NamedTuple):
    action: str
    method: str
    pattern: re.Pattern[str]
    handler: Handler


#: The path of a collection, and its methods: list, get, aggregatedList.
_READ: tuple[tuple[Collection, str, str], ...] = (
    (reads.REGIONS, "", "lg"),
    (reads.ZONES, "", "lg"),
    (reads.MACHINE_TYPES, _ZONE, "lga"),
    (reads.ACCELERATOR_TYPES, _ZONE, "lga"),
    (reads.IMAGES, "global/", "lg"),
    (reads.NETWORKS, "global/", "l"),
    (reads.FIREWALLS, "global/", "lg"),
    (reads.INSTANCES, _ZONE, "la"),
    (reads.DISKS, _ZONE, "lga"),
    (reads.SNAPSHOTS, "global/", "lg"),
    (reads.ADDRESSES, "", "a"),
    (reads.RESERVATIONS, _ZONE, "lga"),
)
_OTHERS: tuple[tuple[str, str, str, Handler], ...] = (
    ("projects.get", "GET", "", reads.project),
    ("images.getFromFamily", "GET", "global/images/family/{name}", reads.image_of_family),
    ("imageFamilyViews.get", "GET", f"{_ZONE}imageFamilyViews/{{name}}", reads.image_family_view),
    ("instances.insert", "POST", f"{_ZONE}instances", instances.insert),
    ("instances.get", "GET", _INSTANCE, instances.get),
    ("instances.delete", "DELETE", _INSTANCE, requests.delete_instance),
    ("instances.start", "POST", f"{_INSTANCE}/start", requests.start),
    ("instances.stop", "POST", f"{_INSTANCE}/stop", requests.stop),
    ("instances.suspend", "POST", f"{_INSTANCE}/suspend", requests.suspend),
    ("instances.resume", "POST", f"{_INSTANCE}/resume", requests.resume),
    ("instances.reset", "POST", f"{_INSTANCE}/reset", requests.reset),
    ("instances.setLabels", "POST", f"{_INSTANCE}/setLabels", instances.set_labels),
    ("instances.setMetadata", "POST", f"{_INSTANCE}/setMetadata", instances.set_metadata),
    ("instances.setScheduling", "POST", f"{_INSTANCE}/setScheduling", instances.set_scheduling),
    ("instances.setMachineType", "POST", f"{_INSTANCE}/setMachineType", instances.set_machine_type),
    ("instances.setTags", "POST", f"{_INSTANCE}/setTags", instances.set_tags),
    ("instances.setDeletionProtection", "POST", f"{_INSTANCE}/setDeletionProtection", instances.set_protection),
    ("instances.setDiskAutoDelete", "POST", f"{_INSTANCE}/setDiskAutoDelete", instances.set_disk_auto_delete),
    ("instances.testIamPermissions", "POST", f"{_INSTANCE}/testIamPermissions", instances.test_permissions),
    ("instances.getGuestAttributes", "GET", f"{_INSTANCE}/getGuestAttributes", instances.guest_attributes),
    ("instances.getSerialPortOutput", "GET", f"{_INSTANCE}/serialPort", instances.serial_port),
    ("disks.insert", "POST", f"{_ZONE}disks", requests.insert_disk),
    ("disks.delete", "DELETE", _DISK, requests.delete_disk),
    ("disks.resize", "POST", f"{_DISK}/resize", requests.resize_disk),
    ("disks.createSnapshot", "POST", f"{_DISK}/createSnapshot", requests.create_snapshot),
    ("disks.setLabels", "POST", f"{_DISK}/setLabels", requests.set_resource_labels),
    ("snapshots.insert", "POST", "global/snapshots", requests.insert_snapshot),
    ("snapshots.delete", "DELETE", _SNAPSHOT, requests.delete_snapshot),
    ("snapshots.setLabels", "POST", f"{_SNAPSHOT}/setLabels", requests.set_resource_labels),
    ("addresses.insert", "POST", "regions/{region}/addresses", requests.insert_address),
    ("addresses.delete", "DELETE", "regions/{region}/addresses/{name}", requests.delete_address),
    ("globalOperations.aggregatedList", "GET", "aggregated/operations", reads.OPERATIONS.aggregated),
    *(
        row
        for kind, place in (("zoneOperations", _ZONE), ("globalOperations", "global/"))
        for row in (
            (f"{kind}.list", "GET", f"{place}operations", reads.OPERATIONS.list_),
            (f"{kind}.get", "GET", f"{place}operations/{{name}}", reads.OPERATIONS.get),
            (f"{kind}.wait", "POST", f"{place}operations/{{name}}/wait", requests.wait_operation),
        )
    ),
)


def _reading(collection: Collection, place: str, verbs: str) -> list[tuple[str, str, str, Handler]]:
    name = collection.name
    rows = {
        "l": (f"{name}.list", "GET", f"{place}{name}", collection.list_),
        "g": (f"{name}.get", "GET", f"{place}{name}/{{name}}", collection.get),
        "a": (f"{name}.aggregatedList", "GET", f"aggregated/{name}", collection.aggregated),
    }
    return [rows[verb] for verb in verbs]


def _compiled(action: str, method: str, template: str, handler: Handler) -> Route:
    below = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template)
    pattern = r"projects/(?P<project>[^/]+)" + (f"/{below}" if below else "")
    return Route(action, method, re.compile(pattern), handler)


ROUTES = tuple(_compiled(*row) for row in (*(row for read in _READ for row in _reading(*read)), *_OTHERS))


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route of ``projects/...`` and the names in the path."""
    for route in ROUTES:
        if route.method == method and (match := route.pattern.fullmatch(path)):
            return route, match.groupdict()
    return None
