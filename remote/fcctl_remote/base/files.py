"""Files that are either whole or absent, lines that are never half written, and what to do on a full disk.

Whatever lies below the root folder may have been replaced by a step: by a link, a FIFO, a device, a folder, an endless
or a huge file. So it is read through :func:`open_plain` and written through :func:`open_own`, everywhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import stat
import time
from collections.abc import Callable, Iterator

from fcctl_remote.base.strict_json import parse_json
from fcctl_remote.record import Any

RESERVE_BYTES = 1024 * 1024
#: The most that is read of one file of JSON, bytes: what a frame may carry.
MAX_JSON_BYTES = 16 * 1024 * 1024
#: How long another process may have a lock that is waited for, seconds.
LOCK_PATIENCE_S = 60.0
#: What the system says of something that cannot be opened as a file: a link, a folder, a FIFO, a socket, a device.
_NOT_PLAIN = (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO, errno.ENODEV, errno.EOPNOTSUPP)
#: What it says of data that did not reach the disk.
_NOT_STORED = (errno.EIO, errno.ENOSPC, errno.EDQUOT)


class NotPlain(OSError):
    """Something that is no regular file stands where one should."""


class DiskFull(Exception):
    """The host's disk is full, even after the run's reserve was given back."""


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, DiskFull) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def open_plain(
    path: str, flags: int = os.O_RDONLY, mode: int = 0o644, dir_fd: int | None = None, follow: bool = False
) -> int:
    """Open a regular file; never block, and follow a link only with ``follow``.

    Raises: NotPlain: something else stands there. OSError: it is absent, or may not be opened."""
    flags |= os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in _NOT_PLAIN:
            raise NotPlain(error.errno, error.strerror, path) from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotPlain(errno.EINVAL, "not a regular file", path)
    os.set_blocking(fd, True)  # a step's standard output may be this one
    return fd


def open_own(path: str, flags: int, mode: int = 0o644) -> int:
    """Open a file of the host program's own for writing, made if it is absent; what else stands there is put aside."""
    try:
        return open_plain(path, flags | os.O_CREAT, mode)
    except NotPlain:
        put_aside(path)
        return open_plain(path, flags | os.O_CREAT | os.O_EXCL, mode)


def own_folder(path: str) -> None:
    """Make ``path`` a folder, if it is none; what else stands there, a link for instance, is put aside."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.mkdir(path)
    except FileExistsError:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            return
        put_aside(path)
        os.mkdir(path)


def put_aside(path: str) -> None:
    """Delete what stands at ``path``; a folder gets another name instead."""
    try:
        os.unlink(path)
    except OSError:
        os.rename(path, "%s.replaced-%s" % (path, os.urandom(8).hex()))


def is_plain(path: str) -> bool:
    """Whether a regular file is there, and no link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def is_replaced(path: str) -> bool:
    """Whether something is there that is no regular file."""
    return os.path.lexists(path) and not is_plain(path)


def read_plain(path: str, most_bytes: int) -> bytes:
    """All of a regular file. Raises: OSError; EFBIG, if it has more than ``most_bytes``."""
    with os.fdopen(open_plain(path), "rb") as stream:
        data = stream.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, "more than %d bytes" % most_bytes, path)
    return data


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write every byte; a short write is continued, so that a full disk shows as ENOSPC and not as silence."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def flush(fd: int) -> None:
    """``os.fsync`` that reaches the disk itself: macOS's own leaves the data in the drive's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(fd, full)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(fd)


def write_atomic(path: str, data: bytes, durable: bool = True, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data``: a reader sees the old file or the new one, also after a crash if ``durable``.

    Any number may do so at once. Raises: OSError: nothing was changed."""
    temporary = "%s.tmp-%s" % (path, os.urandom(8).hex())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with closing(fd):
            write_all(fd, data)
            if durable:
                flush(fd)
        try:
            os.rename(temporary, path)
        except IsADirectoryError:
            put_aside(path)
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
    try:
        sync_folder(parent)
    except OSError:
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # else the next call takes it for one that lasts
        raise


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make a rename in ``folder`` last through a power cut, where the file system allows asking for it."""
    with closing(os.open(folder, os.O_RDONLY | os.O_DIRECTORY)) as fd:
        try:
            flush(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise


def walk(folder: str) -> Iterator[tuple[str, list["os.DirEntry[str]"]]]:
    """Each folder from ``folder`` down and its entries; links are not followed. What has too long a path, or may not
    be read, is left out."""
    waiting = [folder]
    while waiting:
        top = waiting.pop()
        with contextlib.suppress(OSError):
            with os.scandir(top) as scan:
                children = list(scan)
            yield top, children
            waiting += [child.path for child in children if child.is_dir(follow_symlinks=False)]


@contextlib.contextmanager
def suppress_unless_lost() -> Iterator[None]:
    """Suppresses the errors of what cannot be opened or flushed, but not of data that did not reach the disk."""
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_STORED:
            raise


def sync_tree(folder: str, since: float = -math.inf) -> None:
    """Make what is below ``folder`` last through a power cut, as far as it can be opened; links are not followed.

    What has not changed from ``since`` on (its ctime, which no program can set) is left out. Raises: OSError: the disk
    did not take it."""
    for top, children in walk(folder):
        for path in [*(child.path for child in children if child.is_file(follow_symlinks=False)), top]:
            with suppress_unless_lost():
                if os.lstat(path).st_ctime < since:
                    continue
                with closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as fd:
                    (flush if path is top else os.fsync)(fd)


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def read_object(path: str) -> dict[str, Any] | None:
    """The JSON object in ``path``; None if there is none, or it is no regular file, too large or something else."""
    try:
        value = parse_json(read_plain(path, MAX_JSON_BYTES))
    except (NotPlain, FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        return None
    return value if isinstance(value, dict) else None


def size_of(path: str) -> int:
    """Bytes in ``path``; 0 if it is absent, or no regular file."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        facts = os.lstat(path)
        return facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    return 0


