"""Opening files below a folder, one path component at a time, so that no link can lead outside it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.base.errors import FcctlError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that somebody planted must not wait for its other end.
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NOT_PLAIN = frozenset({errno.ELOOP, errno.EMLINK, errno.ENOTDIR, errno.EISDIR, errno.ENXIO})


@contextmanager
def opened(root: Path, path: str, flags: int, *, create: bool = False) -> Iterator[int]:
    """Yields a descriptor of the regular file ``root/path``, which passed ``safe_paths.fault``; ``create`` makes it and
    its folders. Raises FileNotFoundError, FcctlError if a link, a pipe or a device is there."""
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


def _planted(root: Path, path: str) -> FcctlError:
    return FcctlError(
        f"refusing to touch {path!r} in {root}",
        cause="a link, a pipe or a device stands where a plain file or folder should; fcctl makes none there",
        hint=f"look at it with: ls -lR {root}; remove it, then repeat the command",
    )
