"""``fcctl session start`` and ``stop`` killed with SIGKILL at a line of the journal: the next look ends it.

At every line: test_killed_at_every_line_of_its_journals of the simulation.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace

Make = Callable[..., CloudWorkspace]
START = ("session", "start", "--on", "l4", "--budget", "1")


#: Of begun, acquire, cloud, acquired, opened.
@pytest.mark.parametrize(("when", "line"), [("before", 4), ("before", 5), ("after", 5)])
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


def test_killed_while_it_stops(shared_cloud: Emulator, workspace_on: Make) -> None:
    """When it has asked the cloud."""
    workspace = workspace_on(shared_cloud)
    workspace.fcctl(*START)
    assert workspace.killed("after", 2, "session", "stop") == -signal.SIGKILL
    workspace.fcctl("ps")
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}
    assert workspace.json("session", "status")["sessions"] == []
