"""A tarball brings a `.git` of its own: reading the source starts no program that its config or its hooks name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.base.git import GitFailed, run_git
from orchestrator.results.compare.history import source_changes, subjects
from orchestrator.runs.git_source import GitSource

pytestmark = pytest.mark.usefixtures("private_home")


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def repository(folder: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    (folder / "a.cu").write_text("a")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "x")
    return folder


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A program that leaves a file ``fired`` beside itself."""
    program = tmp_path / "trap"
    program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/fired'\nexit 1\n")
    program.chmod(0o755)
    return program


def touched(file: Path) -> None:
    """The same content at another time: git compares it with the index again."""
    os.utime(file, (1, 1))


def assert_untouched(trap: Path) -> None:
    assert not (trap.parent / "fired").exists()


@pytest.mark.parametrize("key", ["clean", "process"])
@pytest.mark.parametrize("name", ["x", "a=b.c"])
def test_filters_of_the_repository(repo: Path, trap: Path, name: str, key: str) -> None:
    attributes = repo / ".git/info/attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text(f"a.cu filter={name}\n")
    git(repo, "config", f"filter.{name}.{key}", str(trap))
    git(repo, "config", f"filter.{name}.required", "true")
    touched(repo / "a.cu")
    source = GitSource().read(repo)
    assert [e.path for e in source.entries] == ["a.cu"]
    assert (source.git_commit, source.dirty) == (git(repo, "rev-parse", "HEAD"), False)
    assert_untouched(trap)


def test_filters_of_a_file_that_its_config_includes(repo: Path, trap: Path) -> None:
    (repo / ".git/more").write_text(f'[filter "x"]\n\tclean = {trap}\n')
    git(repo, "config", "include.path", "more")
    (repo / ".gitattributes").write_text("* filter=x\n")
    touched(repo / "a.cu")
    GitSource().read(repo)
    assert_untouched(trap)


def test_filters_of_a_submodule(repo: Path, trap: Path, tmp_path: Path) -> None:
    lib = repository(tmp_path / "lib")
    git(repo, "submodule", "--quiet", "add", str(lib), "lib")
    git(repo, "commit", "-q", "-m", "y")
    git(repo / "lib", "config", "filter.x.clean", str(trap))
    (repo / ".git/modules/lib/info").mkdir(exist_ok=True)
    (repo / ".git/modules/lib/info/attributes").write_text("* filter=x\n")
    touched(repo / "lib/a.cu")
    assert GitSource().read(repo).dirty is False
    (repo / "lib/a.cu").write_text("changed")
    assert GitSource().read(repo).dirty is True
    assert_untouched(trap)


def test_filters_of_the_user_are_applied(repo: Path, trap: Path) -> None:
    """Git LFS is one."""
    git(repo, "config", "--global", "filter.x.clean", str(trap))
    (repo / ".gitattributes").write_text("* filter=x\n")
    touched(repo / "a.cu")
    GitSource().read(repo)
    assert (trap.parent / "fired").exists()


def test_fsmonitor_and_hooks(repo: Path, trap: Path) -> None:
    git(repo, "config", "core.fsmonitor", str(trap))
    hook = repo / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.symlink_to(trap)
    touched(repo / "a.cu")
    GitSource().read(repo)
    run_git(repo, "read-tree", "HEAD", timeout_s=60)
    assert_untouched(trap)


def test_what_a_remote_names_where_an_object_is_missing(repo: Path, trap: Path) -> None:
    """Git would ask a "promisor" for it."""
    (repo / "a.cu").write_text("b")
    git(repo, "commit", "-qam", "y")
    first, tree = git(repo, "rev-parse", "HEAD~"), git(repo, "rev-parse", "HEAD^{tree}")
    git(repo, "config", "remote.origin.url", str(repo.parent / "elsewhere"))
    git(repo, "config", "remote.origin.promisor", "true")
    git(repo, "config", "remote.origin.uploadpack", str(trap))
    git(repo, "config", "extensions.partialClone", "origin")
    git(repo, "config", "core.repositoryFormatVersion", "1")
    for name in (first, tree):
        (repo / ".git/objects" / name[:2] / name[2:]).unlink()
    GitSource().read(repo)
    with pytest.raises(GitFailed):
        run_git(repo, "cat-file", "-p", tree, timeout_s=60)
    source_changes(repo, first, git(repo, "rev-parse", "HEAD"))
    assert_untouched(trap)


def test_what_verifies_signatures_and_shows_differences(repo: Path, trap: Path) -> None:
    first = git(repo, "rev-parse", "HEAD")
    git(repo, "config", "log.showSignature", "true")
    git(repo, "config", "gpg.program", str(trap))
    git(repo, "config", "diff.external", str(trap))
    git(repo, "config", "diff.x.textconv", str(trap))
    git(repo, "config", "core.pager", str(trap))
    body = git(repo, "cat-file", "commit", "HEAD")
    head, _, text = body.partition("\n\n")
    signed = f"{head}\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n{text}\n"
    file = repo / ".git/signed"
    file.write_text(signed)
    second = git(repo, "hash-object", "-t", "commit", "-w", str(file))
    git(repo, "update-ref", "HEAD", second)
    subjects(repo, [first, second])
    source_changes(repo, first, second)
    assert_untouched(trap)
