"""Hosts that lack what a run needs: refused with the cure, nothing left behind, the run closed as an error."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace


def _may_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode == 0


pytestmark = pytest.mark.skipif(not _may_mount(), reason="hides programs with mounts, which takes Linux and root")


def cripple(server: LoopbackSshd, *mounts: str) -> None:
    """Make every command over ``server`` run where these mounts are, seen by nobody else."""
    server.settings = (f"ForceCommand unshare -m sh -c '{'; '.join(mounts)}; exec sh -c \"$SSH_ORIGINAL_COMMAND\"'",)
    server.restart()


def hidden(program: str) -> str:
    """The one on PATH, and the system's own."""
    found = filter(None, (shutil.which(program), shutil.which(program, path="/usr/bin")))
    return "; ".join(f"mount --bind /dev/null {place}" for place in sorted(set(map(os.path.realpath, found))))


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> Workspace:
    made = Workspace(tmp_path / "w", private_home, sshd)
    made.job("hello", "steps:\n  - {id: say, run: echo hello}\n")
    return made


@pytest.mark.parametrize("program", ["tmux", "bash"])
def test_a_program_is_missing(workspace: Workspace, sshd: LoopbackSshd, program: str) -> None:
    cripple(sshd, hidden(program))
    done = workspace.fcctl("run", "hello", "--on", "box", check=6)
    assert f"error: {program} is not installed on the host\n" in done.stderr
    assert f"hint:  install it on the machine: sudo apt-get install -y {program}\n" in done.stderr
    assert workspace.only_run()["status"] == "error"
    assert workspace.active() == []
    doctor = workspace.fcctl("doctor", "--on", "box", check=10)
    assert f"FAIL  {program}: {program} is not installed there" in doctor.stdout
    sshd.settings = ()
    sshd.restart()
    again = workspace.fcctl("run", "hello", "--on", "box")
    assert "not collected" not in again.stderr


def test_a_home_that_cannot_be_written(workspace: Workspace, sshd: LoopbackSshd) -> None:
    shutil.rmtree(sshd.home / ".fcctl/runner")  # it has no host program yet
    cripple(sshd, f"mount --bind {sshd.home} {sshd.home}", f"mount -o remount,bind,ro {sshd.home}")
    done = workspace.fcctl("run", "hello", "--on", "box", check=6)
    assert "cannot be written to" in done.stderr
    assert "make ~/.fcctl a folder that you may write to" in done.stderr
    sshd.settings = ()
    sshd.restart()
    workspace.fcctl("run", "hello", "--on", "box")
    cripple(sshd, f"mount --bind {sshd.home} {sshd.home}", f"mount -o remount,bind,ro {sshd.home}")
    done = workspace.fcctl("run", "hello", "--on", "box", check=6)
    assert "read-only file system" in done.stderr
    assert "make it writable on the machine" in done.stderr
    assert workspace.active() == []


def test_no_room_for_the_source(workspace: Workspace, sshd: LoopbackSshd) -> None:
    workspace.fcctl("run", "hello", "--on", "box")  # the host program is there
    trees = sshd.home / ".fcctl" / "trees"
    cripple(sshd, f"mount -t tmpfs -o size=256k none {trees}")
    (workspace.root / "large.bin").write_bytes(os.urandom(4_000_000))
    done = workspace.fcctl("run", "hello", "--on", "box", check=6)
    assert "the host's disk is full" in done.stderr
    assert "df -h" in done.stderr
    assert workspace.active() == []
    sshd.settings = ()
    sshd.restart()
    workspace.fcctl("run", "hello", "--on", "box")


@pytest.mark.full
def test_a_machine_that_allows_one_session_a_connection(workspace: Workspace, sshd: LoopbackSshd) -> None:
    """Source of any size goes in calls of that session, where rsync would need a second one."""
    sshd.settings = ("MaxSessions 1",)
    sshd.restart()
    workspace.fcctl("run", "hello", "--on", "box")
    (workspace.root / "weights.bin").write_bytes(os.urandom(8 * 1024 * 1024))
    done = workspace.fcctl("run", "hello", "--on", "box")
    assert "1 of 4 files sent" in done.stderr
    assert "without rsync, because rsync failed: the machine's sshd opens no more sessions" in done.stderr
    assert "reconnecting" not in done.stderr
