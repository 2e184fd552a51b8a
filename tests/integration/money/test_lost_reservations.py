"""``hosts audit`` releases what is reserved for a run or session whose folder was deleted, once its machine is off."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from orchestrator.machines.cloud import RUN_LABEL
from tests.support.stores import make_id
from tests.support.virtual_cloud import (
    INSTANCE,
    ZONES,
    CloudWorkspace,
    VirtualClock,
    billed,
    machines,
    money,
    napping,
)

RATE, HOUR = 0.706832, 3600.0
CAPS = "\n[budget]\nper_run_usd = 9\nper_month_usd = 300.0\nproject_usd = 300.0\n"


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, cloud: Emulator) -> CloudWorkspace:
    return napping(tmp_path / "w", private_home, cloud, CAPS)


def forget(workspace: CloudWorkspace) -> None:
    """Delete the folders of all active runs and sessions."""
    for name in ("active", "sessions"):
        shutil.rmtree(workspace.root / "results" / name, ignore_errors=True)


def test_a_run_whose_machine_is_off_by_now(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("run", "nap", "--on", "l4", "-d", check=0)
    forget(workspace)
    workspace.type("hosts", "audit", check=0)  # a run is at work there, whoever's it is
    assert money(workspace)[1] > 0.2, "its machine is on"
    cloud.advance(2 * HOUR)
    assert billed(cloud) == [], "its limit has stopped it"
    done = workspace.type("hosts", "audit", check=0)
    assert "which no longer has a record" in done.err
    spent, reserved = money(workspace)
    assert reserved == 0
    assert RATE * 0.2 < spent < RATE, "its machine's own history has the bill"
    assert "at most" not in workspace.type("cost", "ledger", check=0).out
    assert "record no longer exists" not in workspace.type("hosts", "audit", check=0).err


def test_at_once_when_the_audit_or_a_person_stops_it(workspace: CloudWorkspace) -> None:
    workspace.type("run", "nap", "--on", "l4", "-d", check=0)
    forget(workspace)
    workspace.type("hosts", "audit", "--stop", "--others", INSTANCE, check=0)
    assert money(workspace)[1] == 0
    workspace.type("session", "start", "--on", "l4", "--budget", "1", check=0)
    forget(workspace)
    assert money(workspace)[1] > 0.9
    workspace.type("hosts", "down", "l4", check=0)
    assert money(workspace)[1] == 0


def test_of_a_machine_without_a_history_all_that_was_reserved_counts(workspace: CloudWorkspace) -> None:
    assert workspace.killed("before", 1, "run", "noop", "--on", "l4", "--yes") == -9
    usd = money(workspace)[1]
    assert usd > 0.2
    workspace.type("hosts", "audit", check=0)
    assert money(workspace)[1] == pytest.approx(usd), "its record is there"
    forget(workspace)
    workspace.type("hosts", "audit", check=0)
    assert money(workspace) == (pytest.approx(usd), 0)
    said = workspace.type("cost", "ledger", "--by", "activity", check=0).out
    assert f"at most, ${usd:.4f}" in said
    workspace.type("hosts", "audit", check=0)
    assert money(workspace) == (pytest.approx(usd), 0), "once"


@pytest.mark.full
def test_it_is_the_bill_of_whoever_made_it(
    workspace: CloudWorkspace, tmp_path: Path, private_home: Path, cloud: Emulator
) -> None:
    other = napping(tmp_path / "other", private_home, cloud, CAPS, name="other")
    assert other.killed("before", 1, "run", "noop", "--on", "l4", "--yes") == -9
    usd = money(other)[1]
    shutil.rmtree(other.root / "results")
    workspace.type("hosts", "audit", check=0)
    assert money(other) == (pytest.approx(usd), 0)
    assert money(workspace) == (pytest.approx(usd), 0), "and of the machine's"
    (run,) = workspace.type("--json", "cost", "ledger", "--by", "job", check=0).json["totals"]
    assert run["group"] == "(no record)"


def test_nothing_while_the_cloud_does_not_answer(workspace: CloudWorkspace, cloud: Emulator) -> None:
    assert workspace.killed("before", 1, "run", "noop", "--on", "l4", "--yes") == -9
    forget(workspace)
    reserved = money(workspace)[1]
    said = {"status": 403, "reason": "forbidden", "message": "Required 'compute.instances.list' permission"}
    cloud.faults.add(action="instances.aggregatedList", do={"http": said})
    workspace.type("hosts", "audit", check=6)
    assert money(workspace)[1] == pytest.approx(reserved)


def kill_hosts_up(workspace: CloudWorkspace, function: str) -> None:
    """Ends ``hosts up`` where it calls a function, without anything that it does when it is interrupted."""
    import orchestrator.hosts.hosts as workflow

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workflow, function, lambda *_, **__: (_ for _ in ()).throw(SystemExit(9)))
        patch.setattr(workflow, "release_kept", lambda *_, **__: None)
        patch.setattr(workflow.MachineLease, "release_requests", lambda _: [])
        workspace.type("hosts", "up", "l4", check=9)


@pytest.mark.parametrize("audited", [False, True], ids=["by itself", "by the audit"])
def test_hosts_up_that_was_killed_before_the_cloud_was_asked(
    audited: bool, workspace: CloudWorkspace, cloud: Emulator
) -> None:
    """It has no record at all, and asked for nothing: it costs nothing, and is reserved for a moment."""
    kill_hosts_up(workspace, "_label_owner")
    reserved = money(workspace)[1]
    assert reserved > 0.2
    workspace.type("hosts", "audit", check=0)
    assert money(workspace)[1] == pytest.approx(reserved), "it may be just about to start"
    cloud.advance(HOUR)
    if audited:
        workspace.type("hosts", "audit", check=0)
    assert money(workspace) == (0, 0)


def test_hosts_up_that_was_killed_with_its_first_request(workspace: CloudWorkspace, cloud: Emulator) -> None:
    """Nobody knows whether it was sent; the cloud lists no start."""
    kill_hosts_up(workspace, "log_change")
    cloud.advance(HOUR)
    assert money(workspace)[1] > 0.2
    workspace.type("hosts", "audit", check=0)
    assert money(workspace) == (0, 0)


def test_hosts_down_beside_hosts_up_that_is_about_to_ask(workspace: CloudWorkspace, cloud: Emulator) -> None:
    kill_hosts_up(workspace, "log_change")
    reserved = money(workspace)[1]
    workspace.type("hosts", "down", "l4", check=0)
    assert money(workspace)[1] == pytest.approx(reserved)
    cloud.advance(HOUR)
    workspace.type("hosts", "down", "l4", check=0)
    assert money(workspace) == (0, 0)


def test_hosts_up_twice_in_one_second_is_reserved_twice(
    workspace: CloudWorkspace, cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that finds the machine on gives back its own reservation, not the other's."""
    second = cloud.clock.now()
    monkeypatch.setattr(VirtualClock, "now", lambda _: second)
    kill_hosts_up(workspace, "log_change")
    reserved = money(workspace)[1]
    kill_hosts_up(workspace, "log_change")
    assert money(workspace)[1] == pytest.approx(2 * reserved)


