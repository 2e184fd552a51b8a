"""A controller killed with SIGKILL at a line of a journal that has a machine in it: nothing is left running.

At every line: test_killed_at_every_line_of_its_journals of the simulation.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace
from tests.support.counted_run import JOB, check_whole, pick_up
from tests.support.tiers import sampled
from tests.support.waiting import wait_for

Make = Callable[..., CloudWorkspace]


def check_whole_and_off(workspace: CloudWorkspace, count: Path) -> None:
    check_whole(workspace, count)
    assert set(workspace.statuses().values()) <= {"TERMINATED"}, "nothing is left running"
    assert len(workspace.machines()) <= 1
    assert workspace.only_run()["cost"]["usd"] <= 0.5, "within the plan"


#: Of begun, acquire, create, acquired, arm, armed, sync, submit, submitted, ended, collected, release, stop, released,
#: complete. Before a line: what the line before announced has happened. A request that was never sent may be on its way
#: for 30 s, as far as the next command knows.
@pytest.mark.parametrize(
    ("when", "line"),
    [pytest.param("after", 3, marks=pytest.mark.full), ("before", 4), ("after", 9), ("after", 13)],
)
def test_killed_at_a_line(when: str, line: int, shared_cloud: Emulator, workspace_on: Make, tmp_path: Path) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.job("count", JOB)
    count = tmp_path / "count"
    code = workspace.killed(when, line, "run", "count", "--on", "l4", "--set", f"COUNT={count}")
    assert code == -signal.SIGKILL
    pick_up(workspace)
    check_whole_and_off(workspace, count)


@pytest.mark.parametrize("line", sampled([1, 2, 3, 5], keep=[3]))
def test_killed_while_it_wakes_a_machine_for_what_is_on_its_disk(
    line: int, shared_cloud: Emulator, workspace_on: Make, tmp_path: Path
) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.job("count", JOB)
    count = tmp_path / "count"
    workspace.fcctl("run", "count", "--on", "l4", "-d", "--set", f"COUNT={count}")
    wait_for(lambda: list(shared_cloud.home(workspace.instance).glob(".fcctl/runs/*/outcome.json")))
    shared_cloud.control.happen(workspace.instance, "guestTerminate")
    wait_for(lambda: workspace.statuses() == {"us-west1-c": "TERMINATED"})  # while it goes down, the run can be fetched
    (run_id,) = workspace.active()
    assert workspace.json("ps")["runs"][0]["state"] == "waiting"
    workspace.killed("after", line, "--yes", "pull-results", "--wake", run_id)
    workspace.fcctl("ps")
    if workspace.active():  # woken or not: it is off, and waits as before
        assert workspace.json("ps")["runs"][0]["state"] == "waiting"
        workspace.fcctl("--yes", "pull-results", "--wake", run_id)
    check_whole_and_off(workspace, count)


def test_the_next_run_brings_the_killed_one_home_before_it_stops_the_machine(
    shared_cloud: Emulator, workspace_on: Make, tmp_path: Path
) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.job("count", JOB)
    first, second = tmp_path / "first", tmp_path / "second"
    workspace.killed("after", 9, "run", "count", "--on", "l4", "--set", f"COUNT={first}")
    workspace.fcctl("run", "count", "--on", "l4", "--set", f"COUNT={second}")
    assert [record["status"] for record in workspace.runs().values()] == ["passed", "passed"]
    assert first.read_text() == second.read_text() == "one\ntwo\n"
    assert workspace.active() == []
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}
