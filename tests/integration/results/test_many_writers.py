"""Many processes write into one store at once, some destroy its index, and owners are killed: nothing is lost."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app import SystemClock
from orchestrator.base.errors import RunNotFound
from orchestrator.results.store.active import FileActiveRun
from orchestrator.results.store.names import Tag
from orchestrator.results.store.store import FileStore
from tests.support.stores import NOVEMBER, begin, completed, make_id, make_record
from tests.support.waiting import wait_for

EACH = 8
#: Each process is a copy of one that has imported what they need.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.support.stores"])


def at_once(*calls: tuple[Any, ...]) -> list[Any]:
    """What these functions return, each called with its arguments in a process of its own."""
    with CONTEXT.Pool(len(calls)) as pool:
        started = [pool.apply_async(act, args) for act, *args in calls]
        return [one.get() for one in started]


def opened(root: Path) -> FileStore:
    return FileStore(root, SystemClock(), note=lambda _: None)


# ------------------------------------------------------------------------------------------------------- writers
def write(root: Path, looks: bool = True) -> None:
    store = opened(root)
    for _ in range(EACH):
        run_id = completed(store)
        assert not looks or run_id in {row.run_id for row in store.rows()}


def destroy(root: Path, scribbles: bool) -> None:
    store, index = opened(root), root / "index.sqlite"
    for turn in range(12):
        time.sleep(0.05)
        if turn % 3 == 0 or (turn % 3 == 1 and not scribbles):
            store.reindex()
        elif turn % 3 == 1 and index.exists():
            index.write_bytes(b"scribbled over " * 2000)
        store.rows()


def add_note(root: Path) -> None:
    """About one run, as several commands write that try to stop its machine; and look how many are there."""
    store, run_id = opened(root), make_id(at=NOVEMBER, token="3fa9c1")
    for turn in range(50):
        store.add_pending_release(run_id, {"why": "x" * 2000, "tried": turn})
        assert [debt["why"] for debt in store.pending_releases().values()] == ["x" * 2000]


def tag(root: Path, number: int) -> None:
    for turn in range(20):
        opened(root).tag(Tag(f"t{number}-{turn}", (make_id(),)), move=False)


def test_concurrent_writers_lose_nothing(store: FileStore, notes: list[str]) -> None:
    at_once(*[(write, store.root)] * 4)
    on_disk = sorted(os.listdir(store.root / "runs"))
    assert len(on_disk) == 4 * EACH
    assert sorted(row.run_id for row in store.rows()) == on_disk
    assert notes == []


def test_rebuilding_beside_writers_loses_nothing(store: FileStore) -> None:
    at_once(*[(write, store.root)] * 3, (destroy, store.root, False))
    assert sorted(row.run_id for row in store.rows()) == sorted(os.listdir(store.root / "runs"))


def test_scribbling_over_the_index_is_survived_by_the_runs(store: FileStore) -> None:
    """Nobody can answer rightly while the file is being destroyed under them, but the runs come to no harm."""
    at_once(*[(write, store.root, False)] * 3)
    destroy(store.root, True)
    assert sorted(row.run_id for row in store.rows()) == sorted(os.listdir(store.root / "runs"))
    assert len(store.rows()) == 3 * EACH


def test_notes_of_one_pending_release_written_at_once(store: FileStore) -> None:
    at_once(*[(add_note, store.root)] * 4)
    assert [debt["tried"] for debt in store.pending_releases().values()] == [49]
    assert os.listdir(store.root / "active/.owed") == [f"{run_id}.json" for run_id in store.pending_releases()]


def test_tags_given_at_once(store: FileStore) -> None:
    at_once(*((tag, store.root, number) for number in range(4)))
    assert set(store.tags()) == {f"t{number}-{turn}" for number in range(4) for turn in range(20)}


# -------------------------------------------------------------------------------------------------------- owners
def own(root: Path, run_id: str, child: str, tell: Connection) -> None:
    """Have the run until killed, with a child that has all that was open and goes on."""
    run = opened(root).claim(run_id)
    assert run is not None
    run.journal.append("sync")
    children: dict[str, Callable[[], int]] = {
        "none": lambda: 0,
        "exec": lambda: subprocess.Popen(["sleep", "300"], close_fds=False).pid,
        "fork": lambda: os.fork() or (time.sleep(300), os._exit(0)),
    }
    tell.send(children[child]())
    time.sleep(300)


def complete_all(root: Path) -> int:
    """How many runs this process got."""
    store = opened(root)
    won = 0
    for run_id in store.active():
        with suppress(RunNotFound):
            run = store.claim(run_id)
            if run is not None:
                run.complete(make_record(run_id))
                won += 1
    return won


@pytest.mark.parametrize("child", ["none", "exec", "fork"])
def test_a_killed_owner_lets_go_whatever_its_children_do(store: FileStore, child: str) -> None:
    run = begin(store)
    run.release()
    heard, tell = CONTEXT.Pipe()
    owner = CONTEXT.Process(target=own, args=(store.root, run.run_id, child, tell))
    owner.start()
    child_pid = heard.recv()
    try:
        assert store.claim(run.run_id) is None
        owner.kill()
        owner.join()
        if child_pid:
            os.kill(child_pid, 0)  # it lives
        again: list[FileActiveRun | None] = []

        def is_free() -> bool:
            again[:] = [store.claim(run.run_id)]
            return again != [None]

        wait_for(is_free)  # a forked child closes its copy as soon as it is scheduled
        assert [e.kind for e in again[0].journal.entries()] == ["sync"]
        again[0].release()
    finally:
        owner.kill()
        if child_pid:
            os.kill(child_pid, signal.SIGKILL)


def test_of_many_claimers_one_completes_each_run(store: FileStore) -> None:
    runs = [begin(store) for _ in range(12)]
    for run in runs:
        run.release()
    assert sum(at_once(*[(complete_all, store.root)] * 5)) == 12
    assert sorted(row.run_id for row in store.rows()) == sorted(run.run_id for run in runs)
    assert store.active() == []
