"""``fcctl preflight`` of a machine that is off: it is woken for it, if the price is agreed to."""

from __future__ import annotations

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import CloudWorkspace, Done, billed, machine_by_hand


def starts(cloud: Emulator) -> int:
    with cloud.world.lock:
        return sum(op.resource["operationType"] == "start" for op in cloud.world.operations.values())


def test_without_a_yes_the_price_is_said_and_nothing_is_woken(workspace: CloudWorkspace, cloud: Emulator) -> None:
    machine_by_hand(cloud, "stopped")
    said = workspace.type("preflight", "--on", "l4", check=2).err
    assert "the machine of l4 is off; fcctl starts it for this check" in said
    assert "preflight on l4 may cost $0." in said
    assert "at most: the cloud stops the machine after" in said
    assert "add --yes" in said
    assert starts(cloud) == 0
    assert workspace.active() == []


def preflight(workspace: CloudWorkspace, *options: str) -> Done:
    """With a warning or not: the emulator's machines have the GPU of this one, if it has any."""
    done = workspace.type("preflight", "--on", "l4", *options)
    assert done.code in (0, 1), done.said
    return done


def test_with_a_yes_it_is_woken_looked_at_and_let_go(workspace: CloudWorkspace, cloud: Emulator) -> None:
    machine_by_hand(cloud, "stopped")
    workspace.job("preflight", "steps:\n  - {id: another, run: echo of this workspace}\n")
    done = preflight(workspace, "--yes")
    assert ("[WARN] preflight: usable, with" in done.out) is (done.code == 1)
    assert "starting it cost $0.0" in done.err
    assert (starts(cloud), billed(cloud)) == (1, [])
    assert workspace.only_run()["job"] == "preflight"
    document = preflight(workspace, "--yes", "--json").json
    assert document["kind"] == "environment"
    assert (starts(cloud), billed(cloud)) == (2, [])


def test_one_that_is_on_is_not_run_on(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("hosts", "up", "l4", "--yes", check=0)
    assert "] preflight: " in preflight(workspace).out
    assert workspace.runs() == {}
