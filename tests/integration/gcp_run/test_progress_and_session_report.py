"""``fcctl progress`` and the report that a session leaves: what a person needs who goes on with the project."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest

from orchestrator.base.git import git_environment
from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace
from tests.support.dashboard import dashboard
from tests.support.workspace import REPOSITORY

Make = Callable[..., CloudWorkspace]
PROFILE = REPOSITORY / "tests/fixtures/readers/ncu/h100_raw.csv"
PHASE = """
title: "Phase 1: WMMA"
env: {P50: "150"}
steps:
  - id: bench
    timeout: 60
    run: |
      times='{"flashcore": {"p50": '$P50'}, "pytorch": {"p50": 45.09}}'
      echo '{"results": {"mission": '$times'}}' > "$FCCTL_OUT/figures"
    collect: [{reader: flashcore, file: "$FCCTL_OUT/figures"}]
    gates:
      - {expr: 'benchmark.benchmarks[name="mission"].stats.p50 < 100', hint: use the tensor cores}
      - expr: benchmark.benchmarks[name="mission"].stats.p50 < 1
        when: host.gpu.count > 1000
  - id: profile
    timeout: 60
    run: test "$P50" != 80; cp profile.csv "$FCCTL_OUT/"
    collect: [{reader: ncu, file: "$FCCTL_OUT/profile.csv"}]
"""
PHASES = """
project_usd = 100.0

[phases.wmma]
job = "phase1"
hours = 10

[phases.fused]
job = "fused"
usd = 20.0
"""


@pytest.fixture
def workspace(shared_cloud: Emulator, workspace_on: Make) -> CloudWorkspace:
    made = workspace_on(shared_cloud, usd_per_hour=0.75)
    made.job("phase1", PHASE)
    made.job("fused", 'steps: [{id: a, run: exit 3, gates: ["metrics.metrics.x <= 2"]}]\n')
    shutil.copy(PROFILE, made.root / "profile.csv")
    with (made.root / "fcctl.toml").open("a") as config:
        config.write(PHASES)
    (made.root / ".gitignore").write_text("results/\n")
    who = ("-c", "user.name=A", "-c", "user.email=a@example.com")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *words], cwd=made.root, env=git_environment(), check=True)
    return made


def test_what_a_session_did_and_how_far_the_project_is(workspace: CloudWorkspace) -> None:
    before = workspace.json("progress")
    assert [(p["name"], p["state"], p["planned_usd"], p["left_usd"]) for p in before["phases"]] == [
        ("wmma", "not started", 7.5, 7.5), ("fused", "not started", 20.0, 20.0)
    ]  # fmt: skip
    assert (before["cap_usd"], before["spent_usd"], before["free_usd"]) == (100.0, 0.0, 72.5)

    session = workspace.json("session", "start", "--on", "l4", "--budget", "1")["session_id"]
    workspace.fcctl("run", "phase1", "--on", "l4", check=100)
    missed, *_ = workspace.json("progress")["phases"]
    assert (missed["target"]["best"], missed["target"]["met"], missed["target"]["gap"]) == (150.0, False, 0.5)
    assert "p50 < 100 µs" in (printed := workspace.fcctl("progress").stdout)
    assert "50 % over" in printed
    workspace.fcctl("run", "phase1", "--on", "l4", "--set", "P50=90")
    workspace.fcctl("run", "phase1", "--on", "l4", "--set", "P50=80", check=100)  # the fastest, and failed
    workspace.fcctl("run", "fused", "--on", "l4", check=100)
    assert workspace.json("session", "report")["session"]["how"] == "open"
    done = workspace.fcctl("session", "stop")
    assert "its report: fcctl session report" in done.stderr

    folder = workspace.root / "results/sessions" / session
    text = (folder / "report.md").read_text()
    found = json.loads((folder / "report.json").read_text())
    assert workspace.fcctl("session", "report", session).stdout == text
    assert workspace.json("session", "report") == found
    assert [(r["job"], r["status"]) for r in found["runs"]] == [
        ("phase1", "failed"), ("phase1", "passed"), ("phase1", "failed"), ("fused", "failed")
    ]  # fmt: skip
    first, second, fast, third = (run["run_id"] for run in found["runs"])
    assert [(b["job"], b["run_id"], b["figure"]) for b in found["best"]] == [("phase1", second, "90.00 µs")]
    assert [(f["run_id"], f["step"]) for f in found["failed"]] == [
        (first, "bench"), (fast, "profile"), (third, "a")
    ]  # fmt: skip
    assert (found["failed"][0]["message"], found["failed"][0]["hint"]) == (
        'gate: benchmark.benchmarks[name="mission"].stats.p50 < 100, measured 150', "use the tensor cores"
    )  # fmt: skip
    assert {one["activity"] for one in found["costs"]} >= {"bench", "idle"}
    assert sum(one["usd"] for one in found["costs"]) == pytest.approx(found["session"]["usd"], abs=2e-3)
    assert found["levers"]
    assert found["levers"][0]["lever"] in text
    commands = [one["command"] for one in found["next"]]
    assert commands[0] == f"fcctl logs {third} --step a"
    (again,) = [command for command in commands if "--rev" in command]

    after = workspace.json("progress")
    wmma, fused = after["phases"]
    assert (wmma["state"], wmma["is_done"], wmma["passed_run"]) == ("passed", False, second)
    assert [goal["met"] for goal in wmma["goals"]] == [True, None], "the gate for an L4 stays open"
    assert (fused["state"], fused["target"]["best"]) == ("started", None)
    assert after["spent_usd"] == pytest.approx(found["session"]["usd"], abs=2e-3)
    assert wmma["left_usd"] == pytest.approx(7.5 - wmma["usd"])
    with dashboard(workspace) as site:
        site.enter()
        page = site.ask("/progress")
        assert page.status == 200
        assert "p50 &lt; 100 µs" in page.text
        assert "Progress" in site.ask("/").text
    # Who goes on types what the report says, and gets the same source.
    workspace.fcctl(*again.split()[1:], "--dry-run")


def test_without_phases_the_next_step_is_named(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud)
    done = workspace.fcctl("progress", check=7)
    assert "this workspace has no phases" in done.stderr
    assert "[phases.NAME]" in done.stderr
    assert "this workspace has had no session" in workspace.fcctl("session", "report", check=7).stderr
