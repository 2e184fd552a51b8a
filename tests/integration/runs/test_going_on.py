"""`fcctl run --resume` on machines that nobody turns on: what was cut off there goes on where it was."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.living import kill_supervisor
from tests.support.sshd import LoopbackSshd
from tests.support.tiers import sampled
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

SLOW = """
steps:
  - id: one
    run: |
      echo one >> "$COUNT"
      mkdir built && echo 42 > built/thing
      printf '{"kind": "metrics", "schema_version": 1, "metrics": {"answer": 42}}' > "$FCCTL_OUT/m.json"
  - id: two
    run: |
      echo two >> "$COUNT"
      until [ -e "$COUNT.go" ]; do sleep 0.1; done
      cat built/thing
    gates: [metrics.metrics.answer == 42]
  - {id: three, run: 'echo three >> "$COUNT"'}
"""
SEARCH = """
env: {COUNT: %s}
parameters: {N: [1, 2, 3, 4]}
check: echo $N >> $COUNT; [ $N -lt 3 ] || until [ -e $COUNT.go ]; do sleep 0.1; done
bench: echo "{\\"us\\":" $N "}" > $TUNE_OUT/bench.json
metric: {reader: metrics, file: $TUNE_OUT/bench.json, value: metrics.us}
trials: 4
elites: 1
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> Workspace:
    return Workspace(tmp_path / "w", private_home, sshd)


def supervisor_killed(workspace: Workspace, home: Path) -> None:
    kill_supervisor(home)


def cancelled(workspace: Workspace, home: Path) -> None:
    workspace.fcctl("cancel", "last")


ENDS = [(target, *end) for target in ("here", "box") for end in ((supervisor_killed, "lost"), (cancelled, "cancelled"))]


@pytest.mark.parametrize(("target", "end", "status"), sampled(ENDS, keep=(ENDS[0], ENDS[3])))
def test_its_first_unfinished_step_is_the_first_one(
    workspace: Workspace, sshd: LoopbackSshd, tmp_path: Path, target: str, end: Callable[..., None], status: str
) -> None:
    count = tmp_path / "count"
    workspace.job("slow", f"env: {{COUNT: {count}}}\n{SLOW}")
    running = workspace.start("run", "slow", "--on", target)
    wait_for(lambda: count.exists() and count.read_text().split() == ["one", "two"])
    end(workspace, sshd.home if target == "box" else workspace.home)
    _, said = running.communicate()
    assert workspace.only_run()["status"] == status, said
    (old,) = workspace.runs()
    Path(f"{count}.go").touch()
    told = workspace.fcctl("run", "--resume", old).stderr
    assert f"resumes {old} at step two" in told
    new = next(record for run_id, record in workspace.runs().items() if run_id != old)
    assert new["status"] == "passed"
    assert [s["id"] for s in new["steps"]] == ["one", "two", "three"]
    assert [g["verdict"] for g in new["steps"][1]["gates"]] == ["pass"], "the finished step's document is known"
    assert count.read_text().split() == ["one", "two", "two", "three"]
    refused = workspace.fcctl("run", "--resume", new["run_id"], check=None)
    assert refused.returncode != 0
    assert "it ended as passed" in refused.stderr
    refused = workspace.fcctl("run", "--resume", old, check=8)
    assert f"run {new['run_id']} has already resumed {old} and ended as passed" in refused.stderr
    assert f"fcctl results show {new['run_id']}" in refused.stderr


def test_one_that_was_killed_before_its_host_had_it_keeps_the_documents_it_began_with(
    workspace: Workspace, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    workspace.job("slow", f"env: {{COUNT: {count}}}\n{SLOW}")
    workspace.fcctl("run", "slow", "--on", "here", "--detach")
    wait_for(lambda: count.exists() and count.read_text().split() == ["one", "two"])
    workspace.fcctl("cancel", "last")
    assert workspace.killed("after", 2, "run", "--resume", "last") == -signal.SIGKILL
    (resumed,) = workspace.active()
    workspace.fcctl("ps")
    shown = workspace.json("results", "show", resumed)
    assert shown["run"]["status"] == "error"
    assert shown["problems"] == []
    assert [document["content"]["metrics"] for document in shown["documents"]] == [{"answer": 42}]


def test_one_that_nobody_has_fetched_yet_comes_home_first(
    workspace: Workspace, sshd: LoopbackSshd, tmp_path: Path
) -> None:
    count = tmp_path / "count"
    workspace.job("slow", f"env: {{COUNT: {count}}}\n{SLOW}")
    workspace.fcctl("run", "slow", "--on", "box", "--detach")
    wait_for(lambda: count.exists() and count.read_text().split() == ["one", "two"])
    (old,) = workspace.active()
    refused = workspace.fcctl("run", "--resume", old, check=8).stderr
    assert f"run {old} is still active: nothing to resume" in refused
    supervisor_killed(workspace, sshd.home)
    Path(f"{count}.go").touch()
    workspace.fcctl("run", "--resume", old)
    assert workspace.active() == []
    assert sorted(record["status"] for record in workspace.runs().values()) == ["lost", "passed"]
    assert count.read_text().split() == ["one", "two", "two", "three"]


@pytest.mark.full
def test_a_cancelled_search_repeats_no_trial(workspace: Workspace, tmp_path: Path) -> None:
    count = tmp_path / "count"
    workspace.write_search("small", SEARCH % count)
    running = workspace.start("tune", "small", "--on", "box")
    wait_for(lambda: count.exists() and "3" in count.read_text().split())
    workspace.fcctl("cancel", "last")
    running.communicate()
    (old,) = workspace.runs()
    Path(f"{count}.go").touch()
    workspace.fcctl("run", "--resume", old)
    (new,) = set(workspace.runs()) - {old}
    assert workspace.runs()[new]["status"] == "passed"
    assert re.search(r"trials +4 of 4:", workspace.fcctl("results", "show", new).stdout)
    tried = count.read_text().split()
    assert tried[0] == "1", "the default; others are begun at once, in any order"
    assert tried.count("2") <= 2, "once as a trial, once as an elite"


def test_a_step_that_failed_by_itself_is_not_begun_again(workspace: Workspace) -> None:
    workspace.job("wrong", "steps: [{id: one, run: exit 1}]")
    workspace.fcctl("run", "wrong", "--on", "here", check=100)
    assert "it ended as failed" in workspace.fcctl("run", "--resume", "last", check=8).stderr
