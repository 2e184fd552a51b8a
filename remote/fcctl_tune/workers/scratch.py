"""Temporary folders that hold a search's key and its workers' own files.

Their owner removes them. After a power cut one may stay, which the next search or member of the same user removes: the
kernel holds the lock on a folder for as long as its owner lives.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from typing import Iterator

from fcctl_remote.base import files

PREFIX = "fcctl-tune-"
#: In each folder, locked for as long as somebody needs it.
LOCK = "lock"


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """A new one, for its owner alone, within. Raises: OSError."""
    path = tempfile.mkdtemp(prefix=PREFIX)
    lock = None
    try:
        with contextlib.suppress(OSError):  # a file system without locks: nobody will remove it for us
            lock = files.try_lock(os.path.join(path, "new"))
            os.rename(os.path.join(path, "new"), os.path.join(path, LOCK))  # never there and not locked
        yield path
    finally:
        _remove(path)
        if lock is not None:
            os.close(lock)


def sweep() -> None:
    """Remove ours whose owner is gone."""
    with contextlib.suppress(OSError):
        for name in os.listdir(tempfile.gettempdir()):
            if name.startswith(PREFIX):
                _remove_if_left(os.path.join(tempfile.gettempdir(), name))


def _remove_if_left(path: str) -> None:
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return
        lock = files.try_lock(os.path.join(path, LOCK), create=False)
        if lock is not None:
            _remove(path)
            os.close(lock)


def _remove(path: str) -> None:
    """The lock goes last: a folder without it would be left alone for ever."""
    with contextlib.suppress(OSError):
        for name in os.listdir(path):
            one = os.path.join(path, name)
            if name == LOCK:
                continue
            if os.path.isdir(one) and not os.path.islink(one):
                shutil.rmtree(one, ignore_errors=True)
            else:
                os.unlink(one)
    shutil.rmtree(path, ignore_errors=True)
