"""``fcctl pull-results`` says what has not ended, and when to come back."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from orchestrator.base.clock import SystemClock, iso
from orchestrator.results.store.store import FileStore
from tests.support.stores import completed
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

UNTIL = 'until [ -e "$WHEN" ]; do sleep 0.1; done'
JOB = f"""
env: {{WHEN: /}}
steps:
  - {{id: one, run: "true", timeout: 10m}}
  - {{id: two, run: '{UNTIL}', timeout: 5m}}
  - {{id: three, run: "true", timeout: 2m}}
"""


def test_what_is_queued_or_running_is_told_with_when_to_come_back(tmp_path: Path, private_home: Path) -> None:
    workspace = Workspace(tmp_path / "w", private_home)
    workspace.job("wait", JOB)
    workspace.job("new", JOB)
    store = FileStore(workspace.root / "results", SystemClock(), note=lambda _: None)
    then = time.time() - 3600
    for seconds in (60, 2000, 3000):
        completed(store, job="wait", target="here", created=iso(then), finished=iso(then + seconds))
    go = tmp_path / "go"
    first = workspace.json("run", "wait", "--on", "here", "--detach", "--set", f"WHEN={go}")["run_id"]
    log = private_home / f".fcctl/runs/{first}/steps/two/log.txt"
    wait_for(log.exists)
    second = workspace.json("run", "new", "--on", "here", "--detach", "--set", f"WHEN={go}")["run_id"]
    events = private_home / f".fcctl/runs/{second}/events.jsonl"
    wait_for(lambda: events.exists() and '"queued"' in events.read_text())  # its host program is just starting

    said = workspace.fcctl("pull-results").stderr
    (line,) = (line for line in said.splitlines() if line.startswith(first))
    assert re.search(r"is running \(two 2/3\) on here, and ends in about \d\d min \d\d s, in .* s at the latest$", line)
    (line,) = (line for line in said.splitlines() if line.startswith(second))
    assert f"is queued on here behind {first}, and ends in 17 min 00 s at the latest, counted from its start" in line
    assert "run this command again then, or wait: fcctl pull-results --wait" in said
    told = json.loads(workspace.fcctl("pull-results", "--json").stdout)["remaining"]
    # Two runs of one second are not in the order in which they were started.
    running, queued = sorted(told, key=lambda run: run["queued"])
    assert 1000 < running["expected_s"] < 2000, "the median of 60, 2000 and 3000 s, less what it took already"
    assert 2 * 60 < running["at_most_s"] <= 7 * 60, "five minutes of the second step, and two of the third"
    assert (queued["queued"], queued["behind"], queued["expected_s"]) == (True, first, None)
    named = workspace.fcctl("pull-results", first, check=101).stderr
    assert f"{first} is still active (running)" in named

    go.touch()
    workspace.fcctl("pull-results", "--wait")
    assert "come back" not in workspace.fcctl("pull-results").stderr
