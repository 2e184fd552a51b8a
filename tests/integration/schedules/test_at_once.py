"""Several fcctl change one file at once: each says what it did, and all of it is there."""

from __future__ import annotations

import os
import stat
import tomllib
from pathlib import Path

import pytest

from tests.support.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "w", private_home)
    made.job("hello", "steps:\n  - {id: say, run: echo hello}\n")
    (made.root / "fcctl.toml").chmod(0o600)
    return made


def at_once(workspace: Workspace, *commands: list[str]) -> list[tuple[int, str]]:
    """What each of these ended with: its exit code, and what it said."""
    started = [workspace.start(*command) for command in commands]
    return [(process.returncode, said) for process in started for said in [process.communicate()[1]]]


def add(name: str) -> list[str]:
    return ["schedule", "add", name, "--cron", "0 2 * * *", "--job", "hello", "--on", "here"]


def schedules(workspace: Workspace) -> set[str]:
    found: set[str] = set(tomllib.loads((workspace.root / "fcctl.toml").read_text()).get("schedules", {}))
    return found


def test_twelve_schedules_added_at_once(workspace: Workspace) -> None:
    before = (workspace.root / "fcctl.toml").read_text()
    names = [f"at{number}" for number in range(12)]
    done = at_once(workspace, *map(add, names))
    assert [code for code, _ in done] == [0] * 12, done
    assert schedules(workspace) == set(names)
    assert (workspace.root / "fcctl.toml").read_text().startswith(before)
    assert stat.S_IMODE((workspace.root / "fcctl.toml").stat().st_mode) == 0o600
    removed = at_once(workspace, *(["schedule", "rm", name] for name in names[:2]), add("more"))
    assert [code for code, _ in removed] == [0] * 3, removed
    assert schedules(workspace) == {*names[2:], "more"}
    assert not [name for name in os.listdir(workspace.root) if name.startswith(".fcctl")]


def test_one_schedule_added_four_times_at_once(workspace: Workspace) -> None:
    done = at_once(workspace, *[add("same")] * 4)
    assert sorted(code for code, _ in done) == [0, 8, 8, 8], done
    assert all("already" in said for code, said in done if code)
    assert schedules(workspace) == {"same"}
