"""What the index holds of benchmarks."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app import SystemClock
from orchestrator.base.json_text import Budget, resident_bytes
from orchestrator.results import documents
from orchestrator.results.store import rows
from orchestrator.results.store import rows as store_rows
from orchestrator.results.store.store import FileStore
from tests.support.measured_runs import document, entry, measured, samples, simple

OLDEST = Path(__file__).resolve().parents[2] / "fixtures" / "store" / "v1"


def content(root: Path) -> Iterator[Any]:
    with closing(sqlite3.connect(root / "index.sqlite")) as db:
        yield from db.execute("SELECT * FROM runs ORDER BY run_id").fetchall()
        yield from db.execute("SELECT * FROM benchmarks ORDER BY benchmark, variant, run_id, place").fetchall()


def test_a_history_opens_no_run(store: FileStore) -> None:
    for i in range(3):
        measured(store, [simple(10.0 + i)], at=60 * i)
    store.rows()
    hidden = store.root / "elsewhere"
    hidden.mkdir()
    for folder in (store.root / "runs").iterdir():
        for file in folder.iterdir():
            shutil.move(file, hidden / f"{folder.name}-{file.name}")
    found = store.measurements(benchmark="mission")
    assert [round(m.p50) for m in found] == [12, 11, 10]
    assert (found[0].gpu, found[0].driver, found[0].method, found[0].shape) == (
        "NVIDIA L4", "550.54.15", "v3", "1,8,512,64",
    )  # fmt: skip
    assert not found[0].reference
    assert [m.reference for m in store.measurements(benchmark="mission/sdpa", limit=1)] == [True]
    assert store.benchmarks() == [("mission", "fused"), ("mission/sdpa", "sdpa")]


def test_a_document_is_read_up_to_a_limit(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    content = simple(10.0, note="x" * 2_000_000)
    measured(store, [content])
    assert len(store.measurements(benchmark="mission")) == 1, "two megabytes are not too many"
    data = json.dumps(content).encode()
    size = len(data) + resident_bytes(data)
    for limit, found in ((size, 1), (size - 1, 0)):
        monkeypatch.setattr(store_rows, "Budget", functools.partial(Budget, limit))
        store.reindex()
        assert len(store.measurements(benchmark="mission")) == found


@pytest.mark.parametrize(
    ("limit", "most", "kept"), [("MAX_DOCUMENTS", 2, 4), ("MAX_DOCUMENTS", 3, 6), ("MAX_MEASURED", 3, 3)]
)
def test_of_many_the_first_count(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, limit: str, most: int, kept: int
) -> None:
    monkeypatch.setattr(store_rows, limit, most)
    measured(store, [simple(10.0), simple(11.0), simple(12.0)])
    assert len(store.measurements()) == kept, "of two in each document"


def test_of_many_documents_the_first_are_read(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = measured(store, [simple(10.0), simple(11.0), simple(12.0)])
    monkeypatch.setattr(documents, "MAX_DOCUMENTS", 2)
    found = documents.load(store.get(run_id), store.folder(run_id))
    assert len(found.items) == 2
    assert [problem.partition(": ")[2] for problem in found.problems] == [
        "fcctl reads at most 2 documents of a run; not read: 1"
    ]


def test_a_rebuilt_index_is_the_same(store: FileStore) -> None:
    for i in range(20):
        measured(store, [simple(10.0 + i), simple(11.0)], at=60 * i)
    store.rows()
    before = list(content(store.root))
    store.reindex()
    assert list(content(store.root)) == before
    assert len(before) == 20 + 20 * 4


def test_a_run_that_goes_takes_its_measurements_along(store: FileStore) -> None:
    run_id = measured(store, [simple(10.0)])
    store.rows()
    shutil.rmtree(store.root / "runs" / run_id)
    os.utime(store.root / "runs")
    assert store.measurements() == []


@pytest.mark.parametrize(
    "odd",
    [
        {"kind": "benchmark", "benchmarks": [{"name": "a", "stats": {"p50": "fast"}}]},
        {"kind": "benchmark", "benchmarks": {"p50": 1}},
        document(entry("x" * 10_000, [1.0], stats={"p50": 1.0, "n": 1e300})),
        document(entry("nul\0\x1b[2J", samples(1.0)), device={"name": 3}, environment={"driver": ["x"]}),
    ],
)
def test_odd_documents_harm_nothing(store: FileStore, odd: dict[str, Any]) -> None:
    run_id = measured(store, [odd, simple(10.0)])
    assert store.rows()[0].run_id == run_id
    assert len(store.measurements(benchmark="mission")) == 1
    assert all(len(m.benchmark) <= 200 and m.n < 2**32 for m in store.measurements())


def test_a_document_that_is_a_link_or_no_json_is_left_out(store: FileStore, tmp_path: Path) -> None:
    run_id = measured(store, [simple(10.0), simple(11.0), simple(12.0)])
    out = store.root / "runs" / run_id / "steps" / "bench" / "out"
    (out / "benchmark_0.json").unlink()
    (out / "benchmark_0.json").symlink_to(tmp_path / "secret.json")
    (out / "benchmark_1.json").write_text("[" * 100_000)
    store.reindex()
    assert [round(m.p50) for m in store.measurements(benchmark="mission")] == [12]


def test_the_oldest_store_is_read_and_rebuilt(tmp_path: Path) -> None:
    """As the first version of the index left it, committed with its runs."""
    root = tmp_path / "results"
    shutil.copytree(OLDEST, root)
    with closing(sqlite3.connect(root / "index.sqlite")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    notes: list[str] = []
    store = FileStore(root, SystemClock(), note=notes.append)
    assert [row.status for row in store.rows()] == ["failed", "passed", "passed"]
    assert [m.p50 for m in store.measurements(benchmark="mission", variant="fused")] == [24.1, 25.9]
    assert any("another version" in note for note in notes)
    with closing(sqlite3.connect(root / "index.sqlite")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (rows.VERSION,)
