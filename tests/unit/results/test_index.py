from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.base.clock import iso
from orchestrator.base.errors import FcctlError
from orchestrator.results.records import RunRecord
from orchestrator.results.store.store import FileStore
from tests.support.measured_runs import measured, simple
from tests.support.stores import NOVEMBER, completed, make_id, make_record, written


def ids(store: FileStore) -> list[str]:
    return [row.run_id for row in store.rows()]


def at(seconds: float, **changes: object) -> RunRecord:
    when = NOVEMBER + seconds
    job = str(changes.get("job", "phase1"))
    return make_record(make_id(job, at=when), **{"created": iso(when), "finished": iso(when + 9.25), **changes})


def settle(store: FileStore) -> None:
    """Let the folder's time stamp grow old enough to be trusted, and have it noted."""
    os.utime(store.root / "runs", (NOVEMBER, NOVEMBER))
    store.rows(limit=1)


def test_a_row_says_what_the_record_says(store: FileStore) -> None:
    record = at(0, host={"gpu": {"name": "NVIDIA L4"}}, status="failed", exit_code=100)
    written(store.root, record)
    (row,) = store.rows()
    assert row.duration_s == 9.25
    assert (row.gpu, row.status, row.exit_code) == ("NVIDIA L4", "failed", 100)
    assert (row.job, row.target, row.created) == ("phase1", "l4", record.created)


def test_newest_first_also_within_a_second(store: FileStore) -> None:
    records = [at(0.1, job="zzz"), at(0.2, job="aaa"), at(-5), at(7)]
    for record in records:
        written(store.root, record)
    assert ids(store) == [records[i].run_id for i in (3, 1, 0, 2)]
    assert [r.run_id for r in store.rows(limit=2)] == [records[3].run_id, records[1].run_id]


def test_filters(store: FileStore) -> None:
    wanted = at(1, job="bench", target="box", status="failed", exit_code=100)
    for record in (at(0, job="bench"), wanted, at(2)):
        written(store.root, record)
    assert len(store.rows(job="bench")) == 2
    assert [r.run_id for r in store.rows(job="bench", target="box", status="failed")] == [wanted.run_id]
    assert store.rows(job="bench' OR 1=1 --") == []
    assert len(store.rows(job=None)) == 3
    with pytest.raises(TypeError):
        store.rows(colour="red")


def sql(*statements: str) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        with sqlite3.connect(path) as db:
            for statement in statements:
                db.execute(statement)

    return harm


def flip_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)


#: What may have happened to the file; and what its version alone tells.
DAMAGE: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "no database": lambda path: path.write_bytes(b"this is no database" * 1000),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: path.write_bytes(b""),
    "no table": sql("DROP TABLE runs"),
    "a wrong type": sql("UPDATE runs SET usd = 'lots'"),
    "random pages": flip_pages,
}
OTHER_VERSION = {
    "older": sql("PRAGMA user_version = 0"),
    "newer": sql("PRAGMA user_version = 99", "ALTER TABLE runs ADD COLUMN more TEXT"),
}


@pytest.mark.parametrize("harm", [*DAMAGE.values(), *OTHER_VERSION.values()], ids=[*DAMAGE, *OTHER_VERSION])
def test_an_index_that_is_missing_wrong_or_old_is_built_anew(
    store: FileStore, notes: list[str], harm: Callable[[Path], object]
) -> None:
    made = sorted(
        [completed(store, make_id(at=NOVEMBER + i), created=iso(NOVEMBER + i)) for i in range(50)], reverse=True
    )
    settle(store)
    with sqlite3.connect(store.root / "index.sqlite") as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    notes.clear()
    harm(store.root / "index.sqlite")
    assert ids(store) == made
    assert any("build" in note for note in notes)
    notes.clear()
    assert ids(store) == made
    assert notes == []


