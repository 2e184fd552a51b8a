"""Files, text, hints, frames, documents: the small parts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcctl_remote import wire
from fcctl_remote.agent.agent import BadFrame, FrameReader, _call_error
from fcctl_remote.base import files, text, tree
from fcctl_remote.base.layout import BadName, Layout
from fcctl_remote.run import documents
from fcctl_remote.run import state as runs
from tests.support.descriptors import open_below


def raising(number: int) -> Callable[..., None]:
    def refuse(*_: object) -> None:
        raise OSError(number, "no")

    return refuse


# ------------------------------------------------------------------------------------------------ files
def test_a_full_disk_is_looked_at_where_the_host_s_folder_is() -> None:
    """With a `root` of its own a target's ~/.fcctl tells nothing, and df knows no file that was not written."""
    error = _call_error(OSError(errno.ENOSPC, "No space left on device", "/mnt/a b/fcctl/runs/x"), "/mnt/a b/fcctl")
    assert error.code == "disk_full"
    assert (error.hint or "").startswith("free disk space on the machine (df -h '/mnt/a b/fcctl'), then: ")


def test_a_disk_that_fails_is_called_so() -> None:
    error = _call_error(OSError(errno.EIO, "Input/output error"), "/mnt/fcctl")
    assert (error.code, error.message) == ("disk_failed", "the host's disk failed: cannot read or write /mnt/fcctl")
    assert "dmesg" in (error.hint or "")


@pytest.mark.parametrize(
    ("number", "code", "hint"),
    [
        (errno.ENOLCK, "denied", "set another `root` in the target, on a disk of the machine itself"),
        (errno.ENOTSUP, "denied", "set another `root` in the target, on a disk of the machine itself"),
        (errno.ETIMEDOUT, "conflict", "find the process that locks it, on the machine: fuser -v '/home/a b/x.lock'"),
    ],
)
def test_a_lock_that_cannot_be_had_names_what_to_do(number: int, code: str, hint: str) -> None:
    """NFS may have no locks; and a process that was stopped keeps its own."""
    told = _call_error(OSError(number, "no lock", *(["/home/a b/x.lock"] if code == "conflict" else [])), "/home/a b")
    assert (told.code, told.hint) == (code, hint)
    assert "no lock" in told.message
    assert "/home/a b" in told.message


