"""Ownership of an active run across real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.results.store.active import FileActiveRun
from orchestrator.results.store.store import FileStore
from tests.support.stores import begin
from tests.support.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
OWNER = """
import subprocess, sys, time, os
from pathlib import Path
from orchestrator.results.store.store import FileStore
from orchestrator.app import SystemClock
run = FileStore(Path(sys.argv[1]), SystemClock()).claim(sys.argv[2])
assert run is not None
run.journal.append("sync")
children = {
    "none": lambda: None,
    "exec": lambda: subprocess.Popen(["sleep", "300"], close_fds=False).pid,
    "fork": lambda: os.fork() or (time.sleep(300), os._exit(0)),
}
print(children[sys.argv[3]](), flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("child", ["none", "exec", "fork"])
def test_a_killed_owner_lets_go_whatever_its_children_do(store: FileStore, child: str) -> None:
    run = begin(store)
    run_id = run.run_id
    run.release()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'remote'}"}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(store.root), run_id, child],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    said = owner.stdout.readline().strip()
    try:
        assert store.claim(run_id) is None
        known = store.owner(run_id)
        assert known["pid"] == owner.pid
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        if child != "none":
            os.kill(int(said), 0)  # the child lives
        again: list[FileActiveRun | None] = []

        def is_free() -> bool:
            again[:] = [store.claim(run_id)]
            return again != [None]

        wait_for(is_free)  # a forked child closes its copy as soon as it is scheduled
        assert [e.kind for e in again[0].journal.entries()] == ["sync"]
        again[0].release()
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()
        if child != "none":
            os.kill(int(said), signal.SIGKILL)


CLAIMER = """
import sys, time
from pathlib import Path
from orchestrator.results.store.store import FileStore
from orchestrator.base.errors import RunNotFound
from orchestrator.app import SystemClock
from tests.support.stores import make_record
store = FileStore(Path(sys.argv[1]), SystemClock(), note=lambda _: None)
while not Path(sys.argv[3]).exists():
    time.sleep(0.005)
won = 0
for run_id in store.active():
    try:
        run = store.claim(run_id)
    except RunNotFound:
        continue
    if run is not None:
        run.complete(make_record(run_id))
        won += 1
print(won)
"""


def test_of_many_claimers_one_completes_each_run(store: FileStore, tmp_path: Path) -> None:
    runs = [begin(store) for _ in range(12)]
    for run in runs:
        run.release()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'remote'}"}
    claimers = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMER, str(store.root), "-", str(tmp_path / "go")],
            stdout=subprocess.PIPE, text=True, env=environment,
        )
        for _ in range(5)
    ]  # fmt: skip
    (tmp_path / "go").touch()
    won = [int(c.communicate()[0]) for c in claimers]
    assert [c.returncode for c in claimers] == [0] * 5
    assert sum(won) == 12
    assert sorted(row.run_id for row in store.rows()) == sorted(run.run_id for run in runs)
    assert store.active() == []
