"""A machine that is there costs what it is, whatever its target names: in the plan, the caps, the run and the books."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.virtual_cloud import (
    INSTANCE,
    PROJECT,
    ZONES,
    CloudWorkspace,
    billed,
    emulated,
    hands,
    machine_by_hand,
    machines,
    stop_by_hand,
)
from tests.support.waiting import wait_for

#: Dollars an hour of a g2-standard-4 and of a g2-standard-96 in us-west1, on demand; of the former on Spot.
SMALL, BIG, SPOT = 0.706832, 8.00333, 0.423956
QUOTAS = {"global": {"GPUS_ALL_REGIONS": 16.0}, "us-west1": {"NVIDIA_L4_GPUS": 16.0}}


@pytest.fixture
def cloud() -> Iterator[Emulator]:
    with emulated(quotas=QUOTAS) as made:
        machine_by_hand(made, "stopped")
        yield made


@pytest.fixture
def workspace(cloud: Emulator, tmp_path: Path, private_home: Path) -> CloudWorkspace:
    return CloudWorkspace(tmp_path / "w", private_home, cloud)


def become(cloud: Emulator, machine_type: str) -> None:
    """Somebody else gives the stopped machine another type."""
    from google.cloud import compute_v1 as compute

    hands(cloud).set_machine_type_unary(
        project=PROJECT, zone=ZONES[0], instance=INSTANCE,
        instances_set_machine_type_request_resource=compute.InstancesSetMachineTypeRequest(
            machine_type=f"zones/{ZONES[0]}/machineTypes/{machine_type}"
        ),
    )  # fmt: skip
    cloud.advance(2)


def starts(cloud: Emulator) -> int:
    """How often the machine was asked to start since it was made."""
    with cloud.world.lock:
        kinds = [op.resource["operationType"] for op in cloud.world.operations.values()]
    return kinds.count("start")


def error(done: Any) -> dict[str, Any]:
    import json

    found: dict[str, Any] = json.loads(done.err.splitlines()[-1])["error"]
    return found


STARTING = [
    ("run", "noop", "--on", "l4", "--yes"),
    ("run", "noop", "--on", "l4", "--dry-run"),
    ("hosts", "up", "l4", "--yes"),
    ("session", "start", "--on", "l4", "--budget", "3", "--yes"),
]


@pytest.mark.parametrize("command", STARTING, ids=lambda command: " ".join(command[:2] + command[-1:]))
def test_a_dearer_machine_is_refused_before_anything_starts(
    workspace: CloudWorkspace, cloud: Emulator, command: tuple[str, ...]
) -> None:
    become(cloud, "g2-standard-96")
    refusal = error(workspace.type("--json", *command, check=5))
    assert "$8.00 an hour" in refusal["message"]
    assert "$0.71" in refusal["message"]
    assert "g2-standard-96" in refusal["message"]
    assert "--accept-price" in refusal["hint"]
    assert (starts(cloud), billed(cloud)) == (0, [])


def test_a_price_that_was_accepted_is_the_one_of_the_plan_the_run_and_the_books(
    workspace: CloudWorkspace, cloud: Emulator
) -> None:
    become(cloud, "g2-standard-96")
    fence_s = 600 + 2 * 60 + 15 * 60 + 30 + 60
    shown = workspace.type("--json", "run", "noop", "--on", "l4", "--dry-run", "--accept-price", check=0).json
    rest = 100 * 0.04 / 730 + 0.005  # of pd-standard
    assert shown["worst_case"]["usd"] == pytest.approx(fence_s / 3600 * (BIG + rest), rel=1e-4)
    capped = workspace.type("--json", "run", "noop", "--on", "l4", "--budget", "1", "--accept-price", check=5)
    assert "may cost $3.8" in error(capped)["message"], "the caps hold at its own price"
    assert (starts(cloud), billed(cloud)) == (0, [])

    record = workspace.type("--json", "run", "noop", "--on", "l4", "--accept-price", "--yes", check=0).json
    cost = record["cost"]
    assert cost["usd_per_hour"] == pytest.approx(BIG, abs=1e-4)
    assert cost["usd"] == pytest.approx(cost["billed_s"] / 3600 * BIG, rel=1e-3)
    assert billed(cloud) == []
    (row,) = (r for r in workspace.type("--json", "hosts", "ls", check=0).json["hosts"] if r["target"] == "l4")
    assert row["usd_per_hour"] == pytest.approx(BIG, abs=1e-4)
    audit = workspace.type("--json", "hosts", "audit", check=0).json
    (account,) = audit["ledger"]
    assert account["cloud"]["usd"] == pytest.approx(account["cloud"]["seconds"] / 3600 * BIG, rel=1e-3)
    lines = workspace.type("--json", "cost", "ledger", "--by", "activity", "--lines", check=0).json["lines"]
    of_machine = [line for line in lines if line["what"] is None]
    assert sum(line["usd"] for line in of_machine) == pytest.approx(
        sum(line["seconds"] for line in of_machine) / 3600 * BIG, rel=1e-3
    )


def test_a_machine_that_is_on_demand_is_no_spot_machine(cloud: Emulator, tmp_path: Path, private_home: Path) -> None:
    spot = CloudWorkspace(tmp_path / "w", private_home, cloud, provisioning="spot")
    message = error(spot.type("--json", "run", "noop", "--on", "l4", "--yes", check=5))["message"]
    assert "g2-standard-4 (on demand) at $0.71" in message
    assert "g2-standard-4 (spot) at $0.42" in message
    assert starts(cloud) == 0
    record = spot.type("--json", "run", "noop", "--on", "l4", "--yes", "--accept-price", check=0).json
    assert record["cost"]["usd_per_hour"] == pytest.approx(SMALL, abs=1e-6)


def test_a_machine_that_became_dearer_after_it_was_planned_is_not_started(
    workspace: CloudWorkspace, cloud: Emulator
) -> None:
    """This computer takes it to be on as it was, and does not ask the cloud until it has to be started."""
    workspace.type("hosts", "up", "l4", "--minutes", "120", "--yes", check=0)
    stop_by_hand(cloud)
    become(cloud, "g2-standard-96")
    before = starts(cloud)
    refusal = error(workspace.type("--json", "run", "noop", "--on", "l4", "--yes", check=5))
    assert "costs $8.014" in refusal["message"]
    assert "the plan allows $0.717" in refusal["message"]
    assert "--accept-price" in refusal["hint"]
    assert starts(cloud) == before
    again = error(workspace.type("--json", "run", "noop", "--on", "l4", "--yes", check=5))
    assert "configured is a g2-standard-4" in again["message"], "the next plan asks the cloud"


def test_a_session_is_priced_as_its_machine_is(workspace: CloudWorkspace, cloud: Emulator) -> None:
    become(cloud, "g2-standard-96")
    start = ("--json", "session", "start", "--on", "l4", "--budget", "3", "--yes", "--accept-price")
    opened = workspace.type(*start, check=0).json
    rest = 100 * 0.04 / 730 + 0.005  # of pd-standard
    assert opened["fence_s"] == pytest.approx(3 / (BIG + rest) * 3600 - 90, abs=1)
    (standing,) = workspace.type("--json", "session", "status", check=0).json["sessions"]
    assert standing["usd_per_hour"] == pytest.approx(BIG, abs=1e-4)
    record = workspace.type("--json", "session", "stop", check=0).json
    assert record["usd_per_hour"] == pytest.approx(BIG, abs=1e-4)


def test_the_worst_case_has_the_machine_s_own_disks(workspace: CloudWorkspace, cloud: Emulator) -> None:
    """Their types are told by their own entries alone."""
    with cloud.world.lock:
        (disk,) = cloud.world.disks.values()
        disk["sizeGb"], disk["type"] = "2000", disk["type"].replace("pd-standard", "pd-ssd")
        (machine,) = machines(cloud).values()
        machine.resource["disks"][0]["diskSizeGb"] = "2000"
    assert disk["type"].endswith("pd-ssd")
    shown = workspace.type("--json", "run", "noop", "--on", "l4", "--dry-run", check=0).json
    hours = (600 + 2 * 60 + 15 * 60 + 30 + 60) / 3600
    assert shown["worst_case"]["usd"] == pytest.approx(hours * (SMALL + 2000 * 0.17 / 730 + 0.005), rel=1e-4)


DAY_S = 86400.0
#: The prices are of the day on which the workspace was made, which may have ended since.
DAYS_400, DAYS_100 = "40[01] days", "10[01] days"
PLANS = [
    ("run", "noop", "--on", "l4", "--dry-run"),
    ("cost", "plan", "noop", "--on", "l4"),
    ("hosts", "up", "l4", "--yes"),
    ("session", "start", "--on", "l4", "--budget", "1"),
]


@pytest.mark.parametrize("command", PLANS, ids=lambda command: " ".join(command[:2]))
def test_prices_that_are_older_than_a_year_start_nothing(
    cloud: Emulator, tmp_path: Path, private_home: Path, command: tuple[str, ...]
) -> None:
    later = CloudWorkspace(tmp_path / "w", private_home, cloud, ahead_s=400 * DAY_S)
    refusal = error(later.type("--json", *command, check=3))
    assert re.search(f"{DAYS_400} old", refusal["message"])
    assert "fcctl cost prices --refresh" in refusal["hint"]
    assert "--accept-old-prices" in refusal["hint"]
    assert (starts(cloud), billed(cloud)) == (0, [])


def test_old_prices_are_named_at_every_plan_and_ones_of_a_year_are_accepted_in_words(
    cloud: Emulator, tmp_path: Path, private_home: Path
) -> None:
    later = CloudWorkspace(tmp_path / "w", private_home, cloud, ahead_s=100 * DAY_S)
    for command in PLANS[:2]:
        said = later.type(*command, check=0).err
        assert re.search(f"{DAYS_100} old: get today's prices: fcctl cost prices --refresh", said)
    later.ahead_s = 60 * DAY_S
    assert "days old" not in later.type(*PLANS[0], check=0).said
    later.ahead_s = 400 * DAY_S
    for command in PLANS[:2]:
        assert re.search(f"{DAYS_400} old", later.type(*command, "--accept-old-prices", check=0).err)
    own = CloudWorkspace(tmp_path / "own", private_home, cloud, ahead_s=400 * DAY_S, usd_per_hour=0.75)
    assert "days old" not in own.type(*PLANS[0], check=0).said, "what the user says himself has no date"


LONG = """
steps:
  - {id: one, run: 'true', timeout: 1m}
  - id: two
    timeout: 5m
    run: |
      if [ ! -e "$HOME/second-time" ]; then touch "$HOME/second-time" "$HOME/at-work"; sleep 300; fi