def append_line(path: str, line: bytes) -> None:
    """Append one line, whole or not at all. Raises: OSError: the file is as it was before."""
    with closing(open_own(path, os.O_WRONLY | os.O_APPEND)) as fd:
        before = os.fstat(fd).st_size
        try:
            write_all(fd, line + b"\n")
        except OSError:
            os.ftruncate(fd, before)
            raise


class DiskReserve:
    """Space kept back in a run's folder, so that its outcome can be written when a step has filled the disk."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.spent = False  # given back because something could not be written

    def take(self) -> None:
        """Raises: OSError, when there is no room even now."""
        with closing(open_own(self.path, os.O_WRONLY, 0o600)) as fd:
            if hasattr(os, "posix_fallocate"):
                try:
                    os.posix_fallocate(fd, 0, RESERVE_BYTES)
                    return
                except OSError as error:
                    if is_disk_full(error):
                        raise
            write_all(fd, bytes(RESERVE_BYTES))

    def write(self, write: Callable[[], None], spare: bool = False) -> None:
        """Call ``write``; if the disk is full, give the reserve back, unless ``spare``, and call it again.

        Raises: DiskFull: the disk is full even so. OSError: any other reason."""
        for is_last in (False, True):
            try:
                return write()
            except OSError as error:
                if not is_disk_full(error):
                    raise
                if is_last or spare or not self.spend():
                    raise DiskFull(str(error)) from error
        return None

    def spend(self) -> bool:
        """Give the space back because there is no other; False if it was given back before."""
        self.spent = True
        return self.give_back()

    def give_back(self) -> bool:
        """Free the space; False if it was free already."""
        try:
            put_aside(self.path)
        except FileNotFoundError:
            return False
        return True


@contextlib.contextmanager
def locked(path: str, patience_s: float = LOCK_PATIENCE_S) -> Iterator[None]:
    """Hold an exclusive flock on ``path`` (created if absent), waiting for it if need be.

    Raises: OSError: ETIMEDOUT, if another process keeps it for ``patience_s``: a step can."""
    fd = wait_for_lock(path, patience_s)
    if fd is None:
        raise OSError(errno.ETIMEDOUT, "another process has held its lock for %g s" % patience_s, path)
    with closing(fd):
        yield


def wait_for_lock(path: str, patience_s: float) -> int | None:
    """A descriptor as of :func:`try_lock`; None if another process keeps the lock for ``patience_s``."""
    deadline, wait_s = time.monotonic() + patience_s, 0.001
    while (fd := try_lock(path)) is None and time.monotonic() <= deadline:
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, 0.05)
    return fd


def is_locked(path: str) -> bool:
    """Whether a process holds ``path`` exclusively; asking takes no lock that another could mistake for an owner's.

    Raises: FileNotFoundError: the file is absent."""
    fd = try_lock(path, create=False, how=fcntl.LOCK_SH)
    if fd is not None:
        os.close(fd)
    return fd is None


def try_lock(path: str, create: bool = True, how: int = fcntl.LOCK_EX) -> int | None:
    """A descriptor that holds an exclusive flock (or what ``how`` says) on ``path``; None while another process's lock
    is in the way.

    Raises: FileNotFoundError: the file is absent, or is none, and ``create`` is false."""
    try:
        fd = open_own(path, os.O_RDWR, 0o600) if create else open_plain(path, os.O_RDWR)
    except NotPlain:
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path) from None
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return None
        raise
    return fd


@contextlib.contextmanager
def locked_now(path: str) -> Iterator[bool]:
    """Whether this process has the lock as of :func:`try_lock`, which lasts for the block."""
    fd = try_lock(path)
    with contextlib.nullcontext() if fd is None else closing(fd):
        yield fd is not None


def open_beneath(root: str, path: str) -> int:
    """Open the regular file ``path`` below ``root`` for reading, through no symbolic link and without blocking.

    Raises: OSError: absent, a link on the way (ELOOP, ENOTDIR), or not a regular file (EINVAL)."""
    parts = path.split("/")
    if not path or any(part in ("", ".", "..") for part in parts):
        raise OSError(errno.EINVAL, "not a path inside the run's folder", path)
    flags = os.O_RDONLY | os.O_NOFOLLOW
    fd = os.open(root, flags | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, flags | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = deeper
        return open_plain(parts[-1], dir_fd=fd)
    finally:
        os.close(fd)
