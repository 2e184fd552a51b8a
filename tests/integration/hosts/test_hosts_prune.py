"""``fcctl hosts prune``: the snapshot of a rebuild goes, once it is not needed; the only copy of a disk stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import INSTANCE, CloudWorkspace, emulated, machine_by_hand


@pytest.fixture
def cloud() -> Iterator[Emulator]:
    with emulated() as made:
        machine_by_hand(made, "stopped")
        yield made


@pytest.fixture
def workspace(cloud: Emulator, tmp_path: Path, private_home: Path) -> CloudWorkspace:
    """Its machine was rebuilt in another zone, two hours ago."""
    made = CloudWorkspace(tmp_path / "w", private_home, cloud, on_stockout="rebuild")
    cloud.scenario.stock = {"us-west1-c": 0}
    made.type("hosts", "up", "l4", "--minutes", "5", "--yes", check=0)
    cloud.advance(7200)
    return made


def snapshots(cloud: Emulator) -> list[str]:
    with cloud.world.lock:
        return [path.rsplit("/", 1)[-1] for path in cloud.world.snapshots]


def test_listed_with_age_and_price_and_deleted_when_asked(workspace: CloudWorkspace, cloud: Emulator) -> None:
    (name,) = snapshots(cloud)
    said = workspace.type("hosts", "audit", check=0).out
    assert f"snapshot {name}" in said
    assert "created 2 h" in said
    assert "a month" in said
    assert "fcctl hosts prune" in said
    asked = workspace.type("hosts", "prune", check=2)
    assert f"snapshot {name}" in asked.err
    assert "--yes" in asked.err
    assert snapshots(cloud) == [name]
    done = workspace.type("hosts", "prune", "--yes", "--json", check=0).json
    assert (done["deleted"], [one["name"] for one in done["snapshots"]], done["kept"]) == (1, [name], [])
    assert snapshots(cloud) == []
    assert len([d for d in cloud.world.disks if d.endswith(f"/{INSTANCE}")]) == 2, "both disks stay"
    assert "no snapshot of a rebuild to delete" in workspace.type("hosts", "prune", check=0).err


def test_the_only_copy_and_a_young_one_stay(workspace: CloudWorkspace, cloud: Emulator) -> None:
    (name,) = snapshots(cloud)
    with cloud.world.lock:
        (copied,) = [disk for disk in cloud.world.disks.values() if disk.pop("sourceSnapshot", None)]
        originals = [path for path, disk in cloud.world.disks.items() if disk is not copied]
        for path in originals:  # so the other one was made anew, later, under the same name
            del cloud.world.disks[path]
    kept = workspace.type("hosts", "prune", "--yes", "--json", check=0).json["kept"]
    assert [(one["name"], "only copy" in one["why"]) for one in kept] == [(name, True)]
    assert snapshots(cloud) == [name]


def test_a_cloud_that_refuses_is_told(workspace: CloudWorkspace, cloud: Emulator) -> None:
    cloud.faults.add(action="snapshots.delete", nth="1+", do={"http": {"status": 403, "message": "not you"}})
    done = workspace.type("hosts", "prune", "--yes", check=6)
    assert "not you" in done.err
    assert "0 snapshots deleted" in done.err
    assert len(snapshots(cloud)) == 1
