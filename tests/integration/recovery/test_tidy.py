"""Old runs leave the host once nothing of them is only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.workflows import tidy
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