@pytest.mark.parametrize("write", [files.write_atomic, files.append_line])
def test_a_write_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[str, bytes], None]
) -> None:
    place = tmp_path / "a"
    write(str(place), b"one")
    before = place.read_bytes()

    def half(fd: int, data: bytes) -> None:
        os.write(fd, data[:2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_all", half)
    with pytest.raises(OSError, match="No space"):
        write(str(place), b"two")
    assert place.read_bytes() == before == (b"one" if write is files.write_atomic else b"one\n")
    assert os.listdir(tmp_path) == ["a"]


def test_who_may_read_what(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        tree.write_new(str(tmp_path / "source"), b"x", executable=False)
        tree.write_new(str(tmp_path / "script"), b"x", executable=True)
        files.write_atomic(str(tmp_path / "shared"), b"x")
        files.write_atomic(str(tmp_path / "own"), b"x", mode=0o600)
        files.append_line(str(tmp_path / "events"), b"x")
        files.DiskReserve(str(tmp_path / "reserve")).take()
        files.make_folders(str(tmp_path / "a" / "b"), 0o700)
        with files.locked(str(tmp_path / "lock")):
            pass
        fd = files.try_lock(str(tmp_path / "other"))
        os.close(fd)
    finally:
        os.umask(before)
    assert {p.name: oct(p.stat().st_mode & 0o777) for p in (*tmp_path.iterdir(), tmp_path / "a" / "b")} == {
        "source": "0o644", "script": "0o755", "shared": "0o644", "own": "0o600", "events": "0o644",
        "reserve": "0o600", "a": "0o777", "b": "0o700", "lock": "0o600", "other": "0o600",
    }  # fmt: skip


def test_a_new_file_replaces_none(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "link").symlink_to("b")
    for name in ("a", "link"):
        with pytest.raises(FileExistsError):
            tree.write_new(str(tmp_path / name), b"new", executable=False)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert not (tmp_path / "b").exists()


def test_folders_that_are_there_stay(tmp_path: Path) -> None:
    for _ in range(2):
        files.make_folders(str(tmp_path / "a" / "b"))
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        files.make_folders(str(tmp_path / "file"))


@pytest.mark.parametrize("flush", [files.sync_folder, files.sync_tree])
@pytest.mark.parametrize(
    ("number", "raises"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True), (errno.ENOSPC, True)]
)
def test_a_file_system_need_not_flush_folders_but_must_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: Callable[[str], None], number: int, raises: bool
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "fsync", raising(number))
    with pytest.raises(OSError, match="no") if raises else contextlib.nullcontext():
        flush(str(tmp_path))
    assert open_below(tmp_path) == []


def test_a_folder_whose_name_is_not_on_disk_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raising(errno.EIO))
        with pytest.raises(OSError, match="no"):
            files.make_folders(str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_a_run_has_not_passed_whose_results_the_disk_did_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Layout(str(tmp_path)).run("20261121t081530z-phase1-l4-3fa9c1")
    (Path(run.steps) / "a").mkdir(parents=True)
    (Path(run.steps) / "a/log.txt").touch()
    lost, real = (Path(run.steps) / "a/log.txt").stat().st_ino, os.fsync

    def refuses_the_log(fd: int) -> None:
        if os.fstat(fd).st_ino == lost:
            raise OSError(errno.EIO, "Input/output error")
        real(fd)

    monkeypatch.setattr(os, "fsync", refuses_the_log)
    for status, written in (("passed", "error"), ("incomplete", "error"), ("failed", "failed")):
        plan = wire.RunPlan(run.run_id, "j", "", "", "", [])
        runs.write_outcome(run, runs.outcome(plan, status, None), files.DiskReserve(run.reserve))
        outcome = files.read_object(run.outcome)
        assert outcome is not None
        assert (outcome["status"], outcome["exit_code"]) == (written, 100)
        assert ("did not store the results: Input/output error" in (outcome["message"] or "")) == (written == "error")


def test_json_is_as_short_as_it_can_be_and_any_text_is_json(tmp_path: Path) -> None:
    data = files.to_json({"ä": [1, "\udcff"]})
    assert data == '{"ä":[1,"'.encode() + rb"\udcff" + b'"]}'
    (tmp_path / "a").write_bytes(data)
    assert files.read_object(str(tmp_path / "a")) == {"ä": [1, "\udcff"]}
    (tmp_path / "a").write_bytes(b"{")
    assert [files.read_object(str(tmp_path / name)) for name in ("a", "absent", "a/b")] == [None] * 3


def test_a_full_disk_costs_the_reserve_and_only_then_the_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = files.DiskReserve(str(tmp_path / "reserve"))
    reserve.take()
    log = runs.EventLog(str(tmp_path / "events.jsonl"), reserve)
    real = files.append_line

    def full_while_reserved(path: str, line: bytes) -> None:
        if (tmp_path / "reserve").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, line)

    monkeypatch.setattr(files, "append_line", full_while_reserved)
    with pytest.raises(files.DiskFull):
        log.append("cancel_requested", {}, spare_reserve=True)
    assert (reserve.spent, (tmp_path / "reserve").stat().st_size) == (False, files.RESERVE_BYTES)
    assert log.append("warning", {"message": "x"}).seq == 0
    assert reserve.spent
    assert [e.type for e in runs.read_events(log.path, 0, 10_000)[0]] == ["warning"]


@pytest.mark.parametrize("how", ["fallocate", "no fallocate", "a file system without it"])
def test_a_reserve_takes_its_room_and_gives_it_back_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "no fallocate":
        monkeypatch.delattr(os, "posix_fallocate")
    elif how == "a file system without it":
        monkeypatch.setattr(os, "posix_fallocate", raising(errno.EOPNOTSUPP))
    reserve = files.DiskReserve(str(tmp_path / "reserve"))
    reserve.take()
    assert (tmp_path / "reserve").stat().st_size == files.RESERVE_BYTES == 1 << 20
    assert (reserve.spent, reserve.spend(), reserve.spent) == (False, True, True)
    assert (reserve.give_back(), reserve.spend()) == (False, False)
    assert os.listdir(tmp_path) == []


def test_a_disk_without_room_for_the_reserve_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", raising(errno.ENOSPC))
    with pytest.raises(OSError, match="no") as full:
        files.DiskReserve(str(tmp_path / "reserve")).take()
    assert files.is_disk_full(full.value)
    assert files.is_disk_full(OSError(errno.EDQUOT, "no"))
    assert not files.is_disk_full(OSError(errno.EIO, "no"))


def test_events_go_on_after_a_writer_that_died_within_a_line(tmp_path: Path) -> None:
    place = tmp_path / "events.jsonl"
    place.write_text('{"seq":0,"time":1,"type":"run_started","data":{}}\n{"seq":1,"ti')
    log = runs.EventLog(str(place), files.DiskReserve(str(tmp_path / "reserve")))
    log.append("run_finished", {"status": "lost"})
    found, offset = runs.read_events(str(place), 0, 10_000)
    assert [(e.seq, e.type) for e in found] == [(0, "run_started"), (2, "run_finished")]
    assert offset == place.stat().st_size
    assert runs.read_events(str(place), offset, 10_000) == ([], offset)


