from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app import SystemClock
from orchestrator.base import journal
from orchestrator.base.errors import ConflictError, DiskError, FcctlError, RunNotFinished, RunNotFound
from orchestrator.base.safe_paths import UNFINISHED
from orchestrator.leases.session_files import LockedSession, SessionFiles
from orchestrator.results.store.active import FileActiveRun
from orchestrator.results.store.store import FileStore
from tests.support.stores import NOVEMBER, begin, completed, make_id, make_record


def tree(root: Path) -> set[str]:
    return {p.relative_to(root).as_posix() for p in root.rglob("*") if not p.name.startswith("index.sqlite")}


def test_a_run_from_begin_to_complete(store: FileStore) -> None:
    run = begin(store, make_id(token="3fa9c1"))
    assert run.plan == {"plan": {"run_id": run.run_id, "job": "phase1"}} == store.plan_of(run.run_id)
    assert store.active() == [run.run_id]
    assert not store.is_complete(run.run_id)
    run.journal.append("sync")
    run.intake().write("steps/build/log.txt", 0, b"built\n")
    assert store.folder(run.run_id).name == f"{run.run_id}.partial"
    folder = run.complete(make_record(run.run_id))
    assert folder == store.root / "runs" / run.run_id == store.folder(run.run_id)
    assert tree(store.root) == {"active", "runs", *(
        f"runs/{run.run_id}{rest}"
        for rest in ("", "/run.json", "/plan.json", "/journal.jsonl", "/steps", "/steps/build", "/steps/build/log.txt")
    )}  # fmt: skip
    assert json.loads((folder / "journal.jsonl").read_text())["kind"] == "sync"
    assert store.is_complete(run.run_id)
    assert store.active() == []
    (store.root / "runs" / f"{run.run_id}.partial").mkdir()
    assert store.folder(run.run_id) == folder, "the complete one counts"
    assert store.folder(make_id(token="000000")).suffix == ""
    assert store.plan_of(run.run_id) is None
    assert store.get(run.run_id) == make_record(run.run_id)
    assert [row.run_id for row in store.rows()] == [run.run_id]


def test_what_a_controller_left_that_was_killed_in_begin_is_in_nobody_s_way(store: FileStore) -> None:
    run_id = make_id()
    (store.root / "active" / f".new-{run_id}").mkdir(parents=True)
    begin(store, run_id)
    assert store.active() == [run_id]


def test_files_of_ours_join_the_results_until_the_run_is_complete(store: FileStore) -> None:
    run = begin(store)
    run.intake().write("report.md", 0, b"what the host sent under that name")
    run.add(lambda folder: {"report.md": folder.name.encode()})
    folder = run.complete(make_record(run.run_id))
    assert (folder / "report.md").read_text() == f"{run.run_id}.partial"
    run.add(lambda _: {"more.md": b""})
    assert not (folder / "more.md").exists()
    assert not (store.root / "runs" / f"{run.run_id}.partial").exists()


def test_the_size_of_a_run_is_what_its_files_take_of_the_disk(store: FileStore) -> None:
    run = begin(store)
    run.intake().write("steps/a/log.txt", 0, b"x" * 100_000)
    folder = run.complete(make_record(run.run_id))
    (folder / "link").symlink_to("/")
    du = subprocess.run(["du", "-sk", "--exclude=link", str(folder)], capture_output=True, text=True, check=True)
    folders = sum(p.stat().st_blocks for p in (folder, folder / "steps", folder / "steps" / "a")) // 2
    assert store.size(run.run_id) % 512 == 0
    assert store.size(run.run_id) // 1024 == int(du.stdout.split()[0]) - folders


