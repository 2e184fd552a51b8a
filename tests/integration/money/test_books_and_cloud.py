"""The ledger, the cloud's books and its bill: one figure in all; what stands, what nobody saw, what differs."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.clock import parse_timestamp
from orchestrator.emulator.emulator import Emulator
from orchestrator.leases import machine_lease
from tests.support.tiers import sampled
from tests.support.virtual_cloud import (
    INSTANCE,
    PROJECT,
    ZONES,
    CloudWorkspace,
    audited,
    delete_by_hand,
    hands,
    machine_by_hand,
    machines,
    money,
    start_by_hand,
    stop_by_hand,
)

DAY = 86400.0


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, cloud: Emulator) -> CloudWorkspace:
    return CloudWorkspace(tmp_path / "w", private_home, cloud)


def ledger(workspace: CloudWorkspace, *args: str) -> dict[str, Any]:
    found: dict[str, Any] = workspace.type("--json", "cost", "ledger", "--lines", *args, check=0).json
    return found


def standing(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [line for line in found["lines"] if line["what"] and not line["machine"]]


def last_start(cloud: Emulator) -> float:
    """When the machine's price began to run: as it entered RUNNING, however long its system took from there."""
    (machine,) = machines(cloud).values()
    return parse_timestamp(machine.resource["lastStartTimestamp"])


def operation(cloud: Emulator, kind: str) -> dict[str, Any]:
    """The newest operation of a kind on the machine, as the emulator has it."""
    with cloud.world.lock:
        rows = [op.resource for op in cloud.world.operations.values() if op.target.endswith(f"/instances/{INSTANCE}")]
    return [row for row in rows if row["operationType"] == kind][-1]


def made_at(cloud: Emulator) -> float:
    with cloud.world.lock:
        (disk,) = cloud.world.disks.values()
        return parse_timestamp(disk["creationTimestamp"])


def test_a_stopped_machine_costs_its_disk_until_it_is_deleted(workspace: CloudWorkspace, cloud: Emulator) -> None:
    machine_by_hand(cloud, "stopped")
    made = made_at(cloud)
    workspace.type("hosts", "ls", check=0)
    assert [remark["sure"] for remark in ledger(workspace)["remarks"]] == ["estimated"], "its type is not seen yet"
    audited(workspace)
    cloud.advance(9 * DAY)
    (remark,) = ledger(workspace)["remarks"]
    assert "fcctl assumes that it still exists" in remark["why"]
    delete_by_hand(cloud)
    cloud.advance(40 * DAY)

    assert [one["there"] for one in audited(workspace)["ledger"]] == [False]
    found = ledger(workspace, "--by", "month")
    seconds = parse_timestamp(operation(cloud, "delete")["endTime"]) - made
    assert 9 * DAY < seconds < 9 * DAY + 300
    lines = standing(found)
    assert sum(line["seconds"] for line in lines) == pytest.approx(seconds, abs=0.01)
    # The emulator makes a disk of 100 GB as pd-standard unless it is told otherwise: 0.04 dollars a GiB and month.
    assert sum(line["usd"] for line in lines) == pytest.approx(seconds / 3600 * 4.0 / 730, rel=1e-6)
    assert ({line["sure"] for line in lines}, found["remarks"]) == ({"known"}, [])
    assert sum(total["standing_usd"] for total in found["totals"]) == pytest.approx(sum(x["usd"] for x in lines))
    said = workspace.type("cost", "ledger", "--by", "target", check=0).out
    assert "storage" in said
    assert "what,sure,why" in workspace.type("cost", "ledger", "--csv", check=0).out.splitlines()[0]


def test_a_start_in_the_console_is_found_and_a_second_look_agrees(workspace: CloudWorkspace, cloud: Emulator) -> None:
    machine_by_hand(cloud, "stopped")
    workspace.type("hosts", "ls", check=0)
    start_by_hand(cloud)
    cloud.advance(1800)
    stop_by_hand(cloud)
    begun = parse_timestamp(operation(cloud, "start")["endTime"])
    ended = parse_timestamp(operation(cloud, "stop")["endTime"])
    start_by_hand(cloud)
    cloud.advance(300)
    stop_by_hand(cloud)

    said = workspace.type("hosts", "audit", check=0).out
    assert "too little, corrected" in said
    assert "no run of this workspace used the machine" in said
    assert "started by emulator@example.com" in said
    (again,) = audited(workspace)["ledger"]
    assert again["agrees"]
    assert again["difference"]["seconds"] == 0
    assert again["cloud"] == pytest.approx(again["ledger"], abs=1e-4)
    times = [time for time in again["times"] if time["seconds"] > 1000]
    assert [time["for_nobody"] for time in times] == [True]
    assert times[0]["seconds"] == pytest.approx(ended - begun, abs=1.0)
    idle = [line for line in ledger(workspace)["lines"] if line["activity"] == "idle"]
    assert sum(line["seconds"] for line in idle) == pytest.approx(again["cloud"]["seconds"], abs=0.01)