@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_index_can_be_built_anew(store: FileStore, harm: Callable[[Path], object]) -> None:
    made = completed(store)
    settle(store)
    harm(store.root / "index.sqlite")
    assert store.reindex() == (1, [])
    assert ids(store) == [made]


def test_an_index_that_another_program_has_locked_is_not_replaced(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.results.store import index as module

    completed(store)
    settle(store)
    path = store.root / "index.sqlite"
    before = path.stat().st_ino
    monkeypatch.setattr(module, "BUSY_S", 0.0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(FcctlError, match="cannot be used") as refused:
            store.reindex()
        os.utime(store.root / "runs")  # there is something to catch up with
        with pytest.raises(FcctlError, match="cannot be used"):
            store.rows()
    assert "locked" in (refused.value.cause or "")
    assert path.stat().st_ino == before
    assert len(store.rows()) == 1


def test_who_builds_the_index_and_is_stopped_is_not_waited_for_for_ever(
    store: FileStore, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.results.store import index as module

    run_id = written(store.root, at(0)).name
    monkeypatch.setattr(module, "BUSY_S", 0.05)
    with (store.root / "index.sqlite.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert ids(store) == [run_id]
        with pytest.raises(FcctlError, match="could not build the index"):
            store.reindex()
    assert any("another fcctl process has been building it" in note for note in notes)


@pytest.mark.parametrize("later_s", [-60.0, 60.0])
def test_runs_added_and_removed_by_hand_show_up(store: FileStore, later_s: float) -> None:
    """Also where the folder's time went back, as in a copy."""
    first, second = completed(store), completed(store)
    settle(store)
    shutil.rmtree(store.root / "runs" / first)
    copied = at(100)
    written(store.root, copied)
    os.utime(store.root / "runs", (NOVEMBER + later_s, NOVEMBER + later_s))
    assert ids(store) == [copied.run_id, second]


@pytest.mark.parametrize("column", ["p50", "n"])
def test_a_measurement_that_is_no_number_is_damage(store: FileStore, column: str) -> None:
    measured(store, [simple(10.0)])
    before = store.measurements()
    settle(store)
    sql(f"UPDATE benchmarks SET {column} = 'lots'")(store.root / "index.sqlite")
    assert store.measurements() == before != []


def test_an_index_that_is_damaged_again_at_once_is_an_error(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.results.store.index import Index

    completed(store)
    settle(store)
    DAMAGE["no table"](store.root / "index.sqlite")
    monkeypatch.setattr(Index, "_replace", lambda *_: None)
    with pytest.raises(FcctlError, match="the index of the runs cannot be used"):
        store.rows()


@pytest.mark.parametrize("other", [-1, 1])
def test_a_damaged_index_that_another_has_replaced_is_left_alone(
    store: FileStore, notes: list[str], other: int
) -> None:
    completed(store)
    settle(store)
    path = store.root / "index.sqlite"
    seen: Any = SimpleNamespace(st_ino=path.stat().st_ino + other)
    store._index._replace(seen, sqlite3.DatabaseError("torn"))
    assert notes == []
    store._index._replace(path.stat(), sqlite3.DatabaseError("torn"))
    assert notes == ["the index of the runs is damaged (torn): building a new one"]


def test_what_could_not_be_written_whole_is_not_in_the_index() -> None:
    from orchestrator.results.store.index import _writing

    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("CREATE TABLE t (a)")

    def interrupted() -> None:
        with _writing(db):
            db.execute("INSERT INTO t VALUES (1)")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (db.in_transaction, db.execute("SELECT * FROM t").fetchall()) == (False, [])
    db.close()


def test_an_index_that_agrees_is_not_touched(store: FileStore) -> None:
    completed(store)
    settle(store)
    before = (store.root / "index.sqlite").stat().st_mtime_ns
    shutil.move(store.root / "runs", store.root / "hidden")  # nothing but the index can answer now
    (store.root / "runs").mkdir()
    os.utime(store.root / "runs", (NOVEMBER, NOVEMBER))
    assert len(store.rows()) == 1
    assert (store.root / "index.sqlite").stat().st_mtime_ns == before


HOSTILE: dict[str, bytes] = {
    "torn": b'{"run_id": "2026',
    "empty": b"",
    "deep": b'{"host": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a list": b"[]",
    "wrong types": b'{"run_id": 1, "job": [], "status": "fine"}',
    "zeros": b"\0" * 5000,
    "not UTF-8": b'{"job": "\xff\xfe"}',
    "huge": b" " * (16 * 1024 * 1024 + 1),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_record_is_skipped_and_named(store: FileStore, notes: list[str], kind: str) -> None:
    good = completed(store)
    bad = make_id()
    (store.root / "runs" / bad).mkdir()
    (store.root / "runs" / bad / "run.json").write_bytes(HOSTILE[kind])
    assert ids(store) == [good]
    assert any("skipped" in note for note in notes)
    count, skipped = store.reindex()
    assert count == 1
    assert [s.run_id for s in skipped] == [bad]
    assert "\n" not in skipped[0].reason
    assert len(skipped[0].reason) <= 320
    with pytest.raises(FcctlError) as raised:
        store.get(bad)
    assert raised.value.cause


def test_a_record_may_be_as_long_as_its_limit(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.results.store import rows

    record = at(0)
    text = written(store.root, record) / "run.json"
    size = len(text.read_bytes())
    assert (rows.MAX_RECORD_BYTES, rows.MAX_RECORD_MEMORY) == (16 << 20, 96 << 20)
    for limit, complaint in ((size + 1, None), (size, "needs more than"), (size - 1, f"has {size} bytes, more than")):
        monkeypatch.setattr(rows, "MAX_RECORD_BYTES", limit)
        if complaint is None:
            assert store.get(record.run_id) == record
        else:
            with pytest.raises(FcctlError) as refused:
                store.get(record.run_id)
            assert complaint in (refused.value.cause or "")


def test_rows_that_say_something_else_have_another_version() -> None:
    from orchestrator.results.store import rows

    digest = hashlib.sha256("".join(rows.CREATE).encode()).hexdigest()[:12]
    assert (rows.VERSION, digest) == (8, "12d9cc0ee319"), "raise VERSION: an index of before is built anew"


def test_the_lock_of_those_who_build_is_no_link(store: FileStore, notes: list[str], tmp_path: Path) -> None:
    (store.root / "runs").mkdir(parents=True)
    lock = store.root / "index.sqlite.lock"
    lock.symlink_to(tmp_path / "elsewhere")
    assert store.rows() == []
    assert not (tmp_path / "elsewhere").exists()
    lock.unlink()
    before = os.umask(0)
    try:
        store.rows()
    finally:
        os.umask(before)
    assert lock.stat().st_mode & 0o777 == 0o644


def test_a_first_run_needs_no_word_about_its_index(store: FileStore, notes: list[str]) -> None:
    completed(store)
    assert notes == []
    (store.root / "index.sqlite").unlink()
    completed(store)
    assert notes == ["the index of the runs does not exist yet: building it"]


def test_a_run_that_ended_before_it_began_took_no_time(store: FileStore) -> None:
    written(store.root, at(0, finished=iso(NOVEMBER - 5)))
    assert store.rows()[0].duration_s == 0.0


def written_raw(store: FileStore, text: str, run_id: str) -> None:
    folder = store.root / "runs" / run_id
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(text)


def test_odd_values_of_a_valid_record_become_plain(store: FileStore) -> None:
    raw = json.loads(make_record(make_id(token="abcdef")).model_dump_json())
    raw |= {"exit_code": 10**30, "created": "yesterday", "finished": "x" * 5000, "job": "j" * 5000}
    raw |= {"host": {"gpu": {"name": ["no"]}}}
    written_raw(store, json.dumps(raw)[:-1] + ', "cost": {"usd": NaN}}', raw["run_id"])
    (row,) = store.rows()
    assert (row.usd, row.exit_code, row.created, row.gpu) == (0.0, 2**31, iso(NOVEMBER), None)
    assert len(row.job) == 200


@pytest.mark.parametrize(("code", "kept"), [(-(10**30), -(2**31)), (10**30, 2**31), (-(2**31) + 1, -(2**31) + 1)])
def test_an_exit_code_is_one_of_a_process(store: FileStore, code: int, kept: int) -> None:
    raw = json.loads(make_record(make_id(token="abcdef")).model_dump_json())
    written_raw(store, json.dumps(raw | {"exit_code": code}), raw["run_id"])
    assert store.rows()[0].exit_code == kept


def test_an_emulated_machine_s_dollars_are_nobody_s(store: FileStore) -> None:
    raw = json.loads(make_record(make_id(token="abcdef")).model_dump_json())
    raw["cost"] |= {"usd": 0.5, "emulated": True}
    written_raw(store, json.dumps(raw), raw["run_id"])
    assert (store.rows()[0].usd, store.get(raw["run_id"]).cost.usd) == (0.0, 0.5)


def test_folders_that_are_no_runs(store: FileStore, tmp_path: Path) -> None:
    good = completed(store)
    runs = store.root / "runs"
    (runs / "notes").mkdir()
    (runs / f"{make_id()}.partial").mkdir()
    (runs / ".hidden").mkdir()
    (runs / "file").touch()
    (runs / make_id()).symlink_to(tmp_path)
    other = make_id()
    shutil.copytree(runs / good, runs / other)  # holds the record of another run
    fifo = make_id()
    (runs / fifo).mkdir()
    os.mkfifo(runs / fifo / "run.json")
    count, skipped = store.reindex()
    assert count == 1
    assert {s.run_id for s in skipped} == {"notes", other, fifo}


def test_a_skipped_run_is_looked_at_again_when_it_changes(store: FileStore) -> None:
    record = at(0)
    folder = written(store.root, record)
    (folder / "run.json").write_text("{")
    settle(store)
    assert store.rows() == []
    (folder / "run.json").write_text(record.model_dump_json())
    os.utime(store.root / "runs", (NOVEMBER, NOVEMBER))
    assert ids(store) == [record.run_id]


def test_where_the_index_cannot_be_written_the_runs_are_read(store: FileStore, notes: list[str]) -> None:
    run_id = completed(store)
    path = store.root / "index.sqlite"
    for name in os.listdir(store.root):
        if name.startswith("index.sqlite"):
            (store.root / name).unlink()
    path.mkdir()  # root may write anywhere, so a mode would not stop this test
    assert ids(store) == [run_id]
    assert store.resolve(run_id[-6:]) == run_id
    assert any("cannot be written" in note for note in notes)
    assert store.is_complete(completed(store)), "nor does it fail a run"


def test_a_run_completed_while_the_folders_are_listed_is_not_lost(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from orchestrator.results.store import index as module

    completed(store)
    real = module._names
    late: list[str] = []

    def racing(runs: Path) -> set[str]:
        found = real(runs)
        if not late:
            record = at(50)
            late.append(record.run_id)
            written(store.root, record)
        return found

    monkeypatch.setattr(module, "_names", racing)
    os.utime(store.root / "runs")
    store.rows()
    assert late[0] in ids(store)


def test_the_lists_of_a_hundred_thousand_use_an_index(store: FileStore) -> None:
    from orchestrator.results.store import rows

    completed(store)
    with sqlite3.connect(store.root / "index.sqlite") as db:
        for where in ([], ["job"], ["target"], ["status"]):
            plan = db.execute(
                "EXPLAIN QUERY PLAN " + rows.select("runs", where, rows.ORDERS["newest"], limited=True), [*where, 20]
            ).fetchall()
            assert "USING INDEX" in plan[0][3], plan
            assert not any("TEMP B-TREE" in row[3] for row in plan), plan
