"""Files that survive a crash: written beside their name, flushed, then renamed; and what a full disk means."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from fcctl_remote.base import files as host_files
from fcctl_remote.base.files import flush, sync_folder, write_all
from orchestrator.base.errors import ConflictError, DiskError
from orchestrator.base.safe_paths import UNFINISHED

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_WRONG_KIND = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST})
_FAILED = frozenset(
    {errno.EIO, errno.ESTALE, errno.ELOOP, errno.ENAMETOOLONG, errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT}
)


@contextmanager
def disk_errors(action: str, where: Path, *, again: str = "repeat the command") -> Iterator[None]:
    """Raises DiskError for an OSError of this computer's disk. ``action`` completes "could not ..."; ``again`` is the
    hint's end."""
    try:
        yield
    except OSError as exc:
        raise disk_error(exc, action, where, again=again) from exc


def disk_error(exc: OSError, action: str, where: Path, *, again: str = "repeat the command") -> DiskError:
    """The error of :func:`disk_errors`."""
    cause = f"{exc.strerror or exc} ({exc.filename or where})"
    message, hint = f"could not {action}", f"check the file system of {where}, then {again}"
    if exc.errno in _FULL:
        message = f"this computer's disk is full: could not {action}"
        need = "delete files (it has no inode left: df -i)" if _no_inodes(where) else None
        hint = f"no data is lost: {need or 'free disk space'} on the file system of {where}, then {again}"
    elif exc.errno in _REFUSED:
        hint = f"make {where} writable (ls -ld {where}), then {again}"
    elif exc.errno in _WRONG_KIND and (found := _in_the_way(_place_of(exc, where))):
        is_folder = found.is_dir()
        kinds = ("a folder", "a file") if is_folder else ("no folder", "a folder")
        cause = f"{found} is {kinds[0]}, and fcctl needs {kinds[1]} there"
        hint = f"give it another name (mv {found} {found}.old), then {again}"
    return DiskError(message, cause=cause, hint=hint)


def unforeseen_disk_error(exc: OSError) -> DiskError | None:
    """The error for an exception that no :func:`disk_errors` was around; None: it is not one of the disk."""
    if exc.errno not in _FULL | _REFUSED | _WRONG_KIND | _FAILED:
        return None
    return disk_error(exc, "read or write files of fcctl", _place_of(exc, Path.cwd()))


