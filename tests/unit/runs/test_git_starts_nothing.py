"""A tarball brings a `.git` of its own: reading the source starts no program that its config or its hooks name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.base.git import GitFailed, run_git
from orchestrator.results.compare.history import source_changes, subjects
from orchestrator.runs.git_source import GitSource
from orchestrator.runs.source import Source
from tests.support.repository import commit, git
from tests.support.scripts import script

pytestmark = pytest.mark.usefixtures("private_home")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return commit(tmp_path / "repo", a_dot_cu="a")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A program that leaves a file ``fired`` beside itself."""
    return script(tmp_path / "trap", f"touch '{tmp_path}/fired'\nexit 1")


def read(repo: Path) -> Source:
    """Of files that are compared with the index again: the same content at another time."""
    for file in repo.rglob("a.cu"):
        os.utime(file, (1, 1))
    return GitSource().read(repo)


def is_sprung(trap: Path) -> bool:
    return (trap.parent / "fired").exists()


@pytest.mark.parametrize("key", ["clean", "process"])
@pytest.mark.parametrize("name", ["x", "a=b.c"])
def test_filters_of_the_repository(repo: Path, trap: Path, name: str, key: str) -> None:
    attributes = repo / ".git/info/attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text(f"a.cu filter={name}\n")
    git(repo, "config", f"filter.{name}.{key}", str(trap))
    git(repo, "config", f"filter.{name}.required", "true")
    source = read(repo)
    assert [e.path for e in source.entries] == ["a.cu"]
    assert (source.git_commit, source.dirty) == (git(repo, "rev-parse", "HEAD"), False)
    assert not is_sprung(trap)


@pytest.mark.parametrize("place", ["included", "user"])
def test_filters_of_a_file_that_its_config_includes_are_not_applied_and_those_of_the_user_are(
    repo: Path, trap: Path, place: str
) -> None:
    """Git LFS is one of the user's."""
    if place == "included":
        (repo / ".git/more").write_text(f'[filter "x"]\n\tclean = {trap}\n')
        git(repo, "config", "include.path", "more")
    else:
        git(repo, "config", "--global", "filter.x.clean", str(trap))
    (repo / ".gitattributes").write_text("* filter=x\n")
    read(repo)
    assert is_sprung(trap) == (place == "user")


def test_filters_of_a_submodule(repo: Path, trap: Path, tmp_path: Path) -> None:
    git(repo, "submodule", "--quiet", "add", str(commit(tmp_path / "lib", a_dot_cu="a")), "lib")
    commit(repo)
    git(repo / "lib", "config", "filter.x.clean", str(trap))
    (repo / ".git/modules/lib/info").mkdir(exist_ok=True)
    (repo / ".git/modules/lib/info/attributes").write_text("* filter=x\n")
    assert read(repo).dirty is False
    (repo / "lib/a.cu").write_text("changed")
    assert read(repo).dirty is True
    assert not is_sprung(trap)


def test_fsmonitor_and_hooks(repo: Path, trap: Path) -> None:
    git(repo, "config", "core.fsmonitor", str(trap))
    hook = repo / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.symlink_to(trap)
    read(repo)
    run_git(repo, "read-tree", "HEAD", timeout_s=60)
    assert not is_sprung(trap)


def test_what_a_remote_names_where_an_object_is_missing(repo: Path, trap: Path) -> None:
    """Git would ask a "promisor" for it."""
    commit(repo, a_dot_cu="b")
    first, tree = git(repo, "rev-parse", "HEAD~"), git(repo, "rev-parse", "HEAD^{tree}")
    git(repo, "config", "remote.origin.url", str(repo.parent / "elsewhere"))
    git(repo, "config", "remote.origin.promisor", "true")
    git(repo, "config", "remote.origin.uploadpack", str(trap))
    git(repo, "config", "extensions.partialClone", "origin")
    git(repo, "config", "core.repositoryFormatVersion", "1")
    for name in (first, tree):
        (repo / ".git/objects" / name[:2] / name[2:]).unlink()
    read(repo)
    with pytest.raises(GitFailed):
        run_git(repo, "cat-file", "-p", tree, timeout_s=60)
    source_changes(repo, first, git(repo, "rev-parse", "HEAD"))
    assert not is_sprung(trap)


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
    assert not is_sprung(trap)
