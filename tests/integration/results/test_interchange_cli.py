"""``fcctl results export`` and ``prune`` as a user types them."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.clock import iso
from orchestrator.results.store.store import FileStore
from tests.integration.results.conftest import Typed
from tests.support.measured_runs import document, entry, measured, samples, simple
from tests.support.stores import NOVEMBER, begin

DAY = 86_400.0


@pytest.fixture
def store(workspace_store: FileStore) -> FileStore:
    """Four runs a day apart, the first the fastest; the last of yesterday."""
    made = workspace_store
    for i, p50 in enumerate((8.0, 10.0, 9.0, 11.0)):
        at = time.time() - NOVEMBER - (4 - i) * DAY
        measured(made, [simple(p50)], at=at, token=f"00000{i}", created=iso(NOVEMBER + at))
    return made


def tokens(store: FileStore) -> list[str]:
    return sorted(row.run_id[-1] for row in store.rows())


# ------------------------------------------------------------------------------------------------ export
def test_csv_and_jsonl_say_the_same(store: FileStore, tmp_path: Path, results: Typed) -> None:
    for name in ("all.csv", "all.jsonl"):
        results("export", "all", "-o", name)
    with (tmp_path / "all.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert len(table) == len(lines) == 8
    for row, line in zip(table, lines, strict=True):
        assert list(row) == list(line)
        assert {k: "" if v is None else str(v) for k, v in line.items()} == row
    first = lines[0]
    assert (first["benchmark"], first["variant"], first["gpu"], first["b"], first["s"]) == (
        "mission", "fused", "NVIDIA L4", 1, 512,
    )  # fmt: skip
    assert first["p50"] == pytest.approx(11.0, rel=0.01)
    assert [line["reference"] for line in lines[:2]] == [False, True]


def test_a_spreadsheet_runs_no_formula_of_a_host(store: FileStore, results: Typed) -> None:
    measured(store, [document(entry('=HYPERLINK("http://x")', samples(1.0), variant="@SUM(1)"))], at=5)
    out = results("export", "last:bench", "20261121t083325z", "--format", "csv").out
    assert "\"'=HYPERLINK(" in out
    assert ",'@SUM(1)," in out


def test_runs_without_benchmarks_make_an_empty_table(store: FileStore, tmp_path: Path, results: Typed) -> None:
    measured(store, [], at=5)
    results("export", "20261121t083325z", "-o", "none.csv")
    assert len((tmp_path / "none.csv").read_text().splitlines()) == 1


# ------------------------------------------------------------------------------------------------ prune
def pruned(results: Typed, *words: str) -> Any:
    return results("prune", "--json", "--yes", *words).json


def test_by_age_the_best_and_the_newest_stay(store: FileStore, results: Typed) -> None:
    found = pruned(results, "--older-than", "36h", "--dry-run")
    assert [r["run_id"][-1] for r in found["would_delete"]] == ["1", "2"]
    assert (found["deleted"], found["spared"]) == ([], 1)
    assert tokens(store) == ["0", "1", "2", "3"]
    found = pruned(results, "--older-than", "36h")
    assert [r["run_id"][-1] for r in found["deleted"]] == ["1", "2"]
    assert found["bytes"] > 0
    assert tokens(store) == ["0", "3"]
    assert sorted(p.name[-1] for p in (store.root / "runs").iterdir()) == ["0", "3"]
    assert store.measurements(benchmark="mission", limit=9)[-1].p50 == pytest.approx(8.0, rel=0.01)


def test_what_a_tag_names_is_never_touched(store: FileStore, results: Typed) -> None:
    results("tag", "keep", "000001", "000002")
    found = pruned(results, "--older-than", "1h", "--keep-best", "0", "--keep-last", "0")
    assert [r["run_id"][-1] for r in found["deleted"]] == ["0", "3"]
    assert pruned(results, "--max-size", "0B", "--keep-best", "0", "--keep-last", "0")["deleted"] == []
    assert tokens(store) == ["1", "2"]


def test_what_a_killed_one_left_is_deleted_though_no_run_is_to_go(store: FileStore, results: Typed) -> None:
    left = store.root / "runs/.pruned-x/steps"
    left.mkdir(parents=True)
    assert pruned(results, "--older-than", "9999h", "--dry-run")["would_delete"] == []
    assert left.exists()
    assert pruned(results, "--older-than", "9999h")["deleted"] == []
    assert not left.parent.exists()
    assert tokens(store) == ["0", "1", "2", "3"]


def test_unreadable_tags_stop_it(store: FileStore, results: Typed) -> None:
    (store.root / "tags.toml").write_text("<<<<<<<\n")
    results("prune", "--older-than", "1h", "--yes", code=3)
    assert tokens(store) == ["0", "1", "2", "3"]


def test_by_size_the_oldest_go_first(store: FileStore, results: Typed) -> None:
    one = store.size(store.rows()[0].run_id)
    found = pruned(results, "--max-size", f"{2.5 * one:.0f}B", "--keep-best", "0")
    assert [r["run_id"][-1] for r in found["deleted"]] == ["0", "1"]


def test_it_asks_and_says_what_is_wrong(store: FileStore, results: Typed) -> None:
    active = begin(store)
    for words, said in (
        (["--older-than", "1h"], "--yes"),
        ([], "choose which runs to delete"),
        (["--older-than", "soon"], "90d"),
        (["--max-size", "little"], "10GB"),
    ):
        assert said in results("prune", *words, code=2).err
    assert tokens(store) == ["0", "1", "2", "3"]
    pruned(results, "--older-than", "0h", "--keep-best", "0", "--keep-last", "0")
    assert store.active() == [active.run_id]
    assert tokens(store) == []
    active.release()


def test_a_prune_that_was_killed_is_finished_by_the_next(store: FileStore, results: Typed) -> None:
    run = store.rows()[-1].run_id
    (store.root / "runs" / run).rename(store.root / "runs" / f".pruned-{run}")
    assert tokens(store) == ["1", "2", "3"]
    pruned(results, "--older-than", "60h", "--keep-best", "0")
    assert sorted(p.name[-1] for p in (store.root / "runs").iterdir()) == ["2", "3"]