@pytest.mark.parametrize("path", ["link", "dir/../file", "/etc/passwd", "linked/file", "dir", "", "pipe", "absent"])
def test_nothing_but_regular_files_below_the_root_are_opened(tmp_path: Path, path: str) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "linked").symlink_to(".")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r".+"):
        files.open_beneath(str(tmp_path), path)


def test_a_lock_is_held_by_one_and_asking_for_it_neither_makes_nor_takes_it(tmp_path: Path) -> None:
    place = str(tmp_path / "lock")
    for ask in (files.is_locked, functools.partial(files.try_lock, create=False)):
        with pytest.raises(FileNotFoundError):
            ask(place)
    assert os.listdir(tmp_path) == []
    for _ in range(2):
        first = files.try_lock(place)
        assert files.try_lock(place) is None
        assert files.is_locked(place)
        os.close(first)
        assert not files.is_locked(place)
    looker = files.try_lock(place, how=fcntl.LOCK_SH)
    assert not files.is_locked(place), "who looks is in nobody's way"
    assert files.try_lock(place) is None
    os.close(looker)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a" * 200, "20261121t081530z-x-../y-abcdef", "a\n"])
def test_names_that_must_not_become_paths(tmp_path: Path, name: str) -> None:
    layout = Layout(str(tmp_path))
    for make in (layout.run, layout.tree, layout.index, layout.tree_lock):
        with pytest.raises(BadName):
            make(name)
    with pytest.raises(BadName):
        layout.run("20261121t081530z-job-box-abcdef").step(name)


# ------------------------------------------------------------------------------------------------ text and hints
@given(st.binary(max_size=200))
def test_sanitised_text_holds_no_control_character(data: bytes) -> None:
    shown = text.sanitise(data)
    assert not any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c in "\u202e\u2066" for c in shown)
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m", "red"),
        (b"\x1b]0;title\x07x\x1b]8;;http://evil\x1b\\y", "xy"),
        (b"\x1bPq#0\x1b\\z", "z"),
        (b"50%\r100%\r\n", "50%\n100%\n"),
        (b"a\x00b\x08c\x7f", "abc"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        ("rtl\u202eevil \u00e4\u4e2d".encode(), "rtlevil \u00e4\u4e2d"),
        (b"cut \x1b", "cut "),
    ],
)
def test_escape_sequences_are_taken_out(data: bytes, shown: str) -> None:
    assert text.sanitise(data) == shown


def test_the_end_of_a_log(tmp_path: Path) -> None:
    place = tmp_path / "log"
    assert text.tail(str(place), 100) == b""
    place.write_bytes(b"first\n" + b"x" * 200 + b"\nlast line\n\n")
    assert text.tail(str(place), 30) == b"last line\n\n"
    assert text.tail(str(place), 5000).startswith(b"first")
    assert text.last_lines(place.read_bytes(), lines=2, width=50) == "…" + "x" * 50 + "\nlast line"


def test_what_make_adds_to_an_error_is_left_out() -> None:
    error = b"a.cu(3): error: expected a ';'"
    around = [b"make[1]: Entering directory '/a'", error, b"make[1]: *** [Makefile:2: a] Error 2"]
    log = b"\n".join([*around, b"make[1]: *** Waiting for unfinished jobs....", b"make: Leaving directory '/a'"])
    assert text.last_lines(log) == error.decode()
    beside = b"ptxas info    : Used 55 registers\n" * 9
    assert text.last_lines(log + b"\n" + beside, lines=2).split("\n")[0] == error.decode()
    assert text.last_lines(b"make: *** [Makefile:2: a] Error 2") == "make: *** [Makefile:2: a] Error 2"
    assert text.last_lines(b"make: *** No rule to make target 'b'.") == "make: *** No rule to make target 'b'."


# ------------------------------------------------------------------------------------------------ frames
def _pipe(data: bytes) -> FrameReader:
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    return FrameReader(read)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"nonsense\n", "not JSON"),
        (b"[1]\n", "not a JSON object"),
        (b'{"id": 1', "ended inside a message"),
        (b'{"blob": 9}\nabc', "ended inside a blob"),
        (b'{"blob": %d}\n' % wire.MAX_FRAME_BYTES, "ended inside a blob"),
        (b'{"blob": %d}\n' % (wire.MAX_FRAME_BYTES + 1), "size of the blob is invalid: 16777217 bytes"),
        (b'{"blob": -1}\n', "size of the blob is invalid"),
        (b'{"blob": "x"}\n', "size of the blob is invalid"),
    ],
)
def test_broken_frames_are_told_from_the_end(data: bytes, says: str) -> None:
    with pytest.raises(BadFrame, match=says):
        _pipe(data).next()


