"""``fcctl tune --hosts 2``: two machines of a cloud, each preempted during the search; it is resumed on the first."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.emulator.emulator import Emulator
from tests.support.cloud_workspace import CloudWorkspace

pytestmark = pytest.mark.full

Make = Callable[..., CloudWorkspace]
NEEDS_TMUX = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
#: The metric is the parameter; once the default is recorded, trials wait for a file to go.
SEARCH = """\
env: {{HOLD: {hold}}}
parameters: {{N: [9, 1, 2, 3, 4, 5, 6, 7]}}
check: 'true'
bench: >
  found=$FCCTL_ARTIFACTS/tune/journal.log;
  while [ $N != 9 -a -e $HOLD ] && {{ [ ! -e $found ] || grep -q '"record":{{"number":0,' $found; }};
  do sleep 0.05; done;
  echo "{{\\"us\\": $N}}" > $TUNE_OUT/bench.json
metric: {{reader: metrics, file: $TUNE_OUT/bench.json, value: metrics.us}}
timeouts: {{bench: 5m}}
trials: 8
elites: 1
"""


def says(workspace: CloudWorkspace, *lines: str) -> bool:
    """Whether a log of the search on the target's own machine has all of these."""
    try:
        home: Path = workspace.cloud.home(workspace.instance)
    except LookupError:  # not made yet
        return False
    logs = ("\n" + log.read_text(errors="replace") for log in home.glob(".fcctl/runs/*/steps/tune/log.txt"))
    return any(all(line in log for line in lines) for log in logs)


def until(command: subprocess.Popen[str], seen: Callable[[], bool]) -> None:
    """Wait for it while ``command`` goes on; if it does not come, fail with what that said."""
    deadline = time.monotonic() + 240
    while not seen():
        if command.poll() is not None or time.monotonic() > deadline:
            command.terminate()
            raise AssertionError("".join(command.communicate()))
        time.sleep(0.05)


def off(workspace: CloudWorkspace) -> set[str]:
    with workspace.cloud.world.lock:
        names = (workspace.instance, f"{workspace.instance}-2")
        found = [m for m in workspace.cloud.world.machines.values() if m.path.rsplit("/", 1)[1] in names]
        return {f"{m.path.rsplit('/', 1)[1]} {m.status}" for m in found}


@NEEDS_TMUX
@pytest.mark.timeout(900)
def test_two_machines_are_made_search_and_are_stopped(
    shared_cloud: Emulator, workspace_on: Make, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    workspace = workspace_on(shared_cloud)
    workspace.write_search("few", SEARCH.format(hold=hold))
    with (workspace.root / "fcctl.toml").open("a") as stream:
        stream.write(f"[targets.l4.env]\nFCCTL_PYTHON = {json.dumps(sys.executable)}\n")
    first, second = workspace.instance, f"{workspace.instance}-2"
    started = workspace.start("tune", "few", "--on", "l4", "--hosts", "2", "--timeout", "20m")
    until(started, lambda: says(workspace, "\nhost l4-2: "))
    shared_cloud.preempt(second)
    until(started, lambda: says(workspace, "\nhost l4-2: lost"))
    shared_cloud.preempt(first)
    _, err = started.communicate()
    assert started.returncode == 100, err
    assert off(workspace) == {f"{first} TERMINATED", f"{second} TERMINATED"}
    assert "may cost $" in err
    assert re.search("note: host l4-2: preempted: .*; the search continues without this host", err)
    (run_id,) = (run for run in workspace.active() if "-tune-l4-" in run)
    assert f"fcctl run --resume {run_id}" in err
    resumed = workspace.start("run", "--resume", run_id, "--yes")
    until(resumed, lambda: says(workspace, "already done)"))
    hold.unlink()
    _, err = resumed.communicate()
    assert resumed.returncode == 0, err
    assert off(workspace) == {f"{first} TERMINATED", f"{second} TERMINATED"}

    runs = workspace.runs().values()
    searches = sorted((run for run in runs if run["job"] == "tune"), key=lambda run: run["created"])
    members = sorted((run for run in runs if run["job"] == "tune-member"), key=lambda run: run["created"])
    assert [(run["target"], run["status"]) for run in searches] == [("l4", "preempted"), ("l4", "passed")]
    assert [run["status"] for run in members] == ["preempted"]
    search = searches[1]
    assert workspace.active() == []
    document = json.loads((workspace.root / f"results/runs/{search['run_id']}/steps/tune/out/tuning.json").read_text())
    assert [t["number"] for t in document["trials"]] == list(range(8))
    assert document["elites"][0]["params"] == {"N": 1}
    assert all(run["cost"]["usd"] > 0 for run in (*searches, *members)), "each has its line in the books"
    ledger = workspace.json("cost", "ledger", "--by", "run")
    booked = sum(total["usd"] - total["standing_usd"] for total in ledger["totals"])
    assert booked == pytest.approx(sum(run["cost"]["usd"] for run in (*searches, *members)), abs=0.01)


def test_what_it_may_cost_is_told_for_each_and_for_all_and_divided(shared_cloud: Emulator, workspace_on: Make) -> None:
    workspace = workspace_on(shared_cloud, cap=None)
    workspace.write_search("few", SEARCH.format(hold="/nonexistent"))
    tune = ("tune", "few", "--on", "l4", "--hosts", "3", "--timeout", "20m")
    planned = workspace.json(*tune, "--dry-run")
    plans = [planned, *planned["members"]]
    assert [plan["target"]["name"] for plan in plans] == ["l4", "l4-2", "l4-3"]
    assert [plan["target"]["instance"] for plan in plans] == [workspace.instance + end for end in ("", "-2", "-3")]
    worst = [plan["worst_case"]["usd"] for plan in plans]
    assert planned["fleet"] == {"machines": 3, "worst_case_usd": pytest.approx(sum(worst))}
    shown = workspace.fcctl(*tune, "--dry-run").stdout
    assert f"3 machines, ${sum(worst):.2f} at most" in shown

    refused = workspace.fcctl(*tune, "--budget", f"{2.9 * worst[0]:.2f}", check=5).stderr
    assert f"may cost ${worst[0]:.2f}" in refused, "a third of it is too little for one"
    assert workspace.fcctl(*tune, "--budget", f"{3.1 * worst[0]:.2f}", "--dry-run").returncode == 0
    with (workspace.root / "fcctl.toml").open("a") as stream:
        stream.write(f"per_day_usd = {2.5 * worst[0]:.2f}\n")
    refused = workspace.fcctl(*tune, check=5).stderr
    assert f"may cost ${sum(worst):.2f}" in refused, "each of them would do, all together do not"
    assert workspace.active() == []
    assert not workspace.machines()
