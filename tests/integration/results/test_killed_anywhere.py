"""A process killed with SIGKILL before any single file operation of a run's completion; power cuts: tests/power_cut."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from orchestrator.app import SystemClock
from orchestrator.results.store.store import FileStore
from tests.support.stores import NOVEMBER, begin, make_id, make_record

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

CALLS = ("open", "write", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir", "ftruncate", "close")
RUN_ID = make_id(at=NOVEMBER, token="3fa9c1")
CONTENT = b"collected from the host\n"


def count_calls(kill_at: int | None) -> list[int]:
    """Number every call of the operating system from here on; before call ``kill_at``, die."""
    done = [0]

    def counted(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if done[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            done[0] += 1
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    return done


def in_child(work: Callable[[], object], kill_at: int | None) -> int | None:
    """Run ``work`` in a forked process; the number of calls it made, None if it was killed."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            started = work()
            done = count_calls(kill_at)
            assert callable(started)
            started()
            calls = done[0]
            os.write(writer, b"%d" % calls)
            os._exit(0)
        finally:
            os._exit(70)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert os.waitstatus_to_exitcode(status) == 0
    return int(said)


def quiet_store(root: Path) -> FileStore:
    return FileStore(root, SystemClock(), note=lambda _: None)


def prepared_completion(root: Path) -> Callable[[], object]:
    """Everything before ``complete``, which is returned."""
    run = begin(quiet_store(root), RUN_ID)
    run.journal.append("sync")
    run.intake().write("steps/build/log.txt", 0, CONTENT)
    run.journal.append("collected")
    return lambda: run.complete(make_record(RUN_ID))


def assert_whole(root: Path) -> None:
    store = quiet_store(root)
    folder = store.folder(RUN_ID)
    assert store.is_complete(RUN_ID)
    assert (folder / "steps/build/log.txt").read_bytes() == CONTENT
    assert json.loads((folder / "plan.json").read_text())["plan"]["run_id"] == RUN_ID
    lines = (folder / "journal.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["sync", "collected"]
    assert not [p for p in folder.rglob("*") if p.name.startswith(".")]
    assert store.get(RUN_ID) == make_record(RUN_ID)
    assert [row.run_id for row in store.rows()] == [RUN_ID]
    assert store.active() == []
    assert sorted(os.listdir(root / "runs")) == [RUN_ID]


def test_complete_can_be_killed_before_any_call(tmp_path: Path) -> None:
    total = in_child(lambda: prepared_completion(tmp_path / "whole"), None)
    assert total > 40
    killed = 0
    for point in range(total):
        root = tmp_path / f"killed-{point}"
        if in_child(partial(prepared_completion, root), point) is None:
            killed += 1
        store = quiet_store(root)
        was_complete = store.is_complete(RUN_ID)
        if store.active() == [RUN_ID]:
            assert not was_complete
            run = store.claim(RUN_ID)
            assert run is not None, "the kernel lets go of a killed process's lock"
            assert [e.kind for e in run.journal.entries()] == ["sync", "collected"]
            run.complete(make_record(RUN_ID))
        else:
            assert was_complete, f"killed before call {point}: the run is neither active nor complete"
        assert_whole(root)
        begin(store).release()  # a later run sweeps what is left
        assert [n for n in os.listdir(root / "active") if RUN_ID in n] == []
    assert killed == total


def test_reindex_alone_lists_what_was_renamed_but_not_indexed(tmp_path: Path) -> None:
    total = in_child(lambda: prepared_completion(tmp_path / "whole"), None)
    assert total is not None
    renamed = 0
    for point in range(0, total, 3):
        root = tmp_path / f"killed-{point}"
        in_child(partial(prepared_completion, root), point)
        store = quiet_store(root)
        complete = store.is_complete(RUN_ID)
        count, skipped = store.reindex()
        assert (count, list(skipped)) == (int(complete), [])
        renamed += complete
    assert renamed > 0
