"""A disk that fills up: a clear error, the run still active, and everything there once there is room."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fcctl_remote import wire
from orchestrator.app import SystemClock
from orchestrator.base.errors import FcctlError
from orchestrator.results.store.store import FileStore
from tests.support.small_disk import SmallDisk, largest_file, small_disk
from tests.support.stores import begin, make_record


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small") as found:
        yield found


def test_collecting_onto_a_full_disk_resumes(disk: SmallDisk) -> None:
    store = FileStore(disk.root / "results", SystemClock(), note=lambda _: None)
    run = begin(store)
    content = os.urandom(900_000)
    entry = wire.FileEntry("steps/a/log.txt", len(content), hashlib.sha256(content).hexdigest())
    (disk.root / "ballast").write_bytes(b"x" * 400_000)
    intake = run.intake()
    with pytest.raises(FcctlError, match="disk is full") as raised:  # noqa: PT012
        for at in range(0, len(content), 100_000):
            intake.write(entry.path, at, content[at : at + 100_000])
    assert "pull-results" in str(raised.value.hint)
    assert intake.size(entry.path) in range(100_000, len(content), 100_000), "whole pieces, and no half of one"
    run.journal.append("ended")  # for which there is room
    disk.fill()
    with pytest.raises(FcctlError):
        run.complete(make_record(run.run_id, message="m" * 19_000))
    assert store.active() == [run.run_id]
    assert not store.is_complete(run.run_id)
    disk.clear()
    have = intake.size(entry.path)
    assert (disk.root / f"results/runs/{run.run_id}.partial" / entry.path).read_bytes() == content[:have]
    intake.write(entry.path, have, content[have:])
    assert intake.verified(entry)
    folder = run.complete(make_record(run.run_id, message="m" * 19_000))
    assert (folder / entry.path).read_bytes() == content
    assert [row.run_id for row in store.rows()] == [run.run_id]


def test_a_disk_too_full_to_begin(disk: SmallDisk) -> None:
    store = FileStore(disk.root / "results", SystemClock(), note=lambda _: None)
    begin(store).release()
    disk.fill()
    before = store.active()
    with pytest.raises(FcctlError, match="disk is full") as raised:
        begin(store)
    assert "start the run again" in str(raised.value.hint)
    assert store.active() == before
    disk.clear()
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
    folder = again.complete(make_record(run.run_id, message="m" * 10_000))
    assert (folder / "log.txt").read_text() == "kept"


def test_a_full_disk_for_the_index_alone(disk: SmallDisk) -> None:
    """The runs are on a disk with room (a link), the index is not: the run is complete all the same."""
    elsewhere = disk.root.parent / "runs"
    elsewhere.mkdir()
    results = disk.root / "results"
    results.mkdir()
    (results / "runs").symlink_to(elsewhere)
    notes: list[str] = []
    store = FileStore(results, SystemClock(), note=notes.append)
    run = begin(store)
    disk.fill()
    run.complete(make_record(run.run_id))
    assert store.is_complete(run.run_id)
    assert any("index" in note for note in notes)
    assert [row.run_id for row in store.rows()] == [run.run_id]
    with pytest.raises(FcctlError) as raised:
        store.reindex()
    assert "df -h" in str(raised.value.hint), "to delete the index frees nothing"
    disk.clear()
    notes.clear()
    assert [row.run_id for row in store.rows()] == [run.run_id]
    assert notes == []
    shutil.rmtree(elsewhere)
