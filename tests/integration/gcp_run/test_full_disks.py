"""Results that have no room here: on a full disk, and beyond what a run may bring home. The machine is stopped all the
same, and its disk keeps them.

With small disks of the test's own, where it may mount them; and with the kernel's limit on files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace
from tests.support.hook import Hook
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.tiers import sampled
from tests.support.waiting import wait_for

Make = Callable[..., CloudWorkspace]
ON, OFF = {"us-west1-c": "RUNNING"}, {"us-west1-c": "TERMINATED"}
#: A step that says that it runs, and leaves two megabytes when it may.
JOB = """
steps:
  - id: write
    timeout: 60
    run: |
      touch "$PLACE/runs"
      until [ -e "$PLACE/go" ]; do sleep 0.05; done
      head -c 2000000 /dev/urandom > "$FCCTL_OUT/big"
env: {PLACE: unset}
"""
#: begun, acquire, create, acquired, arm, armed, sync, submit, submitted, ended, collected, release, stop, released,
#: complete.
LINES = 15


@pytest.fixture
def workspace(shared_cloud: Emulator, workspace_on: Make, tmp_path: Path, hook: Hook) -> CloudWorkspace:
    made = workspace_on(shared_cloud)
    made.job("work", JOB.replace("unset", str(tmp_path)))
    with (made.root / "fcctl.toml").open("a") as stream:
        stream.write(f"\n[notify]\nwebhook = {json.dumps(hook.url)}\n")
    return made


@pytest.fixture
def results(workspace: CloudWorkspace) -> Iterator[SmallDisk]:
    with small_disk(workspace.root / "results") as disk:
        yield disk


def told(hook: Hook) -> list[tuple[str, str]]:
    return [(notice["event"], notice["run"]["status"]) for _, notice in hook.got if "run" in notice]


def detached(workspace: CloudWorkspace, tmp_path: Path) -> str:
    """The id of a run whose step is at work, and which nobody follows."""
    run_id = workspace.fcctl("run", "work", "--on", "l4", "-d").stdout.strip()
    wait_for((tmp_path / "runs").exists)
    return run_id


def fetched(workspace: CloudWorkspace) -> dict[str, Any]:
    """The record of the only run, once there is room again."""
    workspace.fcctl("--yes", "pull-results", "--wake", check=None)
    assert workspace.active() == []
    assert workspace.statuses() in (OFF, {})
    return workspace.only_run()


@pytest.mark.parametrize("line", sampled(range(1, LINES + 1), keep=[8]))
def test_full_from_a_line_of_the_journal_on(line: int, workspace: CloudWorkspace, tmp_path: Path, hook: Hook) -> None:
    (tmp_path / "go").touch()
    done = workspace.changed("full", line, "run", "work", "--on", "l4")
    assert (done.returncode, "disk is full" in done.stderr) == (1, True), done.stderr
    assert "Traceback" not in done.stderr
    assert workspace.statuses() == (OFF if line > 3 else {})
    assert told(hook) == ([] if line == 1 else [("failed", "error" if line < 9 else "passed")])
    record = fetched(workspace)
    assert record["status"] == ("error" if line < 9 else "passed")
    assert (workspace.only_folder() / "steps/write/out/big").exists() == (line >= 9)
    assert record["cost"]["usd"] <= 0.5, "within the plan"


def test_it_says_what_it_came_to_and_what_fetching_costs(
    workspace: CloudWorkspace, results: SmallDisk, tmp_path: Path, hook: Hook
) -> None:
    (tmp_path / "go").touch()
    done = workspace.fcctl("run", "work", "--on", "l4", check=1)
    assert workspace.statuses() == OFF
    (run_id,) = workspace.active()
    error, cause, hint = done.stderr.splitlines()[-3:]
    assert error == "error: this computer's disk is full: could not store the results"
    assert "the run ended as passed and has cost $0.01 so far; its results are on the disk" in cause
    assert f"disk of {workspace.instance}, which is off" in cause
    assert hint.startswith("hint:  free disk space, then fetch them for $0.")
    assert hint.endswith(f" at most: fcctl pull-results --wake {run_id}")
    ((_, notice),) = hook.got
    assert (notice["event"], notice["run"]["status"]) == ("failed", "passed")
    assert notice["run"]["hint"] == hint.removeprefix("hint:  ")
    assert notice["run"]["usd"] == pytest.approx(0.01, abs=0.01)
    (state,) = workspace.json("ps")["runs"]
    assert (state["state"], state["detail"]) == ("waiting", "passed: this computer's disk has no space for its results")
    assert workspace.fcctl("--yes", "pull-results", "--wake", check=1).stderr.splitlines()[-3] == error
    assert workspace.statuses() == OFF, "woken once more, and stopped once more"
    results.resize("20m")
    record = fetched(workspace)
    assert (record["status"], record["exit_code"], record["message"]) == ("passed", 0, None)
    assert (workspace.only_folder() / "steps/write/out/big").stat().st_size == 2_000_000
    assert len(record["machine"]["sittings"]) == 3


def test_nobody_follows_it(workspace: CloudWorkspace, tmp_path: Path, hook: Hook) -> None:
    run_id = detached(workspace, tmp_path)
    assert "running" in workspace.changed("full", 0, "ps").stdout
    assert workspace.statuses() == ON
    (tmp_path / "go").touch()
    wait_for(lambda: (workspace.changed("full", 0, "ps"), workspace.statuses() == OFF)[1])
    assert "waiting" in workspace.changed("full", 0, "ps").stdout
    assert told(hook) == [("failed", "passed")], "by the one that stopped the machine"
    assert fetched(workspace)["run_id"] == run_id


@pytest.mark.parametrize("ruin", ["fill", "protect", "broken"])
def test_a_session_s_machine_is_stopped_all_the_same(ruin: str, workspace: CloudWorkspace, results: SmallDisk) -> None:
    workspace.fcctl("session", "start", "--on", "l4", "--budget", "1")
    assert workspace.statuses() == ON
    if ruin in ("fill", "protect"):
        getattr(results, ruin)()
        done = workspace.fcctl("session", "stop", check=1)
    else:
        done = workspace.changed("broken", str(results.root), "session", "stop")
    assert (done.returncode, workspace.statuses()) == (1, OFF), done.stderr
    labels = [line.split(":")[0] for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert labels == ["release", "error", "cause", "hint"], done.stderr


TWO_FILES = """
steps:
  - id: write
    timeout: 60
    run: |
      head -c 2000000 /dev/zero > "$FCCTL_OUT/big"
      head -c 400000 /dev/zero > "$FCCTL_OUT/small"
"""


@pytest.mark.parametrize("release", sampled(["stop", "delete"], keep=("stop",)))
def test_the_rest_comes_home_and_the_machine_goes_off(release: str, shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud, release=release)
    workspace.job("work", TWO_FILES)
    done = workspace.changed("most", 1_000_000, "run", "work", "--on", "l4")
    assert done.returncode == 0, done.stderr
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}, "never deleted: its disk has the only copy"
    assert workspace.active() == []
    record = workspace.only_run()
    assert (record["status"], record["omitted"]) == (
        "passed", [{"path": "steps/write/out/big", "reason": "too_large"}],
    )  # fmt: skip
    assert sorted(path.name for path in (workspace.only_folder() / "steps/write/out").iterdir()) == ["small"]
    assert "too large  steps/write/out/big" in " ".join(
        done.stdout.split("Not collected from the host")[1].splitlines()
    )
    said = (
        f"{workspace.instance} instead of deleting it: steps/write/out/big is only on its disk, because it is too"
        f" large to fetch"
    )
    assert (said in done.stderr) is (release == "delete")
