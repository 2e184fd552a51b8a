"""The laptop's side in odd states: full or read-only disks, odd folders, no home, a clock that is off."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.runs.test_lacking_hosts import _may_mount
from tests.support.forked import FCCTL
from tests.support.scripts import script
from tests.support.small_disk import small_disk
from tests.support.tiers import sampled
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

MOUNTS = pytest.mark.skipif(not _may_mount(), reason="mounts, which takes Linux and root")


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "wörk späce 'of\" $HOME", private_home)
    made.job("hello", "steps:\n  - {id: say, run: 'echo hello; head -c 2000000 /dev/urandom > \"$FCCTL_OUT/x\"'}\n")
    return made


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", *options, str(folder)], check=True)
    try:
        yield
    finally:
        # What an fcctl that has ended left behind may still be ending, with its folder here.
        wait_for(lambda: subprocess.run(["umount", str(folder)], check=False, capture_output=True).returncode == 0)


def test_the_disk_is_full_while_collecting(workspace: Workspace) -> None:
    results = workspace.root / "results"
    with small_disk(results) as disk:
        assert "no data is lost: free disk space" in workspace.fcctl("run", "hello", "--on", "here", check=1).stderr
        still = workspace.fcctl("pull-results", check=1)
        assert "disk is full" in still.stderr
        assert "No space left on device" in still.stderr
        assert workspace.json("pull-results", check=1)["error"]["code"] == "error"
        assert workspace.json("ps")["runs"][0]["state"] == "broken"
        disk.resize("20m")
        workspace.fcctl("pull-results")
        assert workspace.only_run()["status"] == "passed"
        assert workspace.active() == []


@MOUNTS
def test_the_workspace_cannot_be_written(workspace: Workspace) -> None:
    with mounted(workspace.root, "--bind", str(workspace.root)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(workspace.root)], check=True)
        done = workspace.fcctl("run", "hello", "--on", "here", check=1)
        assert "hint:  make " in done.stderr
        assert "writable" in done.stderr
        for argv in (["ps"], ["results", "ls"], ["jobs", "ls"], ["config", "show"]):
            workspace.fcctl(*argv)
        assert "FAIL  results:" in workspace.fcctl("doctor", check=10).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is a home that root cannot write either")
def test_a_home_that_cannot_be_written(workspace: Workspace, tmp_path: Path) -> None:
    done = workspace.fcctl("run", "hello", "--on", "here", check=1, env={"HOME": "/proc/none"})
    assert done.stderr.splitlines()[-3:] == [
        "error: could not build the host program",
        "cause: No such file or directory (/proc/none/.cache/fcctl/runner)",
        "hint:  choose a folder that you may write to: export XDG_CACHE_HOME=DIR",
    ]
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_early(workspace: Workspace) -> None:
    workspace.job("chatty", "steps:\n  - {id: say, run: seq 1000000}\n")
    workspace.fcctl("run", "chatty", "--on", "here")
    done = typed(workspace, 'set -o pipefail; "$@" | head -1', "logs")
    assert (done.returncode, done.stdout, done.stderr) == (141, "==> say <==\n", "")


def typed(workspace: Workspace, line: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """``line`` in a shell, ``"$@"`` in it being ``fcctl ARGV``."""
    return subprocess.run(
        ["bash", "-c", line, "bash", *FCCTL, *argv], cwd=workspace.root, env=workspace.env(), capture_output=True,
        text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def test_what_it_says_goes_into_the_folder_that_is_sent(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has grown between its hash and its journey, by what fcctl itself says there."""
    log = workspace.root / "run.log"
    log.touch()  # else `tee` may make it after the source was read
    wait = f"until grep -q sync: {shlex.quote(str(log))}; do sleep 0.01; done"
    patient = script(tmp_path / "bin/rsync", f'{wait}\nexec {shutil.which("rsync")} "$@"')
    monkeypatch.setenv("PATH", f"{patient.parent}:{os.environ['PATH']}")
    workspace.job("quick", "steps:\n  - {id: say, run: 'wc -c run.log'}\n")
    for number in range(70):  # more than one call carries, so rsync has them first
        (workspace.root / f"more{number}").write_text("x")
    done = typed(workspace, '"$@" 2>&1 | tee run.log; exit ${PIPESTATUS[0]}', "run", "quick", "--on", "here")
    assert done.returncode == 0, done.stdout
    assert "sending them again" in done.stdout
    assert workspace.only_run()["status"] == "passed"


STREAMS = [(">&-", 0), ("2>&-", 0), ("<&- >&- 2>&-", 0), (">/dev/full", 1), ("2>/dev/full", 0)]


@pytest.mark.parametrize(("how", "code"), sampled(STREAMS, keep=STREAMS[2:]))
def test_streams_that_are_closed_or_full(workspace: Workspace, how: str, code: int) -> None:
    workspace.job("quick", "steps:\n  - {id: say, run: 'true'}\n")
    done = typed(workspace, f'"$@" {how}', "run", "quick", "--on", "here")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert workspace.only_run()["status"] == "passed"


@pytest.mark.parametrize("days", sampled([-1, 1, -20_700, 28_500], keep=(-1,)))  # also in 1970, after 2100
def test_the_clocks_are_days_apart(workspace: Workspace, days: int, tmp_path: Path) -> None:
    """This side's clock is set off, for the controller alone."""

    def fcctl(*argv: str, code: int | None = 0) -> str:
        done = workspace.changed("clock", days * 86400, *argv)
        assert code in (None, done.returncode), done.stderr
        return done.stdout

    go = tmp_path / "go"
    workspace.job("count", f"steps:\n  - {{id: count, run: 'sleep 1; until [ -e {go} ]; do sleep 0.1; done'}}\n")
    began = time.monotonic()
    run_id = fcctl("run", "count", "--on", "here", "-d").strip()
    wait_for(lambda: "running" in fcctl("ps"))  # the host program is just starting
    go.touch()
    fcctl("attach")
    took = time.monotonic() - began
    record = workspace.only_run()
    assert (record["run_id"], record["status"]) == (run_id, "passed")
    assert 0.8 < record["steps"][0]["duration_s"] < took + 1
    assert record["cost"]["billed_s"] < took + 30
    differs = re.search(r"its clock differs by ([+-]\d+) s", fcctl("doctor", "--on", "here", code=None))
    assert differs is not None
    assert int(differs[1]) == pytest.approx(-days * 86400, abs=120), "less what it takes to ask"
    assert fcctl("results", "ls").count("passed") == 1
    assert os.listdir(workspace.root / "results/runs") == [run_id]


def test_a_plan_of_another_version_is_in_nobody_s_way(workspace: Workspace) -> None:
    workspace.job("slow", "steps:\n  - {id: slow, run: sleep 1}\n")
    run_id = workspace.fcctl("run", "slow", "--on", "here", "-d").stdout.strip()
    plan = workspace.root / "results/active" / run_id / "plan.json"
    written = plan.read_text()
    plan.write_text('{"plan": {"run_id": "x"}}')
    for argv in (["ps"], ["ps", "--offline"]):
        assert [run["state"] for run in workspace.json(*argv)["runs"]] == ["broken"]
    workspace.fcctl("run", "hello", "--on", "here")
    assert "use that version" in workspace.fcctl("attach", run_id, check=1).stderr
    assert "plan.job: missing" in workspace.fcctl("pull-results", check=1).stderr
    plan.write_text(written)
    workspace.fcctl("pull-results", "--wait", run_id)
    assert workspace.runs()[run_id]["status"] == "passed"
