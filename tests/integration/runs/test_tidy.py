"""Old runs leave the host once nothing of them is only there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.runs import tidy
from tests.support.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "w", private_home)
    made.job("plain", "steps:\n  - {id: a, run: 'echo a'}\n")
    made.job("kept", "steps:\n  - {id: a, run: 'ln -s /etc/hosts $FCCTL_OUT/link'}\n")
    return made


def test_the_newest_stay_and_what_is_only_there_stays(workspace: Workspace) -> None:
    workspace.fcctl("run", "kept", "--on", "here", "-q")
    for _ in range(tidy.KEPT_ON_HOST + 2):
        workspace.fcctl("run", "plain", "--on", "here", "-q")
    there = sorted(p.name for p in (workspace.home / ".fcctl/runs").iterdir())
    mine = sorted(workspace.runs())
    assert len(mine) == tidy.KEPT_ON_HOST + 3
    assert there == [mine[0], *mine[-tidy.KEPT_ON_HOST :]]


def test_a_disk_that_is_nearly_full_keeps_none(workspace: Workspace) -> None:
    for name in ("kept", "plain", "plain"):
        workspace.fcctl("run", name, "--on", "here", "-q")
    assert len(list((workspace.home / ".fcctl/runs").iterdir())) == 3
    # Typed in a process of its own: an int that no disk reaches stands for the limit.
    script = "import sys; from orchestrator.runs import tidy; tidy.LOW_BYTES = 1 << 80; from orchestrator.cli.entry import entry; entry()"  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", script, "run", "plain", "--on", "here"], cwd=workspace.root, env=workspace.env(),
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the disk of here is nearly full: 2 old runs deleted there" in done.stderr
    mine = sorted(workspace.runs().values(), key=lambda run: str(run["created"]))
    there = {p.name for p in (workspace.home / ".fcctl/runs").iterdir()}
    assert there == {mine[0]["run_id"], mine[-1]["run_id"]}
