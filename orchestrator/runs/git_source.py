"""The workspace's source as git sees it: what is tracked, and what is untracked but not ignored."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from posixpath import basename, dirname, normpath

from fcctl_remote import wire
from fcctl_remote.base.processes import send
from fcctl_remote.base.tree import path_fault, tree_digest
from fcctl_remote.wire import TreeEntry
from orchestrator.base.errors import ConfigError
from orchestrator.base.files import user_folder, write_atomic
from orchestrator.base.git import SAFE, git_environment, without_own_filters
from orchestrator.base.safe_paths import folded, ignores_case, open_plain
from orchestrator.runs.source import Source, SourceHashes

#: What the controller itself writes in the folder of results, whatever .gitignore says.
OWN = ("runs", "active", "schedules", "sessions", "machines.jsonl", "index.sqlite", "index.sqlite.lock", "tags.toml")
#: Left out where no git is installed to read .gitignore.
WITHOUT_GIT = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", "build", "dist", ".idea", ".vscode"}
    | {".DS_Store", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox"}
)
#: Files in folders that may be of use on this computer alone.
_VENV, _CMAKE = "pyvenv.cfg", "CMakeCache.txt"
GIT_TIMEOUT_S = 120
MAX_NESTING = 16
#: A Git LFS pointer is shorter, by its specification.
LFS_POINTER_BYTES = 1024
MAX_ATTRIBUTES_BYTES = 1024 * 1024
#: The most that one file takes in the list that is sent: a path of 1024 bytes, escaped.
MOST_ROW_BYTES = 8 * 1024


@dataclass
class _Listing:
    """Paths relative to the workspace, those that are new to git, and what had to be left out."""

    own: list[str]
    #: Whether this computer's disk ignores the case of names.
    one_case: bool
    paths: set[str] = field(default_factory=set)
    new: set[str] = field(default_factory=set)
    untracked: bool = False
    #: Whether tracked files of a submodule differ from its commit.
    changed: bool = False
    skipped: list[str] = field(default_factory=list)

    def is_own(self, path: str) -> bool:
        """Whether it is a file of the controller itself, or a folder of these."""
        path = folded(path) if self.one_case else path
        return any(path == own or path.startswith((own + "/", own + "-")) for own in self.own)


class GitSource:
    """A :class:`~orchestrator.runs.source.SourceReader`. Hashes are remembered in the user's cache folder.
    ``results`` is the folder of results, relative to the workspace."""

    def __init__(self, cache_folder: Path | None = None, results: str = "results") -> None:
        self._cache_folder = cache_folder or user_folder("cache")
        self._own = (".fcctl", *(normpath(f"{results}/{name}") for name in OWN))

    def read(self, root: Path) -> Source:
        """Reads every file of the workspace with its hash. Raises ConfigError if git refuses, ConflictError if a file
        keeps changing."""
        root = root.resolve()
        one_case = ignores_case(root)
        listing = _Listing([folded(own) if one_case else own for own in self._own], one_case)
        commit, changed = _list(root, self._cache_folder, listing)
        if one_case:
            _leave_out_twins(listing)
            _spell_as_tracked(listing)
        if any(path.endswith((_VENV, _CMAKE)) for path in listing.new):
            left, said = leave_out(listing.new, listing.paths)
            listing.paths -= left
            listing.skipped += said
        hashes = SourceHashes(root, self._cache_folder)
        large_files = "filter=lfs" in _attributes(root)
        entries = []
        for path in sorted(listing.paths, key=os.fsencode):
            entry = _entry(root, path, hashes, listing.skipped)
            if entry is not None:
                entries.append(entry)
                if large_files and entry.size <= LFS_POINTER_BYTES and _is_pointer(root / path):
                    listing.skipped.append(
                        f"{_shown(path)}: only its Git LFS pointer is in the workspace (to fetch"
                        f" the file: git lfs pull)"
                    )
        hashes.save({entry.path for entry in entries})
        _refuse_too_many(entries)
        return Source(
            root=root,
            entries=tuple(entries),
            tree_sha256=tree_digest(entries),
            git_commit=commit,
            dirty=commit is not None and (changed or listing.untracked),
            skipped=tuple(listing.skipped),
        )


def _list(root: Path, cache: Path, listing: _Listing) -> tuple[str | None, bool]:
    """Lists the files; returns the commit, and whether tracked files differ from it."""
    git = shutil.which("git")
    if git is None:
        listing.paths.update(_walk(root, listing))
        listing.new = listing.paths
        _refuse_unread_rules(listing)
        return None, False
    inside, commit, changed = _list_and_compare(git, root, "", listing, depth=0)
    if inside and (listing.paths or listing.skipped):
        return commit, changed or listing.changed
    # No repository, or one that ignores this whole folder: .gitignore files still count.
    with contextlib.ExitStack() as ending:
        empty = _no_repository(cache, ending)
        case = f"core.ignorecase={listing.one_case}"  # a repository has its own
        if not _list_repository(git, root, "", listing, "-c", case, f"--git-dir={empty}", f"--work-tree={root}"):
            raise ConfigError(f"git cannot list {root}", cause=f"{empty} is not a repository", hint=f"rm -r {empty}")
    listing.untracked = False
    return None, False


def _no_repository(cache: Path, ending: contextlib.ExitStack) -> Path:
    """An empty git directory, to list a folder that is no repository. It stays in the cache."""
    try:
        return _emptied(cache / "no-repository")
    except OSError:  # a cache that cannot be written
        return _emptied(Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="fcctl-git-"))))


def _emptied(folder: Path) -> Path:
    """Raises: OSError."""
    for name in ("objects", "refs"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    write_atomic(folder, "HEAD", b"ref: refs/heads/none\n", mode=0o600, durable=False)
    return folder


#: Without what is inside of submodules: they have filters of their own.
_STATUS = ("status", "--porcelain=v2", "--branch", "-z", "-uno", "--ignore-submodules=dirty", "--", ".")


def _list_and_compare(
    git: str, root: Path, prefix: str, listing: _Listing, *, depth: int
) -> tuple[bool, str | None, bool]:
    """Adds the files of the repository at ``root/prefix``; returns whether there is one, its commit, and whether
    tracked files differ from that."""
    # Both at once: each is mostly waiting for the disk.
    status = _git(git, root / prefix, *_STATUS, env=without_own_filters(root / prefix, GIT_TIMEOUT_S))
    try:
        inside = _list_repository(git, root, prefix, listing, depth=depth)
    finally:
        answer, _ = _finish(status)
    return (inside, *_state(answer))


def _list_repository(git: str, root: Path, prefix: str, listing: _Listing, *options: str, depth: int = 0) -> bool:
    """Add the files of the repository at ``root/prefix``; False if there is none."""
    process = _git(git, root / prefix, *options, "ls-files", "-z", "-t", "-c", "-o", "--exclude-standard")
    answer, said = _finish(process)
    if process.returncode != 0:
        if "not a git repository" in said or "cannot use bare repository" in said:
            return False
        hint = next((line.strip() for line in said.splitlines() if line.strip().startswith("git config")), None)
        if said.startswith(("xcode-select: ", "xcrun: ")):  # a Mac's git without the Command Line Tools
            hint = "xcode-select --install"
        raise ConfigError(f"git cannot read {root / prefix}", cause=said.strip().split("\n")[0], hint=hint)
    for row in answer.split(b"\0"):
        name = os.fsdecode(row[2:])
        if not name or listing.is_own(prefix + name):
            continue
        new, place = row[:1] == b"?", root / prefix / name
        if name.endswith("/") or (place.is_dir() and not place.is_symlink()):
            _nested(git, root, prefix + name.rstrip("/"), listing, depth)
        else:
            listing.paths.add(prefix + name)
            if new:
                listing.new.add(prefix + name)
        listing.untracked |= new
    return True


def _nested(git: str, root: Path, path: str, listing: _Listing, depth: int) -> None:
    """A submodule, or a repository inside this one: listed by its own rules."""
    if not (root / path / ".git").exists():
        listing.skipped.append(f"{path}: a submodule that is not checked out (git submodule update --init)")
        return
    inside = changed = False
    if depth < MAX_NESTING:
        inside, _, changed = _list_and_compare(git, root, path + "/", listing, depth=depth + 1)
    listing.changed |= changed
    if not inside:
        listing.skipped.append(f"{path}: git cannot read this nested repository")


def _walk(root: Path, listing: _Listing) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        base = os.path.relpath(folder, root)
        prefix = "" if base == "." else base + "/"
        folders[:] = [name for name in folders if name not in WITHOUT_GIT and not listing.is_own(prefix + name)]
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*files, *links):
            if name not in WITHOUT_GIT and not name.endswith((".pyc", ".o")) and not listing.is_own(prefix + name):
                yield prefix + name


def _refuse_unread_rules(listing: _Listing) -> None:
    """Raises ConfigError if only git could tell which files are to be left out, secrets among them."""
    own = {f"{dirname(path)}/.gitignore" for path in listing.own}
    rules = sorted(path for path in listing.paths - own if basename(path) == ".gitignore")
    if rules:
        from orchestrator.base.installation import install_command

        raise ConfigError(
            f"cannot read {_shown(rules[0])}: git is not installed",
            cause="fcctl would send the files that it leaves out",
            hint=install_command("git"),
        )


def _leave_out_twins(listing: _Listing) -> None:
    """Leaves out tracked names that differ by case alone. A disk that ignores case, as a Mac's does, has one file
    for them, and its content may belong to either name."""
    by_name: dict[str, list[str]] = {}
    for path in listing.paths - listing.new:
        by_name.setdefault(folded(path), []).append(path)
    for names in by_name.values():
        if len(names) > 1:
            listing.paths.difference_update(names)
            shown = " and ".join(map(_shown, sorted(names)))
            listing.skipped.append(
                f"{shown}: this computer's file system has one file for both (rename one where they differ: git mv)"
            )


def _spell_as_tracked(listing: _Listing) -> None:
    """Spells new files and their folders as git tracks them, as `git add` does: the machine's disk has two folders for
    two spellings."""
    spelling = {".": PurePath()}
    for place in map(PurePath, listing.paths - listing.new):
        spelling.update((folded(str(one)), one) for one in (place, *place.parents))
    tracked = {}
    for place in map(PurePath, listing.new):
        known = next(one for one in (place, *place.parents) if folded(str(one)) in spelling)
        tracked[str(place)] = str(spelling[folded(str(known))] / place.relative_to(known))
    listing.paths = {tracked.get(path, path) for path in listing.paths}
    listing.new = listing.paths & set(tracked.values())


def _refuse_too_many(entries: Sequence[TreeEntry]) -> None:
    """Raises ConfigError if the list of the files does not fit into a call to the host program."""
    if len(entries) * MOST_ROW_BYTES <= wire.MAX_FRAME_BYTES:
        return
    size = len(json.dumps([entry.__dict__ for entry in entries], separators=(",", ":")))
    if size > wire.MAX_FRAME_BYTES:
        raise ConfigError(
            f"the source has too many files: {len(entries)}",
            cause=f"their names and hashes have {size / 1e6:.1f} MB, and at most {wire.MAX_FRAME_BYTES / 1e6:.1f} MB"
            " can be sent",
            hint="add to .gitignore what runs do not need; to see the folders with the most files: git ls-files -co"
            " --exclude-standard | cut -d/ -f1 | sort | uniq -c | sort -n",
        )


def _entry(root: Path, path: str, hashes: SourceHashes, skipped: list[str]) -> TreeEntry | None:
    full = root / path
    fault = path_fault(path)
    try:
        facts = os.lstat(full)
        if fault:
            skipped.append(f"{_shown(path)}: the name {fault}")
            return None
        if stat.S_ISLNK(facts.st_mode):
            return _link(root, path, skipped)
        if not stat.S_ISREG(facts.st_mode):
            skipped.append(f"{path}: not a file or a link")
            return None
        return hashes.entry(path, full, facts)
    except (FileNotFoundError, NotADirectoryError):
        return None  # deleted but still tracked: not part of the source as it is now
    except PermissionError:
        skipped.append(f"{_shown(path)}: no permission to read it")
        return None


def _attributes(root: Path) -> str:
    """Of the workspace's folder and those above it, up to the top of its repository."""
    text = ""
    for folder in (root, *root.parents):
        with contextlib.suppress(OSError, ValueError):
            stream, _ = open_plain(folder / ".gitattributes")  # git follows no link there either
            with stream:
                text += stream.read(MAX_ATTRIBUTES_BYTES).decode(errors="replace")
        if (folder / ".git").exists():
            break
    return text


