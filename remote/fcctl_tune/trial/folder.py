"""The directory of a trial's command: the source, or what this trial's build made of it; and the documents in the files
that the command wrote there.

It is new for each command, so that ``make`` and ``./check > out.bin`` do not meet other trials, and has the same path
for all commands of a configuration, since a build may write its path (an RPATH, CMake's cache).
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import stat
from collections import deque
from typing import Any, Collection, Deque, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from fcctl_remote import readers
from fcctl_remote.base import files
from fcctl_remote.base.tree import remove_tree
from fcctl_remote.run import documents
from fcctl_tune.errors import Failed
from fcctl_tune.search.spec import Stage

#: Larger files, and files beyond this total, are linked and so shared. So are programs: a copy that another process
#: holds open for writing cannot be started.
COPIED_BYTES, COPIED_IN_ALL = 64 * 1024 * 1024, 256 * 1024 * 1024
#: The first bytes of a program that is no script.
ELF = b"\x7fELF"
#: Beyond so many entries folders are linked as a whole, as hidden ones are: ``.venv``.
MOST_ENTRIES = 1000

#: Inode, size, and time of the content, ns; a further hard link changes only the entry's time.
Facts = Tuple[int, int, int]


class SourceDirectory:
    """For a serve command: builds run in the source itself, as its process does."""

    def __init__(self, source: str) -> None:
        self.path = source

    def keep(self) -> None:
        pass

    def rewritten(self) -> List[str]:
        return []

    def changed_shared_files(self) -> List[str]:
        return []


class TrialDirectory:
    """A context manager: within it :attr:`path` exists, for one command at a time.

    It is beside ``out``, the configuration's folder; ``hidden`` paths of ``source`` are omitted.
    """

    def __init__(self, out: str, source: str, hidden: Collection[str] = ()) -> None:
        self.path, self._made = beside(out)
        self._source, self._hidden = source, hidden
        self._placed: Dict[str, Optional[Facts]] = {}  # files and links, by path within
        self._shared: Dict[str, Tuple[str, Facts]] = {}  # files that links lead to, by path within
        self._copied = 0  # bytes
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> "TrialDirectory":
        """Raises: OSError."""
        with contextlib.ExitStack() as ending:
            ending.enter_context(files.locked(self.path + ".lock"))
            ending.callback(self._leave)
            remove_tree(self.path)
            os.mkdir(self.path)
            self._fill(self._made if os.path.isdir(self._made) else self._source)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):  # reported by the next command
            remove_tree(self.path)

    def keep(self) -> None:
        """Keep what a build left for later directories of this configuration; what it did not change takes no space.
        Raises: OSError."""
        for inner in set(self._placed) - set(self._shared) - set(self.rewritten()):
            place = os.path.join(self.path, inner)
            if not os.path.islink(place):
                with contextlib.suppress(OSError):  # another disk: then it stays a copy
                    os.link(os.path.join(self._source, inner), place + ".fcctl")
                    os.replace(place + ".fcctl", place)
        remove_tree(self._made)
        os.rename(self.path, self._made)

    def rewritten(self) -> List[str]:
        """Files placed here that a command overwrote, changed or removed."""
        return [name for name, facts in self._placed.items() if facts != _facts(os.path.join(self.path, name))]

    def changed_shared_files(self) -> List[str]:
        """Shared files whose content was changed since."""
        return [name for name, (path, content) in self._shared.items() if _facts(path) != content]

    def _fill(self, origin: str) -> None:
        """Place the folder ``origin``; beyond :data:`MOST_ENTRIES` its deepest folders are linked."""
        waiting: Deque[str] = deque([""])
        count = 0
        while waiting:
            inner = waiting.popleft()
            entries = self._entries(os.path.join(origin, inner))
            count += len(entries or ())
            if inner and (entries is None or count > MOST_ENTRIES):
                self._link(inner, os.path.join(origin, inner))
                continue
            if inner:
                os.mkdir(os.path.join(self.path, inner))
            for entry in entries or ():
                name = os.path.join(inner, entry.name)
                if not entry.is_dir(follow_symlinks=False):
                    self._place(name, entry)
                elif entry.name.startswith("."):
                    self._link(name, entry.path)
                else:
                    waiting.append(name)

    def _entries(self, folder: str) -> Optional[List["os.DirEntry[str]"]]:
        """None if it cannot be read, or was removed."""
        try:
            with os.scandir(folder) as entries:
                return [entry for entry in entries if entry.path not in self._hidden]
        except (PermissionError, FileNotFoundError):
            return None

    def _place(self, inner: str, entry: "os.DirEntry[str]") -> None:
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            known = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(known.st_mode):
                self._link(inner, _followed(inner, entry.path))
                return
            fits = stat.S_ISREG(known.st_mode) and known.st_size <= min(COPIED_BYTES, COPIED_IN_ALL - self._copied)
            is_program = known.st_mode & 0o111 and not _is_script(entry.path)
            if fits and not is_program:
                self._copy(inner, entry.path, known)
            else:
                self._share(inner, entry.path, known)

    def _copy(self, inner: str, path: str, known: os.stat_result) -> None:
        place = os.path.join(self.path, inner)
        shutil.copyfile(path, place)
        os.chmod(place, stat.S_IMODE(known.st_mode) | stat.S_IWUSR)
        os.utime(place, ns=(known.st_atime_ns, known.st_mtime_ns))  # for make
        self._copied += known.st_size
        self._placed[inner] = _facts(place)

    def _share(self, inner: str, path: str, known: os.stat_result) -> None:
        """By a hard link if possible, so that a program finds this directory beside itself."""
        place = os.path.join(self.path, inner)
        try:
            os.link(path, place, follow_symlinks=False)
            self._placed[inner] = _facts(place)
        except OSError:
            self._link(inner, path)
        if stat.S_ISREG(known.st_mode):
            self._shared[inner] = path, (known.st_ino, known.st_size, known.st_mtime_ns)

    def _link(self, inner: str, path: str) -> None:
        place = os.path.join(self.path, inner)
        os.symlink(path, place)
        self._placed[inner] = _facts(place)


class SourceCopy(NamedTuple):
    room: str
    made: str  # the source as its build left it


def beside(out: str) -> SourceCopy:
    """Folders of the configuration whose own is ``out``."""
    return SourceCopy(out + ".room", out + ".made")


def _facts(path: str) -> Optional[Facts]:
    """None without such a file."""
    try:
        known = os.lstat(path)
    except OSError:
        return None
    return known.st_ino, known.st_size, known.st_mtime_ns


def _is_script(path: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return stream.read(len(ELF)) != ELF
    except OSError:
        return False


def _followed(inner: str, path: str) -> str:
    """The target of a copied link; the original link instead, if it is relative and leaves its tree."""
    target = os.readlink(path)
    within = os.path.normpath(os.path.join(os.path.dirname(inner), target))
    return path if within == ".." or within.startswith("../") else target


#: The variables of a configuration's folder, and the file there with its build's result.
OUT = "TUNE_OUT", "FCCTL_OUT"
BUILT = "built.json"
MAX_DOCUMENTS = 64


def is_own(pattern: str) -> bool:
    """Whether a file belongs to one trial: the log, or a relative path outside hidden folders."""
    return not os.path.isabs(pattern) and not any(part.startswith(".") for part in pattern.split("/")[:-1])


def gathered(stage: Stage, env: Mapping[str, str], directory: str, log: str) -> Dict[str, Any]:
    """Documents by kind: those of readers, and those that the command wrote into its folder. Raises Failed: a file is
    missing, or its reader cannot read it."""
    collected: List[Dict[str, Any]] = []
    for path in _json_files(env["TUNE_OUT"])[:MAX_DOCUMENTS]:
        try:
            document = documents.load(path, os.path.basename(path))
        except documents.Malformed:
            continue  # another tool's file
        collected += [document] if document is not None else []
    for spec in stage.collect:
        paths = matching(spec.file, env, directory, log)[:MAX_DOCUMENTS]
        collected += [read_document(spec.reader, path, env) for path in paths]
    return documents.by_kind(collected)


def matching(pattern: str, env: Mapping[str, str], directory: str, log: str) -> List[str]:
    """Raises: Failed, if there is none."""
    paths = [log] if pattern == "@log" else present(pattern, env, directory)
    if not paths:
        raise Failed("bench_failed", "no file matches %s" % pattern)
    return paths


def present(pattern: str, env: Mapping[str, str], directory: str) -> List[str]:
    """The files of a spec's pattern for a command in the folder ``directory``; none for a log."""
    if pattern == "@log":
        return []
    for name in OUT:
        pattern = pattern.replace("${%s}" % name, glob.escape(env[name])).replace("$" + name, glob.escape(env[name]))
    return [
        p for p in sorted(glob.glob(os.path.join(glob.escape(directory), pattern), recursive=True)) if os.path.isfile(p)
    ]


