"""Whose a machine is that is on: this workspace's, another one's, another computer's, or a person's at the console."""

from __future__ import annotations

import contextlib
import itertools
import json
import pkgutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator import world
from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import (
    INSTANCE,
    PROJECT,
    CloudWorkspace,
    audited,
    billed,
    hands,
    machine_by_hand,
    machines,
    start_by_hand,
    stop_by_hand,
)
from tests.support.waiting import wait_for

ZONE = "us-west1-c"
ON = [f"{ZONE}/{INSTANCE} RUNNING"]


@pytest.fixture
def other(tmp_path: Path, private_home: Path, cloud: Emulator) -> CloudWorkspace:
    """Another workspace of the same user, whose target is the same machine."""
    made = CloudWorkspace(tmp_path / "theirs", private_home, cloud)
    made.job("long", "steps:\n  - {id: one, run: sleep 300, timeout: 10m}\n")
    return made


@contextlib.contextmanager
def on_another_computer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing that this computer remembers is there: no machines, no login key."""
    with monkeypatch.context() as patch:
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        patch.setenv("HOME", str(tmp_path / "elsewhere"))
        yield


@pytest.fixture(params=["a cloud that keeps request ids", "one that does not"])
def keeps_ids(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Compute Engine shows an operation's request id as ``clientOperationId``. fcctl does not rely on that alone."""
    keeps = bool(request.param.startswith("a cloud"))
    if not keeps:
        real = world.finish

        def finish(world: Any, operation: Any) -> None:
            operation.resource.pop("clientOperationId", None)
            real(world, operation)

        monkeypatch.setitem(world.STEPS, "finish", finish)
    return keeps


def verdict(workspace: CloudWorkspace) -> tuple[str, str]:
    (machine,) = audited(workspace)["machines"]
    return machine["verdict"], machine["why"]


def strip_labels(cloud: Emulator) -> None:
    from google.cloud import compute_v1 as compute

    (machine,) = machines(cloud).values()
    body = compute.InstancesSetLabelsRequest(labels={}, label_fingerprint=machine.resource["labelFingerprint"])
    hands(cloud).set_labels_unary(
        project=PROJECT, zone=ZONE, instance=INSTANCE, instances_set_labels_request_resource=body
    )
    cloud.advance(2)
    (machine,) = machines(cloud).values()
    assert machine.resource["labels"] == {}


def rename_target(workspace: CloudWorkspace) -> None:
    place = workspace.root / "fcctl.toml"
    place.write_text(place.read_text().replace("[targets.l4]", "[targets.gpu]").replace(INSTANCE, "another-name"))


# ---------------------------------------------------------------------------------------------- another workspace's
def test_a_working_run_of_another_workspace_is_not_for_nobody(
    workspace: CloudWorkspace, other: CloudWorkspace, cloud: Emulator
) -> None:
    other.type("run", "long", "--on", "l4", "--yes", "--detach", check=0)
    (run_id,) = other.active()
    found = audited(workspace)
    assert found["machines"][0]["verdict"] == "foreign"
    assert f"{run_id} runs on it" in found["machines"][0]["why"]
    assert (found["summary"]["strays"], found["summary"]["others"]) == (0, 1)
    for words in (["--stop"], ["--stop", "--others"], ["--stop", "--others", "--yes"]):
        workspace.type("hosts", "audit", *words, check=0)
        assert billed(cloud) == ON
    said = workspace.type("hosts", "audit", "--stop", "--others", check=0).err
    assert f"fcctl hosts audit --stop --others {INSTANCE}" in said
    assert "for nobody" not in said
    assert workspace.type("hosts", "audit", "--stop", "--others", "another-vm").code == 7
    assert workspace.type("hosts", "audit", INSTANCE).code == 2
    assert billed(cloud) == ON
    audited(workspace, "--stop", "--others", INSTANCE)
    assert billed(cloud) == []


def test_not_even_where_only_the_shared_book_knows_of_it(
    workspace: CloudWorkspace, other: CloudWorkspace, cloud: Emulator
) -> None:
    """Our run turned the machine on; what another one's run left there is not collected, and no label tells."""
    assert workspace.killed("before", 4, "run", "noop", "--on", "l4", "--yes") == -signal.SIGKILL
    wait_for(lambda: billed(cloud))
    other.type("run", "noop", "--on", "l4", "--yes", "--detach", check=0)
    (run_id,) = other.active()
    (guest,) = cloud.hypervisor.running.values()
    wait_for((guest.home / f".fcctl/runs/{run_id}/outcome.json").exists)
    strip_labels(cloud)
    (machine,) = audited(workspace, "--stop")["machines"]
    assert (machine["verdict"], run_id in machine["why"]) == ("foreign", True)
    assert billed(cloud) == ON
    wait_for(lambda: other.type("ps") and not other.active())
    assert [record["status"] for record in other.runs().values()] == ["passed"]


