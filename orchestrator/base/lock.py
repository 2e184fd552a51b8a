"""Who owns an active run: a kernel lock on ``active/<run-id>/lock``, gone with its process however that dies."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.base.clock import Clock
from orchestrator.base.files import write_all

#: How long ``ps``, which asks each host for at most 5 s, may own a run or a session.
LOOK_S = 6.0
T = TypeVar("T")
_held: weakref.WeakSet[OwnerLock] = weakref.WeakSet()


def claim_within(seconds: float, clock: Clock, claim: Callable[[], T | None]) -> T | None:
    """What ``claim`` returns once it is not None; None if that takes longer than ``seconds``: its owner does more than
    to look at it."""
    limit = clock.monotonic() + seconds
    while (claimed := claim()) is None and clock.monotonic() < limit:
        clock.sleep(0.1)
    return claimed


class OwnerLock:
    """A lock until :meth:`release` or the process's end. No child inherits it: else it would own the run after its
    parent."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd
        _held.add(self)

    @classmethod
    def take(cls, path: Path, started: float) -> OwnerLock | None:
        """The lock on ``path``; None while another process has it. Raises FileNotFoundError if the folder is gone."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno != errno.EROFS:
                raise
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # a file that is there can be locked
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The owner may have finished the run, and with it this very file, while we were opening it.
            if not _is_still(path, fd):
                os.close(fd)
                return None
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": started}
            with contextlib.suppress(OSError):  # for messages only: a full disk does not prevent the lock
                os.ftruncate(fd, 0)
                write_all(fd, json.dumps(owner).encode())
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    @staticmethod
    def is_taken(path: Path) -> bool:
        """Whether a process owns ``path``; False if the file is gone. Asks with a shared lock: two that ask at the same
        time both get the right answer."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    @property
    def held(self) -> bool:
        return self._fd is not None

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def owner_of(path: Path) -> dict[str, Any] | None:
    """What the owner wrote about itself (pid, host, started), for messages; None if unreadable."""
    try:
        owner = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return owner if isinstance(owner, dict) else None


def _is_still(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.lstat(), os.fstat(fd))
    except FileNotFoundError:
        return False


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