def test_a_run_whose_name_the_disk_did_not_take_stays_active_until_it_does(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever finds it complete flushes its name before the active run goes."""
    run, runs, refused = begin(store), store.root / "runs", []

    def refuses_the_runs(fd: int) -> None:
        if os.path.samestat(os.fstat(fd), runs.stat()) and (runs / run.run_id).exists():
            refused.append(fd)
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuses_the_runs)
    with pytest.raises(DiskError):
        run.complete(make_record(run.run_id))
    run.release()
    for count in (1, 2):
        assert len(refused) == count
        assert store.active() == []
        assert (store.root / "active" / run.run_id).is_dir()
    monkeypatch.undo()
    FileStore(store.root, SystemClock()).active()
    assert not (store.root / "active" / run.run_id).exists()


@pytest.mark.parametrize(("age", "stays"), [(86_400.0, True), (86_400.5, False)])
def test_a_day_after_it_stood_still_an_import_counts_as_dead(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, age: float, stays: bool
) -> None:
    doomed, kept = completed(store), completed(store)
    importing = store.root / "runs" / f".import-{make_id()}-0000"
    importing.mkdir()
    os.utime(importing, (NOVEMBER, NOVEMBER))
    monkeypatch.setattr(time, "time", lambda: NOVEMBER + age)
    store.delete([doomed])
    assert importing.exists() == stays
    assert not list((store.root / "runs").glob(".pruned-*"))
    assert (store.is_complete(doomed), store.is_complete(kept)) == (False, True)


def test_a_run_out_of_an_archive_is_written_in_order_and_joins_the_others_whole(store: FileStore) -> None:
    run_id = make_id()
    record = make_record(run_id).model_dump_json().encode()
    coming = store.incoming(run_id)
    coming.write("steps/a/log.txt", 0, b"built\n")
    coming.write("run.json", 0, record[:10])
    for offset in (0, 9, 11):
        with pytest.raises(ValueError, match=r"run\.json: out of order"):
            coming.write("run.json", offset, record[10:])
    with pytest.raises(FcctlError, match="is not valid"):
        coming.check()
    coming.write("run.json", 10, record[10:])
    coming.check()
    assert not store.is_complete(run_id)
    folder = coming.finish()
    assert (folder / "steps" / "a" / "log.txt").read_bytes() == b"built\n"
    assert store.get(run_id) == make_record(run_id)
    assert [row.run_id for row in store.rows()] == [run_id]
    late = store.incoming(run_id)
    with pytest.raises(ConflictError, match="already exists"):
        late.check()
    with pytest.raises(ConflictError, match="is still active"):
        store.incoming(begin(store).run_id)


def test_complete_again_changes_nothing(store: FileStore) -> None:
    run = begin(store)
    folder = run.complete(make_record(run.run_id))
    before = (folder / "run.json").read_bytes()
    assert run.complete(make_record(run.run_id, status="failed", exit_code=100)) == folder
    assert (folder / "run.json").read_bytes() == before
    assert [row.status for row in store.rows()] == ["passed"]


def test_a_complete_run_is_never_begun_again(store: FileStore) -> None:
    run_id = completed(store)
    with pytest.raises(ConflictError):
        begin(store, run_id)
    run = begin(store)
    with pytest.raises(ConflictError):
        begin(store, run.run_id)


def test_a_folder_in_the_way_is_kept(store: FileStore) -> None:
    run = begin(store)
    run.intake().write("log.txt", 0, b"mine")
    blocking = store.root / "runs" / run.run_id
    blocking.mkdir()
    (blocking / "notes.txt").write_text("yours")
    with pytest.raises(ConflictError) as raised:
        run.complete(make_record(run.run_id))
    assert "move it" in str(raised.value.hint)
    assert (blocking / "notes.txt").read_text() == "yours"
    assert store.active() == [run.run_id]
    (blocking / "notes.txt").unlink()
    folder = run.complete(make_record(run.run_id))
    assert (folder / "log.txt").read_text() == "mine"


def test_what_a_killed_writer_left_among_the_results_goes(store: FileStore) -> None:
    run = begin(store)
    run.intake().write("log.txt", 0, b"mine")
    left = store.root / "runs" / f"{run.run_id}.partial" / f"{UNFINISHED}{'0' * 16}"
    left.touch()
    assert sorted(os.listdir(run.complete(make_record(run.run_id)))) == [
        "journal.jsonl", "log.txt", "plan.json", "run.json",
    ]  # fmt: skip


def test_tags_that_cannot_be_read_are_an_error_of_the_disk(store: FileStore) -> None:
    assert store.tags() == {}
    (store.root / "tags.toml").mkdir(parents=True)
    with pytest.raises(DiskError, match="could not read the tags"):
        store.tags()


def test_the_record_of_another_run_is_refused(store: FileStore) -> None:
    with pytest.raises(ValueError):
        begin(store).complete(make_record(make_id()))


def test_one_owner_at_a_time_and_the_next_continues_the_journal(store: FileStore) -> None:
    run = begin(store)
    run.journal.append("sync")
    assert store.claim(run.run_id) is None
    run.release()
    again = store.claim(run.run_id)
    assert store.claim(run.run_id) is None
    again.journal.append("submit")
    assert [e.seq for e in again.journal.entries()] == [1, 2]
    again.release()


class CompletedMeanwhile(FileStore):
    """The store of another process. Its owner completes the run behind the ``nth`` look at a file of it."""

    def __init__(self, owner: FileActiveRun, root: Path, nth: int) -> None:
        super().__init__(root, SystemClock())
        self._owner, self._left = owner, nth

    def _looked(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._owner.complete(make_record(self._owner.run_id))

    def is_complete(self, run_id: str) -> bool:
        found = super().is_complete(run_id)
        self._looked()
        return found

    def plan_of(self, run_id: str) -> dict[str, Any] | None:
        found = super().plan_of(run_id)
        self._looked()
        return found


@pytest.mark.parametrize("nth", [1, 2])
def test_a_run_that_is_completed_between_two_looks_is_there(store: FileStore, nth: int) -> None:
    run = begin(store)
    assert CompletedMeanwhile(run, store.root, nth).has(run.run_id)
    assert not store.has(make_id())
    active = begin(store)
    with pytest.raises(RunNotFinished):
        CompletedMeanwhile(active, store.root, 1).get(active.run_id)


def test_whoever_only_asks_who_follows_a_run_is_not_taken_for_its_owner(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ps`` or the dashboard beside ``pull-results``, which would leave the run to them. So it is with sessions."""
    run = begin(store)
    run.release()
    sessions = SessionFiles(tmp_path, SystemClock())
    session = sessions.begin("s", {})
    session.release()
    claims: list[tuple[Path, Callable[[], FileActiveRun | LockedSession | None]]] = [
        (store.root / "active" / run.run_id / "lock", lambda: store.claim(run.run_id)),
        (tmp_path / "sessions/s/lock", lambda: sessions.claim("s")),
    ]
    for path, claim in claims:
        with path.open() as asking, monkeypatch.context() as patch:
            fcntl.flock(asking, fcntl.LOCK_SH)
            patch.setattr(time, "sleep", lambda _, asking=asking: asking.close())
            claimed = claim()
            assert claimed is not None
            claimed.release()


@pytest.mark.parametrize("name", ["nope", "../../etc", "", "x" * 200, "20261121t083320z-phase1-l4-4250e1"])
def test_what_is_not_active_cannot_be_claimed(store: FileStore, name: str) -> None:
    for ask in (store.claim, store.get):
        with pytest.raises(RunNotFound):
            ask(name)
    assert not store.is_complete(name)


def test_an_active_run_has_no_record_yet(store: FileStore) -> None:
    run = begin(store)
    with pytest.raises(RunNotFinished) as raised:
        store.get(run.run_id)
    assert f"fcctl attach {run.run_id}" in str(raised.value.hint)


@pytest.mark.parametrize("listed", [True, False])
def test_a_run_killed_after_its_last_rename_ends_by_itself(store: FileStore, listed: bool) -> None:
    """Its results are final: whoever lists or claims it must not collect them a second time."""
    run = begin(store)
    run.release()
    final = store.root / "runs" / run.run_id
    final.mkdir()
    (final / "run.json").write_text(make_record(run.run_id).model_dump_json())
    if listed:
        assert store.active() == []
        assert tree(store.root / "active") == set()
    with pytest.raises(RunNotFound):
        store.claim(run.run_id)
    assert tree(store.root / "active") == set()
    assert [row.run_id for row in store.rows()] == [run.run_id]


def test_a_run_without_a_plan_is_discarded(store: FileStore) -> None:
    run_id = make_id()
    (store.root / "active" / run_id).mkdir(parents=True)
    assert store.plan_of(run_id) is None
    run = store.claim(run_id)
    with pytest.raises(FcctlError):
        _ = run.plan
    run.discard()
    assert tree(store.root) == {"active"}


@pytest.mark.parametrize(("plan", "lines"), [('{"torn', 1), ('{"torn', 0), ("", 1), (None, 1)])
def test_a_damaged_plan_is_put_aside_not_deleted(store: FileStore, plan: str | None, lines: int) -> None:
    run = begin(store)
    for _ in range(lines):
        run.journal.append("submit")
    run.release()
    place = store.root / "active" / run.run_id / "plan.json"
    place.unlink()
    if plan is not None:
        place.write_text(plan)
    assert store.plan_of(run.run_id) is None
    again = store.claim(run.run_id)
    again.discard()
    assert store.active() == []
    put_aside = store.root / "active" / f".damaged-{run.run_id}"
    assert (put_aside / "journal.jsonl").read_text().count("submit") == lines


def test_runs_are_listed_oldest_first(store: FileStore) -> None:
    ids = [make_id(at=1795250000.0 + s, job=j) for s, j in ((30, "a"), (10, "z"), (20, "m"))]
    for run_id in ids:
        begin(store, run_id).release()
    assert store.active() == sorted(ids)


def test_what_a_killed_maker_left_is_swept(store: FileStore) -> None:
    for name in (".new-x", ".done-x"):
        (store.root / "active" / name).mkdir(parents=True)
        os.utime(store.root / "active" / name, (1, 1))
    fresh = store.root / "active" / ".new-fresh"
    for folder, age_s in ((fresh, 30.0), (store.root / "active" / ".new-stale", 70.0)):
        folder.mkdir()
        os.utime(folder, (time.time() - age_s, time.time() - age_s))
    run = begin(store)
    assert sorted(os.listdir(store.root / "active")) == sorted([".new-fresh", run.run_id])


def test_a_folder_that_cannot_be_deleted_keeps_no_run_from_its_end(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "rmdir", busy)
    first, second = completed(store), completed(store)
    store.delete([first])
    assert [row.run_id for row in store.rows()] == [second]
    store.incoming(make_id()).discard()
    (store.root / "active" / ".new-x").mkdir()
    os.utime(store.root / "active" / ".new-x", (1, 1))
    third = begin(store)
    assert store.active() == [third.run_id]
    (store.root / "active" / third.run_id / "plan.json").unlink()
    third.discard()
    assert store.active() == []


def test_of_a_run_that_was_claimed_and_let_go_nothing_is_put_aside_by_the_one_before(store: FileStore) -> None:
    run = begin(store)
    run.journal.append("submit")
    run.release()
    run.discard()
    assert store.active() == [run.run_id]


def test_a_store_that_is_not_there_is_empty(store: FileStore) -> None:
    assert store.active() == []
    assert store.rows() == []
    assert not store.is_complete(make_id())


def test_the_journal_of_a_run_that_is_completed_while_it_is_read(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its cost would be settled as that of a run without a machine."""
    run = begin(store)
    run.journal.append("acquired", zone="z")
    read = journal._read

    def late(path: Path) -> Any:
        if run.run_id in store.active():
            run.complete(make_record(run.run_id))
        return read(path)

    monkeypatch.setattr(journal, "_read", late)
    assert [entry.kind for entry in store.journal_of(run.run_id)] == ["acquired"]
    assert store.journal_of(make_id()) == []
