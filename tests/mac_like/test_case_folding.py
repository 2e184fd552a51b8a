"""A disk that does not tell names by their case, as a Mac's: folders and files of fcctl that a repository spells
otherwise."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.runs.git_source import GitSource
from orchestrator.schedules.os_scheduler import Entry
from orchestrator.workspace.root import find_root
from orchestrator.workspace.workspace import find_workspace
from tests.support.workspace import Workspace

pytestmark = pytest.mark.skipif(not os.environ.get("MAC_LIKE"), reason="it is for make mac-like")


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e", *words], check=True)


def sent(root: Path) -> list[str]:
    return [entry.path for entry in GitSource(root.parent / "cache").read(root).entries]


@pytest.mark.parametrize("repository", [True, False])
def test_results_in_a_folder_spelled_otherwise_are_not_sent(tmp_path: Path, repository: bool) -> None:
    root = tmp_path / "w"
    for name in ("RESULTS/runs/one/run.json", "RESULTS/Paper.csv", "Results/index.sqlite", "a.cu"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    if repository:
        git(root, "init", "-q")
    assert sent(root) == ["RESULTS/Paper.csv", "a.cu"]


@pytest.mark.parametrize("repository", [True, False])
def test_gitignore_does_not_tell_names_by_their_case(tmp_path: Path, repository: bool) -> None:
    root = tmp_path / "w"
    (root / "build").mkdir(parents=True)
    (root / ".gitignore").write_text("Build/\n*.O\n")
    for name in ("build/k.cubin", "k.o", "k.cu"):
        (root / name).write_text("x")
    if repository:
        git(root, "init", "-q")
    assert sent(root) == [".gitignore", "k.cu"]


def test_a_new_file_goes_to_the_folder_that_git_tracks(tmp_path: Path) -> None:
    """On the machine, whose disk tells names by their case, there is one folder as here."""
    root = tmp_path / "w"
    (root / "Src").mkdir(parents=True)
    (root / "Src/a.cu").write_text("x")
    git(root, "init", "-q")
    git(root, "add", ".")
    (root / "Src").rename(root / "src")
    (root / "src/b.cu").write_text("x")
    assert sent(root) == ["Src/a.cu", "Src/b.cu"]


def test_a_workspace_has_one_name_however_it_is_typed(tmp_path: Path) -> None:
    root = tmp_path / "Work" / "FlashCore"
    root.mkdir(parents=True)
    (root / "fcctl.toml").write_text("[project]\n")
    typed = tmp_path / "work" / "flashcore"
    assert find_root(typed) == find_root(root) == root
    assert Entry.of(find_workspace(typed).root).name == Entry.of(root).name


def test_a_tracked_file_that_is_spelled_otherwise_now_is_sent_once(tmp_path: Path) -> None:
    """Also in a repository that came from a computer whose disk tells names by their case."""
    root = tmp_path / "w"
    root.mkdir()
    (root / "Kernel.cu").write_text("x")
    git(root, "init", "-q")
    git(root, "add", ".")
    (root / "Kernel.cu").rename(root / "kernel.cu")
    for ignores in ("true", "false"):
        git(root, "config", "core.ignorecase", ignores)
        source = GitSource(tmp_path / "cache").read(root)
        assert [entry.path for entry in source.entries] == ["Kernel.cu"]
        assert source.skipped == ()


def test_folders_of_a_workspace_are_found_however_they_are_spelled(tmp_path: Path, private_home: Path) -> None:
    root = tmp_path / "W"
    for folder in ("Results/mine", "Jobs"):
        (root / folder).mkdir(parents=True)
    (root / "Results/mine/p50.csv").write_text("p50")
    workspace = Workspace(root, private_home)
    (root / "fcctl.toml").rename(root / "FCCTL.toml")
    workspace.job("quick", "steps: [{id: a, run: 'find . -type f | sort; echo x > $FCCTL_ARTIFACTS/y'}]\n")
    for typed in ("Jobs/quick.yaml", "jobs/QUICK.yaml", "quick"):
        workspace.fcctl("run", typed, "--on", "here")
    log = workspace.fcctl("logs", "last").stdout
    assert [line for line in log.splitlines() if line.startswith("./")] == [
        "./FCCTL.toml", "./Jobs/quick.yaml", "./Results/mine/p50.csv", "./main.cu",
    ]  # fmt: skip
    assert sorted(path.name for path in root.iterdir()) == ["FCCTL.toml", "Jobs", "Results", "main.cu"]
    assert (root / "Results/mine/p50.csv").read_text() == "p50"
    assert len(workspace.runs()) == 3
    workspace.fcctl("schedule", "add", "n", "--cron", "0 2 * * *", "--job", "quick", "--on", "here")
    assert "[schedules.n]" in (root / "FCCTL.toml").read_text()
    (root / "Results/mine/fcctl.toml").write_text("[project]\n")
    assert find_root(root / "Results/mine") == root
