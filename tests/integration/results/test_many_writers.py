"""Many processes complete runs at once, while others list, rebuild and destroy the index: nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from orchestrator.results.store.store import FileStore

ROOT = Path(__file__).resolve().parents[3]
EACH = 12
WRITER = f"""
import sys
from pathlib import Path
from orchestrator.results.store.store import FileStore
from orchestrator.app import SystemClock
from tests.support.stores import completed
store = FileStore(Path(sys.argv[1]), SystemClock(), note=lambda _: None)
for _ in range({EACH}):
    run_id = completed(store)
    assert run_id in {{row.run_id for row in store.rows()}}
"""
VANDAL = """
import sys, time
from pathlib import Path
from orchestrator.results.store.store import FileStore
from orchestrator.app import SystemClock
root = Path(sys.argv[1])
store = FileStore(root, SystemClock(), note=lambda _: None)
for turn in range(12):
    time.sleep(0.05)
    if turn % 3 == 0:
        store.reindex()
    elif turn % 3 == 1 and (root / "index.sqlite").exists():
        (root / "index.sqlite").write_bytes(b"scribbled over " * 2000)
    store.rows()
"""


#: Notes about one run, as several commands write that try to stop its machine; and how many are there.
NOTER = """
import sys
from pathlib import Path
from orchestrator.results.store.store import FileStore
from orchestrator.app import SystemClock
from tests.support.stores import NOVEMBER, make_id
store = FileStore(Path(sys.argv[1]), SystemClock(), note=lambda _: None)
run_id = make_id(at=NOVEMBER, token="3fa9c1")
for turn in range(100):
    store.add_pending_release(run_id, {"why": "x" * 2000, "tried": turn})
    assert [debt["why"] for debt in store.pending_releases().values()] == ["x" * 2000]
"""
TAGGER = """
import sys
from pathlib import Path
from orchestrator.results.store.store import FileStore
from orchestrator.results.tags import Tag
from orchestrator.app import SystemClock
from tests.support.stores import make_id
store = FileStore(Path(sys.argv[1]), SystemClock(), note=lambda _: None)
for turn in range(20):
    store.tag(Tag(f"t{sys.argv[2]}-{turn}", (make_id(),)), move=False)
"""


def start(program: str, root: Path, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'remote'}"}
    return subprocess.Popen(
        [sys.executable, "-c", program, str(root), *more], stderr=subprocess.PIPE, text=True, env=environment
    )


def finish(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        _, said = process.communicate()
        assert process.returncode == 0, said


def test_concurrent_writers_lose_nothing(store: FileStore, notes: list[str]) -> None:
    finish([start(WRITER, store.root) for _ in range(6)])
    on_disk = sorted(os.listdir(store.root / "runs"))
    assert len(on_disk) == 6 * EACH
    assert sorted(row.run_id for row in store.rows()) == on_disk
    assert notes == []


def test_rebuilding_beside_writers_loses_nothing(store: FileStore) -> None:
    rebuild = VANDAL.replace('(root / "index.sqlite").write_bytes(b"scribbled over " * 2000)', "store.reindex()")
    finish([*(start(WRITER, store.root) for _ in range(4)), start(rebuild, store.root)])
    assert sorted(row.run_id for row in store.rows()) == sorted(os.listdir(store.root / "runs"))


def test_scribbling_over_the_index_is_survived_by_the_runs(store: FileStore) -> None:
    """Nobody can answer rightly while the file is being destroyed under them, but the runs come to no harm."""
    writer = WRITER.replace("    assert run_id in {row.run_id for row in store.rows()}\n", "")
    finish([*(start(writer, store.root) for _ in range(3))])
    vandal = start(VANDAL, store.root)
    finish([vandal])
    assert sorted(row.run_id for row in store.rows()) == sorted(os.listdir(store.root / "runs"))
    assert len(store.rows()) == 3 * EACH


def test_notes_of_one_pending_release_written_at_once(store: FileStore) -> None:
    finish([start(NOTER, store.root) for _ in range(4)])
    assert [debt["tried"] for debt in store.pending_releases().values()] == [99]
    assert os.listdir(store.root / "active/.owed") == [f"{run_id}.json" for run_id in store.pending_releases()]


def test_tags_given_at_once(store: FileStore) -> None:
    finish([start(TAGGER, store.root, str(number)) for number in range(4)])
    assert set(store.tags()) == {f"t{number}-{turn}" for number in range(4) for turn in range(20)}
