from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.app import SystemClock
from orchestrator.base.errors import DiskError
from orchestrator.base.journal import FileJournal, newest
from tests.support.small_disk import largest_file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def opened(path: Path) -> FileJournal:
    return FileJournal(path, SystemClock())


def test_lines_come_back_in_order(path: Path) -> None:
    journal = opened(path)
    journal.append("sync", files=3)
    journal.append("submit", note="a\nb\r\u2028c")
    again = opened(path).entries()
    assert [(e.seq, e.kind, e.data) for e in again] == [
        (1, "sync", {"files": 3}),
        (2, "submit", {"note": "a\nb\r\u2028c"}),
    ]
    assert again == journal.entries()


def test_a_line_is_flushed_before_append_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    real = os.fsync

    def counting(fd: int) -> None:
        flushed.append(os.fstat(fd).st_size)
        real(fd)

    monkeypatch.setattr(os, "fsync", counting)
    journal = opened(path)
    journal.append("sync")
    assert path.stat().st_size in flushed
    assert len(flushed) == 2, "the first line also flushes the folder, or the file's name may be lost"
    journal.append("submit")
    assert flushed[-1] == path.stat().st_size


def test_a_name_that_could_not_be_flushed_is_flushed_with_the_next_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, real = opened(path), os.fsync

    def refuses_folders(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", refuses_folders)
    for _ in range(2):
        with pytest.raises(DiskError):
            journal.append("sync")
    assert not journal.append_if_possible("detached")
    monkeypatch.setattr(os, "fsync", real)
    journal.append("sync")
    assert [entry.kind for entry in opened(path).entries()] == ["detached", "sync"]


@pytest.mark.parametrize("cut", [1, 2, 10, 30])
def test_a_torn_line_is_ignored_and_then_cut_away(path: Path, cut: int) -> None:
    journal = opened(path)
    journal.append("sync")
    journal.append("submit", text="x" * 20)
    journal.close()
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    again = opened(path)
    assert [e.kind for e in again.entries()] == ["sync"]
    again.append("collect")
    assert [(e.seq, e.kind) for e in opened(path).entries()] == [(1, "sync"), (2, "collect")]
    assert path.read_bytes().count(b"\n") == 2


def test_zeros_that_a_power_cut_left_are_a_torn_line(path: Path) -> None:
    opened(path).append("sync")
    with path.open("ab") as f:
        f.write(b"\0" * 4096)
    journal = opened(path)
    journal.append("submit")
    assert [e.kind for e in opened(path).entries()] == ["sync", "submit"]
    assert b"\0" not in path.read_bytes()


def test_a_damaged_line_in_the_middle_loses_only_itself(path: Path) -> None:
    journal = opened(path)
    for kind in ("a", "b", "c"):
        journal.append(kind)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"garbage\n" + lines[2])
    again = opened(path)
    assert [(e.seq, e.kind) for e in again.entries()] == [(1, "a"), (3, "c")]
    again.append("d")
    assert [(e.seq, e.kind) for e in opened(path).entries()] == [(1, "a"), (3, "c"), (4, "d")]


def test_a_full_disk_leaves_the_journal_as_it_was(path: Path) -> None:
    journal = opened(path)
    journal.append("sync")
    before = path.read_bytes()
    with largest_file(len(before) + 10), pytest.raises(DiskError, match="disk is full") as raised:
        journal.append("submit", text="x" * 500)
    assert raised.value.hint
    assert path.read_bytes() == before
    journal.append("submit")
    assert [e.kind for e in opened(path).entries()] == ["sync", "submit"]


def test_a_line_that_was_not_done_does_not_come_back_though_the_disk_did_not_cut_it_away(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails refuses the next call, too."""
    journal = opened(path)
    journal.append("sync")

    def fails(fd: int, *_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        for name in ("fsync", "ftruncate"):
            broken.setattr(os, name, fails)
        with pytest.raises(DiskError):
            journal.append("submit")
    journal.append("released")
    assert [entry.kind for entry in opened(path).entries()] == ["sync", "released"]


def test_a_line_that_need_not_wait_for_room_reaches_the_disk_with_the_next(path: Path) -> None:
    journal = opened(path)
    journal.append("begun")
    with largest_file(path.stat().st_size):
        assert not journal.append_if_possible("ended", status="passed")
        assert not journal.append_if_possible("release")
        with pytest.raises(DiskError):
            journal.append("acquire")
    assert [(e.seq, e.kind) for e in journal.entries()] == [(1, "begun"), (2, "ended"), (3, "release")]
    assert [e.kind for e in opened(path).entries()] == ["begun"]
    assert journal.append_if_possible("released")
    journal.append("complete")
    assert opened(path).entries() == journal.entries()
    assert [(e.seq, e.kind) for e in opened(path).entries()] == [
        (1, "begun"), (2, "ended"), (3, "release"), (4, "released"), (5, "complete"),
    ]  # fmt: skip


def test_what_waits_for_room_is_tried_once_more_at_the_end(path: Path) -> None:
    journal = opened(path)
    with largest_file(0):
        assert not journal.append_if_possible("ended")
        journal.close()
    assert opened(path).entries() == []
    journal.append_if_possible("release")
    with largest_file(0):
        assert not journal.append_if_possible("released")
    journal.close()
    assert [e.kind for e in opened(path).entries()] == ["ended", "release", "released"]


@pytest.mark.parametrize(("back_s", "age_s"), [(0.0, 40.0), (-100.0, 140.0), (30.0, 10.0), (500.0, 0.0)])
def test_a_line_is_as_old_as_the_clock_says_when_it_is_read_and_no_line_is_of_the_future(
    path: Path, back_s: float, age_s: float
) -> None:
    """The clock is set back by ``back_s`` between its writing and its reading; afterwards it does not count."""
    time = {"now": 1000.0, "elapsed": 7.0}
    clock: Any = SimpleNamespace(now=lambda: time["now"], elapsed=lambda: time["elapsed"])
    FileJournal(path, clock).append("sync")
    time = {"now": 1040.0 - back_s, "elapsed": 2.0}
    journal = FileJournal(path, clock)
    (entry,) = journal.entries()
    assert journal.age(entry) == age_s
    time = {"now": 5.0, "elapsed": 62.0}
    assert journal.age(entry) == age_s + 60.0


def test_a_journal_whose_file_was_deleted_has_its_lines_still(path: Path) -> None:
    journal = opened(path)
    journal.append("sync", files=3)
    journal.append("submit")
    content = path.read_bytes()
    assert journal.content() == content
    path.unlink()
    assert journal.content() == content


def test_a_link_is_no_journal_and_a_new_one_may_be_read_by_others(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.touch()
    path.symlink_to(elsewhere)
    with pytest.raises(DiskError):
        opened(path).append("sync")
    assert elsewhere.read_bytes() == b""
    path.unlink()
    before = os.umask(0)
    try:
        opened(path).append("sync")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_newest_line_of_a_kind_is_the_one_that_counts(path: Path) -> None:
    journal = opened(path)
    for number, kind in enumerate(("sync", "acquired", "sync", "ended")):
        journal.append(kind, number=number)
    kinds = (["sync"], ["acquired"], ["acquired", "sync"], ["ended", "sync"], ["stopped"])
    assert [newest(journal.entries(), *some).get("number") for some in kinds] == [2, 1, 2, 3, None]