def test_hosts_up_that_waits_for_stock_keeps_its_reservation(
    workspace: CloudWorkspace, cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit releases what was reserved for a start that was requested long ago and that the cloud does not list."""
    import orchestrator.hosts.hosts as workflow

    reserved: list[float] = []

    def at_each_start(kind: str, **data: object) -> None:
        if kind == "cloud" and data["action"] == "create":
            workspace.type("hosts", "audit", check=0)
            reserved.append(money(workspace)[1])
            cloud.advance(1000.0)

    monkeypatch.setattr(workflow, "log_change", at_each_start)
    workspace.target("busy", instance="busy", zones=[ZONES[0]], on_stockout="wait")
    cloud.faults.add(action="instances.insert", nth=1, do={"stockout": True})
    workspace.type("hosts", "up", "busy", check=0)
    assert len(reserved) > 1
    assert min(reserved) > 0.2


def test_hosts_up_before_a_cloud_that_does_not_answer(workspace: CloudWorkspace, cloud: Emulator) -> None:
    cloud.faults.add(action="*", do={"http": 503})
    workspace.type("hosts", "up", "l4", check=6)
    assert money(workspace) == (0, 0)


def test_a_machine_that_the_list_of_all_zones_lacks_is_on(workspace: CloudWorkspace, cloud: Emulator) -> None:
    """The list may be behind by a minute."""
    workspace.type("session", "start", "--on", "l4", "--budget", "1", check=0)
    forget(workspace)
    reserved = money(workspace)[1]
    cloud.scenario.unlisted = (INSTANCE,)
    workspace.type("hosts", "audit")
    assert billed(cloud) != []
    assert money(workspace)[1] == pytest.approx(reserved, abs=0.01)  # less by what it cost since


def test_a_machine_that_a_run_left_to_one_that_never_came(workspace: CloudWorkspace, cloud: Emulator) -> None:
    """Another workspace's run found it on, labelled it, and was killed before it came to it."""
    workspace.type("run", "nap", "--on", "l4", "-d", check=0)
    (machine,) = machines(cloud).values()
    machine.resource["labels"][RUN_LABEL] = make_id()
    workspace.type("cancel", "last", check=0)
    assert billed(cloud) != []
    fence_usd = int(machine.resource["scheduling"]["maxRunDuration"]["seconds"]) / 3600 * RATE
    assert sum(money(workspace)) >= fence_usd, "until its limit"
    cloud.advance(2 * HOUR)
    workspace.type("hosts", "audit", check=0)
    spent, reserved = money(workspace)
    assert reserved == 0
    assert 0.2 < spent < fence_usd, "its own timer has turned it off before"
