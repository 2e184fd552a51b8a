"""In a real terminal: ``fcctl top`` with 60 and with 200 columns, and Ctrl-C at the question for a passphrase."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked import FCCTL
from tests.support.sshd import LoopbackSshd, generate_key
from tests.support.terminal import Terminal
from tests.support.tiers import sampled
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Iterator[Workspace]:
    made = Workspace(tmp_path / "ws", private_home)
    made.job("wait", f"steps:\n  - id: hold\n    run: until [ -e {tmp_path}/go ]; do sleep 0.1; done\n")
    made.fcctl("run", "wait", "--on", "here", "-d")
    yield made
    (tmp_path / "go").touch()


@pytest.mark.parametrize("columns", sampled([60, 200], [60]))
def test_runs_are_seen_and_q_leaves(workspace: Workspace, columns: int, tmp_path: Path) -> None:
    (run_id,) = workspace.active()
    terminal = Terminal(workspace, columns, 20)
    try:
        terminal.type("fcctl top --interval 0.3; echo left with $?")
        words = ["1 active", run_id, "running", "hold 1/1", "q quits", *(["LOAD"] if columns == 200 else [])]
        text = terminal.until(lambda screen: all(word in screen for word in words))
        assert columns == 200 or "LOAD" not in text, "what has no room is left out"
        (tmp_path / "go").touch()
        terminal.until(lambda screen: "no active runs" in screen)
        assert workspace.runs()[run_id]["status"] == "passed", "what ended meanwhile is brought home"
        terminal.press("q")
        left = terminal.until(lambda screen: "left with 0" in screen)
        assert "no active runs" not in left, "the screen is what it was before"
    finally:
        terminal.close()


def test_without_a_terminal_it_looks_once(workspace: Workspace) -> None:
    (run_id,) = workspace.active()
    assert run_id in workspace.fcctl("top").stdout
    wait_for(lambda: [(run["run_id"], run["state"]) for run in workspace.json("top")["runs"]] == [(run_id, "running")])


#: Makes standard input the controlling terminal, which is where passphrases are asked for, and becomes its arguments.
OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


def echoes(fd: int) -> bool:
    return bool(termios.tcgetattr(fd)[3] & termios.ECHO)


def read_until(fd: int, text: bytes, seconds: float = 60) -> bytes:
    os.set_blocking(fd, False)
    said, deadline = b"", time.monotonic() + seconds
    while text not in said:
        assert time.monotonic() < deadline, said
        try:
            said += os.read(fd, 4096)
        except BlockingIOError:
            time.sleep(0.01)
    return said


def test_ctrl_c_at_the_passphrase(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> None:
    locked = generate_key(tmp_path / "locked", passphrase="sesame")
    workspace = Workspace(tmp_path / "w", private_home, sshd, identity_file=str(locked))
    workspace.job("one", "steps: [{id: one, run: 'true'}]\n")
    ours, theirs = pty.openpty()
    try:
        assert echoes(theirs)
        running = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *FCCTL, "run", "one", "--on", "box"],
            cwd=workspace.root,
            env=workspace.env(),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        read_until(ours, b"Passphrase of")
        assert not echoes(theirs)
        os.write(ours, b"\x03")
        assert running.wait() == 130
        assert echoes(theirs)
    finally:
        os.close(ours)
        os.close(theirs)
