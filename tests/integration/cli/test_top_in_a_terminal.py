"""``fcctl top`` in a real terminal of 60 and of 200 columns, and without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
