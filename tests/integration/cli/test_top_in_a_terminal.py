"""``fcctl top`` in a real terminal of 80 and of 200 columns, and without one."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_for
from tests.support.workspace import FCCTL, Workspace


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Iterator[Workspace]:
    made = Workspace(tmp_path / "ws", private_home)
    made.job("wait", f"steps:\n  - id: hold\n    run: until [ -e {tmp_path}/go ]; do sleep 0.1; done\n")
    made.fcctl("run", "wait", "--on", "here", "-d")
    yield made
    (tmp_path / "go").touch()


class Screen:
    """A tmux of the test's own, with ``fcctl top`` in it."""

    def __init__(self, workspace: Workspace, columns: int) -> None:
        self._env = workspace.env(TERM="xterm-256color", LC_ALL="C.UTF-8")
        del self._env["COLUMNS"]  # the terminal itself says how wide it is
        self._socket = f"top-{os.getpid()}-{columns}"  # another process may be at the same test
        command = shlex.join([*FCCTL, "-C", str(workspace.root), "top", "--interval", "0.3"])
        self.tmux("new-session", "-d", "-x", str(columns), "-y", "20", f"{command}; echo left with $?; sleep 60")

    def tmux(self, *words: str) -> str:
        argv = ["tmux", "-f", "/dev/null", "-L", self._socket, *words]
        return subprocess.run(argv, env=self._env, capture_output=True, text=True, check=True, timeout=30).stdout

    def text(self) -> str:
        return self.tmux("capture-pane", "-p")


@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" in os.environ,
    reason="in a worker of xdist the upper rows stay empty, not understood yet; it passes with -p no:xdist",
)
@pytest.mark.parametrize("columns", [80, 200])
def test_runs_are_seen_and_q_leaves(workspace: Workspace, columns: int, tmp_path: Path) -> None:
    (run_id,) = workspace.active()
    screen = Screen(workspace, columns)
    try:
        wait_for(lambda: "running" in screen.text(), 60)
        text = screen.text()
        assert run_id in text
        assert "hold 1/1" in text
        assert "1 active" in text
        assert ("RUN" in text) == (columns == 200)
        (tmp_path / "go").touch()
        wait_for(lambda: "no run goes on" in screen.text(), 60)
        assert workspace.runs()[run_id]["status"] == "passed", "what ended meanwhile is brought home"
        screen.tmux("send-keys", "q")
        wait_for(lambda: "left with 0" in screen.text(), 60)
        assert "1 active" not in screen.text(), "the screen is what it was before"
    finally:
        screen.tmux("kill-server")


def test_without_a_terminal_it_looks_once(workspace: Workspace) -> None:
    (run_id,) = workspace.active()
    assert run_id in workspace.fcctl("top").stdout
    found = workspace.json("top")
    assert found["runs"][0]["run_id"] == run_id
    assert found["runs"][0]["state"] == "running"