def _is_pointer(full: Path) -> bool:
    try:
        return not full.is_symlink() and full.read_bytes().startswith(b"version https://git-lfs.github.com/spec/")
    except OSError:
        return False


def _link(root: Path, path: str, skipped: list[str]) -> TreeEntry | None:
    target = os.readlink(root / path)  # noqa: PTH115 - Path would tidy the text up
    lexical = os.path.normpath(os.path.join(os.path.dirname(path), target))  # noqa: PTH118, PTH120 - text, not files
    real = os.path.realpath(root / path)
    inside = not os.path.isabs(target) and lexical.split("/")[0] != ".."  # noqa: PTH117
    if not inside or not Path(real).is_relative_to(root):
        skipped.append(f"{path}: a link to a path outside the workspace")
        return None
    return SourceHashes.link(path, target)


def _shown(path: str) -> str:
    return path if path.isprintable() else ascii(path)


def _git(git: str, folder: Path, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [git, *SAFE, *words],
        cwd=folder,
        env=env or git_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the controller
    )


def _finish(process: subprocess.Popen[bytes]) -> tuple[bytes, str]:
    try:
        out, err = process.communicate(timeout=GIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        send(process.pid, signal.SIGKILL, group=True)  # what it started, a filter say, has the same pipes
        process.communicate()
        raise ConfigError("git did not answer", cause=f"it took over {GIT_TIMEOUT_S} s", hint="git status") from None
    if process.returncode == -signal.SIGINT:  # Ctrl-C came before it had its own process session
        raise KeyboardInterrupt
    return out, err.decode(errors="replace")


def _state(answer: bytes) -> tuple[str | None, bool]:
    commit, changed = None, False
    for row in answer.split(b"\0"):
        if row.startswith(b"# branch.oid "):
            word = row.split()[-1].decode()
            commit = None if word == "(initial)" else word
        elif row and not row.startswith(b"# "):
            changed = True
    return commit, changed


def leave_out(untracked: Set[str], paths: Set[str]) -> tuple[set[str], list[str]]:
    """Returns which ``untracked`` files of ``paths`` are not sent, and a line for each such folder. Of a source folder
    with a CMake cache, only CMake's own files are left out."""
    left, said = set[str](), []
    for path in sorted(untracked):
        kind, folder = basename(path), dirname(path)
        if path in left or kind not in (_VENV, _CMAKE):
            continue
        if kind == _CMAKE and (folder == "" or f"{folder}/CMakeLists.txt" in paths):
            left |= {path, *filter(_below(f"{folder}/CMakeFiles".lstrip("/")), untracked)}
            said.append(f"{path}: CMake's cache of this computer")
        elif folder:
            left |= set(filter(_below(folder), untracked))
            what = "a virtual environment" if kind == _VENV else "CMake's build folder"
            said.append(f"{folder}: {what} of this computer")
    return left, said


def _below(folder: str) -> Callable[[str], bool]:
    return lambda path: path.startswith(folder + "/")
