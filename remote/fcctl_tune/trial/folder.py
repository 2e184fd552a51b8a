"""The directory of a trial's command: the source, and the files of this trial's build.

It is new for each command, so that ``make`` and ``./check > out.bin`` do not meet other trials, and has the same path
for all commands of a configuration, since a build may write its path (an RPATH, CMake's cache).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections import deque
from typing import Collection, Deque, Dict, List, NamedTuple, Optional, Tuple

from fcctl_remote.base import files
from fcctl_remote.base.tree import remove_tree

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
        self._placed: Dict[str, Optional[Facts]] = {}  # by path within; None of a folder
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
            self._fill(self._source)
            if os.path.isdir(self._made):
                self._fill(self._made)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):  # reported by the next command
            remove_tree(self.path)

    def keep(self) -> None:
        """Keep what a build changed for later directories of this configuration. Raises: OSError."""
        for folder, folders, names in os.walk(self.path, topdown=False):
            for name in (*names, *folders):
                path = os.path.join(folder, name)
                if self._is_as_placed(path[len(self.path) + 1 :]):
                    _discard(path)
        remove_tree(self._made)
        if os.listdir(self.path):
            os.rename(self.path, self._made)

    def rewritten(self) -> List[str]:
        """Files placed here that a command overwrote, changed or removed."""
        return [name for name, facts in self._placed.items() if facts is not None and not self._is_as_placed(name)]

    def changed_shared_files(self) -> List[str]:
        """Shared files whose content was changed since."""
        return [name for name, (path, content) in self._shared.items() if _facts(path) != content]

    def _is_as_placed(self, inner: str) -> bool:
        if inner not in self._placed:
            return False
        path, facts = os.path.join(self.path, inner), self._placed[inner]
        if facts is None:
            return os.path.isdir(path) and not os.path.islink(path)
        return facts == _facts(path)

    def _fill(self, origin: str) -> None:
        """Place the folder ``origin``; beyond :data:`MOST_ENTRIES` its deepest folders are linked."""
        waiting: Deque[str] = deque([""])
        while waiting:
            inner = waiting.popleft()
            folder = os.path.join(origin, inner) if inner else origin
            entries = self._entries(folder)
            too_many = entries is None or len(self._placed) + len(entries) > MOST_ENTRIES
            if inner and too_many and not (inner in self._placed and self._placed[inner] is None):
                self._link(inner, folder)
                continue
            if inner:
                self._make(inner)
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

    def _make(self, inner: str) -> None:
        place = os.path.join(self.path, inner)
        if os.path.islink(place) or not os.path.isdir(place):
            self._clear(inner)
            os.mkdir(place)
        self._placed[inner] = None

    def _place(self, inner: str, entry: "os.DirEntry[str]") -> None:
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            known = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(known.st_mode):
                self._link(inner, _followed(inner, entry.path))
                return
            fits = stat.S_ISREG(known.st_mode) and known.st_size <= min(COPIED_BYTES, COPIED_IN_ALL - self._copied)
            is_program = known.st_mode & 0o111 and not _is_script(entry.path)
            if not fits or is_program or not self._copy(inner, entry.path, known):
                self._share(inner, entry.path, known)

    def _copy(self, inner: str, path: str, known: os.stat_result) -> bool:
        place = self._clear(inner)
        try:
            shutil.copyfile(path, place)
        except PermissionError:
            return False
        os.chmod(place, stat.S_IMODE(known.st_mode) | stat.S_IWUSR)
        os.utime(place, ns=(known.st_atime_ns, known.st_mtime_ns))  # for make
        self._copied += known.st_size
        self._placed[inner] = _facts(place)
        return True

    def _share(self, inner: str, path: str, known: os.stat_result) -> None:
        """By a hard link if possible, so that a program finds this directory beside itself."""
        place = self._clear(inner)
        try:
            os.link(path, place, follow_symlinks=False)
            self._placed[inner] = _facts(place)
        except OSError:
            self._link(inner, path)
        if stat.S_ISREG(known.st_mode):
            self._shared[inner] = path, (known.st_ino, known.st_size, known.st_mtime_ns)

    def _link(self, inner: str, path: str) -> None:
        place = self._clear(inner)
        os.symlink(path, place)
        self._placed[inner] = _facts(place)

    def _clear(self, inner: str) -> str:
        """Its path here, without what was placed there: a build may have replaced a file of the source."""
        place = os.path.join(self.path, inner)
        self._shared.pop(inner, None)
        if inner in self._placed:
            remove_tree(place) if self._placed.pop(inner) is None else os.unlink(place)
        return place


class SourceCopy(NamedTuple):
    room: str
    made: str  # the files of its build


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
    """The target of a copied link: within the directory if it stays in its tree, else the original link."""
    target = os.readlink(path)
    within = os.path.normpath(os.path.join(os.path.dirname(inner), target))
    stays = not os.path.isabs(target) and within != ".." and not within.startswith(".." + os.sep)
    return target if stays else path


def _discard(path: str) -> None:
    """A file, or a folder if there is nothing in it."""
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    with contextlib.suppress(OSError):
        os.rmdir(path)
