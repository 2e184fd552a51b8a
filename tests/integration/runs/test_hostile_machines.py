"""A machine that does what it can against the commands of a laptop: each of them answers, and soon."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import scripted_python
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

#: All that a step may reach of its run, and of what other runs use. It goes on when there is a file ``go``.
EVIL = r"""
steps:
  - id: evil
    run: |
      cd "$FCCTL_RUN_DIR"
      rm -rf events.jsonl telemetry.jsonl heartbeat.json steps/evil/log.txt plan.json supervisor.log cancel.json
      mkfifo events.jsonl telemetry.jsonl heartbeat.json steps/evil/log.txt plan.json supervisor.log cancel.json
      mkdir -p steps/last && ln -s /dev/zero steps/last/log.txt
      cd ../..
      rm -rf facts.json lease.json locks/queue.lock locks/lease.lock locks/tidied
      mkfifo facts.json lease.json locks/queue.lock locks/lease.lock locks/tidied
      until [ -e "$HOME/go" ]; do sleep 0.05; done
  - id: last
    run: echo over
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "w", private_home)
    made.job("evil", EVIL)
    made.job("fine", "lock: shared\nsteps:\n  - {id: say, run: echo fine}\n")
    made.job("long", "lock: shared\nsteps:\n  - {id: wait, run: 'until [ -e $HOME/go ]; do sleep 0.1; done'}\n")
    return made


def said(workspace: Workspace, *args: str, check: int | None = 0) -> str:
    done = workspace.fcctl(*args, check=check)
    return done.stdout + done.stderr


def test_fifos_in_the_place_of_a_run_s_files_hold_up_no_command(workspace: Workspace) -> None:
    workspace.job("evil", EVIL.replace("steps:", "lock: shared\nsteps:", 1))
    workspace.fcctl("run", "evil", "--on", "here", "--detach")
    (evil,) = workspace.active()
    folder = workspace.home / ".fcctl/runs" / evil
    wait_for((folder / "steps/last/log.txt").is_symlink)
    wait_for((workspace.home / ".fcctl/locks/tidied").is_fifo)
    assert evil in said(workspace, "ps")
    said(workspace, "logs", check=None)
    assert "passed" in said(workspace, "run", "fine", "--on", "here")
    (workspace.home / "go").touch()
    wait_for((folder / "outcome.json").is_file)
    assert evil in said(workspace, "pull-results")
    assert "no active runs" in said(workspace, "ps")
    assert "passed" in said(workspace, "results", "show", evil)
    assert len(workspace.json("results", "ls")["runs"]) == 2
    record = workspace.runs()[evil]
    omitted = {one["path"]: one["reason"] for one in record["omitted"]}
    assert omitted.pop("steps/evil/log.txt") == "fifo"
    # Made anew where something was written to them since.
    assert set(omitted.items()) <= {("supervisor.log", "fifo"), ("telemetry.jsonl", "fifo")}
    assert (workspace.root / "results/runs" / evil / "steps/last/log.txt").read_text() == "over\n"
    assert "passed" in said(workspace, "run", "fine", "--on", "here")


def moved_to(workspace: Workspace, run_id: str, change: Callable[[dict[str, Any]], None]) -> None:
    path = workspace.root / "results/active" / run_id / "plan.json"
    plan = json.loads(path.read_text())
    change(plan)
    path.write_text(json.dumps(plan))


@pytest.mark.full
def test_ps_takes_five_seconds_for_a_host_that_never_answers_however_many_runs_are_on_it(
    workspace: Workspace, tmp_path: Path
) -> None:
    for _ in range(6):
        workspace.fcctl("run", "long", "--on", "here", "--detach")
    python = scripted_python(tmp_path, "hello()\nwhile True:\n    time.sleep(0.2); send({'tick': 1.0})\n")
    first, *others = workspace.active()
    for run_id in others:
        moved_to(workspace, run_id, lambda plan: plan["target"].update(name="evil", python=python))
    began = time.monotonic()
    shown = {run["run_id"]: run for run in workspace.json("ps")["runs"]}
    assert time.monotonic() - began < 5 + 18
    assert shown[first]["state"] == "running"
    for run_id in others:
        assert shown[run_id]["state"] == "unreachable"
        assert "did not answer within 5 s" in shown[run_id]["detail"]
    for run_id in others:
        moved_to(workspace, run_id, lambda plan: plan["target"].update(name="here", python=None))
    (workspace.home / "go").touch()
    workspace.fcctl("pull-results", "--wait", check=None)


def test_one_run_that_cannot_be_read_hides_no_other(workspace: Workspace) -> None:
    """Whatever its journal holds: the programs before this one wrote down what a host said of its clock."""
    for _ in range(2):
        workspace.fcctl("run", "long", "--on", "here", "--detach")
    bad, good = workspace.active()
    journal = workspace.root / "results/active" / bad / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[-1]["data"] = {"deadline": 1e300, "started": "x", "action": [], "status": {}, "instance_id": None}
    extra = {**lines[-1], "seq": lines[-1]["seq"] + 1, "kind": "acquired", "time": 1e300}
    journal.write_text("".join(json.dumps(line) + "\n" for line in [*lines, extra]))
    shown = {run["run_id"]: run["state"] for run in workspace.json("ps")["runs"]}
    assert shown[good] == "running"
    assert bad in shown
    (workspace.root / "results/active/20261128t000000z-long-here-aaaaaa/journal.jsonl").mkdir(parents=True)  # no plan
    shown = {run["run_id"]: run["state"] for run in workspace.json("ps")["runs"]}
    assert (shown[good], shown["20261128t000000z-long-here-aaaaaa"]) == ("running", "broken")
    os.mkfifo(workspace.root / "results/tags.toml")
    for words in (["results", "ls"], ["schedule", "ls"], ["cost", "budget"], ["ps", "--offline"]):
        workspace.fcctl(*words)
    (workspace.home / "go").touch()
    wait_for(lambda: good in said(workspace, "pull-results", check=None) or good in workspace.runs())
