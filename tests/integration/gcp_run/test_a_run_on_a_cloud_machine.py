"""``fcctl run --on`` a machine of a cloud, from acquire to release, through the real library and the real command."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace
from tests.support.waiting import wait_for

Make = Callable[..., CloudWorkspace]
HELLO = "steps:\n  - {id: say, run: 'echo hello', timeout: 60}\n"
SLOW = """
steps:
  - id: one
    timeout: 60
    run: |
      echo one >> "$HOME/count"
      mkdir -p built && echo made > built/thing
      echo '{"kind": "metrics", "schema_version": 1, "metrics": {"answer": 42}}' > "$FCCTL_OUT/m.json"
  - id: two
    timeout: 60
    run: |
      echo two >> "$HOME/count"
      [ -e "$HOME/go" ] || sleep 60
      cat built/thing
    gates: [metrics.metrics.answer == 42]
  - {id: three, timeout: 60, run: 'echo three >> "$HOME/count"'}
"""


def kinds(lines: list[dict[str, Any]]) -> list[str]:
    return [f"cloud {x['data']['action']}" if x["kind"] == "cloud" else x["kind"] for x in lines]


def running_step(workspace: CloudWorkspace, *argv: str, count: int = 2) -> Any:
    """``fcctl run slow`` that has come to its step ``two``."""
    process = workspace.start("run", "slow", "--on", "l4", *argv)
    wait_for(lambda: counted(workspace)[count - 1 : count] == ["two"])
    return process


def counted(workspace: CloudWorkspace) -> list[str]:
    if not workspace.machines():
        return []
    path = workspace.cloud.home(workspace.instance) / "count"
    return path.read_text().split() if path.exists() else []


def test_made_then_woken_and_stopped_each_time(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.job("hello", HELLO)
    first = workspace.fcctl("run", "hello", "--on", "l4")
    assert "may cost $" in first.stderr
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}
    scheduling = workspace.machines()["us-west1-c"].resource["scheduling"]
    assert scheduling["instanceTerminationAction"] == "STOP"
    (run_id,) = workspace.runs()
    assert kinds(workspace.journal(run_id)) == [
        "begun", "acquire", "cloud create", "acquired", "arm", "armed", "sync", "submit", "submitted", "ended",
        "collected", "release", "cloud stop", "released", "complete",
    ]  # fmt: skip
    record = workspace.only_run()
    assert record["machine"]["released"] == "stopped"
    began, ended = (datetime.fromisoformat(record["machine"][key]) for key in ("began", "ended"))
    on_s = (ended - began).total_seconds()  # a busy computer may take more than a minute
    assert record["cost"]["billed_s"] == pytest.approx(max(60.0, on_s), abs=0.01), "the least that is billed"
    activities = {line["activity"] for line in record["cost"]["breakdown"]}
    assert activities >= {"boot", "sync", "test", "stop"}
    assert ("minimum" in activities) is (on_s < 60)
    workspace.fcctl("run", "hello", "--on", "l4")
    assert workspace.operations("insert") == ["insert"]
    assert workspace.operations("start") == ["start"]
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}


def test_nothing_is_started_without_a_yes(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud, cap=None)
    workspace.job("hello", HELLO)
    done = workspace.fcctl("run", "hello", "--on", "l4", check=2)
    assert "--yes" in done.stderr
    assert workspace.machines() == {}
    assert workspace.active() == []
    workspace.fcctl("--yes", "run", "hello", "--on", "l4")
    assert workspace.only_run()["status"] == "passed"


def test_preempted_then_resumed_at_the_first_unfinished_step(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.job("slow", SLOW)
    process = running_step(workspace)
    shared_cloud.preempt(workspace.instance)
    _, err = process.communicate()
    assert process.returncode == 100, err
    assert "preempted" in err
    (state,) = workspace.json("ps")["runs"]
    assert state["state"] == "waiting"
    refused = workspace.fcctl("pull-results", check=100).stderr
    assert "--wake" in refused
    assert "$" in refused
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}, "looking costs nothing"
    (workspace.cloud.home(workspace.instance) / "go").touch()
    workspace.fcctl("run", "--resume", state["run_id"])
    records = workspace.runs()
    old = records.pop(state["run_id"])
    (new,) = records.values()
    journal = workspace.journal(state["run_id"])
    assert (old["status"], new["status"]) == ("preempted", "passed")
    assert [s["status"] for s in old["steps"]][:1] == ["passed"]
    assert [s["id"] for s in new["steps"]] == ["one", "two", "three"]
    assert (old["parents"], new["parents"]) == ([], [old["run_id"]])
    assert [g["verdict"] for g in new["steps"][1]["gates"]] == ["pass"], "the finished step's document is known"
    assert counted(workspace) == ["one", "two", "two", "three"], "no finished step ran twice"
    assert workspace.active() == []
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}
    assert workspace.operations("insert") == ["insert"]
    told = kinds(journal)
    again = told[len(told) - told[::-1].index("acquired") : told.index("collected")]
    assert "armed" in again, "the machine powers itself off if fcctl is killed while it fetches"


@pytest.mark.full
def test_kept_for_the_next_run_which_asks_no_cloud(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud, release="keep", keep_minutes=10)
    workspace.job("hello", HELLO)
    workspace.fcctl("run", "hello", "--on", "l4")
    assert workspace.statuses() == {"us-west1-c": "RUNNING"}
    (first,) = workspace.runs()
    shared_cloud.faults.add(path=f"*{workspace.instance}*", do={"http": 503})
    workspace.fcctl("run", "hello", "--on", "l4")
    (second,) = set(workspace.runs()) - {first}
    assert [x for x in kinds(workspace.journal(second)) if x.startswith("cloud")] == []
    assert workspace.runs()[second]["machine"]["released"] == "kept"
    timers = workspace.machines()["us-west1-c"].timers
    assert len(timers) == 1, "it stops itself"
    assert 0 < next(iter(timers.values())) - shared_cloud.clock.now() <= 601
