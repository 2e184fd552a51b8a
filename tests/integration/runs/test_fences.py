"""A machine that fcctl owns gets its shutdown timer before anything else runs, and loses it when the run is home."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.scripts import script
from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace

JOB = "steps:\n  - {id: look, run: 'cat $HOME/shutdown.log > $FCCTL_OUT/seen.txt', timeout: 2m}\n"


@pytest.fixture
def shutdown(sshd: LoopbackSshd) -> Path:
    """A ``shutdown`` of the far side that writes down what it is asked, found before the real one."""
    folder = sshd.home / "sbin"
    log = sshd.home / "shutdown.log"
    log.touch()
    for name, body in (
        ("shutdown", f'echo "$@" >> {log}'), ("sudo", '[ "$1" = -n ] && shift\nexec "$@"'), ("systemd-run", "exit 1"),
    ):  # fmt: skip
        script(folder / name, body)
    return log


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, sshd: LoopbackSshd, shutdown: Path) -> Workspace:
    sshd.stop()
    sshd.environment["PATH"] = f"{shutdown.parent}/sbin:{os.environ['PATH']}"
    sshd.start()
    made = Workspace(tmp_path / "w", private_home, sshd, owned=True, usd_per_hour=0.75)
    made.job("look", JOB)
    return made


def test_armed_first_and_disarmed_last(workspace: Workspace, shutdown: Path) -> None:
    workspace.fcctl("run", "look", "--on", "box")
    seen = (workspace.only_folder() / "steps/look/out/seen.txt").read_text().splitlines()
    assert len(seen) == 1, "the timer was set before the first step, once"
    assert seen[0].startswith("-P +"), seen
    assert 15 <= int(seen[0].split()[1][1:]) <= 17, "two minutes of steps and a quarter of an hour"
    assert shutdown.read_text().splitlines()[-1] == "-c"
    kinds = [json.loads(line)["kind"] for line in (workspace.only_folder() / "journal.jsonl").read_text().splitlines()]
    assert kinds[:4] == ["begun", "arm", "armed", "sync"]


def test_a_machine_that_is_not_owned_is_never_touched(workspace: Workspace, shutdown: Path) -> None:
    text = (workspace.root / "fcctl.toml").read_text().replace("owned = true", "owned = false")
    (workspace.root / "fcctl.toml").write_text(text)
    workspace.fcctl("run", "look", "--on", "box")
    assert shutdown.read_text() == ""


def test_a_machine_that_refuses_is_not_used(workspace: Workspace, shutdown: Path) -> None:
    script(shutdown.parent / "sbin/shutdown", "echo not allowed >&2\nexit 1")
    done = workspace.fcctl("run", "look", "--on", "box", check=6)
    assert "shutdown timer" in done.stderr
    assert "hint:" in done.stderr
    assert workspace.only_run()["steps"] == []
