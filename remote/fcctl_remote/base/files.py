"""Files that are either whole or absent, lines that are never half written, and what to do on a full disk."""

import contextlib
import errno
import fcntl
import json
import os
import stat
from typing import Any, Iterator, Optional

RESERVE_BYTES = 1024 * 1024


class DiskFull(Exception):
    """The host's disk is full, even after the run's reserve was given back."""


def is_disk_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte; a short write is continued, so that a full disk shows as ENOSPC and not as silence."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_new(path: str, data: bytes, executable: bool) -> None:
    """Write a file that must not be there yet, with one of the two modes that a source's files have."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755 if executable else 0o644)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def write_atomic(path: str, data: bytes, durable: bool = True, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``: a reader sees the old file or the new one, also after a crash if ``durable``.

    Threads, processes and machines that share the folder may do so at once: each has a temporary file of its own.

    Raises:
        OSError: nothing was changed.
    """
    temporary = "%s.tmp-%s" % (path, os.urandom(8).hex())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if durable:
        sync_folder(os.path.dirname(path))


def make_folders(folder: str, mode: int = 0o777) -> None:
    """Make ``folder``, of ``mode``, and what is missing above it; their names last through a power cut."""
    folder = os.path.abspath(folder)
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    make_folders(parent)
    try:
        os.mkdir(folder, mode)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    sync_folder(parent)


def sync_folder(folder: str) -> None:
    """Make a rename in ``folder`` last through a power cut, where the file system allows asking for it."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def sync_tree(folder: str) -> None:
    """Make what is below ``folder`` last through a power cut, as far as it can be opened; links are not followed."""
    for top, _folders, names in os.walk(folder, topdown=False):
        for path in [*(os.path.join(top, name) for name in names), top]:
            with contextlib.suppress(OSError):
                fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def read_json(path: str) -> Any:
    """The JSON value in ``path``; None if the file is absent or is not JSON."""
    try:
        with open(path, "rb") as stream:
            return json.loads(stream.read())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def size_of(path: str) -> int:
    """Bytes in ``path``; 0 if it is absent."""
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0


def append_line(path: str, line: bytes) -> None:
    """Append one line, whole or not at all.

    Raises:
        OSError: the file is as it was before.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        before = os.fstat(fd).st_size
        try:
            write_all(fd, line + b"\n")
        except OSError:
            os.ftruncate(fd, before)
            raise
    finally:
        os.close(fd)


class Reserve:
    """Space kept back in a run's folder, so that its last words can be written when a step has filled the disk."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.spent = False  # given back because something could not be written

    def take(self) -> None:
        """Raises: OSError, when there is no room even now."""
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                try:
                    os.posix_fallocate(fd, 0, RESERVE_BYTES)
                    return
                except OSError as error:
                    if is_disk_full(error):
                        raise
            write_all(fd, bytes(RESERVE_BYTES))
        finally:
            os.close(fd)

    def spend(self) -> bool:
        """Give the space back because there is no other; False if it was given back before."""
        self.spent = True
        return self.give_back()

    def give_back(self) -> bool:
        """Free the space; False if it was free already."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            return False
        return True


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold an exclusive flock on ``path`` (created if absent), waiting for it if need be."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def is_locked(path: str) -> bool:
    """Whether a process has ``path`` for itself. Any number may ask at once: none takes another's look for an owner.

    Raises:
        FileNotFoundError: the file is absent.
    """
    fd = try_lock(path, create=False, how=fcntl.LOCK_SH)
    if fd is not None:
        os.close(fd)
    return fd is None


def try_lock(path: str, create: bool = True, how: int = fcntl.LOCK_EX) -> Optional[int]:
    """A descriptor that holds an exclusive flock (or what ``how`` says) on ``path``; None while another process's lock
    is in the way.

    Raises:
        FileNotFoundError: the file is absent and ``create`` is false.
    """
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    return fd


def open_beneath(root: str, path: str) -> int:
    """Open the regular file ``path`` below ``root`` for reading, through no symbolic link and without blocking.

    Raises:
        OSError: absent, a link on the way (ELOOP, ENOTDIR), or not a regular file (EINVAL).
    """
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts):
        raise OSError(errno.EINVAL, "not a path below the run", path)
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(root, flags | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, flags | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = deeper
        # O_NONBLOCK: a FIFO put in place of the file must not stop us.
        found = os.open(parts[-1], flags | os.O_NONBLOCK, dir_fd=fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return found
