"""A run that ends tells the program of ``[notify]`` once, whoever completes it; its exit code is the run's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.workspace import Workspace

JOB = "steps:\n  - {id: say, run: 'exit ${CODE}', timeout: 60}\nenv: {CODE: '0'}\n"


def told(workspace: Workspace) -> list[dict[str, Any]]:
    path = workspace.root / "told.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def with_notices(
    folder: Path, home: Path, on: str, command: str = "cat >> told.jsonl; echo >> told.jsonl"
) -> Workspace:
    workspace = Workspace(folder / "w", home)
    text = (workspace.root / "fcctl.toml").read_text()
    argv = json.dumps(["sh", "-c", f"cd {workspace.root}; {command}"])
    (workspace.root / "fcctl.toml").write_text(f"{text}\n[notify]\ncommand = {argv}\non = {on}\n")
    workspace.job("hello", JOB)
    return workspace


def test_passed_and_failed_are_told_once_each(tmp_path: Path, private_home: Path) -> None:
    workspace = with_notices(tmp_path, private_home, '["finished", "failed"]')
    workspace.fcctl("run", "hello", "--on", "here")
    workspace.fcctl("run", "hello", "--on", "here", "--set", "CODE=3", check=100)
    assert [(one["event"], one["run"]["status"]) for one in told(workspace)] == [
        ("finished", "passed"), ("failed", "failed"),
    ]  # fmt: skip
    workspace.fcctl("ps")
    assert len(told(workspace)) == 2


def test_a_hook_that_fails_changes_no_exit_code(tmp_path: Path, private_home: Path) -> None:
    workspace = with_notices(tmp_path, private_home, '["finished"]', "echo no way >&2; exit 7")
    done = workspace.fcctl("run", "hello", "--on", "here")
    assert "[notify] command failed with exit code 7: no way" in done.stderr
