"""``fcctl results`` as a user types it, in a workspace with real runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app import SystemClock
from orchestrator.results.store.store import FileStore
from tests.integration.results.conftest import Typed
from tests.support import sample_run
from tests.support.stores import begin, completed, make_id


@pytest.fixture
def workspace(tmp_path: Path, workspace_store: FileStore) -> Path:
    """A workspace with two small runs and a large one, the newest."""
    store = workspace_store
    for token in ("00aa01", "00aa02"):
        completed(
            store, make_id("bench", at=1790000000.0, token=token), job="bench", created="2026-09-21T14:13:20.000Z"
        )
    run = begin(store, sample_run.RUN_ID, "phase0")
    scratch = tmp_path / "scratch"
    sample_run.write_documents(scratch)
    intake = run.intake()
    for file in scratch.rglob("*.*"):
        intake.write(file.relative_to(scratch).as_posix(), 0, file.read_bytes())
    run.complete(sample_run.record())
    shutil.rmtree(scratch)
    return tmp_path


def test_ls_prints_stable_columns(workspace: Path, results: Typed) -> None:
    out = results("ls").out
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["RUN", "STATUS", "SECONDS", "CREATED", "JOB", "TARGET", "USD", "COMMIT", "GPU"]
    assert lines[1][:3] == [sample_run.RUN_ID, "failed", "26.5"]
    assert len(lines) == 4
    assert "\x1b" not in out


def test_ls_filters(workspace: Path, results: Typed) -> None:
    found = results("ls", "--json", "--job", "bench", "--limit", "1").json
    assert found["schema_version"] == 1
    assert [row["job"] for row in found["runs"]] == ["bench"]
    done = results("ls", "--status", "cancelled")
    assert done.out == ""
    assert "no run matches" in done.err
    assert "did you mean 'passed'" in results("ls", "--status", "pased", code=2).err


def test_show(workspace: Path, results: Typed) -> None:
    text = results("show").out
    assert "17/17 cases passed" in text
    assert "Results  results/runs/" in text
    found = results("show", "3fa9c1", "--json").json
    assert found["run"]["run_id"] == sample_run.RUN_ID
    assert [d["kind"] for d in found["documents"]] == ["environment", "build", "correctness", "benchmark"]
    assert found["documents"][2]["content"]["summary"]["passed"] == 17
    assert "00aa02" in results("show", "last:bench").out


def test_show_what_is_not_there(workspace: Path, results: Typed) -> None:
    done = results("show", "3fa9c2", "--json", code=102)
    assert done.out == ""
    assert f"did you mean {sample_run.RUN_ID}?" in json.loads(done.err)["error"]["hint"]
    active = begin(FileStore(workspace / "results", SystemClock()))
    assert "fcctl attach" in results("show", active.run_id, code=101).err
    results("show", "last")  # the last complete one
    active.release()


def test_reindex_names_what_it_skips(workspace: Path, results: Typed) -> None:
    bad = make_id()
    (workspace / "results" / "runs" / bad).mkdir()
    done = results("reindex")
    assert done.out.startswith("3 runs indexed in ")
    assert ", 1 folder skipped" in done.out
    assert f"skipped {bad}: no run.json" in done.err
    found = results("reindex", "--json").json
    assert (found["runs"], found["skipped"]) == (3, [{"run_id": bad, "reason": "no run.json"}])


def jq(query: str, document: str) -> list[Any]:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    done = subprocess.run(["jq", "-c", query], input=document, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_flashcore_export_answers_the_users_queries(workspace: Path, results: Typed) -> None:
    out = results("export", "last", "--format", "flashcore").out
    assert jq(
        ".results.mission.flashcore.p50, .results.mission.flashcore.p90, .results.mission.flashcore.p99", out
    ) == [1000.0, 1100.0, 1300.0]
    assert jq(".results.mission.pytorch.p50, .speedup", out) == [1500.0, 1.5]
    assert jq(".config", out) == [{"B": 1, "H": 8, "S": 512, "D": 64}]
    assert jq(".results | keys", out) == [sorted(sample_run.SHAPES)]


def test_a_run_without_a_benchmark_cannot_answer_them(workspace: Path, results: Typed) -> None:
    done = results("export", "00aa01", "--format", "flashcore", code=7)
    assert done.out == ""
    assert "no benchmark" in done.err


def test_json_export_is_one_object_a_line(workspace: Path, results: Typed) -> None:
    lines = [json.loads(line) for line in results("export", "last", "00aa01").out.splitlines()]
    assert [line["run"]["run_id"][-6:] for line in lines] == ["3fa9c1", "00aa01"]
    assert len(lines[0]["documents"]) == 4
    assert "folder" not in lines[0]


def test_an_export_that_fails_leaves_the_old_file(workspace: Path, results: Typed) -> None:
    out = workspace / "out.json"
    out.write_text("old")
    results("export", "00aa01", "--format", "flashcore", "-o", str(out), code=7)
    assert out.read_text() == "old"
    assert "could not write" in results("export", "last", "-o", "nowhere/out.json", code=1).err
    assert sorted(p.name for p in workspace.iterdir()) == ["fcctl.toml", "out.json", "results"]
