"""What a host may call its files, and what programs of this computer make of them later."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fcctl_remote import wire
from orchestrator.app import SystemClock
from orchestrator.base import safe_paths
from orchestrator.results.store.intake import FolderIntake, Limits
from orchestrator.results.store.store import FileStore
from orchestrator.workspace.init import init
from tests.support.stores import begin, make_record

#: As a host may spell them; what each is to be called here.
ACTING = {
    "artifacts/.git/config": "artifacts/_.git_/config", "artifacts/.GIT": "artifacts/_.GIT_",
    "a/.git/hooks/.x": "a/_.git_/hooks/_.x_", "artifacts/HEAD": "artifacts/_HEAD_",
    "artifacts/head": "artifacts/_head_", "artifacts/fcctl.toml": "artifacts/_fcctl.toml_",
    "artifacts/FCCTL.Toml": "artifacts/_FCCTL.Toml_", "artifacts/.envrc": "artifacts/_.envrc_",
    ".vscode/tasks.json": "_.vscode_/tasks.json", "x/.Gitattributes": "x/_.Gitattributes_",
    "x/.gitmodules": "x/_.gitmodules_", "x/.hg/hgrc": "x/_.hg_/hgrc", "x/.idea/a": "x/_.idea_/a",
    "x/.tool-versions": "x/_.tool-versions_", "x/.python-version": "x/_.python-version_",
    "x/_darcs/prefs/defaults": "x/__darcs_/prefs/defaults", "x/cvs/Root": "x/_cvs_/Root",
    "x/mise.local.toml": "x/_mise.local.toml_", "x/rust-toolchain": "x/_rust-toolchain_",
    "x/conftest.py": "x/_conftest.py_", "x/test_a.py": "x/_test_a.py_", "x/a_test.go": "x/_a_test.go_",
    "x/a.test.mjs": "x/_a.test.mjs_", "x/prettier.config.js": "x/_prettier.config.js_",
    "x/te\u017ft_a.py": "x/_te\u017ft_a.py_",
}  # fmt: skip
PLAIN = [
    "artifacts/Makefile", "x/CMakeLists.txt", "x/pyproject.toml", "x/ahead", "x/HEAD.txt", "head/log.txt", "x/a.git",
    "x/test.py", "x/config.js", "x/git/config", "x/_.git_/config", "run.log", "x/latest.json",
]  # fmt: skip


@pytest.fixture
def intake(tmp_path: Path) -> FolderIntake:
    return FolderIntake(tmp_path / "runs" / "x.partial")


def stored(intake: FolderIntake) -> list[str]:
    return sorted(p.relative_to(intake.root).as_posix() for p in intake.root.rglob("*") if p.is_file())


@pytest.mark.parametrize(("sent", "place"), [*ACTING.items(), *((name, name) for name in PLAIN)])
def test_a_name_that_acts_is_stored_under_one_that_does_not(intake: FolderIntake, sent: str, place: str) -> None:
    assert intake.accepts(sent, 5) is None
    intake.write(sent, 0, b"12")
    assert intake.size(sent) == 2, "asked for by the host's name, whatever it is called here"
    intake.write(sent, 2, b"345")
    assert intake.verified(wire.FileEntry(sent, 5, hashlib.sha256(b"12345").hexdigest()))
    assert (intake.root / place).read_bytes() == b"12345"
    assert stored(intake) == [place]
    stream, _ = safe_paths.open_result(intake.root, sent)
    assert stream.read() == b"12345", "as a record names it"
    stream.close()
    intake.discard(sent)
    assert stored(intake) == []


@pytest.mark.parametrize("name", ["x/.g\u200cit/config", "x/.git\u202e", "x/HE\ufeffAD", "x/fcctl\u200d.toml"])
def test_what_a_file_system_leaves_out_of_a_name_is_refused(intake: FolderIntake, name: str) -> None:
    assert intake.accepts(name) == "bad_name"


def test_the_names_are_remembered_when_a_collection_goes_on(intake: FolderIntake) -> None:
    intake.write("a/.git/config", 0, b"12")
    again = FolderIntake(intake.root, Limits())
    assert again.size("a/.git/config") == 2
    assert again.accepts("a/.git/config", 5) is None
    again.write("a/.git/config", 2, b"345")
    assert stored(again) == ["a/_.git_/config"]
    assert again.accepts("a/_.git_/config") == "collides", "one place, one file"
    assert again.accepts("a/.GIT/config") == "collides"
    assert again.renamed() == [("a/.git", "a/_.git_")]


def test_a_name_that_gets_too_long_is_refused(intake: FolderIntake) -> None:
    assert intake.accepts("." + "x" * 252) is None
    assert intake.accepts("." + "x" * 254) == "bad_name"
    assert intake.accepts("x" * 255) is None


def test_what_was_renamed_is_known_once_for_each_name(store: FileStore) -> None:
    run = begin(store)
    intake = run.intake()
    for name in ("artifacts/.git/config", "artifacts/.git/HEAD", "artifacts/plain", "steps/a/out/HEAD"):
        intake.write(name, 0, b"x")
    assert run.intake().renamed() == [
        ("artifacts/.git", "artifacts/_.git_"), ("steps/a/out/HEAD", "steps/a/out/_HEAD_"),
    ]  # fmt: skip


GIT = ["git", "-c", "init.defaultBranch=main", "-c", "user.name=n", "-c", "user.email=e@x"]


def git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*GIT, *words], cwd=folder, capture_output=True, text=True, check=False)


def plant(intake: FolderIntake, fires: Path) -> None:
    """A repository that runs a command, as ``.git`` and as a bare one; and tests that one would collect."""
    config = f"[core]\n\tfsmonitor = touch {fires}\n\trepositoryformatversion = 0\n\tbare = false\n"
    bare = config + "\tworktree = .\n"
    for top, text in (("artifacts/.git", config), ("artifacts/bare", bare)):
        for name, content in (("HEAD", "ref: refs/heads/main\n"), ("config", text), ("objects/x", ""), ("refs/x", "")):
            intake.write(f"{top}/{name}", 0, content.encode())
    for name in ("artifacts/conftest.py", "artifacts/test_x.py", "artifacts/x_test.py"):
        intake.write(name, 0, f"import pathlib; pathlib.Path({str(fires)!r}).touch()\n".encode())


@pytest.mark.parametrize("fresh", [True, False], ids=["as init makes it", "without a .gitignore"])
def test_no_git_and_no_pytest_runs_what_a_host_sent(tmp_path: Path, fresh: bool) -> None:
    """With the real programs, in the folders themselves and in the workspace around them."""
    assert git(tmp_path, "init").returncode == 0
    if fresh:
        init(tmp_path)
    run = begin(FileStore(tmp_path / "results", SystemClock()))
    fires = tmp_path / "fired"
    plant(run.intake(), fires)
    folder = run.complete(make_record(run.run_id))
    for place in (folder / "artifacts", folder / "artifacts" / "bare", folder / "artifacts" / "bare" / "refs"):
        git(place, "status")
        git(place, "add", "-A", ".")
    assert git(tmp_path, "add", "-A").returncode == 0
    listed = git(tmp_path, "ls-files").stdout
    assert ("_.git_/config" not in listed and "fcctl.toml" in listed) if fresh else "_.git_/config" in listed
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."]
    ran = subprocess.run(tests, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ})
    assert ran.returncode == 5, ran.stdout  # no tests
    assert not fires.exists()
