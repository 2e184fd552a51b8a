"""The read requests: one :class:`Collection` for each kind of resource."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.emulator import catalog, instances, listing
from orchestrator.emulator.call import Call, quotas
from orchestrator.emulator.refusals import fingerprint, last, link, not_found, path_of

Resource = dict[str, Any]
_CREATED = "2026-01-01T00:00:00.000-08:00"


@dataclass(frozen=True)
class Collection:
    """All resources of a kind, in the form in which clients get them."""

    name: str  # instances, as paths have it
    kind: str  # instance
    resources: Callable[[Call], Iterable[Resource]]

    def get(self, call: Call) -> Resource:
        call.check_zone()
        for resource in self.resources(call):
            if path_of(resource["selfLink"]) == call.path:
                return resource
        raise not_found(call.path)

    def list_(self, call: Call) -> Resource:
        call.check_zone()
        return listing.page(call, self.kind, self._below(call, call.path))

    def aggregated(self, call: Call) -> Resource:
        regional = self.name == "addresses"
        return listing.aggregated(call, self.kind, self.name, self._below(call, call.project), regional=regional)

    def _below(self, call: Call, path: str) -> list[Resource]:
        return [one for one in self.resources(call) if path_of(one["selfLink"]).startswith(f"{path}/")]


def _static(kind: str, path: str, **values: Any) -> Resource:
    return {
        "kind": f"compute#{kind}", "name": last(path), "creationTimestamp": _CREATED, "selfLink": link(path), **values,
    }  # fmt: skip


def _zone_paths(call: Call) -> list[str]:
    return [f"{call.project}/zones/{name}" for name in call.world.scenario.zones]


# -------------------------------------------------------------------------------------------- regions, zones, projects
def project(call: Call) -> Resource:
    metadata = {"kind": "compute#metadata", "fingerprint": fingerprint([]), "items": []}
    return {
        **_static("project", call.project),
        "id": "1000000000000000001",
        "commonInstanceMetadata": metadata,
        "quotas": quotas(call.world, call.at["project"], None),
        "defaultNetworkTier": "PREMIUM",
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
    }


def _regions(call: Call) -> Iterator[Resource]:
    for name in catalog.regions(call.world.scenario.zones):
        zones = [link(path) for path in _zone_paths(call) if catalog.region_of(last(path)) == name]
        limits = quotas(call.world, call.at["project"], name)
        path = f"{call.project}/regions/{name}"
        yield _static("region", path, description=name, status="UP", zones=zones, quotas=limits)


def _zones(call: Call) -> Iterator[Resource]:
    for path in _zone_paths(call):
        region = link(f"{call.project}/regions/{catalog.region_of(last(path))}")
        yield _static("zone", path, description=last(path), status="UP", region=region)


# ------------------------------------------------------------------------------------------------------- types, images
def _machine_types(call: Call) -> Iterator[Resource]:
    for zone in _zone_paths(call):
        for name, row in catalog.machine_types().items():
            yield _static("machineType", f"{zone}/machineTypes/{name}", zone=last(zone), **row)


def _accelerator_types(call: Call) -> Iterator[Resource]:
    for zone in _zone_paths(call):
        for name, row in catalog.accelerator_types().items():
            yield _static("acceleratorType", f"{zone}/acceleratorTypes/{name}", zone=link(zone), **row)


def _images(call: Call) -> list[Resource]:
    """Those of the project in the path; most have none."""
    return [_image(call, image) for image in catalog.images(call.at["project"])]


def _image(call: Call, image: Resource) -> Resource:
    number = str(2**60 + sum(image["name"].encode()))
    path = f"{call.project}/global/images/{image['name']}"
    return {**_static("image", path, id=number, architecture="X86_64", archiveSizeBytes="0"), **image}


def image_of_family(call: Call) -> Resource:
    image = catalog.image(call.at["project"], family=call.at["name"])
    if image is None:
        raise not_found(call.path)
    return _image(call, image)


def image_family_view(call: Call) -> Resource:
    """The image of a family as one zone sees it; gcloud asks this way, with ``-`` for any zone."""
    return {"image": image_of_family(call)}


# ------------------------------------------------------------------------------------------------------------ networks
def _networks(call: Call) -> Iterator[Resource]:
    """The one that every new project has."""
    routing = {"routingMode": "REGIONAL"}
    path = f"{call.project}/global/networks/default"
    yield _static("network", path, id=str(2**60), autoCreateSubnetworks=True, routingConfig=routing)


#: No rule opens port 22 to the internet; one, which a scenario can leave out, to Identity-Aware Proxy.
_FIREWALLS = {"default-allow-internal": ("10.128.0.0/9", "0-65535"), "allow-ssh-from-iap": ("35.235.240.0/20", "22")}


def _firewalls(call: Call) -> Iterator[Resource]:
    for number, (name, (source, ports)) in enumerate(_FIREWALLS.items()):
        if number == 0 or call.world.scenario.iap_firewall:
            yield _static(
                "firewall", f"{call.project}/global/firewalls/{name}", id=str(2**60 + number), direction="INGRESS",
                network=link(f"{call.project}/global/networks/default"), priority=1000, disabled=False,
                sourceRanges=[source], allowed=[{"IPProtocol": "tcp", "ports": [ports]}],
            )  # fmt: skip


REGIONS = Collection("regions", "region", _regions)
ZONES = Collection("zones", "zone", _zones)
MACHINE_TYPES = Collection("machineTypes", "machineType", _machine_types)
ACCELERATOR_TYPES = Collection("acceleratorTypes", "acceleratorType", _accelerator_types)
IMAGES = Collection("images", "image", _images)
NETWORKS = Collection("networks", "network", _networks)
FIREWALLS = Collection("firewalls", "firewall", _firewalls)
RESERVATIONS = Collection("reservations", "reservation", lambda _call: ())  # a project without any
INSTANCES = Collection("instances", "instance", lambda call: map(instances.view, call.world.machines.values()))
DISKS = Collection("disks", "disk", lambda call: call.world.disks.values())
SNAPSHOTS = Collection("snapshots", "snapshot", lambda call: call.world.snapshots.values())
ADDRESSES = Collection("addresses", "address", lambda call: call.world.addresses.values())
OPERATIONS = Collection("operations", "operation", lambda call: (o.resource for o in call.world.operations.values()))