def read_document(reader: str, path: str, env: Mapping[str, str]) -> Dict[str, Any]:
    """Raises: Failed."""
    name = os.path.basename(path)  # without the trial's folder: equal failures have equal texts
    try:
        document = readers.read(reader, path, env, name)
        documents.check(document, name)
    except (readers.ReaderError, documents.Malformed) as error:
        raise Failed("bench_failed", str(error)) from None
    return document


def forget(patterns: Sequence[str], env: Mapping[str, str], directory: str) -> None:
    """Remove files of earlier commands that this command's readers would read. Raises: Failed."""
    try:
        for path in set(_stale(patterns, env, directory)):
            os.unlink(path)
    except OSError as error:
        raise Failed("wrong", "the files of its folder cannot be read: %s" % error) from None


def _stale(patterns: Sequence[str], env: Mapping[str, str], directory: str) -> Iterator[str]:
    out = env["TUNE_OUT"]
    built_ns = os.stat(os.path.join(out, BUILT)).st_mtime_ns
    for path in [*_json_files(out), *(path for pattern in patterns for path in present(pattern, env, directory))]:
        if path.startswith(directory + os.sep) or (
            path.startswith(out + os.sep) and os.stat(path).st_mtime_ns > built_ns
        ):
            yield path


def _json_files(folder: str) -> List[str]:
    return sorted(glob.glob(os.path.join(glob.escape(folder), "*.json")))
