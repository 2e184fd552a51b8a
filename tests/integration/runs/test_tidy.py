"""Old runs leave the host once nothing of them is only there."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.runs import transfer
from tests.support.sshd import LoopbackSshd
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "w", private_home)
    made.job("plain", "steps:\n  - {id: a, run: 'echo a'}\n")
    made.job("kept", "steps:\n  - {id: a, run: 'ln -s /etc/hosts $FCCTL_OUT/link'}\n")
    return made


def test_the_newest_stay_and_what_is_only_there_stays(workspace: Workspace) -> None:
    workspace.fcctl("run", "kept", "--on", "here", "-q")
    for _ in range(transfer.KEPT_ON_HOST + 2):
        workspace.fcctl("run", "plain", "--on", "here", "-q")
    there = sorted(p.name for p in (workspace.home / ".fcctl/runs").iterdir())
    mine = sorted(workspace.runs())
    assert len(mine) == transfer.KEPT_ON_HOST + 3
    assert there == [mine[0], *mine[-transfer.KEPT_ON_HOST :]]


def aged(days: float, *paths: Path) -> None:
    at = time.time() - days * 86400
    for path in filter(Path.exists, paths):
        os.utime(path, (at, at))


def another_program(archive: Path, number: int) -> Path:
    """A host program of another version: the same, with a few bytes more behind it."""
    content = archive.read_bytes() + bytes(number)
    made = archive.with_name(f"{hashlib.sha256(content).hexdigest()}.pyz")
    made.write_bytes(content)
    return made


@pytest.mark.full
def test_old_programs_and_trees_leave_the_host_but_not_one_in_use(
    tmp_path: Path, private_home: Path, sshd: LoopbackSshd
) -> None:
    workspace, other = (Workspace(tmp_path / name, private_home, sshd) for name in "wv")
    root, trees = sshd.home / ".fcctl", []
    for made in (other, workspace):
        made.job("plain", "steps:\n  - {id: a, run: 'echo a'}\n")
        made.fcctl("run", "plain", "--on", "box", "-q")
        trees.append(next(p for p in (root / "trees").iterdir() if p.name != ".index" and p not in trees))
    (current,) = (root / "runner").glob("*.pyz")
    programs = [another_program(current, number) for number in range(1, 6)]

    argv = sshd.ssh_argv(f"{sys.executable} -I -S {programs[-1]} --root {root} agent")
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as used:
        assert used.stdout is not None
        assert b"READY" in used.stdout.readline()
        aged(20, *programs)
        aged(21, programs[-1])  # not one of the three used last, whatever their names are
        for tree in trees:
            aged(40, tree, root / f"trees/.index/{tree.name}.json", root / f"locks/tree-{tree.name}.lock")
        wait_for((root / "locks/tidied").exists)
        (root / "locks/tidied").unlink()  # a day later
        workspace.fcctl("run", "plain", "--on", "box", "-q")
        wait_for(lambda: not trees[0].exists())
        assert trees[1].exists(), "the run used it"
        left = {current, programs[-1]}
        wait_for(lambda: len(list((root / "runner").glob("*.pyz"))) == 4)  # the newest three, and the one in use
        assert left <= set((root / "runner").glob("*.pyz"))
        assert programs[-1].with_suffix(".d").exists()
        used.communicate()
    other.fcctl("run", "plain", "--on", "box", "-q")
    assert trees[0].exists(), "it was sent again"
