"""A link that is cut, stalls or is slow, at each stage of a run: it resumes where it was, and nothing happens twice."""

from __future__ import annotations

import random
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.link import LinkProxy
from tests.support.sshd import LoopbackSshd
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace

SLOW = """
env: {COUNT: unset, GO: /}
steps:
  - id: one
    run: |
      echo one >> "$COUNT"
      for i in 1 2 3 4 5 6; do echo "line $i"; sleep 0.5; done
      until [ -e "$GO" ]; do sleep 0.1; done
  - id: two
    run: echo two >> "$COUNT"
"""
BIG = """
env: {COUNT: unset}
steps:
  - id: make
    run: |
      echo one >> "$COUNT"
      head -c 20000000 /dev/urandom > "$FCCTL_OUT/big.bin"
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, sshd: LoopbackSshd, link: LinkProxy) -> Workspace:
    made = Workspace(tmp_path / "w", private_home, sshd, port=link.port, link_timeout_s=10.0, reconnect_s=120.0)
    made.job("slow", SLOW)
    made.job("big", BIG)
    return made


def fill(root: Path, megabytes: int) -> None:
    numbers = random.Random(7)
    for i in range(megabytes * 4):
        (root / f"data{i}.bin").write_bytes(numbers.randbytes(250_000))


def held(workspace: Workspace, tmp_path: Path) -> subprocess.Popen[str]:
    """``fcctl run slow`` whose first step has begun, and goes on until there is a file ``go``."""
    marks = ("--set", f"COUNT={tmp_path / 'c'}", "--set", f"GO={tmp_path / 'go'}")
    running = workspace.start("run", "slow", "--on", "box", *marks)
    wait_for((tmp_path / "c").exists)
    return running


def test_cut_while_sending_the_source(workspace: Workspace, link: LinkProxy, tmp_path: Path) -> None:
    fill(workspace.root, 8)
    link.cut_after(3_000_000, "up")
    done = workspace.fcctl("run", "slow", "--on", "box", "--set", f"COUNT={tmp_path / 'c'}")
    assert link.connections >= 2, "the cut happened"
    assert "reconnecting" in done.stderr
    assert workspace.only_run()["status"] == "passed"
    assert (tmp_path / "c").read_text().split() == ["one", "two"]
    assert link.up < 8_000_000 * 1.6, "what had arrived was not sent again"


@pytest.mark.full
def test_stalled_while_following(tmp_path: Path, private_home: Path, sshd: LoopbackSshd, link: LinkProxy) -> None:
    workspace = Workspace(tmp_path / "w", private_home, sshd, port=link.port, link_timeout_s=3.0, reconnect_s=120.0)
    workspace.job("slow", SLOW)
    running = held(workspace, tmp_path)
    assert running.stdout is not None
    assert running.stderr is not None
    link.stall()
    err = ""
    while "reconnecting" not in err:
        err += (line := running.stderr.readline())
        assert line, err
    (tmp_path / "go").touch()
    link.resume()
    err += running.stderr.read()
    out = running.stdout.read()
    assert running.wait() == 0, err
    assert err.count("step one") == 1, "an event is told once, however often the link breaks"
    assert (tmp_path / "c").read_text().split() == ["one", "two"]
    assert "passed" in out


def test_cut_while_collecting_goes_on_at_the_byte_it_had(workspace: Workspace, link: LinkProxy, tmp_path: Path) -> None:
    link.cut_after(8_000_000, "down")
    done = workspace.fcctl("run", "big", "--on", "box", "--set", f"COUNT={tmp_path / 'c'}")
    assert "reconnecting" in done.stderr
    assert link.connections >= 2
    assert link.down < 20_000_000 * 1.5, "the bytes that were here were not fetched again"
    assert (workspace.only_folder() / "steps/make/out/big.bin").stat().st_size == 20_000_000


def test_sshd_restarted_in_the_middle(workspace: Workspace, sshd: LoopbackSshd, tmp_path: Path) -> None:
    running = held(workspace, tmp_path)
    sshd.stop()
    time.sleep(0.5)
    (tmp_path / "go").touch()
    sshd.start()
    _, err = running.communicate()
    assert running.returncode == 0, err
    assert (tmp_path / "c").read_text().split() == ["one", "two"]


def test_a_host_that_stays_away_leaves_the_run_to_the_next_command(
    tmp_path: Path, private_home: Path, sshd: LoopbackSshd, link: LinkProxy
) -> None:
    workspace = Workspace(tmp_path / "w", private_home, sshd, port=link.port, reconnect_s=1.0)
    workspace.job("slow", SLOW)
    running = held(workspace, tmp_path)
    link.refuse()
    link.reset()
    _, err = running.communicate()
    assert running.returncode == 6
    assert "hint:" in err
    assert "fcctl attach" in err
    (state,) = workspace.json("ps")["runs"]
    assert state["state"] == "unreachable"
    assert workspace.fcctl("pull-results", check=6).stderr.count("give-up") == 1
    (tmp_path / "go").touch()
    link.accept()
    workspace.fcctl("pull-results", "--wait")
    assert workspace.only_run()["status"] == "passed"
    assert (tmp_path / "c").read_text().split() == ["one", "two"]
