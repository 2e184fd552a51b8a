"""``fcctl run --stop-at-budget``: a run ends before its cap, with whoever follows it or without anybody."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import home_of_its_own
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

#: One worker: the runs of a fixture are waited for once, for most of a minute.
pytestmark = [pytest.mark.group("stop-at-budget"), pytest.mark.first]

#: 0.60 dollars a second, so that a cap of six dollars lasts for ten seconds. The caps below leave a busy computer time
#: to come to the second step, and to end in order. That step says something every second, so that who follows looks
#: at the bill between the warning and the end, which are some seconds from each other here.
RATE = 2160.0
JOB = """
steps:
  - id: quick
    timeout: 60
    activity: bench
    run: |
      echo '{"kind": "metrics", "schema_version": 1, "metrics": {"answer": 42}}' > "$FCCTL_OUT/m.json"
  - id: long
    timeout: 600
    run: |
      trap 'echo noticed; exit 1' TERM
      for i in $(seq 600); do sleep 1; echo $i; done
"""


def make(folder: Path, home: Path, **here: object) -> Workspace:
    """A workspace whose target ``here`` costs :data:`RATE`, and has the other values ``here``."""
    made = Workspace(folder, home)
    values = "".join(f"\n{name} = {json.dumps(value)}" for name, value in {"usd_per_hour": RATE, **here}.items())
    text = (made.root / "fcctl.toml").read_text()
    (made.root / "fcctl.toml").write_text(text.replace('kind = "local"', f'kind = "local"{values}'))
    made.job("long", JOB)
    return made


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    return make(tmp_path / "w", private_home)


@dataclass
class Ended:
    """What a command said, and where."""

    workspace: Workspace
    code: int
    stderr: str


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Ended]]:
    """Two runs that meet their ends, side by side: nearly all of their time is waiting for it.

    In virtual time, and in every ``make test``, the same is in tests/unit/runs/test_guard_flow.py and the simulation.
    """
    commands = {"followed": (["--budget", "30"], ""), "detached": (["--budget", "18", "-d"], "")}
    with pytest.MonkeyPatch.context() as patch, home_of_its_own(patch) as home:
        processes, found = {}, {}
        for name, (options, config) in commands.items():
            # A root of its own: else it would wait for the machine that another has.
            made = make(tmp_path_factory.mktemp("budget") / "w", home, root=str(home / name))
            with (made.root / "fcctl.toml").open("a") as file:
                file.write(config)
            argv = ["run", "long", "--on", "here", "--stop-at-budget", *options]
            processes[name] = (made, made.start(*argv))
        for name, (made, process) in processes.items():
            stderr = process.communicate()[1]
            found[name] = Ended(made, process.returncode, stderr)
        yield found


def check_ended_in_time(workspace: Workspace, cap: float) -> dict[str, Any]:
    record = workspace.only_run()
    assert (record["status"], record["exit_code"]) == ("over_budget", 5)
    assert [(s["id"], s["status"]) for s in record["steps"]] == [("quick", "passed"), ("long", "cancelled")]
    assert 0 < record["cost"]["usd"] <= cap
    assert (workspace.only_folder() / "steps/quick/out/m.json").is_file(), "partial results are home"
    assert "noticed" in (workspace.only_folder() / "steps/long/log.txt").read_text(), "the step had its notice"
    return record


def test_refused_unless_it_may_be_ended(workspace: Workspace) -> None:
    done = workspace.fcctl("run", "long", "--on", "here", "--budget", "30", check=5)
    assert "may cost $396.00, more than the cap of $30.00 (--budget)" in done.stderr
    assert "--stop-at-budget" in done.stderr
    plan = workspace.fcctl("run", "long", "--on", "here", "--budget", "30", "--stop-at-budget", "--dry-run")
    assert "stops it before it has cost $30.00" in plan.stdout
    shown = workspace.json("run", "long", "--on", "here", "--budget", "30", "--stop-at-budget", "--dry-run")
    assert shown["worst_case"]["usd"] <= 30
    assert shown["worst_case"]["stop_at_usd"] == 30
    useless = workspace.fcctl("run", "long", "--on", "here", "--budget", "0.3", "--stop-at-budget", check=5)
    assert "too few to start a run" in useless.stderr
    assert workspace.runs() == {}
    assert workspace.active() == []


@pytest.mark.full
def test_followed_it_warns_and_ends(ended: dict[str, Ended]) -> None:
    run = ended["followed"]
    assert run.code == 5, run.stderr
    record = check_ended_in_time(run.workspace, 30)
    assert "of the cap of $30.00 (--budget) are spent" in run.stderr
    assert "spent" in record["message"]


@pytest.mark.full
def test_with_nobody_there_the_host_ends_it(ended: dict[str, Ended]) -> None:
    run = ended["detached"]
    assert run.code == 0, run.stderr
    workspace = run.workspace
    (run_id,) = workspace.active()
    outcome = workspace.home / f"detached/runs/{run_id}/outcome.json"
    wait_for(outcome.exists)
    assert json.loads(outcome.read_text())["status"] == "over_budget"
    workspace.fcctl("pull-results", check=None)
    assert "spent its budget" in check_ended_in_time(workspace, 18)["message"]
