"""``fcctl session start`` and ``stop`` killed with SIGKILL at every line of the journal: the next look ends it."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace
from tests.support.tiers import sampled

Make = Callable[..., CloudWorkspace]
START = ("session", "start", "--on", "l4", "--budget", "1")


def kinds(workspace: CloudWorkspace) -> list[str]:
    import json

    (path,) = (workspace.root / "results/sessions").glob("2*/journal.jsonl")
    return [json.loads(line)["kind"] for line in path.read_text().splitlines()]


def test_the_lines_this_test_kills_at(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.fcctl(*START)
    assert kinds(workspace) == ["begun", "acquire", "cloud", "acquired", "opened"]
    workspace.fcctl("session", "stop")
    assert kinds(workspace)[5:] == ["release", "cloud", "released"]


@pytest.mark.parametrize(
    ("when", "line"),
    sampled([*(("after", n) for n in range(1, 6)), ("before", 4), ("before", 5)], keep=[("after", 3), ("after", 5)]),
)
def test_killed_while_it_starts(when: str, line: int, shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    assert workspace.killed(when, line, *START) == -signal.SIGKILL
    if workspace.statuses().get("us-west1-c") == "RUNNING" and (when, line) != ("after", 5):
        audit = workspace.json("hosts", "audit", check=None)
        verdicts = [m["verdict"] for m in audit["machines"] if m["name"] == workspace.instance]
        assert verdicts == ["stray"], "the audit finds it too"
    found = workspace.json("session", "status")["sessions"]
    if (when, line) == ("after", 5):  # it is open, whatever became of the fcctl that opened it
        assert [one["stage"] for one in found] == ["open"]
        workspace.fcctl("session", "stop")
    else:
        assert found == []
    assert set(workspace.statuses().values()) <= {"TERMINATED"}
    workspace.fcctl(*START)
    workspace.fcctl("session", "stop")
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}


@pytest.mark.parametrize("line", sampled([1, 2, 3], keep=[2]))
def test_killed_while_it_stops(line: int, shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.fcctl(*START)
    assert workspace.killed("after", line, "session", "stop") == -signal.SIGKILL
    workspace.fcctl("ps")
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}
    assert workspace.json("session", "status")["sessions"] == []
