"""All that is billed by the month, as fcctl's own client lists it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("google.cloud.compute_v1")

from google.auth.credentials import AnonymousCredentials
from google.cloud import compute_v1 as compute

from orchestrator.app import SystemClock
from orchestrator.emulator.emulator import Emulator
from orchestrator.providers.gcp.cloud import GcpCloud
from tests.integration.emulator.conftest import PROJECT, ZONE, Gce


def test_what_is_billed_by_the_month(start: Callable[..., tuple[Emulator, Gce]]) -> None:
    emulator, gce = start()
    gce.create("vm")
    disk = compute.Disk(name="spare", size_gb=50, labels={"fcctl": "yes"}, type_=f"zones/{ZONE}/diskTypes/pd-ssd")
    gce.done(gce.disks.insert_unary(project=PROJECT, zone=ZONE, disk_resource=disk))
    snapshot = compute.Snapshot(name="vm-1")
    gce.done(gce.disks.create_snapshot_unary(project=PROJECT, zone=ZONE, disk="vm", snapshot_resource=snapshot))
    credentials = AnonymousCredentials()  # type: ignore[no-untyped-call]
    addresses = compute.AddressesClient(credentials=credentials, client_options={"api_endpoint": emulator.url})
    addresses.insert_unary(project=PROJECT, region="us-west1", address_resource=compute.Address(name="ip"))
    found, unasked = GcpCloud(PROJECT, emulator.url, SystemClock()).billable_resources()
    assert unasked == []
    rows = {(one.kind, one.name): one for one in found}
    assert set(rows) == {("disk", "vm"), ("disk", "spare"), ("snapshot", "vm-1"), ("address", "ip")}
    assert rows["disk", "vm"].users == ("vm",)
    spare = rows["disk", "spare"]
    assert (spare.gb, spare.type, spare.users, spare.region) == (50, "pd-ssd", (), "us-central1")
    assert rows["snapshot", "vm-1"].source == "vm"
    assert rows["snapshot", "vm-1"].region == "us-central1"
    assert rows["address", "ip"].region == "us-west1"
    gce.done(gce.disks.delete_unary(project=PROJECT, zone=ZONE, disk="spare"))
    gce.snapshots.delete_unary(project=PROJECT, snapshot="vm-1")
    addresses.delete_unary(project=PROJECT, region="us-west1", address="ip")
    emulator.advance(5)
    left, _ = GcpCloud(PROJECT, emulator.url, SystemClock()).billable_resources()
    assert {(one.kind, one.name) for one in left} == {("disk", "vm")}


def test_what_may_not_be_read_is_named(start: Callable[..., tuple[Emulator, Gce]]) -> None:
    emulator, gce = start()
    gce.create("vm")
    emulator.faults.add(action="snapshots.list", nth="1+", do={"http": 403})
    found, unasked = GcpCloud(PROJECT, emulator.url, SystemClock()).billable_resources()
    assert [one.kind for one in found] == ["disk"]
    assert [what.split()[0] for what in unasked] == ["snapshots"]
