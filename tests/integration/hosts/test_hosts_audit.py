"""``fcctl hosts audit``: whatever was left on is found, explained and stopped."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import (
    INSTANCE,
    PROJECT,
    CloudWorkspace,
    audited,
    billed,
    emulated,
    hands,
    machine_by_hand,
)
from tests.support.waiting import wait_for


def test_a_list_that_is_behind_hides_no_machine_of_a_target(workspace: CloudWorkspace, cloud: Emulator) -> None:
    cloud.scenario.unlisted = (INSTANCE,)
    machine_by_hand(cloud, "running", "us-west1-a", max_run_s=3600)
    workspace.type("hosts", "audit", "--stop", "--others", INSTANCE, "--yes", check=0)
    assert billed(cloud) == []


def test_found_by_label_in_any_zone_and_by_name(workspace: CloudWorkspace, cloud: Emulator) -> None:
    labels = {"fcctl": "yes", "fcctl-run": "20261121t081530z-job-l4-abc123"}
    machine_by_hand(cloud, "running", "us-east1-b", "stray", labels, max_run_s=3600)
    machine_by_hand(cloud, "running", "us-west1-a", labels={})
    machine_by_hand(cloud, "running", "us-west1-a", "somebody-elses", {"team": "blue"}, max_run_s=3600)
    cloud.advance(1810)
    said = workspace.type("hosts", "audit", check=10)
    assert "stray in us-east1-b" in said.out
    assert "which this workspace does not know" in said.out
    so_far = r"\$0\.3[67] so far at \$0\.71 an hour; the cloud stops it in 2[89] min"
    assert re.search(so_far, said.out), "half an hour, and what a busy computer took since"
    assert f"{INSTANCE} in us-west1-a" in said.out
    assert "started by emulator@example.com" in said.out
    assert "only its own shutdown timer" in said.out
    assert "somebody-elses" not in said.out
    assert "1 orphaned machine on" in said.err
    found = audited(workspace, "--stop")
    assert found["summary"] == {"billed": 2, "strays": 1, "others": 1, "still_on": 0, "unanswered": 0}
    assert sorted(billed(cloud)) == [f"us-west1-a/{INSTANCE} RUNNING", "us-west1-a/somebody-elses RUNNING"]
    assert audited(workspace)["summary"]["strays"] == 0


def test_a_zone_that_cannot_be_asked_is_named(workspace: CloudWorkspace, cloud: Emulator) -> None:
    cloud.faults.add(action="instances.aggregatedList", nth="1+", do={"http": {"status": 403, "message": "not you"}})
    said = workspace.type("hosts", "audit", check=6)
    assert f"no answer: all zones of {PROJECT}" in said.out
    assert "  hint: ask an owner of my-project for" in said.out
    assert "no orphaned machine" not in said.err


def test_what_is_billed_by_the_month(workspace: CloudWorkspace, cloud: Emulator) -> None:
    from google.cloud import compute_v1 as compute

    workspace.type("hosts", "up", "l4", "--minutes", "10", "--yes", check=0)
    cloud.advance(700)
    zone = "us-west1-c"
    hands(cloud, "DisksClient").create_snapshot_unary(
        project=PROJECT, zone=zone, disk=INSTANCE, snapshot_resource=compute.Snapshot(name=f"{INSTANCE}-65f")
    )
    spare = compute.Disk(name="spare", size_gb=200, labels={"fcctl": "yes"}, type_=f"zones/{zone}/diskTypes/pd-ssd")
    hands(cloud, "DisksClient").insert_unary(project=PROJECT, zone=zone, disk_resource=spare)
    hands(cloud, "AddressesClient").insert_unary(
        project=PROJECT, region="us-west1", address_resource=compute.Address(name=f"{INSTANCE}-ip")
    )
    cloud.advance(5)
    leftovers = {one["name"]: one for one in audited(workspace)["leftovers"]}
    assert set(leftovers) == {f"{INSTANCE}-65f", "spare", f"{INSTANCE}-ip"}
    assert leftovers["spare"]["usd_per_month"] == pytest.approx(34.0)
    assert leftovers["spare"]["delete"].startswith("gcloud compute disks delete spare --zone us-west1-c")
    assert "$34.00 a month" in workspace.type("hosts", "audit", check=0).out


def test_a_machine_that_is_kept_is_in_order_until_it_stops_itself(tmp_path: Path, private_home: Path) -> None:
    with emulated() as cloud:
        workspace = CloudWorkspace(tmp_path / "w", private_home, cloud, release="keep", keep_minutes=5)
        workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
        found = audited(workspace, "--stop")["machines"][0]
        assert (found["verdict"], found["billed"]) == ("kept", True)
        cloud.advance(360)
        assert billed(cloud) == []


def test_a_killed_controllers_machine_is_explained_by_its_journal(workspace: CloudWorkspace, cloud: Emulator) -> None:
    """Killed just after the machine was asked for: the run has no result, the machine nobody."""
    code = workspace.killed("before", 4, "run", "noop", "--on", "l4", "--yes")
    assert code == -signal.SIGKILL
    wait_for(lambda: billed(cloud))
    said = workspace.type("hosts", "audit", check=10)
    assert "has ended; the last line of its journal: 'cloud create" in said.out
    audited(workspace, "--stop")
    assert billed(cloud) == []
    assert workspace.active() == []
