"""``fcctl top`` in a real terminal of 60 and of 200 columns, and without one."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forked import FCCTL
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


class Screen:
    """A tmux of the test's own, with ``fcctl top`` in it."""

    def __init__(self, workspace: Workspace, columns: int) -> None:
        # The terminal itself says how large it is; what another one left in the environment does not count.
        self._env = workspace.env(TERM="xterm-256color", LC_ALL="C.UTF-8", COLUMNS="120", LINES="24")
        self._socket = f"top-{os.getpid()}-{columns}"  # another process may be at the same test
        command = shlex.join([*FCCTL, "-C", str(workspace.root), "top", "--interval", "0.3"])
        self.tmux("new-session", "-d", "-x", str(columns), "-y", "20", f"{command}; echo left with $?; sleep 600")

    def tmux(self, *words: str) -> str:
        argv = ["tmux", "-f", "/dev/null", "-L", self._socket, *words]
        return subprocess.run(argv, env=self._env, capture_output=True, text=True, check=True).stdout

    def shows(self, *words: str) -> str:
        """The screen as soon as all of ``words`` are on it."""
        seen: list[str] = []

        def look() -> bool:
            seen.append(self.tmux("capture-pane", "-p"))
            return all(word in seen[-1] for word in words)

        wait_for(look)
        return seen[-1]


@pytest.mark.parametrize("columns", sampled([60, 200], [60]))
def test_runs_are_seen_and_q_leaves(workspace: Workspace, columns: int, tmp_path: Path) -> None:
    (run_id,) = workspace.active()
    screen = Screen(workspace, columns)
    try:
        load = ["LOAD"] if columns == 200 else []
        text = screen.shows("1 active", run_id, "running", "hold 1/1", *load, "q quits")
        assert load or "LOAD" not in text, "what has no room is left out"
        (tmp_path / "go").touch()
        screen.shows("no active runs")
        assert workspace.runs()[run_id]["status"] == "passed", "what ended meanwhile is brought home"
        screen.tmux("send-keys", "q")
        assert "no active runs" not in screen.shows("left with 0"), "the screen is what it was before"
    finally:
        screen.tmux("kill-server")


def test_without_a_terminal_it_looks_once(workspace: Workspace) -> None:
    (run_id,) = workspace.active()
    assert run_id in workspace.fcctl("top").stdout
    wait_for(lambda: [(run["run_id"], run["state"]) for run in workspace.json("top")["runs"]] == [(run_id, "running")])
