"""Files that survive a crash: written beside their name, flushed, then renamed; and what a full disk means."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.base.errors import FcctlError
from orchestrator.base.safe_paths import UNFINISHED


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Make ``path``, whose folder exists, hold ``content``, readable by this user only.

    A reader finds the old content or the new. Several processes may do so at once; one of them wins, which is why none
    writes to a name that another could know.

    Args:
        durable: on disk, name and all, when this returns; else a crash may leave an empty file, which is good enough
            for what can be made again and is checked when it is read.

    Raises:
        OSError: nothing was changed.
    """
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        Path(unfinished).replace(path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextmanager
def disk_errors(action: str, where: Path, *, again: str = "repeat the command") -> Iterator[None]:
    """Translate the operating system's errors on this machine's own disk.

    ``action`` completes "could not ..."; ``again`` says how to go on once there is room.

    Raises:
        FcctlError: in place of any OSError.
    """
    try:
        yield
    except OSError as exc:
        cause = f"{exc.strerror or exc} ({exc.filename or where})"
        if exc.errno in _FULL:
            message = f"this machine's disk is full: could not {action}"
            hint = f"nothing is lost: free some space where {where} is, then {again}"
        elif exc.errno in _REFUSED:
            message, hint = f"could not {action}", f"make {where} writable (ls -ld {where}), then {again}"
        else:
            message, hint = f"could not {action}", f"check the file system of {where}, then {again}"
        raise FcctlError(message, cause=cause, hint=hint) from exc


def write_all(fd: int, data: bytes | memoryview) -> None:
    """``os.write`` until nothing is left; a write may be cut short by signals or by a disk that fills up."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_atomic(folder: Path, name: str, data: bytes, mode: int = 0o644) -> None:
    """Make ``folder/name``, of ``mode``, hold ``data``: a reader, or a crash, finds the old content or the new, nothing
    between."""
    unfinished = folder / f"{UNFINISHED}{name}"
    unfinished.unlink(missing_ok=True)
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(unfinished, folder / name)  # noqa: PTH105  the crash tests count the os calls
    sync_folder(folder)


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """Make ``folder``, of ``mode``, and what is missing above it; their names are on disk when this returns."""
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir(mode, exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's list of names."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_tree(folder: Path) -> None:
    """Flush every regular file and folder below ``folder``, links not followed."""
    for _top, _folders, names, folder_fd in os.fwalk(folder, follow_symlinks=False):
        for name in names:
            if stat.S_ISREG(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode):
                # Should it become a link or a FIFO meanwhile: neither followed nor waited for.
                fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder_fd)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
        os.fsync(folder_fd)
