"""``fcctl run`` where there is no stock: in the cloud's queue, and with reserved capacity. The cloud's time flies."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from orchestrator.emulator.clock import EmulatedClock
from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.scenario import Reservation, Scenario
from tests.support.cloud_workspace import ZONES, CloudWorkspace
from tests.support.waiting import wait_for

Make = Callable[..., CloudWorkspace]
Start = Callable[..., Emulator]
HELLO = "steps:\n  - {id: say, run: 'echo hello', timeout: 60}\n"
EMPTY = dict.fromkeys(ZONES, 0)


def fast(scenario: Scenario) -> dict[str, object]:
    """Emulated seconds pass five times as fast, so that one look at the queue is a second."""
    return {"scenario": scenario, "clock": EmulatedClock(speed=5)}


def queued(workspace: CloudWorkspace) -> bool:
    return "PENDING" in workspace.statuses().values()


@pytest.mark.full
def test_no_stock_then_the_queue_then_the_run_which_pays_for_no_waiting(start_cloud: Start, workspace_on: Make) -> None:
    cloud = start_cloud(**fast(Scenario(stock=dict(EMPTY))))
    workspace = workspace_on(cloud, provisioning="on_demand_then_flex_start")
    workspace.job("hello", HELLO)
    process = workspace.start("run", "hello", "--on", "l4")
    wait_for(lambda: queued(workspace))
    cloud.advance(1200)
    (machine,) = workspace.machines().values()
    assert machine.status == "PENDING"
    cloud.scenario.stock["us-west1-c"] = 1
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    assert "flex start" in err
    assert "it may wait 30 minutes in the queue" in err
    record = workspace.only_run()
    assert record["status"] == "passed"
    assert record["cost"]["billed_s"] < 900, "twenty minutes of the queue cost nothing"
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}
    made = workspace.machines()["us-west1-c"].resource
    assert made["scheduling"]["provisioningModel"] == "FLEX_START"
    (acquired,) = [line["data"] for line in workspace.journal() if line["kind"] == "acquired"]
    assert acquired["queued_s"] > 1200
    workspace.fcctl("run", "hello", "--on", "l4")
    assert workspace.operations("insert")[-1:] == ["insert"], "the second run starts the same machine"


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(("SIGINT",), id="interrupted"),
        pytest.param(("SIGKILL", "ps"), id="killed", marks=pytest.mark.full),
        pytest.param(("SIGKILL", "hosts", "down", "l4"), id="killed-down", marks=pytest.mark.full),
        pytest.param(("SIGKILL", "hosts", "audit", "--stop", "--yes"), id="killed-audit", marks=pytest.mark.full),
    ],
)
def test_left_in_the_queue_it_is_deleted_and_cannot_start_by_itself(
    start_cloud: Start, workspace_on: Make, end: tuple[str, ...]
) -> None:
    cloud = start_cloud(**fast(Scenario(stock=dict(EMPTY))))
    workspace = workspace_on(cloud, provisioning="flex_start", zones=["us-west1-c"])
    workspace.job("hello", HELLO)
    process = workspace.start("run", "hello", "--on", "l4")
    wait_for(lambda: queued(workspace))
    process.send_signal(getattr(signal, end[0]))
    process.communicate()
    if end[1:]:
        assert queued(workspace), "killed, it leaves its request behind"
        workspace.fcctl(*end[1:], check=None)
    assert workspace.statuses() == {}
    cloud.scenario.stock["us-west1-c"] = 1
    cloud.advance(3600)
    assert workspace.statuses() == {}
    totals = workspace.json("cost", "ledger")["totals"]
    assert all(total["seconds"] == 0 for total in totals), "its disk was there, the machine was never on"


@pytest.mark.full
def test_a_reservation_where_there_is_no_stock(start_cloud: Start, workspace_on: Make) -> None:
    reserved = {"us-west1-c": {"my-l4": Reservation(specific=True)}}
    cloud = start_cloud(scenario=Scenario(stock=dict(EMPTY), reservations=reserved))
    workspace = workspace_on(cloud, reservation="my-l4", on_stockout="fail")
    workspace.job("hello", HELLO)
    plan = workspace.fcctl("run", "hello", "--on", "l4", "--dry-run").stdout
    assert "reservation my-l4: Google bills it until it is deleted, used or not" in plan
    workspace.fcctl("run", "hello", "--on", "l4")
    workspace.fcctl("run", "hello", "--on", "l4")
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}
    config = workspace.root / "fcctl.toml"
    config.write_text(config.read_text().replace('"my-l4"', '"other"'))
    refused = workspace.fcctl("run", "hello", "--on", "l4", check=8).stderr
    assert "was created for the reservation 'my-l4'" in refused
    assert "gcloud compute instances delete" in refused
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}


def test_calendar_mode(start_cloud: Start, workspace_on: Make) -> None:
    reserved = {"us-west1-c": {"next-week": Reservation(specific=True)}}
    cloud = start_cloud(scenario=Scenario(stock=dict(EMPTY), reservations=reserved))
    workspace = workspace_on(cloud, provisioning="reservation_bound", reservation="next-week")
    workspace.job("hello", HELLO)
    found = workspace.json("cost", "plan", "hello", "--on", "l4")
    assert found["capacity"][0].startswith("reservation next-week: Google bills it for its whole term")
    workspace.fcctl("run", "hello", "--on", "l4")
    machine = workspace.machines()["us-west1-c"]
    assert machine.resource["scheduling"]["provisioningModel"] == "RESERVATION_BOUND"
    assert machine.resource["scheduling"]["instanceTerminationAction"] == "STOP"
    assert machine.status == "TERMINATED"
