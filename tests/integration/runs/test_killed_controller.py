"""A controller killed with SIGKILL at every line of its journal, and the next command that picks the run up."""

from __future__ import annotations

import itertools
import re
import signal
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.counted_run import JOB, check_whole, pick_up
from tests.support.sshd import LoopbackSshd
from tests.support.tiers import sampled
from tests.support.workspace import Workspace

LINES = 7  # begun sync submit submitted ended collected complete


@pytest.mark.parametrize(
    ("when", "line"),
    sampled(
        itertools.product(("before", "after"), range(1, LINES + 1)),
        keep=[("after", 1), ("before", 4), ("after", 4), ("after", 6)],
    ),
)
def test_killed_at_every_line_of_a_local_run(when: str, line: int, tmp_path: Path, private_home: Path) -> None:
    workspace = Workspace(tmp_path / "w", private_home)
    workspace.job("count", JOB)
    count = tmp_path / "count"
    code = workspace.killed(when, line, "run", "count", "--on", "here", "--set", f"COUNT={count}")
    assert code == -signal.SIGKILL
    pick_up(workspace)
    check_whole(workspace, count)


@pytest.mark.parametrize(("line", "told"), [(1, False), (2, True)])
def test_an_id_that_was_told_is_known(line: int, told: bool, tmp_path: Path, private_home: Path) -> None:
    """Killed before its first line is on disk, a run was not named to anybody either."""
    workspace = Workspace(tmp_path / "w", private_home)
    workspace.job("count", JOB)
    argv = ("run", "count", "--on", "here", "--set", f"COUNT={tmp_path / 'count'}")
    done = forked.run(argv, workspace.root, workspace.env(), more=workspace.imports, kill=("before", line))
    assert done.returncode == -signal.SIGKILL
    named = re.findall(r"^(?:note: )?run (\S+)$", done.stderr, re.MULTILINE)
    assert named == (workspace.active() if told else [])


@pytest.mark.parametrize("line", sampled([2, 3, 4, 5], keep=[3]))
def test_killed_over_ssh(line: int, tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> None:
    workspace = Workspace(tmp_path / "w", private_home, sshd)
    workspace.job("count", JOB)
    count = tmp_path / "count"
    workspace.killed("after", line, "run", "count", "--on", "box", "--set", f"COUNT={count}")
    pick_up(workspace)
    check_whole(workspace, count)


def test_the_journal_has_the_lines_this_test_kills_at(tmp_path: Path, private_home: Path) -> None:
    workspace = Workspace(tmp_path / "w", private_home)
    workspace.job("count", JOB)
    workspace.fcctl("run", "count", "--on", "here", "--set", f"COUNT={tmp_path / 'count'}")
    lines = (workspace.only_folder() / "journal.jsonl").read_text().splitlines()
    assert len(lines) == LINES
