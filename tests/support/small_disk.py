"""A file system of its own, small enough to be filled. Mounting it takes root on Linux; else the test is skipped."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MS_RDONLY, _MS_REMOUNT, _MNT_DETACH = 1, 32, 2


class SmallDisk:
    """A tmpfs that is mounted at ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ballast = root / "ballast"

    def resize(self, size: str) -> None:
        _mount(self.root, size, _MS_REMOUNT)

    def protect(self) -> None:
        """Read only from now on, as Linux has a disk on which it met an error."""
        _mount(self.root, "1m", _MS_REMOUNT | _MS_RDONLY)

    def fill(self) -> None:
        """Until not one byte more finds room."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as stream:
            while stream.write(b"x" * 4096):
                pass

    def clear(self) -> None:
        """Give back what :meth:`fill` took."""
        self._ballast.unlink()


@contextmanager
def small_disk(at: Path, size: str = "1m") -> Iterator[SmallDisk]:
    """Mounted at ``at``, which is made if need be, until the end of the block."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs takes root on Linux")
    at.mkdir(parents=True, exist_ok=True)
    try:
        _mount(at, size, 0)
    except OSError as error:
        pytest.skip(f"cannot mount here: {error}")
    try:
        yield SmallDisk(at)
    finally:
        ctypes.CDLL(None).umount2(os.fsencode(at), _MNT_DETACH)


def _mount(at: Path, size: str, flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(at), b"tmpfs", flags, f"size={size}".encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process grows beyond ``size`` bytes: a limit that everybody may set on himself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