class Unread:
    """The files that a command could not read. A command that stops machines continues without them, and prints their
    errors at its end."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """The block reads; it ends early at an error of the disk, which is noted."""
        try:
            yield
        except DiskError as error:
            self._lines[error.one_line] = None
        except OSError as exc:
            error_of_disk = unforeseen_disk_error(exc)
            if error_of_disk is None:
                raise
            self._lines[error_of_disk.one_line] = None

    def take(self) -> list[str]:
        """One line for each error that was noted since the last call."""
        lines, self._lines = list(self._lines), {}
        return lines


def _place_of(exc: OSError, otherwise: Path) -> Path:
    """The path that the exception names; it may name none, or the number of a descriptor."""
    return Path(os.fsdecode(exc.filename)) if isinstance(exc.filename, str | bytes) else otherwise


def _in_the_way(path: Path) -> Path | None:
    """The file that stands where ``path`` wants a folder, or the folder that stands at ``path``."""
    with suppress(OSError):
        found = next((one for one in (path, *path.parents) if os.path.lexists(one)), None)
        return found if found is not None and (found == path or not found.is_dir()) else None
    return None


def _no_inodes(where: Path) -> bool:
    """Whether the file system of ``where``, or of the nearest folder above it, has room for bytes but for no file."""
    with suppress(OSError):
        facts = os.statvfs(next(folder for folder in (where, *where.parents) if folder.exists()))
        return facts.f_files > 0 and facts.f_favail == 0 and facts.f_bavail > 0
    return False


@contextmanager
def replacing(folder: Path, name: str, *, mode: int | None = None, durable: bool = True) -> Iterator[int]:
    """Yields a descriptor; what is written becomes ``folder/name`` at the end of the block. Readers and crashes find
    the old or the new content; after an exception the old. Of several writers the last wins; to change what is there,
    use :func:`alone_in`. ``mode`` None: as it is, or 0o644 less the umask. Without ``durable``, a crash may leave an
    empty file."""
    place, unfinished = folder / name, folder / f"{UNFINISHED}{os.urandom(8).hex()}"
    kept = _mode_of(place) if mode is None else mode
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if kept is None else 0o600)
    try:
        try:
            if kept is not None:
                os.fchmod(fd, kept)
            yield fd
            if durable:
                flush(fd)
        finally:
            os.close(fd)
        os.replace(unfinished, place)  # noqa: PTH105  the crash tests count the os calls
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(folder)


def _mode_of(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None


def write_atomic(folder: Path, name: str, data: bytes, *, mode: int | None = None, durable: bool = True) -> None:
    """Make ``folder/name`` hold ``data``; see :func:`replacing`."""
    with replacing(folder, name, mode=mode, durable=durable) as fd:
        write_all(fd, data)


@contextmanager
def alone_in(folder: Path, patience_s: float = 30.0) -> Iterator[None]:
    """Locks ``folder`` among all callers, to change a file there; removes what killed writers left. Raises
    ConflictError after ``patience_s``."""
    fd = _locked(folder, time.monotonic() + patience_s)
    try:
        _sweep(folder)
        yield
    finally:
        os.close(fd)


#: The names of unfinished files of :func:`replacing`, and how long nobody has written to one that was left, seconds.
_UNFINISHED = re.compile(re.escape(UNFINISHED) + "[0-9a-f]{16}")
_LEFT_S = 3600.0


def _sweep(folder: Path) -> None:
    for path in folder.iterdir():
        if _UNFINISHED.fullmatch(path.name):
            with suppress(OSError):
                if time.time() - path.lstat().st_mtime > _LEFT_S:
                    path.unlink()


def _locked(folder: Path, until: float) -> int:
    """A descriptor with the lock of the folder itself: a file in it may be replaced, and a lock on that with it."""
    fd = os.open(folder, os.O_RDONLY)
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(fd)
                hint = f"to find the process: fuser -v {folder}"
                raise ConflictError(f"another fcctl process is changing files in {folder}", hint=hint) from None
            time.sleep(0.005)
        except OSError as error:
            os.close(fd)
            if error.errno != errno.EBADF:
                raise
            # NFS locks only what is open for writing.
            fd = os.open(folder / f"{UNFINISHED}lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """Make ``folder``, of ``mode``, and what is missing above it; their names are on disk when this returns."""
    host_files.make_folders(str(folder), mode)


#: The most that is read of a file that people write, bytes: settings, a job, a search. A stranger's repository may have
#: a link to /dev/zero there.
MAX_TEXT_BYTES = 4 * 1024 * 1024


def read_bounded(path: Path) -> str:
    """The text of a file that people write, without a byte order mark. Raises OSError, EFBIG if it has more than
    MAX_TEXT_BYTES; UnicodeDecodeError."""
    with path.open("rb") as file:
        data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MAX_TEXT_BYTES >> 20} MiB", str(path))
    return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


def line_of(error: UnicodeDecodeError) -> int:
    """The line, from 1, in which the text of :func:`read_bounded` is not UTF-8."""
    return error.object.count(b"\n", 0, error.start) + 1


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
        flush(folder_fd)


def user_folder(kind: Literal["cache", "config", "data", "log", "state"]) -> Path:
    """fcctl's folder of the user, ``~/.local/state/fcctl`` or its like on this system; not made yet."""
    import platformdirs

    return Path(getattr(platformdirs, f"user_{kind}_dir")("fcctl", appauthor=False))