# ------------------------------------------------------------------------------------------------ documents
def test_documents_of_one_kind_are_merged_without_hiding_a_failure() -> None:
    first = {"kind": "correctness", "cases": [1], "summary": {"total": 5, "passed": 4, "failed": 1, "max_err": 0.5}}
    second = {"kind": "correctness", "cases": [2], "summary": {"total": 2, "passed": 2, "failed": 0, "max_err": 0.1}}
    merged = documents.merge(first, second)
    assert merged["cases"] == [1, 2]
    assert merged["summary"] == {"total": 7, "passed": 6, "failed": 1, "max_err": 0.5}
    nan = {"kind": "correctness", "summary": {"max_err": float("nan")}}
    for pair in ((nan, second), (second, nan)):
        assert documents.merge(*pair)["summary"]["max_err"] != documents.merge(*pair)["summary"]["max_err"]


def test_an_error_that_is_nan_does_not_hide_behind_a_later_report() -> None:
    """The reader of JUnit leaves the maximum out then, so that no gate passes on the other cases."""
    nan = {"kind": "correctness", "cases": [{"max_err": None, "nan": 1}], "summary": {"max_err": None}}
    fine = {"kind": "correctness", "cases": [{"max_err": 0.001}], "summary": {"max_err": 0.001}}
    none = {"kind": "correctness", "cases": [{"name": "no figure"}], "summary": {"max_err": None}}
    for some, expected in (((nan, fine), None), ((fine, nan), None), ((none, fine), 0.001), ((nan, fine, none), None)):
        merged = documents.by_kind(dict(one) for one in some)["correctness"]
        assert merged["summary"]["max_err"] == expected


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_builds_the_worse_total_counts(order: int) -> None:
    spills = {"kind": "build", "complete": False, "totals": {"max_spill_store_bytes": 8, "max_registers": None}}
    clean = {"kind": "build", "complete": True, "totals": {"max_spill_store_bytes": 0, "max_registers": 40}}
    merged = documents.merge(*[spills, clean][::order])
    assert merged["totals"] == {"max_spill_store_bytes": 8, "max_registers": None}
    assert merged["complete"] is False


def test_every_kind_but_tuning_has_a_shape() -> None:
    assert set(documents.SHAPES) == set(wire.DOCUMENT_KINDS) - {"tuning"}


def test_a_lock_that_another_keeps_is_waited_for_in_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, slept = str(tmp_path / "lock"), list[float]()
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append))
    held, waiting = files.locked(place), files.locked(place, patience_s=0.125)
    with held, pytest.raises(OSError, match=r"another process has held its lock for 0\.125 s"), waiting:
        raise AssertionError("it was locked")
    assert slept == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]
    with files.locked_now(place) as ours, files.locked_now(place) as again:
        assert (ours, again, files.is_locked(place)) == (True, False, True)
    with files.locked(place):
        assert files.is_locked(place)


def test_a_file_is_opened_as_one_or_not_at_all(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("x")
    (tmp_path / "link").symlink_to(place)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        with pytest.raises(files.NotPlain):
            files.open_plain(str(tmp_path / name))
        assert files.is_replaced(str(tmp_path / name))
        assert not files.is_plain(str(tmp_path / name))
        files.append_line(str(tmp_path / name), b"new")
        assert (tmp_path / name).read_bytes() == b"new\n"
    assert place.read_text() == "x", "what a link led to is as it was"
    with pytest.raises(OSError, match="more than 2 bytes"):
        files.read_plain(str(tmp_path / "link"), 2)
    files.write_atomic(str(tmp_path / "folder"), b"again")
    (tmp_path / "other").mkdir()
    files.write_atomic(str(tmp_path / "other"), b"[1]")
    assert files.read_object(str(tmp_path / "other")) is None


def test_a_write_takes_the_reserve_unless_it_says_otherwise(tmp_path: Path) -> None:
    reserve, full = files.DiskReserve(str(tmp_path / "reserve")), [True]
    reserve.take()

    def write() -> None:
        if full:
            full.pop()
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(files.DiskFull):
        reserve.write(write, spare=True)
    assert not reserve.spent
    full.append(True)
    reserve.write(write)
    assert reserve.spent
