"""Files that are replaced whole, folders and trees that are flushed, locks, and what errors of the disk say."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fcctl_remote.base import files as host_files
from orchestrator.base import files, journal
from orchestrator.base.errors import ConflictError, DiskError
from orchestrator.base.journal import OwnerLock, read_object
from orchestrator.base.safe_paths import UNFINISHED
from tests.support.command import source_environment
from tests.support.descriptors import open_below
from tests.support.small_disk import largest_file, small_disk


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("no_umask")
def test_who_may_read_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files.write_atomic(tmp_path, "shared", b"")
    files.write_atomic(tmp_path, "own", b"", mode=0o600)
    files.make_folders(tmp_path / "a" / "b", 0o700)
    lock = OwnerLock.take(tmp_path / "lock", 1.0)
    assert lock is not None
    lock.release()
    seen: list[int] = []  # what is not for others is not, already while it is written
    chmod = os.fchmod
    monkeypatch.setattr(os, "fchmod", lambda fd, own: (seen.append(stat.S_IMODE(os.fstat(fd).st_mode)), chmod(fd, own)))
    files.write_atomic(tmp_path, "own", b"", mode=0o600)
    assert seen == [0o600]
    modes = {name: mode(tmp_path / name) for name in ("shared", "own", "a", "a/b", "lock")}
    assert modes == {"shared": 0o644, "own": 0o600, "a": 0o777, "a/b": 0o700, "lock": 0o644}


@pytest.mark.usefixtures("no_umask")
@pytest.mark.parametrize("own", [0o600, 0o640, 0o444, 0o755])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, own: int) -> None:
    place = tmp_path / "file"
    place.touch(own)
    place.chmod(own)
    files.write_atomic(tmp_path, "file", b"new")
    assert (place.read_bytes(), mode(place)) == (b"new", own)
    files.write_atomic(tmp_path, "file", b"newer", mode=0o600)
    assert mode(place) == 0o600


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_that_cannot_be_replaced_leaves_nothing_beside_it(tmp_path: Path, durable: bool) -> None:
    files.write_atomic(tmp_path, "file", b"old", durable=durable)
    files.write_atomic(tmp_path, "file", b"new", durable=durable)
    assert (tmp_path / "file").read_bytes() == b"new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        files.write_atomic(tmp_path, "folder", b"new", durable=durable)
    with largest_file(2), pytest.raises(OSError, match="File too large"):
        files.write_atomic(tmp_path, "file", b"newer", durable=durable)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_an_unfinished_file_is_a_new_one_and_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        with files.replacing(tmp_path, "file"):
            (tmp_path / f"{UNFINISHED}{'00' * 8}").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "urandom", bytes)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []
    taken = tmp_path / f"{UNFINISHED}{'00' * 8}"
    taken.write_bytes(b"of another writer")
    with pytest.raises(FileExistsError):
        files.write_atomic(tmp_path, "file", b"x")
    host_taken = tmp_path / f"file.tmp-{'00' * 8}"
    host_taken.write_bytes(b"of another writer")
    with pytest.raises(FileExistsError):
        host_files.write_atomic(str(tmp_path / "file"), b"x")
    assert taken.read_bytes() == host_taken.read_bytes() == b"of another writer"


def test_two_that_write_at_once_are_in_nobody_s_way(tmp_path: Path) -> None:
    with files.replacing(tmp_path, "file") as one, files.replacing(tmp_path, "file") as other:
        host_files.write_all(one, b"one")
        host_files.write_all(other, b"other")
    assert (tmp_path / "file").read_bytes() == b"one", "whose block ended last"
    assert os.listdir(tmp_path) == ["file"]


def test_what_a_killed_writer_left_is_in_nobody_s_way(tmp_path: Path) -> None:
    left, fresh, foreign = (tmp_path / f"{UNFINISHED}{end}" for end in ("0123456789abcdef", "f" * 16, "notes"))
    for path in (left, fresh, foreign):
        path.touch()
    now = time.time()
    for path, age_s in ((left, 4000.0), (foreign, 4000.0), (fresh, 3000.0)):
        os.utime(path, (now, now - age_s))
    with files.alone_in(tmp_path):
        files.write_atomic(tmp_path, "name", b"content")
    assert sorted(tmp_path.iterdir()) == sorted([fresh, foreign, tmp_path / "name"])


def test_who_is_alone_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with files.alone_in(tmp_path):
        with pytest.raises(ConflictError, match="another fcctl process is changing files") as raised:
            with_patience(tmp_path, 0.05)
        assert str(tmp_path) in (raised.value.hint or "")
        with files.alone_in(tmp_path.parent):
            pass
        monkeypatch.setattr(files.time, "monotonic", lambda: 5.0)
        monkeypatch.setattr(files.time, "sleep", lambda _: pytest.fail("it waits, and has no patience"))
        with pytest.raises(ConflictError):
            with_patience(tmp_path, 0.0)
    with_patience(tmp_path, 0.0)
    assert os.listdir(tmp_path) == []


def with_patience(folder: Path, seconds: float) -> None:
    with files.alone_in(folder, seconds):
        pass


def test_whoever_waits_for_a_folder_has_it_once_it_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = contextlib.ExitStack()
    other.enter_context(files.alone_in(tmp_path))
    waits: list[float] = []

    def released(seconds: float) -> None:
        waits.append(seconds)
        other.close()

    monkeypatch.setattr(files.time, "sleep", released)
    with_patience(tmp_path, 60.0)
    assert len(waits) == 1


def test_who_is_alone_in_a_folder_of_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It locks nothing that is not open for writing, and so no folder."""
    real = fcntl.flock

    def as_nfs_has_it(fd: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", as_nfs_has_it)
    with files.alone_in(tmp_path), pytest.raises(ConflictError):
        with_patience(tmp_path, 0.0)
    with_patience(tmp_path, 0.0)
    (lock,) = tmp_path.iterdir()
    assert (lock.stat().st_size, mode(lock)) == (0, 0o600)
    lock.rename(tmp_path / "elsewhere")
    lock.symlink_to("elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        with_patience(tmp_path, 0.0)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOLCK])
def test_a_folder_that_cannot_be_locked_is_an_error_and_nothing_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    asked: list[object] = []

    def refuses(*_: object) -> None:
        asked.append(None)
        assert len(asked) == 1, "it asks once"
        raise OSError(number, "no lock")

    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(OSError, match="no lock"):
        with_patience(tmp_path, 0.0)
    assert open_below(tmp_path) == []


WRITER = """
import sys
from pathlib import Path
from fcctl_remote.base import files as host_files
from orchestrator.base import files
root, own = Path(sys.argv[1]), sys.argv[2].encode()
for _ in range(200):
    files.write_atomic(root, "file", own * 5000, durable=False)
"""


def test_processes_that_write_one_file_at_once(tmp_path: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), own], env=source_environment())
               for own in "abcd"]  # fmt: skip
    seen: set[bytes] = set()
    while any(writer.poll() is None for writer in writers):
        with contextlib.suppress(FileNotFoundError):
            seen.add((tmp_path / "file").read_bytes())
    assert [writer.returncode for writer in writers] == [0] * 4
    assert seen <= {own * 5000 for own in (b"a", b"b", b"c", b"d")}
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_another_makes_at_the_same_time_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = os.mkdir

    def made_meanwhile(path: str, mode: int = 0o777) -> None:
        mkdir(path)
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", made_meanwhile)
    files.make_folders(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("sync", [files.sync_tree, lambda tree: host_files.sync_tree(str(tree))], ids=["here", "host"])
def test_a_tree_is_flushed_and_what_is_no_file_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: Callable[[Path], None]
) -> None:
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
        monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.fstat(fd).st_ino))
        sync(tree)
    places = (tree, tree / "file", tree / "below", tree / "below" / "file")
    assert sorted(flushed) == sorted(place.stat().st_ino for place in places)


