"""Paths below ``/compute/v1/`` and the API's method behind each."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from orchestrator.emulator.api import reads, requests
from orchestrator.emulator.core.call import Call
from orchestrator.emulator.machines import addresses, changes, instances, reservations

Handler = Callable[[Call], dict[str, Any]]


class Route(NamedTuple):
    action: str
    method: str
    pattern: re.Pattern[str]
    handler: Handler


_TABLE: tuple[tuple[str, str, str, Handler], ...] = (
    ("projects.get", "GET", "", reads.project),
    ("regions.list", "GET", "regions", reads.regions),
    ("regions.get", "GET", "regions/{name}", reads.region),
    ("zones.list", "GET", "zones", reads.zones),
    ("zones.get", "GET", "zones/{name}", reads.zone),
    ("machineTypes.aggregatedList", "GET", "aggregated/machineTypes", reads.aggregated_types),
    ("machineTypes.list", "GET", "zones/{zone}/machineTypes", reads.zone_types),
    ("machineTypes.get", "GET", "zones/{zone}/machineTypes/{name}", reads.zone_type),
    ("acceleratorTypes.aggregatedList", "GET", "aggregated/acceleratorTypes", reads.aggregated_types),
    ("acceleratorTypes.list", "GET", "zones/{zone}/acceleratorTypes", reads.zone_types),
    ("acceleratorTypes.get", "GET", "zones/{zone}/acceleratorTypes/{name}", reads.zone_type),
    ("images.getFromFamily", "GET", "global/images/family/{name}", reads.image),
    ("images.list", "GET", "global/images", reads.images),
    ("images.get", "GET", "global/images/{name}", reads.image),
    ("imageFamilyViews.get", "GET", "zones/{zone}/imageFamilyViews/{name}", reads.image_family_view),
    ("networks.list", "GET", "global/networks", reads.networks),
    ("firewalls.list", "GET", "global/firewalls", reads.firewalls),
    ("firewalls.get", "GET", "global/firewalls/{name}", reads.firewall),
    ("instances.aggregatedList", "GET", "aggregated/instances", requests.aggregated_instances),
    ("instances.list", "GET", "zones/{zone}/instances", requests.list_instances),
    ("instances.insert", "POST", "zones/{zone}/instances", instances.insert),
    ("instances.get", "GET", "zones/{zone}/instances/{name}", requests.get_instance),
    ("instances.delete", "DELETE", "zones/{zone}/instances/{name}", requests.delete_instance),
    ("instances.start", "POST", "zones/{zone}/instances/{name}/start", requests.start),
    ("instances.stop", "POST", "zones/{zone}/instances/{name}/stop", requests.stop),
    ("instances.suspend", "POST", "zones/{zone}/instances/{name}/suspend", requests.suspend),
    ("instances.resume", "POST", "zones/{zone}/instances/{name}/resume", requests.resume),
    ("instances.reset", "POST", "zones/{zone}/instances/{name}/reset", requests.reset),
    ("instances.setLabels", "POST", "zones/{zone}/instances/{name}/setLabels", instances.set_labels),
    ("instances.setMetadata", "POST", "zones/{zone}/instances/{name}/setMetadata", instances.set_metadata),
    ("instances.setScheduling", "POST", "zones/{zone}/instances/{name}/setScheduling", instances.set_scheduling),
    ("instances.setMachineType", "POST", "zones/{zone}/instances/{name}/setMachineType", changes.set_machine_type),
    ("instances.setTags", "POST", "zones/{zone}/instances/{name}/setTags", changes.set_tags),
    ("instances.setDeletionProtection", "POST", "zones/{zone}/instances/{name}/setDeletionProtection",
     changes.set_deletion_protection),
    ("instances.setDiskAutoDelete", "POST", "zones/{zone}/instances/{name}/setDiskAutoDelete",
     changes.set_disk_auto_delete),
    ("instances.testIamPermissions", "POST", "zones/{zone}/instances/{name}/testIamPermissions",
     instances.test_permissions),
    ("instances.getGuestAttributes", "GET", "zones/{zone}/instances/{name}/getGuestAttributes",
     instances.guest_attributes),
    ("instances.getSerialPortOutput", "GET", "zones/{zone}/instances/{name}/serialPort", instances.serial_port),
    ("disks.aggregatedList", "GET", "aggregated/disks", requests.aggregated_disks),
    ("disks.list", "GET", "zones/{zone}/disks", requests.list_disks),
    ("disks.insert", "POST", "zones/{zone}/disks", requests.insert_disk),
    ("disks.get", "GET", "zones/{zone}/disks/{name}", requests.get_disk),
    ("disks.delete", "DELETE", "zones/{zone}/disks/{name}", requests.delete_disk),
    ("disks.resize", "POST", "zones/{zone}/disks/{name}/resize", requests.resize_disk),
    ("disks.createSnapshot", "POST", "zones/{zone}/disks/{name}/createSnapshot", requests.create_snapshot),
    ("disks.setLabels", "POST", "zones/{zone}/disks/{name}/setLabels", requests.set_resource_labels),
    ("snapshots.list", "GET", "global/snapshots", requests.list_snapshots),
    ("snapshots.insert", "POST", "global/snapshots", requests.insert_snapshot),
    ("snapshots.get", "GET", "global/snapshots/{name}", requests.get_snapshot),
    ("snapshots.delete", "DELETE", "global/snapshots/{name}", requests.delete_snapshot),
    ("snapshots.setLabels", "POST", "global/snapshots/{name}/setLabels", requests.set_resource_labels),
    ("addresses.aggregatedList", "GET", "aggregated/addresses", addresses.aggregated),
    ("addresses.insert", "POST", "regions/{region}/addresses", addresses.insert),
    ("addresses.delete", "DELETE", "regions/{region}/addresses/{name}", addresses.delete),
    ("reservations.aggregatedList", "GET", "aggregated/reservations", reservations.aggregated),
    ("reservations.list", "GET", "zones/{zone}/reservations", reservations.list_of_zone),
    ("reservations.get", "GET", "zones/{zone}/reservations/{name}", reservations.get),
    ("globalOperations.aggregatedList", "GET", "aggregated/operations", requests.aggregated_operations),
    ("zoneOperations.list", "GET", "zones/{zone}/operations", requests.list_operations),
    ("zoneOperations.get", "GET", "zones/{zone}/operations/{name}", requests.get_operation),
    ("zoneOperations.wait", "POST", "zones/{zone}/operations/{name}/wait", requests.wait_operation),
    ("globalOperations.list", "GET", "global/operations", requests.list_operations),
    ("globalOperations.get", "GET", "global/operations/{name}", requests.get_operation),
    ("globalOperations.wait", "POST", "global/operations/{name}/wait", requests.wait_operation),
)  # fmt: skip


def _compiled(action: str, method: str, template: str, handler: Handler) -> Route:
    below = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template)
    pattern = r"projects/(?P<project>[^/]+)" + (f"/{below}" if below else "")
    return Route(action, method, re.compile(pattern), handler)


ROUTES = tuple(_compiled(*row) for row in _TABLE)


def find(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The route of ``projects/...`` and the names in the path."""
    for route in ROUTES:
        if route.method == method and (match := route.pattern.fullmatch(path)):
            return route, match.groupdict()
    return None
