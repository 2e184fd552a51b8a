"""The requests: what may be read, one :class:`Collection` for each kind of resource, and what changes an instance's
power, disks, snapshots and addresses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.emulator import disks, instances, power, scenario
from orchestrator.emulator.call import Call, aggregated, page, quotas
from orchestrator.emulator.refusals import fingerprint, invalid, last, link, not_found, not_ready, path_of
from orchestrator.emulator.world import REQUESTED, Machine, Operation, Plan, World, new_resource, step, wait

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
    return _deletion(call, "delete_snapshot", disks.find(call.world.snapshots, call.path))


def insert_address(call: Call) -> dict[str, Any]:
    """A static address; nothing answers there."""
    region, world = call.at["region"], call.world
    place = f"{call.project}/regions/{region}"
    if region not in scenario.regions(world.scenario.zones):
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
    return _deletion(call, "release_address", disks.find(call.world.addresses, call.path))


@step
def release_address(world: World, _operation: Operation, path: str) -> None:
    world.addresses.pop(path, None)


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
        return page(call, self.kind, self._below(call, call.path))

    def aggregated(self, call: Call) -> Resource:
        regional = self.name == "addresses"
        return aggregated(call, self.kind, self.name, self._below(call, call.project), regional=regional)

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
    for name in scenario.regions(call.world.scenario.zones):
        zones = [link(path) for path in _zone_paths(call) if scenario.region_of(last(path)) == name]
        limits = quotas(call.world, call.at["project"], name)
        path = f"{call.project}/regions/{name}"
        yield _static("region", path, description=name, status="UP", zones=zones, quotas=limits)


def _zones(call: Call) -> Iterator[Resource]:
    for path in _zone_paths(call):
        region = link(f"{call.project}/regions/{scenario.region_of(last(path))}")
        yield _static("zone", path, description=last(path), status="UP", region=region)


# ------------------------------------------------------------------------------------------------------- types, images
def _machine_types(call: Call) -> Iterator[Resource]:
    for zone in _zone_paths(call):
        for name, row in scenario.machine_types().items():
            yield _static("machineType", f"{zone}/machineTypes/{name}", zone=last(zone), **row)


def _accelerator_types(call: Call) -> Iterator[Resource]:
    for zone in _zone_paths(call):
        for name, row in scenario.accelerator_types().items():
            yield _static("acceleratorType", f"{zone}/acceleratorTypes/{name}", zone=link(zone), **row)


def _images(call: Call) -> list[Resource]:
    """Those of the project in the path; most have none."""
    return [_image(call, image) for image in scenario.images(call.at["project"])]


def _image(call: Call, image: Resource) -> Resource:
    number = str(2**60 + sum(image["name"].encode()))
    path = f"{call.project}/global/images/{image['name']}"
    return {**_static("image", path, id=number, architecture="X86_64", archiveSizeBytes="0"), **image}


def image_of_family(call: Call) -> Resource:
    image = scenario.image(call.at["project"], family=call.at["name"])
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


def _instances(call: Call) -> Iterator[Resource]:
    for machine in call.world.machines.values():
        is_late, before = call.world.late(machine.path)
        if is_late and before is not None:
            yield before
        elif not is_late and machine.status != REQUESTED:
            yield instances.view(call.world, machine)


REGIONS = Collection("regions", "region", _regions)
ZONES = Collection("zones", "zone", _zones)
MACHINE_TYPES = Collection("machineTypes", "machineType", _machine_types)
ACCELERATOR_TYPES = Collection("acceleratorTypes", "acceleratorType", _accelerator_types)
IMAGES = Collection("images", "image", _images)
NETWORKS = Collection("networks", "network", _networks)
FIREWALLS = Collection("firewalls", "firewall", _firewalls)
RESERVATIONS = Collection("reservations", "reservation", lambda _call: ())  # a project without any
INSTANCES = Collection("instances", "instance", _instances)
DISKS = Collection("disks", "disk", lambda call: call.world.disks.values())
SNAPSHOTS = Collection("snapshots", "snapshot", lambda call: call.world.snapshots.values())
ADDRESSES = Collection("addresses", "address", lambda call: call.world.addresses.values())
OPERATIONS = Collection("operations", "operation", lambda call: (o.resource for o in call.world.operations.values()))
