"""A disk that fills up: a clear error, the run still active, and everything there once there is room."""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fcctl_remote import wire
from orchestrator.app import SystemClock
from orchestrator.base.errors import FcctlError
from orchestrator.results.store.store import FileStore
from tests.support.stores import begin, make_record


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file grows beyond ``size`` bytes: a limit everybody may set on himself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs takes root on Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    at = tmp_path / "small"
    at.mkdir()
    if libc.mount(b"tmpfs", os.fsencode(at), b"tmpfs", 0, b"size=1m"):
        pytest.skip(f"cannot mount here: {os.strerror(ctypes.get_errno())}")
    try:
        yield at
    finally:
        libc.umount2(os.fsencode(at), 2)


def test_collecting_onto_a_full_disk_resumes(small_disk: Path) -> None:
    store = FileStore(small_disk / "results", SystemClock(), note=lambda _: None)
    run = begin(store)
    content = os.urandom(900_000)
    entry = wire.FileEntry("steps/a/log.txt", len(content), hashlib.sha256(content).hexdigest())
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 400_000)
    intake = run.intake()
    with pytest.raises(FcctlError, match="disk is full") as raised:  # noqa: PT012
        for at in range(0, len(content), 100_000):
            intake.write(entry.path, at, content[at : at + 100_000])
    assert "pull-results" in str(raised.value.hint)
    assert 0 < intake.size(entry.path) < len(content)
    with pytest.raises(FcctlError):
        run.complete(make_record(run.run_id, message="m" * 19_000))
    assert store.active() == [run.run_id]
    assert not store.is_complete(run.run_id)
    ballast.unlink()
    have = intake.size(entry.path)
    assert (small_disk / f"results/runs/{run.run_id}.partial" / entry.path).read_bytes() == content[:have]
    intake.write(entry.path, have, content[have:])
    assert intake.verified(entry)
    folder = run.complete(make_record(run.run_id, message="m" * 19_000))
    assert (folder / entry.path).read_bytes() == content
    assert [row.run_id for row in store.rows()] == [run.run_id]


def test_a_disk_too_full_to_begin(small_disk: Path) -> None:
    store = FileStore(small_disk / "results", SystemClock(), note=lambda _: None)
    begin(store).release()
    with (small_disk / "ballast").open("wb", buffering=0) as f, pytest.raises(OSError):  # noqa: PT012
        while True:
            f.write(b"x" * 4096)
    before = store.active()
    with pytest.raises(FcctlError, match="disk is full") as raised:
        begin(store)
    assert "start the run again" in str(raised.value.hint)
    assert store.active() == before
    (small_disk / "ballast").unlink()
    begin(store).release()


def test_completing_under_a_file_size_limit(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "results", SystemClock(), note=lambda _: None)
    run = begin(store)
    run.intake().write("log.txt", 0, b"kept")
    with largest_file(2000), pytest.raises(FcctlError, match="disk is full") as raised:
        run.complete(make_record(run.run_id, message="m" * 10_000))
    assert f"fcctl pull-results {run.run_id}" in str(raised.value.hint)
    assert store.active() == [run.run_id]
    run.release()
    again = store.claim(run.run_id)
    assert again is not None
    folder = again.complete(make_record(run.run_id, message="m" * 10_000))
    assert (folder / "log.txt").read_text() == "kept"


def test_a_full_disk_for_the_index_alone(small_disk: Path) -> None:
    """The runs are on a disk with room (a link), the index is not: the run is complete all the same."""
    elsewhere = small_disk.parent / "runs"
    elsewhere.mkdir()
    results = small_disk / "results"
    results.mkdir()
    (results / "runs").symlink_to(elsewhere)
    notes: list[str] = []
    store = FileStore(results, SystemClock(), note=notes.append)
    run = begin(store)
    with (small_disk / "ballast").open("wb", buffering=0) as f, pytest.raises(OSError):  # noqa: PT012
        while True:
            f.write(b"x" * 4096)
    run.complete(make_record(run.run_id))
    assert store.is_complete(run.run_id)
    assert any("index" in note for note in notes)
    assert [row.run_id for row in store.rows()] == [run.run_id]
    (small_disk / "ballast").unlink()
    notes.clear()
    assert [row.run_id for row in store.rows()] == [run.run_id]
    assert notes == []
    shutil.rmtree(elsewhere)
