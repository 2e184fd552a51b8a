"""Paths and files that others name: checked names, files opened beneath a folder without links, files of results."""

from __future__ import annotations

import errno
import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from orchestrator.base.errors import DiskError
from orchestrator.base.sanitize import UNPRINTABLE

MAX_PART_BYTES = 255
MAX_PATH_BYTES = 700  # macOS allows 1024 for a whole path, and the workspace's own path comes first
MAX_DEPTH = 32

#: What the controller itself keeps at the top of a run's folder.
RESERVED = frozenset({"run.json", "plan.json", "journal.jsonl"})
#: How the controller's unfinished files begin, so that a host's file cannot be mistaken for one.
UNFINISHED = ".fcctl-"

_UNPRINTABLE = re.compile(f"[{UNPRINTABLE}]")


#: Names that programs of this computer act on by themselves, folded. Whatever is hidden: version control, editors,
#: shells and tools that choose versions keep their settings there.
_ACTING = re.compile(r"\..+|_darcs|cvs")
#: The same for files: HEAD of a bare repository, a workspace's fcctl.toml, files that choose versions of tools, and the
#: files that pytest, go test, jest, prettier, eslint and bazel load from any folder below the one they are started in.
#: A Makefile is not listed: it is read only by a make that the user starts in its folder.
_ACTING_FILES = re.compile(
    r"head|fcctl\.toml|_fossil_|mise(\.local)?\.toml|rust-toolchain(\.toml)?|conftest\.py|test_.*\.py|.*_test\.(py|go)"
    r"|.*\.(test|spec|config)\.[cm]?[jt]sx?|package\.json|build(\.bazel)?"
)


def fault(path: str) -> str | None:
    """None if ``path`` is a relative, ``/``-separated name safe to create; else ``bad_name`` or ``reserved``."""
    if not path or len(path) > MAX_PATH_BYTES or _UNPRINTABLE.search(path) or "\\" in path:
        return "bad_name"
    parts = path.split("/")
    if len(parts) > MAX_DEPTH or not all(map(_part_is_safe, parts)):
        return "bad_name"
    if len(unicodedata.normalize("NFD", path).encode()) > MAX_PATH_BYTES:
        return "bad_name"
    first = folded(parts[0])
    if (len(parts) == 1 and first in RESERVED) or first.startswith(UNFINISHED):
        return "reserved"
    return None


def harmless(path: str) -> str:
    """Returns the path under which the host's ``path`` is stored: names that programs act on become ``_NAME_``. Check
    ``path`` with :func:`fault` before, and the result again."""
    *folders, name = path.split("/")
    acts = _acts(name) or _ACTING_FILES.fullmatch(folded(name))
    return "/".join([*(f"_{part}_" if _acts(part) else part for part in folders), f"_{name}_" if acts else name])


def renamed(place: str) -> tuple[str, str] | None:
    """Of the first name in ``place`` that :func:`harmless` made, with the folders above it: as sent, as stored."""
    parts = place.split("/")
    for count, part in enumerate(parts, 1):
        above, sent = parts[: count - 1], part[1:-1]
        if part == f"_{sent}_" and harmless(sent) == part and (count == len(parts) or _acts(sent)):
            return "/".join([*above, sent]), "/".join([*above, part])
    return None


def _acts(part: str) -> bool:
    return _ACTING.fullmatch(folded(part)) is not None


def folded(path: str) -> str:
    """The key of ``path`` on a file system that ignores case and Unicode form: equal keys are one file."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def ignores_case(folder: Path) -> bool:
    """Whether ``folder``'s disk has one file for all spellings of a name; False if its own name has no letters."""
    other = folder.parent / folder.name.swapcase()
    return other != folder and other.exists() and folder.exists() and other.samefile(folder)