"""


@pytest.mark.full
def test_a_machine_that_became_dearer_is_not_woken_again_unasked(workspace: CloudWorkspace, cloud: Emulator) -> None:
    """Neither to fetch what is on its disk, nor to go on with the run; and with the option within the caps."""
    workspace.job("long", LONG)
    run_id = workspace.type("--json", "run", "long", "--on", "l4", "--yes", "--detach", check=0).json["run_id"]
    wait_for((cloud.home(INSTANCE) / "at-work").exists)
    stop_by_hand(cloud)
    become(cloud, "g2-standard-96")
    before = starts(cloud)
    for command in (("pull-results", "--wake", "--yes"), ("run", "--resume", run_id, "--yes")):
        refusal = workspace.type(*command, check=5).err
        for said in ("$8.00 an hour", "$0.71", "--accept-price"):
            assert said in refusal, command
    assert (starts(cloud), billed(cloud)) == (before, [])
    going = workspace.type("run", "--resume", run_id, "--yes", "--accept-price", check=0)
    assert "may cost $4.3" in going.err, "what is left is planned with the price of the machine as it is"
    runs = workspace.runs()
    (later,) = (run for name, run in runs.items() if name != run_id)
    assert later["cost"]["usd_per_hour"] == pytest.approx(BIG, abs=1e-4)
    assert later["status"] == "passed"
    assert billed(cloud) == []


@pytest.mark.parametrize("caps", ["usd_per_hour = 2.0\nper_run_usd = 1.0", "per_run_usd = 0.3"], ids=["price", "cap"])
def test_a_run_is_resumed_within_the_present_cap_of_a_run(
    caps: str, workspace: CloudWorkspace, cloud: Emulator
) -> None:
    """The price has risen since, or the cap was lowered."""
    workspace.job("long", LONG)
    config = workspace.root / "fcctl.toml"
    before = config.read_text()
    config.write_text(f"{before}\n[budget]\nusd_per_hour = 0.75\nper_run_usd = 1.0\n")
    run_id = workspace.type("--json", "run", "long", "--on", "l4", "--yes", "--detach", check=0).json["run_id"]
    wait_for((cloud.home(INSTANCE) / "at-work").exists)
    stop_by_hand(cloud)
    config.write_text(f"{before}\n[budget]\n{caps}\n")
    had = starts(cloud)
    refusal = workspace.type("run", "--resume", run_id, "--yes", check=5).err
    assert "(per_run_usd of [budget])" in refusal
    assert "--steps" not in refusal, "a resumed run keeps its job's options"
    assert (starts(cloud), billed(cloud)) == (had, [])


def test_each_machine_of_a_search_has_its_own_price(workspace: CloudWorkspace, cloud: Emulator) -> None:
    metric = "{reader: metrics, file: $TUNE_OUT/bench.json, value: metrics.us}"
    workspace.write_search("few", f"parameters: {{N: [1, 2]}}\ncheck: 'true'\nbench: 'true'\nmetric: {metric}\n")
    tune = ("--json", "tune", "few", "--on", "l4", "--hosts", "2", "--timeout", "5m", "--dry-run")
    both = workspace.type(*tune, check=0).json
    become(cloud, "g2-standard-96")
    assert "$8.00 an hour" in error(workspace.type(*tune, check=5))["message"]
    accepted = workspace.type(*tune, "--accept-price", check=0).json
    assert accepted["worst_case"]["usd_per_hour"] == pytest.approx(BIG, abs=1e-4)
    (other,), (before,) = accepted["members"], both["members"]
    assert other["worst_case"] == before["worst_case"], "it is not there, and is made as the target describes it"


@pytest.mark.parametrize("verb", ["resume", "lost"])
def test_a_secret_that_is_not_set_any_more_keeps_no_machine_on(
    verb: str, workspace: CloudWorkspace, cloud: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another terminal than that of the run: it is asked for before anything is started."""
    monkeypatch.setenv("API_TOKEN", "not-a-real-token-1")
    workspace.job("long", f"{LONG}secrets: [API_TOKEN]\n")
    run_id = workspace.type("--json", "run", "long", "--on", "l4", "--yes", "--detach", check=0).json["run_id"]
    wait_for((cloud.home(INSTANCE) / "at-work").exists)
    stop_by_hand(cloud)
    if verb == "lost":  # the rest of a run that was collected
        workspace.type("pull-results", "--wake", run_id, "--yes")
    had = starts(cloud)
    monkeypatch.delenv("API_TOKEN")
    refusal = workspace.type("run", "--resume", run_id, "--yes", check=3).err
    assert "the secret API_TOKEN is not set" in refusal
    assert (starts(cloud), billed(cloud)) == (had, [])