def test_what_becomes_a_link_or_a_pipe_meanwhile_is_neither_followed_nor_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nothing")
    opened: list[tuple[str, int]] = []
    true_open = os.open
    monkeypatch.setattr(
        os, "open", lambda *args, **more: (opened.append((Path(args[0]).name, args[1])), true_open(*args, **more))[1]
    )
    files.sync_tree(tmp_path)
    host_files.sync_tree(str(tmp_path))
    flags = {flags for name, flags in opened if name in ("file", "link")}
    assert [name for name, _ in opened].count("file") == 2
    assert "link" not in {name for name, _ in opened}
    assert flags == {os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK}


def test_a_tree_that_the_disk_does_not_take_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()

    def broken(fd: int) -> None:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output"):
        files.sync_tree(tmp_path)


FULL = "this computer's disk is full: could not write it"


@pytest.mark.parametrize(
    ("number", "message", "hint"),
    [
        (errno.ENOSPC, FULL, "free disk space on the file system of /there, then again"),
        (errno.EDQUOT, FULL, "no data is lost"),
        (errno.EFBIG, FULL, "no data is lost"),
        (errno.EACCES, "could not write it", "make /there writable (ls -ld /there), then again"),
        (errno.EPERM, "could not write it", "make /there writable"),
        (errno.EROFS, "could not write it", "make /there writable"),
        (errno.EIO, "could not write it", "check the file system of /there, then again"),
    ],
)
def test_an_error_of_the_disk_says_what_to_do(number: int, message: str, hint: str) -> None:
    with pytest.raises(DiskError) as raised, files.disk_errors("write it", Path("/there"), again="again"):
        raise OSError(number, "no", "/there/file")
    assert (raised.value.message, raised.value.cause) == (message, "no (/there/file)")
    assert hint in (raised.value.hint or "")
    with pytest.raises(DiskError) as raised, files.disk_errors("write it", Path("/there")):
        raise OSError("odd")
    assert (raised.value.cause, raised.value.hint) == (
        "odd (/there)", "check the file system of /there, then repeat the command",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("number", "place", "cause"),
    [
        (errno.ENOTDIR, "file/x/y", "{0}/file is no folder, and fcctl needs a folder there"),
        (errno.EEXIST, "file", "{0}/file is no folder, and fcctl needs a folder there"),
        (errno.EISDIR, "folder", "{0}/folder is a folder, and fcctl needs a file there"),
        (errno.EEXIST, "dangling", "{0}/dangling is no folder, and fcctl needs a folder there"),
        (errno.ENOTDIR, "folder/absent", "no ({0}/folder/absent)"),
        (errno.EIO, "file/x", "no ({0}/file/x)"),
    ],
)
def test_what_stands_in_the_way_is_named_with_how_to_move_it(
    tmp_path: Path, number: int, place: str, cause: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nothing")
    error = files.disk_error(OSError(number, "no", str(tmp_path / place)), "write it", tmp_path)
    assert (error.message, error.cause) == ("could not write it", cause.format(tmp_path))
    found = (error.cause or "").partition(" is ")[0]
    mend = f"check the file system of {tmp_path}, then" if "(" in cause else f"(mv {found} {found}.old), then"
    assert mend in (error.hint or "")


def test_an_error_of_the_disk_that_nobody_foresaw_is_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (
        errno.ENOSPC,
        errno.EFBIG,
        errno.EACCES,
        errno.EROFS,
        errno.ENOTDIR,
        errno.EEXIST,
        errno.EIO,
        errno.ELOOP,
    ):
        for name, where in (("/there", "/there"), (b"/there", "/there"), (None, str(tmp_path)), (3, str(tmp_path))):
            error = files.unforeseen_disk_error(OSError(number, "no", name))
            assert error is not None
            assert where in (error.hint or "")
    assert files.unforeseen_disk_error(OSError(errno.EINTR, "no", "/there")) is None
    assert files.unforeseen_disk_error(OSError("odd")) is None


def test_a_lock_says_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert read_object(path) is None
    for odd in (b"", b"{", b"[1]", b"\xff", b"[" * 100_000):
        path.write_bytes(odd)
        assert read_object(path) is None
    path.write_bytes(b"x" * 1000)
    lock = OwnerLock.take(path, 5.0)
    assert lock is not None
    assert lock.held
    assert read_object(path) == {"pid": os.getpid(), "host": socket.gethostname(), "started": 5.0}
    assert OwnerLock.take(path, 6.0) is None
    lock.release()
    lock.release()
    assert not lock.held
    with pytest.raises(FileNotFoundError):
        OwnerLock.take(tmp_path / "gone" / "lock", 5.0)


def test_who_asks_whether_a_lock_is_taken_keeps_nobody_from_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, true_close = tmp_path / "lock", os.close
    assert not OwnerLock.is_taken(path)
    lock = OwnerLock.take(path, 5.0)
    assert lock is not None
    assert OwnerLock.is_taken(path)
    lock.release()
    answers: list[bool] = []

    def ask_again(fd: int) -> None:  # while the first question still has its file open
        monkeypatch.setattr(os, "close", true_close)
        answers.append(OwnerLock.is_taken(path))
        true_close(fd)

    monkeypatch.setattr(os, "close", ask_again)
    answers.append(OwnerLock.is_taken(path))
    assert answers == [False, False]


def test_an_owner_waits_for_whoever_only_asks_however_long_that_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be waiting for a processor with its file open; another owner is waited for as long as one says."""
    path = tmp_path / "lock"
    waits: list[float] = []
    with path.open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)

        def asked(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 3:
                asking.close()

        monkeypatch.setattr(journal.time, "sleep", asked)
        lock = OwnerLock.within(path, 0.0)
    assert lock is not None
    assert len(waits) == 3
    assert OwnerLock.within(path, 0.0) is None
    assert len(waits) == 3, "an owner is no asker"
    lock.release()
    lock = OwnerLock.within(path, 0.0, started=5.0)
    assert lock is not None
    assert read_object(path)["started"] == 5.0
    lock.release()


def test_whoever_asks_and_never_ends_keeps_no_owner_waiting_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, clock = tmp_path / "lock", itertools.count(0.0, 20.0)
    with path.open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        monkeypatch.setattr(journal.time, "monotonic", lambda: next(clock))
        monkeypatch.setattr(journal.time, "sleep", lambda _: None)
        assert OwnerLock.within(path, 0.0) is None
    assert next(clock) >= 60.0


def test_on_a_disk_that_is_mounted_to_be_read_a_lock_that_is_there_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, true_open = tmp_path / "lock", os.open
    path.write_bytes(b"of before")

    def refusing(place: Path, flags: int, *mode: int) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise OSError(refusal, "no")
        return true_open(place, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)
    refusal = errno.EROFS
    lock = OwnerLock.take(path, 5.0)
    assert lock is not None
    assert OwnerLock.is_taken(path)
    assert OwnerLock.take(path, 5.0) is None
    lock.release()
    assert path.read_bytes() == b"of before"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        OwnerLock.is_taken(path)
    for number in (errno.EROFS, errno.EACCES, errno.EDQUOT):
        refusal = number
        with pytest.raises(OSError, match="no") as refused:
            OwnerLock.take(path, 5.0)
        assert refused.value.errno == number
    monkeypatch.setattr(os, "open", true_open)
    with pytest.raises(OSError, match="symbolic link"):
        OwnerLock.take(path, 5.0)


def test_a_fork_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    lock = OwnerLock.take(tmp_path / "lock", 5.0)
    assert lock is not None
    asked, told = os.pipe()
    if not (child := os.fork()):
        os.close(told)
        os.read(asked, 1)  # until its parent has the answer
        os._exit(0)
    try:
        lock.release()
        again = OwnerLock.within(tmp_path / "lock", 60.0)
        assert again is not None
        again.release()
    finally:
        os.close(told)
        os.close(asked)
        os.waitpid(child, 0)


def test_a_full_disk_keeps_nobody_from_owning_a_run(tmp_path: Path) -> None:
    with largest_file(0):
        lock = OwnerLock.take(tmp_path / "lock", 5.0)
        assert lock is not None
        assert OwnerLock.take(tmp_path / "lock", 5.0) is None
    lock.release()


@pytest.mark.parametrize("write", ["here", "on the host"])
def test_what_is_to_last_is_flushed_and_what_is_not_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    flushed: list[str] = []
    for module in (files, host_files):
        monkeypatch.setattr(module, "flush", lambda _: flushed.append("file"))
        monkeypatch.setattr(module, "sync_folder", lambda _: flushed.append("folder"))
    for said, durable in (({"durable": False}, False), ({"durable": True}, True), ({}, True)):
        flushed.clear()
        if write == "here":
            files.write_atomic(tmp_path, "a", b"x", **said)  # type: ignore[arg-type]
        else:
            host_files.write_atomic(str(tmp_path / "a"), b"x", **said)
        assert flushed == ["file", "folder"] * durable


def test_a_disk_that_can_hold_no_more_files_is_told_from_one_without_room(tmp_path: Path) -> None:
    disk = tmp_path / "disk"

    def write_three() -> None:
        for name in ("a", "b", "c"):
            files.write_atomic(disk, name, b"")

    with small_disk(disk, "1m,nr_inodes=3"), pytest.raises(DiskError) as raised, files.disk_errors("write", disk / "x"):
        write_three()
    assert "no data is lost: delete files (it has no inode left" in str(raised.value.hint)


@pytest.mark.parametrize(
    ("files_", "free_files", "free_blocks", "says"),
    [(1, 0, 1, True), (9, 0, 9, True), (0, 0, 9, False), (9, 1, 9, False), (9, 0, 0, False), (9, 9, 9, False)],
)
def test_a_file_system_without_inodes_of_its_own_lacks_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files_: int, free_files: int, free_blocks: int, says: bool
) -> None:
    facts = SimpleNamespace(f_files=files_, f_favail=free_files, f_bavail=free_blocks)
    monkeypatch.setattr(os, "statvfs", lambda folder: {tmp_path: facts}[folder])
    with pytest.raises(DiskError) as raised, files.disk_errors("write it", tmp_path / "a" / "b"):
        raise OSError(errno.ENOSPC, "no")
    assert ("df -i" in str(raised.value.hint)) is says


def test_a_lock_that_cannot_be_had_is_no_open_file_and_one_that_is_gone_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "lock"
    with monkeypatch.context() as gone:  # its owner finished, and the file with it, between opening and locking
        gone.setattr(fcntl, "flock", lambda *_: lock.unlink())
        assert OwnerLock.take(lock, 1.0) is None
    closed: list[int] = []
    close = os.close
    monkeypatch.setattr(os, "close", lambda fd: (closed.append(fd), close(fd)))

    def refuses(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    with pytest.raises(OSError, match="No locks"):
        OwnerLock.take(lock, 1.0)
    assert len(closed) == 1


def test_a_text_may_have_four_mebibytes(tmp_path: Path) -> None:
    text = tmp_path / "job.yaml"
    text.write_bytes(b"#" * (4 << 20))
    assert len(files.read_bounded(text)) == 4 << 20
    text.write_bytes(b"#" * ((4 << 20) + 1))
    with pytest.raises(OSError, match="more than 4 MiB") as refused:
        files.read_bounded(text)
    assert refused.value.errno == errno.EFBIG


@pytest.mark.parametrize(("data", "line"), [(b"\xff", 1), (b"\n\xff", 2), (b"a\nb\n\xff\n", 3)])
def test_the_line_that_is_no_text(tmp_path: Path, data: bytes, line: int) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(UnicodeDecodeError) as raised:
        files.read_bounded(tmp_path / "a")
    assert files.line_of(raised.value) == line
