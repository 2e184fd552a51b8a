"""A commit of the workspace's repository in a temporary folder. The working tree, its index and ``.git`` stay as they
are: the folder has an index and a HEAD of its own, and only reads the repository's objects."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from orchestrator.base.errors import ConfigError, NotFoundError, nearest
from orchestrator.base.git import GitFailed, run_git
from orchestrator.runs.git_source import GitSource
from orchestrator.runs.source import Source

#: Git LFS may fetch files meanwhile.
CHECKOUT_TIMEOUT_S = 1800
#: The user asks for a checkout, so filters and a partial clone's remote do what they do in `git checkout`.
_run = partial(run_git, timeout_s=CHECKOUT_TIMEOUT_S, may_fetch=True)
#: Settings of a repository that would change more than the folder, or less.
_PLAIN = ("-c", "core.sparseCheckout=false", "-c", "submodule.recurse=false")
#: A name that may be that of a branch or a tag, or a commit's hash; not ``HEAD~1``.
_NAME = re.compile(r"(?!HEAD$)[\w./+-]+")
#: Waits until its standard input ends, as it also does when fcctl is killed. A git process may still write meanwhile.
_REMOVE = 'cat > /dev/null; for i in 1 2 3 4 5; do rm -rf "$1" && exit; sleep 1; done'


@dataclass(frozen=True)
class Revision:
    """A commit, and the folder that has its files of the workspace."""

    name: str
    commit: str
    root: Path
    #: Submodules whose commit is not here, each with what to type.
    lacking: tuple[str, ...]

    def read(self) -> Source:
        """Its files; never ``dirty``. Raises ConfigError."""
        source = GitSource(self.root.parent).read(self.root)  # hashes of a temporary folder are of no use later
        return replace(source, git_commit=self.commit, dirty=False, skipped=(*source.skipped, *self.lacking))


@contextmanager
def checked_out(workspace: Path, name: str) -> Iterator[Revision]:
    """The files of the branch, tag or commit ``name``; removed at the end, also if this process is killed. Raises
    ConfigError: the workspace is in no git repository, or git cannot write the files; NotFoundError: there is no such
    revision, or it lacks the workspace's folder."""
    if shutil.which("git") is None:
        raise ConfigError("--rev needs git", cause="git is not installed", hint="install git, or run without --rev")
    repository, prefix = _repository(workspace, name)
    commit = _commit(workspace, name)
    if prefix and not _succeeds(workspace, "cat-file", "-e", f"{commit}:{prefix}"):
        raise NotFoundError(
            f"the revision '{name}' has no folder {prefix}",
            cause=f"the workspace is in {prefix}, which commit {commit[:10]} does not have",
            hint=f"choose a later revision: git log --oneline -- {prefix}",
        )
    with _folder() as folder:
        try:
            lacking = _write(repository, commit, folder / "tree", prefix, workspace, folder / "git")
        except (GitFailed, OSError) as error:
            raise ConfigError(
                f"cannot write the files of revision '{name}'",
                cause=str(error),
                hint=f"free disk space in {folder.parent}, or fetch what is missing: git fetch; git lfs fetch --all",
            ) from None
        yield Revision(name, commit, folder / "tree" / prefix, tuple(lacking))