def spelled(path: Path) -> Path:
    """``path``, which is absolute, as a disk that ignores case spells it."""
    place = Path(path.anchor)
    for part in path.parts[1:]:
        names = [part]
        with suppress(OSError):
            if ignores_case(place / part):
                names = [one.name for one in place.iterdir() if folded(one.name) == folded(part)]
        place /= part if part in names else names[0]
    return place


def _part_is_safe(part: str) -> bool:
    # A decomposed name (as HFS+ stores it) is the longest form it can take on disk.
    return part not in {"", ".", ".."} and len(unicodedata.normalize("NFD", part).encode()) <= MAX_PART_BYTES


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# O_NONBLOCK: opening a FIFO that somebody planted must not wait for its other end.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK
_NOT_PLAIN = frozenset({errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})


@contextmanager
def opened(root: Path, path: str, flags: int, *, create: bool = False) -> Iterator[int]:
    """Yields a descriptor of the regular file ``root/path``, which passed ``safe_paths.fault``; ``create`` makes it and
    its folders. Raises FileNotFoundError, DiskError if a link, a pipe or a device is there."""
    *folders, name = path.split("/")
    with folder(root, folders, create=create) as parent:
        try:
            fd = os.open(name, flags | _FILE | (os.O_CREAT if create else 0), 0o644, dir_fd=parent)
        except OSError as exc:
            raise _explained(exc, root, path) from exc
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise _planted(root, path)
            yield fd
        finally:
            os.close(fd)


@contextmanager
def folder(root: Path, parts: list[str], *, create: bool = False) -> Iterator[int]:
    """A descriptor of the folder ``root/parts...``; raises as :func:`opened` does."""
    fd = -1
    try:
        fd = os.open(root, _FOLDER)
        for part in parts:
            fd = _enter(fd, part, create)
    except OSError as exc:
        if fd >= 0:
            os.close(fd)
        raise _explained(exc, root, "/".join(parts) or ".") from exc
    try:
        yield fd
    finally:
        os.close(fd)


def _enter(parent: int, name: str, create: bool) -> int:
    """Step down from ``parent``, which is closed if that works."""
    try:
        fd = os.open(name, _FOLDER, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
        os.mkdir(name, 0o755, dir_fd=parent)
        fd = os.open(name, _FOLDER, dir_fd=parent)
    os.close(parent)
    return fd


def _explained(exc: OSError, root: Path, path: str) -> Exception:
    return _planted(root, path) if exc.errno in _NOT_PLAIN else exc


def _planted(root: Path, path: str) -> DiskError:
    return DiskError(
        f"refusing to touch {path!r} in {root}",
        cause="it is a link, a pipe or a device; fcctl creates only plain files and folders there",
        hint=f"to see it: ls -lR {root}; remove it, then repeat the command",
    )


@dataclass(frozen=True)
class Tail:
    data: bytes
    #: Bytes of the file before ``data``.
    cut: int


def open_result(folder: Path, name: str) -> tuple[BinaryIO, int]:
    """Opens ``folder/name``, named as the host called it; returns it and its size. Raises OSError, ValueError for a bad
    name, a link or no plain file."""
    if fault(name):
        raise ValueError("the file name is not allowed")
    at = folder
    for part in harmless(name).split("/"):
        at /= part
        if at.is_symlink():
            raise ValueError("a part of its path is a link, which is not allowed")
    return open_plain(at)


def open_plain(path: str | Path) -> tuple[BinaryIO, int]:
    """Opens a regular file; returns it and its size. Raises OSError, also for a link; ValueError for another kind."""
    fd = os.open(path, os.O_RDONLY | _FILE)
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise ValueError("not a plain file")
    return os.fdopen(fd, "rb"), status.st_size


def tail(folder: Path, name: str, most: int) -> Tail | None:
    """At most the last ``most`` bytes of ``folder/name``; None where :func:`open_result` would raise."""
    try:
        stream, size = open_result(folder, name)
    except (OSError, ValueError):
        return None
    with stream:
        start = max(0, size - most)
        stream.seek(start)
        return Tail(stream.read(most), start)
