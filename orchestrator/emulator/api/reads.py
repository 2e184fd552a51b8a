"""What can only be read: zones' types, images, regions with their quotas, the project, firewalls."""

from __future__ import annotations

from typing import Any

from orchestrator.emulator.core import catalog, listing, quota
from orchestrator.emulator.core.call import Call
from orchestrator.emulator.core.refusals import not_found
from orchestrator.emulator.core.resources import fingerprint, last, link

_CREATED = "2026-01-01T00:00:00.000-08:00"


def project(call: Call) -> dict[str, Any]:
    return {
        "kind": "compute#project",
        "id": "1000000000000000001",
        "name": call.at["project"],
        "creationTimestamp": _CREATED,
        "selfLink": link(call.project),
        "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": fingerprint([]), "items": []},
        "quotas": quota.quotas(call.world, call.at["project"], None),
        "defaultNetworkTier": "PREMIUM",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
    }


def region(call: Call) -> dict[str, Any]:
    name = call.at["name"]
    if name not in catalog.regions(call.world.scenario.zones):
        raise not_found(f"{call.project}/regions/{name}")
    return _region(call, name)


def regions(call: Call) -> dict[str, Any]:
    names = catalog.regions(call.world.scenario.zones)
    return listing.page(call, "compute#region", f"{call.project}/regions", [_region(call, name) for name in names])


def _region(call: Call, name: str) -> dict[str, Any]:
    zones = [zone for zone in call.world.scenario.zones if catalog.region_of(zone) == name]
    return {
        "kind": "compute#region",
        "name": name,
        "description": name,
        "status": "UP",
        "creationTimestamp": _CREATED,
        "selfLink": link(f"{call.project}/regions/{name}"),
        "zones": [link(f"{call.project}/zones/{zone}") for zone in zones],
        "quotas": quota.quotas(call.world, call.at["project"], name),
    }


def zone(call: Call) -> dict[str, Any]:
    call.at["zone"] = call.at["name"]
    return _zone(call, call.zone.rsplit("/", 1)[-1])


def zones(call: Call) -> dict[str, Any]:
    rows = [_zone(call, name) for name in call.world.scenario.zones]
    return listing.page(call, "compute#zone", f"{call.project}/zones", rows)


def _zone(call: Call, name: str) -> dict[str, Any]:
    return {
        "kind": "compute#zone",
        "name": name,
        "description": name,
        "status": "UP",
        "creationTimestamp": _CREATED,
        "selfLink": link(f"{call.project}/zones/{name}"),
        "region": link(f"{call.project}/regions/{catalog.region_of(name)}"),
    }


def _types(call: Call) -> tuple[str, dict[str, dict[str, Any]]]:
    """The kind and the rows of machineTypes or acceleratorTypes, whichever is asked for."""
    machine = call.action.startswith("machineTypes")
    return ("machineType", catalog.machine_types()) if machine else ("acceleratorType", catalog.accelerator_types())


def _type(zone_path: str, kind: str, name: str, row: dict[str, Any]) -> dict[str, Any]:
    self_link = link(f"{zone_path}/{kind}s/{name}")
    zone_value = last(zone_path) if kind == "machineType" else link(zone_path)
    return {
        "kind": f"compute#{kind}", "name": name, "zone": zone_value, "selfLink": self_link,
        "creationTimestamp": _CREATED, **row,
    }  # fmt: skip


def zone_type(call: Call) -> dict[str, Any]:
    kind, rows = _types(call)
    name = call.at["name"]
    if name not in rows:
        raise not_found(f"{call.zone}/{kind}s/{name}")
    return _type(call.zone, kind, name, rows[name])


def zone_types(call: Call) -> dict[str, Any]:
    kind, rows = _types(call)
    found = [_type(call.zone, kind, name, row) for name, row in rows.items()]
    return listing.page(call, f"compute#{kind}", f"{call.zone}/{kind}s", found)


def aggregated_types(call: Call) -> dict[str, Any]:
    kind, rows = _types(call)
    zones = [f"{call.project}/zones/{name}" for name in call.world.scenario.zones]
    found = [_type(zone, kind, name, row) for zone in zones for name, row in rows.items()]
    return listing.aggregated(call, f"compute#{kind}", f"{kind}s", found)


def image(call: Call) -> dict[str, Any]:
    """By family or by name; the project of the path is the image's."""
    asked = {"name" if call.action == "images.get" else "family": call.at["name"]}
    found = catalog.image(call.at["project"], **asked)
    if found is None:
        raise not_found(call.path)
    return _image(call, found)


def images(call: Call) -> dict[str, Any]:
    """Those of the project in the path; most have none."""
    found = [_image(call, image) for image in catalog.images(call.at["project"])]
    return listing.page(call, "compute#image", f"{call.project}/global/images", found)


def _image(call: Call, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "compute#image",
        "id": str(2**60 + sum(found["name"].encode())),
        "creationTimestamp": _CREATED,
        "selfLink": link(f"{call.project}/global/images/{found['name']}"),
        "architecture": "X86_64",
        "archiveSizeBytes": "0",
        **found,
    }


def image_family_view(call: Call) -> dict[str, Any]:
    """The image of a family as one zone sees it; gcloud asks this way, with ``-`` for any zone."""
    return {"image": image(call)}


def networks(call: Call) -> dict[str, Any]:
    """The one that every new project has."""
    path = f"{call.project}/global/networks"
    found = {
        "kind": "compute#network", "id": str(2**60), "name": "default", "creationTimestamp": _CREATED,
        "selfLink": link(f"{path}/default"), "autoCreateSubnetworks": True,
        "routingConfig": {"routingMode": "REGIONAL"},
    }  # fmt: skip
    return listing.page(call, "compute#network", path, [found])


#: Two rules: none lets the world in on port 22, one lets Identity-Aware Proxy in.
_FIREWALLS = {
    "default-allow-internal": (["10.128.0.0/9"], [{"IPProtocol": "tcp", "ports": ["0-65535"]}]),
    "allow-ssh-from-iap": (["35.235.240.0/20"], [{"IPProtocol": "tcp", "ports": ["22"]}]),
}


def firewall(call: Call) -> dict[str, Any]:
    found = next((row for row in _firewalls(call) if row["name"] == call.at["name"]), None)
    if found is None:
        raise not_found(call.path)
    return found


def firewalls(call: Call) -> dict[str, Any]:
    return listing.page(call, "compute#firewall", f"{call.project}/global/firewalls", _firewalls(call))


def _firewalls(call: Call) -> list[dict[str, Any]]:
    names = _FIREWALLS if call.world.scenario.iap_firewall else {"default-allow-internal": None}
    return [
        {
            "kind": "compute#firewall",
            "id": str(2**60 + number),
            "name": name,
            "creationTimestamp": _CREATED,
            "network": link(f"{call.project}/global/networks/default"),
            "selfLink": link(f"{call.project}/global/firewalls/{name}"),
            "direction": "INGRESS",
            "priority": 1000,
            "disabled": False,
            "sourceRanges": _FIREWALLS[name][0],
            "allowed": _FIREWALLS[name][1],
        }
        for number, name in enumerate(names)
    ]