@contextmanager
def _folder() -> Iterator[Path]:
    """A temporary folder that a process of its own removes."""
    folder = Path(tempfile.mkdtemp(prefix="fcctl-revision-")).resolve()
    remover = subprocess.Popen(
        ["/bin/sh", "-c", _REMOVE, "sh", str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield folder
    finally:
        remover.communicate()


def _write(
    repository: Path, commit: str, tree: Path, prefix: str, beside: Path, private: Path, path: str = ""
) -> list[str]:
    """Writes the files of ``commit`` below ``prefix`` at ``tree/prefix``, and those of its submodules; returns the
    submodules whose commit is not here. ``beside`` is the folder of the working tree that ``tree/prefix`` stands for,
    ``path`` its place in the workspace; ``private`` gets what git keeps of each folder: its HEAD, its index. Raises
    GitFailed, OSError."""
    place = tree / prefix
    for folder in (private, place):
        folder.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(dir=private))
    # A linked work tree, as `git worktree` makes it, of which the repository itself knows nothing.
    (own / "HEAD").write_text(f"{commit}\n")
    (own / "commondir").write_text(f"{repository}\n")
    (tree / ".git").write_text(f"gitdir: {own}\n")
    _run(place, *_PLAIN, "read-tree", commit)
    _run(place, *_PLAIN, "checkout-index", "--all", "--force", "--index", "--quiet")
    for above in Path(prefix).parents if prefix else ():  # what they say of the files below
        _succeeds(tree, "checkout-index", "--force", "--quiet", "--", str(above / ".gitattributes"))
    lacking = []
    for entry in _run(place, "ls-files", "--stage", "-z").split("\0"):
        if entry.startswith("160000 "):
            facts, _, name = entry.partition("\t")
            lacking += _submodule(facts.split()[1], place / name, beside / name, private, f"{path}{name}")
    return lacking


def _submodule(commit: str, place: Path, beside: Path, private: Path, path: str) -> list[str]:
    if not (beside / ".git").exists():
        return []  # reading the source tells it
    if not _succeeds(beside, "cat-file", "-e", f"{commit}^{{commit}}"):
        fetch = f"git -C {path} fetch"
        return [f"{path}: your clone lacks the submodule's commit {commit[:10]} (to fetch it: {fetch})"]
    return _write(_common_folder(beside), commit, place, "", beside, private, f"{path}/")


def _repository(workspace: Path, name: str) -> tuple[Path, str]:
    """The repository's own folder, and the workspace's path in it, empty or with a slash at its end."""
    try:
        return _common_folder(workspace), _run(workspace, "rev-parse", "--show-prefix").strip("\n")
    except GitFailed as error:
        outside = "not a git repository" in str(error)
        raise ConfigError(
            f"--rev {name} needs a git repository",
            cause=f"{workspace} is not in a git repository" if outside else str(error),
            hint="run without --rev, or: git init" if outside else f"git -C {workspace} status",
        ) from None


def _common_folder(folder: Path) -> Path:
    return (folder / _run(folder, "rev-parse", "--git-common-dir").strip("\n")).resolve()


def _commit(workspace: Path, name: str) -> str:
    if not name or name[0] in "-^":  # an option; what a range leaves out
        raise NotFoundError(f"'{name}' is not a revision", hint=_ANY)
    try:
        named = _run(workspace, "rev-parse", "--verify", name).strip()
        kind = _run(workspace, "cat-file", "-t", named).strip()
    except GitFailed as error:
        cause = _UNKNOWN if str(error).endswith(_GITS) else str(error)
        raise NotFoundError(f"no revision '{name}'", cause=cause, hint=_instead(workspace, name)) from None
    try:
        return _run(workspace, "rev-parse", "--verify", f"{named}^{{commit}}").strip()
    except GitFailed:
        raise NotFoundError(f"'{name}' is not a revision", cause=f"it is a {kind}, not a commit", hint=_ANY) from None


_ANY = "give a branch, a tag or a commit: git log --oneline --all"
_UNKNOWN = "your clone has no branch, tag or commit of this name"
#: git's words for that.
_GITS = ("Needed a single revision", "could not get object info")


def _instead(workspace: Path, name: str) -> str:
    """What to type instead of ``--rev name``, which git does not know."""
    if not _run(workspace, "rev-list", "--all", "--max-count=1"):
        return "the repository has no commit yet: run without --rev, or commit first: git commit"
    refs = _run(workspace, "for-each-ref", "--format=%(refname:short)").split()
    near = next((ref for ref in refs if ref.endswith(f"/{name}")), None) or nearest(name, refs)
    if near:
        return f"did you mean --rev {near}?"
    if _NAME.fullmatch(name):
        return f"to fetch it: git fetch origin {name}, then: --rev FETCH_HEAD"
    if _run(workspace, "rev-parse", "--is-shallow-repository").strip() == "true":
        return "your clone is shallow; to fetch older commits: git fetch --unshallow"
    return _ANY


def _succeeds(folder: Path, *words: str) -> bool:
    try:
        _run(folder, *words)
    except GitFailed:
        return False
    return True
