"""What is opened, flushed and read of files on the host, at the bounds."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fcctl_remote.agent import transfer
from fcctl_remote.base import files
from fcctl_remote.base.layout import Layout
from fcctl_remote.run import state as runs
from tests.support.descriptors import open_below


def test_a_link_is_followed_where_that_is_asked_for_to_a_file_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to("pipe")
    with files.closing(files.open_plain(str(tmp_path / "link"), follow=True)) as fd:
        assert os.read(fd, 2) == b"x"
        assert os.get_blocking(fd)
        assert not os.get_inheritable(fd)
    with pytest.raises(files.NotPlain):
        files.open_plain(str(tmp_path / "to-pipe"), follow=True)
    with pytest.raises(files.NotPlain):
        files.open_plain(str(tmp_path / "link"))


def test_what_did_not_change_since_is_not_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed is by the ctime, which a step cannot set as it can the mtime."""
    (tmp_path / "file").touch()
    changed = {}
    for place in (tmp_path, tmp_path / "file"):
        os.utime(place, (1, 1))
        facts = place.stat()
        changed[facts.st_ino] = facts.st_ctime
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append(os.fstat(fd).st_ino))
    newest = max(changed.values())
    for since in (0.0, min(changed.values()) - 1, newest, newest + 1):
        seen.clear()
        files.sync_tree(str(tmp_path), since)
        assert sorted(seen) == sorted(place for place, ctime in changed.items() if ctime >= since)
    assert seen == []


def test_on_a_mac_each_folder_is_flushed_to_the_disk_itself_after_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "a"
    below.mkdir()
    for place in (tmp_path / "one", below / "two"):
        place.touch()
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append(("file", os.fstat(fd).st_ino)))
    monkeypatch.setattr(files, "flush", lambda fd: seen.append(("folder", os.fstat(fd).st_ino)))
    files.sync_tree(str(tmp_path))
    expected = (("file", tmp_path / "one"), ("folder", tmp_path), ("file", below / "two"), ("folder", below))
    assert seen == [(how, place.stat().st_ino) for how, place in expected]


@pytest.mark.parametrize(
    ("number", "then"),
    [(0, []), (errno.ENOTSUP, ["fsync"]), (errno.EINVAL, ["fsync"]), (errno.ENOTTY, ["fsync"]), (errno.EIO, None)],
)
def test_a_flush_reaches_past_the_drive_s_cache(
    monkeypatch: pytest.MonkeyPatch, number: int, then: list[str] | None
) -> None:
    """macOS's own fsync leaves the data there; some file systems have nothing else."""

    def full(_fd: int, command: int) -> None:
        assert command == 51
        if number:
            raise OSError(number, "no")

    called: list[str] = []
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda _: called.append("fsync"))
    with pytest.raises(OSError, match="no") if then is None else contextlib.nullcontext():
        files.flush(0)
    assert called == (then or [])


def test_json_is_read_up_to_its_limit_and_a_broken_disk_is_no_absent_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 8)
    place = tmp_path / "a"
    for text, value in (('{"a": 1}', {"a": 1}), ('{"a": 10}', None), ("[1]", None)):
        place.write_text(text)
        assert files.read_object(str(place)) == value

    def broken(number: int) -> Callable[..., bytes]:
        def refuse(_path: str, _most: int) -> bytes:
            raise OSError(number, "of the disk")

        return refuse

    for number in (errno.EIO, errno.EDQUOT):
        monkeypatch.setattr(files, "read_plain", broken(number))
        with pytest.raises(OSError, match="of the disk"):
            files.read_object(str(place))


def test_a_file_below_a_folder_is_opened_and_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_text("x")
    (tmp_path / "a" / "link").symlink_to("b")
    with files.closing(files.open_beneath(str(tmp_path), "a/b/file")) as fd:
        assert os.read(fd, 2) == b"x"
        assert open_below(tmp_path) == [fd]
    for path, number in (("a/link/file", (errno.ELOOP, errno.ENOTDIR)), ("a//file", (errno.EINVAL,)),
                         ("a/c", (errno.ENOENT,)), ("./a", (errno.EINVAL,))):  # fmt: skip
        with pytest.raises(OSError, match=r".+") as refused:
            files.open_beneath(str(tmp_path), path)
        assert refused.value.errno in number
    assert open_below(tmp_path) == []


def test_only_a_folder_is_flushed_as_one(tmp_path: Path) -> None:
    """Opening a pipe that a step has put there would wait for its writer."""
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        files.sync_folder(tmp_path / "file")


def test_what_the_file_system_reserves_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda _fd, start, size: reserved.append((start, size)), raising=False)
    files.DiskReserve(str(tmp_path / "reserve")).take()
    assert (reserved, (tmp_path / "reserve").stat().st_size) == ([(0, 1 << 20)], 0)


def test_only_a_file_has_a_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"123")
    (tmp_path / "link").symlink_to("file")
    assert [files.size_of(str(tmp_path / name)) for name in ("file", "link", ".", "none", "file/x")] == [3, 0, 0, 0, 0]


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
    files.write_atomic(str(tmp_path / "a"), b"0123456789")
    files.append_line(str(tmp_path / "a"), b"abcd")
    assert (tmp_path / "a").read_bytes() == b"0123456789abcd\n"


def test_no_more_is_listed_than_can_be_hashed_in_one_call(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run that left hundreds of gigabytes could never be collected."""
    run = layout.run("20261121t081530z-bench-l4-3fa9c1")
    artifacts = Path(run.artifacts)
    artifacts.mkdir(parents=True)
    for name, size in (("a", 3), ("b", 4), ("c", 2), ("d", 1)):
        (artifacts / name).write_bytes(b"x" * size)
    monkeypatch.setattr(transfer, "MAX_BYTES", 5)
    listed = transfer.Listing(run).make()
    assert [entry.path for entry in listed.files] == ["artifacts/a", "artifacts/c"]
    assert [(left.path, left.reason) for left in listed.omitted] == [
        ("artifacts/b", "too_large"), ("artifacts/d", "too_large"),
    ]  # fmt: skip


def test_a_folder_whose_name_is_too_long_for_a_run_hides_no_run(layout: Layout) -> None:
    """A step can make one, and each command that looks at all runs would end there."""
    run_id = "20261121t081530z-bench-l4-3fa9c1"
    for name in (run_id, run_id.replace("bench", "b" * 40)):
        os.mkdir(layout.run(run_id).folder.replace(run_id, name))
    assert [layout.run(name).run_id for name in layout.run_ids()] == [run_id]


def test_a_file_in_the_place_of_a_run_is_no_run_at_work(layout: Layout) -> None:
    """Else no run moves the machine's shutdown timer at its end."""
    run = layout.run("20261121t081530z-bench-l4-3fa9c1")
    Path(run.folder).write_text("")
    assert runs.supervisor_pid(run) is None
    assert not runs.is_known(run)
