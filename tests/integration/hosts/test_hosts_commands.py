"""``fcctl hosts ls``, ``up``, ``down`` and ``ssh`` before an emulated cloud, through Google's library."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.scenario import Latency
from tests.support.virtual_cloud import INSTANCE, PROJECT, ZONES, CloudWorkspace, billed, hands, machine_by_hand
from tests.support.waiting import wait_for


def row(workspace: CloudWorkspace, target: str = "l4", *args: str) -> dict[str, Any]:
    rows = workspace.type("hosts", "ls", "--json", *args, check=0).json["hosts"]
    found: dict[str, Any] = next(one for one in rows if one["target"] == target)
    return found


def test_up_ls_ssh_down(workspace: CloudWorkspace, cloud: Emulator) -> None:
    assert row(workspace)["state"] == "absent"
    up = workspace.type("hosts", "up", "l4", "--minutes", "30", "--yes", check=0)
    assert "may cost $0.38 at most" in up.err
    assert "fcctl hosts ssh l4" in up.err
    assert billed(cloud) == [f"us-west1-c/{INSTANCE} RUNNING"]
    shown = row(workspace)
    machine = shown["machine"]
    assert (shown["state"], machine["verdict"], machine["gpus"]) == ("RUNNING", "up", "1 x L4")
    assert machine["fence"] is not None
    assert machine["usd_by_then"] == pytest.approx(0.7068 * (1800 + 30) / 3600, abs=0.002)
    said = workspace.fcctl("hosts", "ssh", "l4", "--", "echo", "from", "there")
    assert said.stdout == "from there\n"
    again = workspace.type("hosts", "up", "l4", "--yes", check=0)
    assert "was already up" in again.err
    assert "is off" in workspace.type("hosts", "down", "l4", check=0).err
    assert billed(cloud) == []
    assert "already off" in workspace.type("hosts", "down", "l4", check=0).err
    assert row(workspace)["state"] == "TERMINATED"
    table = workspace.type("hosts", "ls", check=0).out
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["local", "sandbox", "here", "l4"]


@pytest.mark.full
def test_a_machine_that_a_search_made_is_known_by_its_name(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("hosts", "up", "l4-2", "--minutes", "30", "--yes", check=0)
    assert billed(cloud) == [f"us-west1-c/{INSTANCE}-2 RUNNING"]
    assert workspace.fcctl("hosts", "ssh", "l4-2", "--", "echo", "there").stdout == "there\n"
    shown = row(workspace, "l4-2")
    assert (shown["state"], shown["member_of"], shown["machine"]["name"]) == ("RUNNING", "l4", f"{INSTANCE}-2")
    assert row(workspace)["member_of"] is None
    assert row(workspace, "l4-2", "--offline")["state"] == "last seen in us-west1-c"
    rows = workspace.type("hosts", "ls", "--cloud", "--json", check=0).json["hosts"]
    assert [one["target"] for one in rows] == ["local", "sandbox", "here", "l4", "l4-2"], "it is named, and so no other"
    (line,) = (one for one in workspace.type("hosts", "ls", check=0).out.splitlines() if one.startswith("l4-2"))
    assert "member of l4" in " ".join(line.split())
    assert "l4-2 is off" in workspace.type("hosts", "down", "l4-2", check=0).err
    assert billed(cloud) == []
    for name in ("l4-1", "l4-99", "l4-02", "here-2", "nope-2"):
        assert workspace.type("hosts", "down", name, check=7).err.startswith("error: unknown target")


def test_runs_on_a_machine_that_is_up_leave_it_on(workspace: CloudWorkspace, cloud: Emulator) -> None:
    # What a run waits for in real time moves the cloud's: on a busy computer by hours.
    workspace.target("long", instance="long", max_run_minutes=1400)
    workspace.type("hosts", "up", "long", "--minutes", "1400", "--yes", check=0)
    for _ in range(2):
        done = workspace.type("run", "noop", "--on", "long", "--yes", check=0)
        assert "stays on, because fcctl hosts up started it" in done.err
    assert row(workspace, "long")["machine"]["verdict"] == "up"
    cloud.advance(45 * 60)  # past the runs' own timers
    assert billed(cloud) != []
    cloud.advance(1400 * 60)
    assert billed(cloud) == []
    workspace.type("run", "noop", "--on", "long", "--yes", check=0)  # woken by the run itself: it is let go again
    assert billed(cloud) == []


def test_up_asks_and_is_held_to_the_caps(workspace: CloudWorkspace, cloud: Emulator) -> None:
    unasked = workspace.type("hosts", "up", "l4")
    assert unasked.code == 2
    assert "--yes" in unasked.err
    assert workspace.type("hosts", "up", "l4", "--minutes", "300", "--yes").code == 3
    with (workspace.root / "fcctl.toml").open("a") as file:
        file.write("\n[budget]\nper_run_usd = 0.2\n")
    dear = workspace.type("hosts", "up", "l4", "--minutes", "30", "--yes")
    assert dear.code == 5
    assert "$0.38" in dear.err
    assert not cloud.world.machines
    workspace.type("hosts", "up", "l4", "--minutes", "10", check=0)  # within the cap: no question


def test_down_refuses_while_a_run_is_on_it(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.job("long", "steps:\n  - {id: one, run: sleep 300, timeout: 10m}\n")
    workspace.type("run", "long", "--on", "l4", "--yes", "--detach", check=0)
    assert row(workspace)["machine"]["verdict"] == "run"
    refused = workspace.type("hosts", "down", "l4")
    assert refused.code == 8
    assert "fcctl cancel" in refused.err
    assert billed(cloud) != []
    workspace.type("hosts", "down", "l4", "--force", check=0)
    assert billed(cloud) == []


def test_down_waits_for_a_start_that_the_cloud_has_not_begun(workspace: CloudWorkspace, cloud: Emulator) -> None:
    machine_by_hand(cloud, "stopped")
    cloud.scenario.latency = Latency(pending=60)
    hands(cloud).start_unary(project=PROJECT, zone=ZONES[0], instance=INSTANCE)
    workspace.type("hosts", "down", "l4", check=0)
    cloud.advance(600)
    assert billed(cloud) == []


def test_down_waits_for_no_start_that_a_stop_has_ended(workspace: CloudWorkspace, cloud: Emulator) -> None:
    machine_by_hand(cloud, "stopped")
    start = hands(cloud).start_unary(project=PROJECT, zone=ZONES[0], instance=INSTANCE)
    cloud.advance(10)
    hands(cloud).stop_unary(project=PROJECT, zone=ZONES[0], instance=INSTANCE)
    cloud.advance(10)
    stuck = next(op for path, op in cloud.world.operations.items() if path.endswith(f"/{start.name}"))
    stuck.resource["status"] = "RUNNING"
    workspace.type("hosts", "down", "l4", check=0)


def test_targets_that_are_in_no_cloud(workspace: CloudWorkspace) -> None:
    with (workspace.root / "fcctl.toml").open("a") as file:
        file.write('\n[targets.box]\nkind = "ssh"\nhost = "gpu-host"\n')
    assert row(workspace, "box")["address"] == "gpu-host"
    for verb in ("up", "down"):
        for target in ("here", "box"):
            assert "nothing to do" in workspace.type("hosts", verb, target, check=0).err
    assert workspace.type("hosts", "ssh", "here").code == 3


def test_ls_without_asking(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("hosts", "up", "l4", "--minutes", "10", "--yes", check=0)
    cloud.faults.add(action="*", nth="1+", do={"http": 503})
    assert row(workspace, "l4", "--offline")["state"] == "last seen in us-west1-c"


def test_ls_says_what_it_could_not_learn(workspace: CloudWorkspace, cloud: Emulator) -> None:
    cloud.faults.add(action="*", nth="1+", do={"http": {"status": 403, "reason": "forbidden", "message": "no"}})
    shown = row(workspace)
    assert shown["state"] == "unknown"
    assert "roles/compute.instanceAdmin.v1" in shown["note"], "what to do about it"


def test_ls_tells_who_stopped_it(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("hosts", "up", "l4", "--minutes", "10", "--yes", check=0)
    cloud.preempt(INSTANCE)
    wait_for(lambda: not billed(cloud))
    assert "preempted" in row(workspace)["note"]


def test_ls_of_machines_that_no_target_names(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.target("other", instance="another-one")
    workspace.type("hosts", "up", "other", "--minutes", "10", "--yes", check=0)
    text = (workspace.root / "fcctl.toml").read_text()
    (workspace.root / "fcctl.toml").write_text(text.replace("another-one", "a-third-one"))
    rows = workspace.type("hosts", "ls", "--cloud", "--json", check=0).json["hosts"]
    unnamed = [one for one in rows if one["target"] is None]
    assert [one["machine"]["name"] for one in unnamed] == ["another-one"]