def test_a_machine_deleted_while_nobody_looked_is_billed_until_then(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.job("long", "steps:\n  - {id: one, run: sleep 300, timeout: 10m}\n")
    workspace.type("run", "long", "--on", "l4", "--yes", "--detach", check=0)
    begun = last_start(cloud)
    cloud.advance(200)
    delete_by_hand(cloud)
    cloud.advance(5 * 3600)
    workspace.type("ps", check=0)
    (record,) = workspace.runs().values()
    on_s = parse_timestamp(operation(cloud, "delete")["endTime"]) - begun
    assert record["status"] == "lost"
    assert record["cost"]["billed_s"] == pytest.approx(on_s, abs=2.0)
    assert not record["cost"]["upper_bound"]
    (account,) = audited(workspace)["ledger"]
    assert account["cloud"]["seconds"] == pytest.approx(on_s, abs=2.0)
    assert account["beyond_cloud"]["seconds"] < 2.0
    assert [time["for_nobody"] for time in account["times"]] == [False]


@pytest.mark.parametrize("behind_s", [0.0, 3600.0])
@pytest.mark.parametrize("refusal", ["stockout", {"http": {"status": 503, "reason": "insufficientCapacity"}}])
def test_a_run_whose_start_is_refused_has_nothing_of_the_start_before(
    tmp_path: Path, private_home: Path, cloud: Emulator, behind_s: float, refusal: Any
) -> None:
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud, -behind_s, on_stockout="fail")
    workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    cloud.faults.add(action="instances.start", do=refusal if isinstance(refusal, dict) else {refusal: True})
    workspace.type("run", "noop", "--on", "l4", "--yes", check=5)
    costs = {run["status"]: run["cost"]["billed_s"] for run in workspace.runs().values()}
    assert costs == {"passed": 60.0, "error": 0.0}


@pytest.mark.parametrize("behind_s", [0.0, 3600.0])
def test_a_start_soon_after_another_is_reserved_while_it_starts(
    tmp_path: Path, private_home: Path, cloud: Emulator, behind_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud, -behind_s)
    workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    make_ready, reserved = machine_lease.make_ready, []

    def look(*args: Any) -> Any:
        reserved.append(money(workspace)[1])
        return make_ready(*args)

    monkeypatch.setattr(machine_lease, "make_ready", look)
    workspace.type("hosts", "up", "l4", "--minutes", "60", "--yes", check=0)
    assert reserved == [pytest.approx(0.73, abs=0.02)]


def figures(workspace: CloudWorkspace) -> tuple[float, float]:
    """Seconds and dollars of the machine; every output has the same, and none a negative line."""
    (account,) = workspace.type("--json", "hosts", "audit", check=0).json["ledger"]
    lines = workspace.type("--json", "cost", "ledger", "--lines", check=0).json["lines"]
    rows = csv.DictReader(io.StringIO(workspace.type("cost", "ledger", "--csv", check=0).out))
    assert min(float(row[key]) for row in rows for key in ("seconds", "usd")) >= 0
    of_machine = [line for line in lines if not line["what"]]
    address = sum(line["usd"] for line in lines if line["activity"] == "address")
    seconds, usd = (sum(line[key] for line in of_machine) for key in ("seconds", "usd"))
    for by in ("run", "activity", "machine", "day"):
        totals = workspace.type("--json", "cost", "ledger", "--by", by, check=0).json["totals"]
        assert min(total["usd"] for total in totals) >= 0
        assert sum(total["seconds"] for total in totals) == pytest.approx(seconds, abs=1e-3)
        assert sum(total["usd"] - total["standing_usd"] for total in totals) == pytest.approx(usd + address, abs=1e-6)
    for book in ("cloud", "ledger"):
        assert account[book] == {
            "seconds": pytest.approx(seconds, abs=1e-2), "usd": pytest.approx(usd, abs=1e-5),
        }  # fmt: skip
    assert account["beyond_cloud"]["seconds"] < 0.1
    assert account["agrees"]
    return seconds, usd


def test_each_start_of_a_machine_costs_a_minute_and_its_run_says_so(
    tmp_path: Path, private_home: Path, cloud: Emulator
) -> None:
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud)
    for _ in range(3):
        workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    seconds, usd = figures(workspace)
    assert [run["cost"]["billed_s"] for run in workspace.runs().values()] == [60.0] * 3
    assert seconds == pytest.approx(180)
    assert usd == pytest.approx(sum(run["cost"]["usd"] for run in workspace.runs().values()), abs=1e-5)


@pytest.mark.parametrize("ahead_s", sampled([0.0, 900.0, -900.0], keep=(900.0,)))
def test_runs_that_share_a_start_share_its_minute(
    ahead_s: float, tmp_path: Path, private_home: Path, cloud: Emulator
) -> None:
    """Also where this computer's clock is wrong, which alone knows when a run took a machine that was on."""
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud, ahead_s, release="keep", keep_minutes=30)
    for _ in range(3):
        workspace.type("run", "noop", "--on", "l4", "--yes", check=0)
    workspace.type("hosts", "down", "l4", check=0)
    seconds, _ = figures(workspace)
    assert seconds == pytest.approx(60)
    assert sum(run["cost"]["billed_s"] for run in workspace.runs().values()) < 60


def test_a_session_whose_machine_was_suspended_costs_until_then(
    tmp_path: Path, private_home: Path, cloud: Emulator
) -> None:
    """The machine's own time of its last stop is that of an earlier start."""
    workspace = CloudWorkspace(tmp_path / "w", private_home, cloud, connect_timeout_s=3.0)  # it does not answer
    for _ in range(2):
        workspace.type("session", "start", "--on", "l4", "--budget", "1", check=0)
        cloud.advance(600.0)
        hands(cloud).suspend_unary(project=PROJECT, zone=ZONES[0], instance=INSTANCE)
        cloud.advance(2)
        document = workspace.type("--json", "session", "stop", check=0).json
        assert 600 <= document["stopped"] - document["started"] < 700
        stop_by_hand(cloud)
