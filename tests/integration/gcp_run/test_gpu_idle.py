"""A machine of a cloud whose GPU is idle: the run ends with what it has, and the machine goes off, whoever looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from orchestrator.emulator.scenario import Scenario
from tests.support.cloud_workspace import CloudWorkspace
from tests.support.fake_nvidia_smi import fake_nvidia_smi
from tests.support.waiting import wait_for

Make = Callable[..., CloudWorkspace]
RULE = "idle = {gpu_below = 5, minutes = 0.02}\n"
#: The GPU is idle once the step has left half of its work, and not where it ends at once: a busy computer may need more
#: than the rule's 1.2 s for either.
JOB = """
env: {USED: unset}
steps:
  - id: train
    uses_gpu: true
    timeout: 10m
    run: |
      echo half > "$FCCTL_ARTIFACTS/model"
      [ -e "$HOME/go-on" ] || { echo 0 > "$USED"; sleep 600; }
"""


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_nvidia_smi(tmp_path_factory.mktemp("image") / "bin")


@pytest.fixture(scope="module")
def idle_cloud(used: Path) -> Iterator[Emulator]:
    with Emulator(scenario=Scenario(guest_path=(str(used.parent),))) as cloud:
        yield cloud


def with_rule(workspace: CloudWorkspace, table: str, used: Path) -> CloudWorkspace:
    used.write_text("90")
    config = workspace.root / "fcctl.toml"
    config.write_text(config.read_text().replace(f"[{table}]\n", f"[{table}]\n{RULE}"))
    workspace.job("train", JOB.replace("unset", str(used)))
    return workspace


def test_followed_it_is_collected_the_machine_stopped_and_resumed_on_demand(
    idle_cloud: Emulator, workspace_on: Make, used: Path
) -> None:
    workspace = with_rule(workspace_on(idle_cloud), "targets.l4", used)
    plan = workspace.fcctl("run", "train", "--on", "l4", "--dry-run").stdout
    assert "stops if no GPU reaches 5 % for 1.2 s in train" in plan
    done = workspace.fcctl("run", "train", "--on", "l4", check=5)
    assert "GPU utilisation below 5 % for 1.2 s in step 'train'" in done.stdout + done.stderr
    assert "uses_gpu: false" in done.stdout + done.stderr
    record, (run_id,) = workspace.only_run(), workspace.runs()
    assert (record["status"], record["exit_code"]) == ("idle", 5)
    assert record["machine"]["released"] == "stopped"
    assert (workspace.only_folder() / "artifacts/model").read_text() == "half\n"
    assert set(workspace.statuses().values()) == {"TERMINATED"}
    assert [row["status"] for row in workspace.json("results", "ls", "--status", "idle")["runs"]] == ["idle"]
    (idle_cloud.home(workspace.instance) / "go-on").touch()
    used.write_text("90")
    workspace.fcctl("run", "--resume", run_id)
    assert sorted(one["status"] for one in workspace.runs().values()) == ["idle", "passed"]


@pytest.mark.full
def test_while_the_laptop_sleeps_the_host_ends_it_and_turns_itself_off(
    idle_cloud: Emulator, workspace_on: Make, used: Path
) -> None:
    workspace = with_rule(workspace_on(idle_cloud), "budget", used)
    run_id = workspace.json("run", "train", "--on", "l4", "--detach")["run_id"]
    there = idle_cloud.home(workspace.instance) / ".fcctl/runs" / run_id
    wait_for((there / "outcome.json").exists)
    machine = workspace.machines()["us-west1-c"]
    wait_for(lambda: any(due - idle_cloud.clock.now() < 15 * 60 for due in machine.timers.values()))
    idle_cloud.advance(15 * 60)
    wait_for(lambda: machine.status == "TERMINATED")
    workspace.fcctl("pull-results", "--wake", run_id, "--yes")
    assert workspace.only_run()["status"] == "idle"
    assert (workspace.only_folder() / "artifacts/model").read_text() == "half\n"
    assert machine.status == "TERMINATED"
