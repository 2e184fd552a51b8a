"""Files that are replaced whole, folders and trees that are flushed, locks, and what errors of the disk say."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.base import files
from orchestrator.base.errors import FcctlError
from orchestrator.base.lock import OwnerLock, owner_of
from orchestrator.base.safe_paths import UNFINISHED


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("no_umask")
def test_who_may_read_what(tmp_path: Path) -> None:
    files.write_atomic(tmp_path, "shared", b"")
    files.replace_file(tmp_path / "own", b"")
    files.make_folders(tmp_path / "a" / "b", 0o700)
    lock = OwnerLock.take(tmp_path / "lock", 1.0)
    assert lock is not None
    lock.release()
    modes = {name: mode(tmp_path / name) for name in ("shared", "own", "a", "a/b", "lock")}
    assert modes == {"shared": 0o644, "own": 0o600, "a": 0o777, "a/b": 0o700, "lock": 0o644}


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(tmp_path: Path, durable: bool) -> None:
    files.replace_file(tmp_path / "file", b"old", durable=durable)
    files.replace_file(tmp_path / "file", b"new", durable=durable)
    assert (tmp_path / "file").read_bytes() == b"new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        files.replace_file(tmp_path / "folder", b"new", durable=durable)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_what_a_killed_writer_left_is_in_nobody_s_way(tmp_path: Path) -> None:
    (tmp_path / f"{UNFINISHED}name").symlink_to("elsewhere")
    files.write_atomic(tmp_path, "name", b"content")
    assert os.listdir(tmp_path) == ["name"]
    assert (tmp_path / "name").read_bytes() == b"content"


def test_folders_that_are_there_stay(tmp_path: Path) -> None:
    for _ in range(2):
        files.make_folders(tmp_path / "a" / "b" / "c")
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        files.make_folders(tmp_path / "file")


def test_a_tree_is_flushed_and_what_is_no_file_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, elsewhere = tmp_path / "tree", tmp_path / "elsewhere"
    (tree / "below").mkdir(parents=True)
    elsewhere.mkdir()
    for place in (tree / "file", tree / "below" / "file", elsewhere / "file"):
        place.touch()
    (tree / "link").symlink_to(elsewhere / "file")
    (tree / "folder").symlink_to(elsewhere)
    (tree / "dangling").symlink_to("nothing")
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tree)  # a socket's name may not be long
        listener.bind("socket")
        flushed: list[int] = []
        real = os.fsync

        def counting(fd: int) -> None:
            flushed.append(os.fstat(fd).st_ino)
            real(fd)

        monkeypatch.setattr(os, "fsync", counting)
        files.sync_tree(tree)
    places = (tree, tree / "file", tree / "below", tree / "below" / "file")
    assert sorted(flushed) == sorted(place.stat().st_ino for place in places)


def test_a_tree_that_the_disk_does_not_take_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()

    def broken(fd: int) -> None:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        files.sync_tree(tmp_path)


@pytest.mark.parametrize(
    ("number", "message", "hint"),
    [
        (
            errno.ENOSPC,
            "this machine's disk is full: could not write it",
            "free some space where /there is, then again",
        ),
        (errno.EDQUOT, "this machine's disk is full: could not write it", "nothing is lost"),
        (errno.EFBIG, "this machine's disk is full: could not write it", "nothing is lost"),
        (errno.EACCES, "could not write it", "make /there writable (ls -ld /there), then again"),
        (errno.EPERM, "could not write it", "make /there writable"),
        (errno.EROFS, "could not write it", "make /there writable"),
        (errno.EIO, "could not write it", "check the file system of /there, then again"),
    ],
)
def test_an_error_of_the_disk_says_what_to_do(number: int, message: str, hint: str) -> None:
    with pytest.raises(FcctlError) as raised, files.disk_errors("write it", Path("/there"), again="again"):
        raise OSError(number, "no", "/there/file")
    assert (raised.value.message, raised.value.cause) == (message, "no (/there/file)")
    assert hint in (raised.value.hint or "")
    with pytest.raises(FcctlError) as raised, files.disk_errors("write it", Path("/there")):
        raise OSError("odd")
    assert (raised.value.cause, raised.value.hint) == (
        "odd (/there)", "check the file system of /there, then repeat the command",
    )  # fmt: skip


def test_a_lock_says_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert owner_of(path) is None
    for odd in (b"", b"{", b"[1]", b"\xff"):
        path.write_bytes(odd)
        assert owner_of(path) is None
    path.write_bytes(b"x" * 1000)
    lock = OwnerLock.take(path, 5.0)
    assert lock is not None
    assert lock.held
    assert owner_of(path) == {"pid": os.getpid(), "host": socket.gethostname(), "started": 5.0}
    assert OwnerLock.take(path, 6.0) is None
    lock.release()
    lock.release()
    assert not lock.held
    with pytest.raises(FileNotFoundError):
        OwnerLock.take(tmp_path / "gone" / "lock", 5.0)
