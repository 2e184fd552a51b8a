"""``fcctl session`` on a machine of a cloud: warm for several runs, within one budget; it ends by itself or killed."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace
from tests.support.waiting import wait_for

Make = Callable[..., CloudWorkspace]
HELLO = "steps:\n  - {id: say, run: 'echo hello', timeout: 60}\n"
START = ("session", "start", "--on", "l4", "--budget", "1")


def status(workspace: CloudWorkspace) -> dict[str, Any]:
    (one,) = workspace.json("session", "status")["sessions"]
    return one  # type: ignore[no-any-return]


def ends(workspace: CloudWorkspace) -> list[dict[str, Any]]:
    return [json.loads(p.read_text()) for p in sorted((workspace.root / "results/sessions").glob("*/end.json"))]


def test_two_runs_find_it_warm_and_leave_it_on(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.job("hello", HELLO)
    opened = workspace.json(*START, "--max-hours", "1", "--idle-minutes", "10")
    assert opened["fence_s"] == 3600
    assert opened["worst_usd"] <= 1
    assert workspace.statuses() == {"us-west1-c": "RUNNING"}
    limit = workspace.machines()["us-west1-c"].resource["scheduling"]["maxRunDuration"]["seconds"]
    assert int(limit) == 3600
    for _ in range(2):
        workspace.fcctl("run", "hello", "--on", "l4")
        assert workspace.statuses() == {"us-west1-c": "RUNNING"}
    assert {r["machine"]["released"] for r in workspace.runs().values()} == {"kept"}
    assert workspace.operations("insert") == ["insert"], "both found it warm"
    stands = status(workspace)
    assert stands["stage"] == "open"
    assert 0 < stands["spent_usd"] < 0.1
    assert stands["left_usd"] + stands["spent_usd"] == pytest.approx(1, abs=1e-4)
    assert 0 < stands["idle_stop"] - time.time() < 605
    machines = workspace.json("hosts", "audit", check=None)["machines"]
    (machine,) = [m for m in machines if m["name"] == workspace.instance]
    assert machine["verdict"] == "session"
    assert "keeps it on" in workspace.fcctl("hosts", "ls").stdout
    assert "session" in workspace.fcctl("hosts", "audit").stdout
    done = workspace.json("session", "stop")
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}
    assert (done["how"], sorted(done["runs"])) == ("stopped", sorted(workspace.runs()))
    assert 0 < done["usd"] <= opened["worst_usd"]
    assert workspace.json("session", "status")["sessions"] == []
    workspace.fcctl("session", "stop", check=7)


def test_what_does_not_fit_what_is_left_is_refused(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.job("hello", HELLO)
    workspace.job("long", HELLO.replace("60", "7200"))
    workspace.fcctl("session", "start", "--on", "l4", "--budget", "0.5")
    refused = workspace.fcctl("run", "long", "--on", "l4", "--dry-run", check=5)
    assert "the rest of session" in refused.stderr
    plan = workspace.fcctl("run", "long", "--on", "l4", "--stop-at-budget", "--dry-run")
    assert "stops it before it has cost $0.4" in plan.stdout
    taken = workspace.fcctl("session", "start", "--on", "l4", "--budget", "0.5", check=8)
    assert "already has a session" in taken.stderr
    workspace.fcctl("run", "hello", "--on", "l4")
    workspace.fcctl("session", "stop")


def test_the_machine_is_not_stopped_under_it(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.fcctl(*START)
    refused = workspace.fcctl("hosts", "down", "l4", check=8).stderr
    assert "is kept on by session" in refused
    assert "fcctl session stop" in refused
    assert workspace.statuses() == {"us-west1-c": "RUNNING"}
    assert " ended: " in workspace.fcctl("hosts", "down", "l4", "--force").stderr
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}
    assert workspace.json("session", "status")["sessions"] == []


def test_another_workspace_shares_it(shared_cloud: Emulator, workspace_on: Make) -> None:
    ours = workspace_on(shared_cloud, per_session_usd=1.0)
    theirs = CloudWorkspace(ours.root.parent / "theirs", ours.home, shared_cloud, instance=ours.instance)
    theirs.job("hello", HELLO)
    theirs.job("long", HELLO.replace("60", "7200"))
    opened = ours.json("session", "start", "--on", "l4")
    assert opened["budget_usd"] == 1.0, "per_session_usd of [budget]"
    assert (
        f"has a session of the workspace {ours.root}; the run uses this session"
        in theirs.fcctl("run", "hello", "--on", "l4").stderr
    )
    assert ours.statuses() == {"us-west1-c": "RUNNING"}
    ((run_id, run),) = theirs.runs().items()
    assert (run["machine"]["released"], run["cost"]["usd"] > 0) == ("kept", True)
    refused = theirs.fcctl("run", "long", "--on", "l4", check=5).stderr
    assert f"the rest of session {opened['session_id']}" in refused
    assert f"fcctl -C {ours.root} session stop" in theirs.fcctl("hosts", "down", "l4", check=8).stderr
    assert str(ours.root) in theirs.fcctl(*START, check=8).stderr
    machines = theirs.json("hosts", "audit", check=None)["machines"]
    assert [m["verdict"] for m in machines if m["name"] == ours.instance] == ["session"]
    done = ours.json("session", "stop")
    assert done["runs"] == [run_id]
    assert done["usd"] >= run["cost"]["usd"] - 1e-3
    assert theirs.fcctl("run", "hello", "--on", "l4", "--dry-run").stderr.count("session") == 0, "it is over"


def test_a_cap_on_sessions(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    assert "per_session_usd" in workspace.fcctl("session", "start", "--on", "l4", check=2).stderr
    capped = workspace_on(shared_cloud, per_session_usd=0.5)
    refused = capped.fcctl(*START, check=5).stderr
    assert "the cap of a session: $0.50 (per_session_usd of [budget])" in refused
    assert workspace.machines() == capped.machines() == {}


def test_a_machine_that_is_on_is_not_taken_without_a_word(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.fcctl("--yes", "hosts", "up", "l4", "--minutes", "20")
    assert "is already on" in workspace.fcctl(*START, check=8).stderr
    assert workspace.statuses() == {"us-west1-c": "RUNNING"}, "and is left as it is"
    workspace.fcctl(*START, "--restart")
    assert workspace.operations("stop") == ["stop"]
    workspace.fcctl("session", "stop")
    assert sorted(one["how"] for one in ends(workspace)) == ["failed", "stopped"], "both within a second, maybe"


def test_it_stops_itself_and_is_closed_by_whoever_looks(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    workspace.job("hello", HELLO)
    workspace.fcctl(*START, "--idle-minutes", "5")
    timers = workspace.machines()["us-west1-c"].timers
    assert 0 < next(iter(timers.values())) - shared_cloud.clock.now() <= 301
    shared_cloud.control.happen(workspace.instance, "guestTerminate")  # what the timer does
    wait_for(lambda: workspace.statuses() == {"us-west1-c": "TERMINATED"})
    refused = workspace.fcctl("run", "hello", "--on", "l4", check=8)
    assert "its session has ended" in refused.stderr
    assert workspace.json("session", "status")["sessions"] == []
    (ended,) = ends(workspace)
    assert (ended["how"], "stopped itself" in ended["reason"]) == ("off", True)
    workspace.fcctl("run", "hello", "--on", "l4")
    assert workspace.statuses() == {"us-west1-c": "TERMINATED"}, "a run of its own again"


def test_only_machines_of_a_cloud(tmp_path: Path, shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    done = workspace.fcctl("session", "start", "--on", "here", "--budget", "1", check=3)
    assert "does not start or stop" in done.stderr
    for bad in ("0", "-1", "nan"):
        workspace.fcctl("session", "start", "--on", "l4", "--budget", bad, check=None)
    assert "too few to start" in workspace.fcctl("session", "start", "--on", "l4", "--budget", "0.01", check=5).stderr
    assert workspace.machines() == {}
    assert workspace.json("session", "status")["sessions"] == []


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
