"""The role of docs/gcp.md is enough for all that fcctl asks the cloud for, and has nothing that it never uses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from orchestrator.emulator.server import ROUTES
from orchestrator.machines.provision.endpoint import HOST_KEYS_PATH
from tests.integration.providers.conftest import World, rid

PAGE = Path(__file__).resolve().parents[3] / "docs" / "gcp.md"
#: The API's methods whose permission is called otherwise.
NAMES = {
    "insert": "create", "aggregatedList": "list", "wait": "get", "testIamPermissions": None, "getFromFamily": None,
}  # fmt: skip
#: Checked by the real service on top of a method's own permission; the emulator knows methods only.
FINER = {
    "disks.create", "disks.setLabels", "instances.setTags", "snapshots.create", "snapshots.setLabels",
    "snapshots.useReadOnly", "subnetworks.use", "subnetworks.useExternalIp",
}  # fmt: skip


def documented() -> set[str]:
    return set(re.findall(r"^  - compute\.(\S+)$", PAGE.read_text(), re.MULTILINE))


def permission(action: str) -> str | None:
    kind, _, method = action.partition(".")
    name = NAMES.get(method, method)
    return None if name is None else f"{kind}.{name}"


def test_the_documented_role_is_enough_and_not_too_much(world: Callable[..., World]) -> None:
    role = documented()
    denied = tuple(r.action for r in ROUTES if (needed := permission(r.action)) and needed not in role)
    assert "instances.suspend" in denied, "there is something to deny"
    made = world(denied=denied)
    asked: set[str] = set()
    admit = made.emulator._service._admit

    def note(action: str, project: str) -> None:
        asked.update(filter(None, [permission(action)]))
        admit(action, project)

    made.emulator._service._admit = note  # type: ignore[method-assign]
    everything(made)
    assert role - FINER == asked


def everything(world: World) -> None:
    """Each thing that fcctl asks a cloud for, once; none is refused."""
    cloud = world.cloud
    machine = world.stopped()
    world.ok(cloud.set_max_run(machine, 1800, rid()))
    world.ok(cloud.set_labels(machine, {"fcctl": "yes"}, rid()))
    world.ok(cloud.set_metadata(world.get(), {"a": "b"}, rid()))
    world.ok(cloud.start(world.get(), rid()))
    machine = world.get()
    assert cloud.guest_attributes(machine, HOST_KEYS_PATH)
    cloud.serial_output(machine)
    assert cloud.machines({"fcctl": None})[0]
    assert cloud.operations(machine.zone, machine.name)
    assert cloud.missing_permissions(machine, ["compute.instances.suspend"]) == ["compute.instances.suspend"]
    assert cloud.quotas("us-central1")
    assert cloud.firewall_allows_iap("default") is not None
    assert cloud.billable_resources()[1] == []
    assert cloud.disks(machine)
    world.ok(cloud.snapshot(machine, "copy", rid()))
    assert cloud.has_snapshot("copy")
    world.ok(cloud.delete_snapshot("copy", rid()))
    world.ok(cloud.stop(world.get(), rid()))
    world.ok(cloud.delete(world.get(), rid()))
