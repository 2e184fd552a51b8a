"""``fcctl preflight`` of a machine that is off: it is woken for it, if the price is agreed to."""

from __future__ import annotations

import shutil

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import CloudWorkspace, billed, machine_by_hand

pytest.importorskip("google.cloud.compute_v1")


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


#: The emulator's machines have the GPU of this one, if it has any.
WARNS = shutil.which("nvidia-smi") is None


def test_with_a_yes_it_is_woken_looked_at_and_let_go(workspace: CloudWorkspace, cloud: Emulator) -> None:
    machine_by_hand(cloud, "stopped")
    workspace.job("preflight", "steps:\n  - {id: another, run: echo of this workspace}\n")
    done = workspace.type("preflight", "--on", "l4", "--yes", check=int(WARNS))
    assert ("[WARN] preflight: usable, with" in done.out) is WARNS
    assert "starting it cost $0.0" in done.err
    assert (starts(cloud), billed(cloud)) == (1, [])
    assert workspace.only_run()["job"] == "preflight"
    document = workspace.type("preflight", "--on", "l4", "--yes", "--json", check=int(WARNS)).json
    assert document["kind"] == "environment"
    assert (starts(cloud), billed(cloud)) == (2, [])


def test_one_that_is_on_is_not_run_on(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("hosts", "up", "l4", "--yes", check=0)
    assert "] preflight: " in workspace.type("preflight", "--on", "l4", check=int(WARNS)).out
    assert workspace.runs() == {}