def test_nor_from_another_computer_that_cannot_ask_the_machine(
    workspace: CloudWorkspace, other: CloudWorkspace, cloud: Emulator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other.type("run", "long", "--on", "l4", "--yes", "--detach", check=0)
    with on_another_computer(monkeypatch, tmp_path):
        found = audited(workspace, "--stop", "--others")
        assert found["machines"][0]["verdict"] == "foreign"
        assert "cannot see whether" in found["machines"][0]["why"]
        refused = workspace.type("hosts", "down", "l4", check=8)
        assert "cannot see whether" in refused.err
        assert "--force" in refused.err
        assert billed(cloud) == ON
    other.type("cancel", "--all", check=0)


def test_what_another_workspace_has_up_or_warm_is_in_order(
    workspace: CloudWorkspace, other: CloudWorkspace, cloud: Emulator
) -> None:
    other.type("hosts", "up", "l4", "--minutes", "30", "--yes", check=0)
    assert verdict(workspace)[0] == "up"
    other.type("hosts", "down", "l4", check=0)
    other.type("session", "start", "--on", "l4", "--budget", "1", "--yes", check=0)
    assert verdict(workspace)[0] == "session"
    strip_labels(cloud)
    audited(workspace, "--stop")
    assert billed(cloud) == ON


# ----------------------------------------------------------------------------------------------- labels and names gone
def test_a_machine_is_found_without_its_labels_and_its_targets_name(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("hosts", "up", "l4", "--minutes", "60", "--yes", check=0)
    strip_labels(cloud)
    rename_target(workspace)
    (machine,) = audited(workspace)["machines"]
    assert (machine["name"], machine["billed"], machine["verdict"]) == (INSTANCE, True, "up")
    cloud.advance(3700)
    (machine,) = audited(workspace)["machines"]
    assert (machine["verdict"], machine["billed"]) == ("off", False)
    cloud.advance(40 * 86400)
    assert [one["name"] for one in audited(workspace)["machines"]] == [INSTANCE], "its disk is still billed"


# --------------------------------------------------------------------------------------------- a person at the console
def test_a_machine_that_a_person_started_is_kept_and_said(
    workspace: CloudWorkspace, cloud: Emulator, keeps_ids: bool
) -> None:
    del keeps_ids
    workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    cloud.advance(600)
    start_by_hand(cloud)
    cloud.advance(60)
    kind, why = verdict(workspace)
    assert kind == "person"
    assert "started by emulator@example.com" in why
    said = workspace.type("hosts", "audit", "--stop", check=0)
    assert "not by fcctl" in said.out
    assert "for nobody" not in said.err
    assert f"fcctl hosts audit --stop --others {INSTANCE}" in said.err
    assert billed(cloud) == ON
    shown = workspace.type("hosts", "ls", "--json", check=0).json["hosts"]
    assert [row["machine"]["verdict"] for row in shown if row["target"] == "l4"] == ["person"]
    audited(workspace, "--stop", "--others", INSTANCE)
    assert billed(cloud) == []


def test_a_stop_that_is_still_owed_is_not_made_up_for_under_a_person(
    workspace: CloudWorkspace, cloud: Emulator
) -> None:
    cloud.faults.add(action="instances.stop", nth="1+", do={"http": {"status": 403, "message": "not today"}})
    assert "could not be stopped" in workspace.type("run", "noop", "--on", "l4", "--yes", check=6).err
    cloud.faults.clear()
    cloud.advance(4 * 3600)  # its own timer, or the cloud's limit
    assert billed(cloud) == []
    start_by_hand(cloud)
    cloud.advance(60)
    assert audited(workspace)["machines"][0]["verdict"] == "person"
    for words in (["pull-results"], ["ps"], ["hosts", "audit", "--stop"]):
        workspace.type(*words)
        assert billed(cloud) == ON


# --------------------------------------------------------------------------------------------------- stops of our own
def test_who_stopped_it(workspace: CloudWorkspace, other: CloudWorkspace, cloud: Emulator, keeps_ids: bool) -> None:
    """Our own stop; where the cloud keeps request ids, one of another workspace; and one in the console."""
    workspace.job("long", "steps:\n  - {id: one, run: sleep 300, timeout: 10m}\n")
    workspace.type("run", "long", "--on", "l4", "--yes", "--detach", check=0)
    (other if keeps_ids else workspace).type("hosts", "down", "l4", "--force", check=0)
    said = workspace.type("ps", check=0).said
    assert "stopped by fcctl" in said
    assert "by a user of the project" not in said
    assert "stopped by fcctl" in note(workspace)
    start_by_hand(cloud)
    stop_by_hand(cloud)
    assert "stopped by a user of the project, not by fcctl" in note(workspace)


def note(workspace: CloudWorkspace) -> str:
    rows = workspace.type("hosts", "ls", "--json", check=0).json["hosts"]
    return str(next(row["note"] for row in rows if row["target"] == "l4"))


# ------------------------------------------------------------------------------------------- stopped and started again
def test_the_limit_of_a_warm_machine_that_somebody_restarted_is_asked_for_again(
    tmp_path: Path, private_home: Path, cloud: Emulator
) -> None:
    """What is remembered of it was that of another start."""
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud, release="keep", keep_minutes=60)
    workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    stop_by_hand(cloud)
    cloud.advance(120)
    start_by_hand(cloud)
    workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    journals = [workspace.root / "results/runs" / run_id / "journal.jsonl" for run_id in workspace.runs()]
    told = [json.loads(line) for path in journals for line in path.read_text().splitlines()]
    lines = sorted(told, key=lambda line: line["time"])  # ids of the same second are in no order
    acquired = [line["data"] for line in lines if line["kind"] == "acquired"]
    assert [facts["warm"] for facts in acquired] == [False, True, False]
    assert acquired[2]["deadline"] > acquired[1]["deadline"] + 100


@pytest.mark.parametrize(
    "place", ["orchestrator.runs.machine.run_lease.arm_within", "orchestrator.runs.actions.send_source"]
)
def test_a_machine_that_its_owner_stops_before_the_run_is_on_it_is_started_again(
    place: str, workspace: CloudWorkspace, other: CloudWorkspace, cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another computer's run looked for others a moment before this one joined."""
    other.type("--yes", "hosts", "up", "l4", check=0)
    real, calls = pkgutil.resolve_name(place), itertools.count()

    def stopped_once(*args: Any, **more: Any) -> Any:
        if next(calls) == 0:
            stop_by_hand(cloud)
        return real(*args, **more)

    monkeypatch.setattr(place, stopped_once)
    said = workspace.type("--yes", "run", "noop", "--on", "l4", check=0).said
    assert "this run was not on it yet, and starts it again" in said
    assert workspace.only_run()["status"] == "passed"
    assert billed(cloud) == []


def test_a_label_that_is_refused_once_is_set_again(workspace: CloudWorkspace, cloud: Emulator) -> None:
    """With the label of a run that died before its first step, the machine would be left on for that run."""
    workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    (machine,) = machines(cloud).values()
    machine.resource["labels"]["fcctl-run"] = "20260101t000000z-noop-l4-abcdef"
    cloud.faults.add(action="instances.setLabels", nth=1, do={"http": {"status": 412, "reason": "conditionNotMet"}})
    workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    assert billed(cloud) == []


# ------------------------------------------------------------------------------------------- what costs while it is off
def test_all_stopped_machines_with_dollars_a_month_and_what_ends_them(
    tmp_path: Path, private_home: Path, cloud: Emulator
) -> None:
    """After a rebuild there are two, of which the older one is of no more use."""
    machine_by_hand(cloud, "stopped")
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud, on_stockout="rebuild")
    cloud.scenario.stock = {ZONE: 0}
    workspace.type("hosts", "up", "l4", "--minutes", "5", "--yes", check=0)
    cloud.advance(7200)
    found = {one["zone"]: one for one in audited(workspace)["machines"]}
    assert set(found) == {ZONE, "us-west1-a"}
    old, new = found[ZONE], found["us-west1-a"]
    assert old["usd_per_month"] == pytest.approx(4.0), "100 GiB of pd-standard"
    assert new["usd_per_month"] == pytest.approx(10.0), "100 GiB of pd-balanced in us-west1"
    assert "its copy in us-west1-a was used later" in old["why"]
    assert "copy" not in new["why"]
    ends = f"gcloud compute instances delete {INSTANCE} --zone {ZONE} --project {PROJECT} --delete-disks=all"
    assert old["delete"] == ends
    said = workspace.type("hosts", "audit", check=0)
    assert ends in said.out
    assert "$4.00 a month" in said.out
    rename_target(workspace)
    assert len(audited(workspace)["machines"]) == 2
    with cloud.world.lock:
        path = next(path for path in cloud.world.machines if f"/{ZONE}/" in path)
        (attached,) = cloud.world.machines[path].resource["disks"]
        attached["autoDelete"] = False
    hands(cloud).delete_unary(project=PROJECT, zone=ZONE, instance=INSTANCE)
    cloud.advance(30)
    loose = [one for one in audited(workspace)["leftovers"] if one["kind"] == "disk"]
    assert [(one["name"], one["place"], one["usd_per_month"]) for one in loose] == [(INSTANCE, ZONE, 4.0)]
    assert loose[0]["delete"].startswith(f"gcloud compute disks delete {INSTANCE} --zone {ZONE}")


def test_one_with_results_on_its_disk_says_so_before_it_is_deleted(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.job("long", "steps:\n  - {id: one, run: sleep 300, timeout: 10m}\n")
    workspace.type("run", "long", "--on", "l4", "--yes", "--detach", check=0)
    (run_id,) = workspace.active()
    stop_by_hand(cloud)
    (machine,) = audited(workspace)["machines"]
    assert f"fcctl pull-results --wake {run_id}" in machine["why"]
