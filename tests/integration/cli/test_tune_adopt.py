"""`fcctl tune --adopt`: FlashCore's own table written by its own command; what is refused, and what insisting does."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from flashcore import tilings
from orchestrator.results.records import DocumentRecord, StepRecord
from tests.support import sample_run
from tests.support.workspace import REPOSITORY, Workspace

RUN = sample_run.RUN_ID
DOCUMENT = "steps/search/out/tuning.json"


def ratio(value: float) -> dict[str, float]:
    return {"ratio": value, "ci_low": value - 0.01, "ci_high": value + 0.01}


def tuning(held_out: float) -> dict[str, Any]:
    params = {"TILE_M": 64, "TILE_N": 64, "STAGES": 1, "WARPS_KV": 2, "WARP_ROWS": 32}
    elite = {"trial": 5, **ratio(0.8), "held_out": ratio(held_out), "per_case": {"mission": {"us": 4.0, **ratio(0.8)}}}
    return {
        "kind": "tuning", "tune": "flashcore", "title": "fused", "gpu": {"name": "NVIDIA L4", "sms": 58},
        "metric": {"unit": "us", "cases": ["mission"]}, "complete": True, "final": [elite],
        "trials": [{"number": 5, "params": params, "state": "complete", "gpu": "NVIDIA L4"}],
    }  # fmt: skip


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "w", private_home)
    (made.root / "tune").mkdir()
    shutil.copy(REPOSITORY / "tune/flashcore.yaml", made.root / "tune")
    ignored = shutil.ignore_patterns("csrc", "__pycache__")
    shutil.copytree(REPOSITORY / "kernels/flashcore", made.root / "kernels/flashcore", ignore=ignored)
    return made


def finished(
    workspace: Workspace, document: dict[str, Any], spec: dict[str, Any] | None = None, *, cancelled: bool = False
) -> None:
    """A run that is home, whose step `search` left ``document``; its plan says VARIANT=fused, and that ``spec`` was
    to be searched. Of one that was cancelled the record names no document, since nobody looked."""
    planned: dict[str, Any] = {"id": "search", "run": "x"}
    if spec is not None:
        planned["tune"] = {"spec": json.dumps(spec), "bundle": "ab" * 32}
    folder = workspace.root / "results/runs" / RUN
    (folder / DOCUMENT).parent.mkdir(parents=True, exist_ok=True)
    (folder / DOCUMENT).write_text(json.dumps(document))
    step = StepRecord(
        id="search", status="cancelled" if cancelled else "passed", exit_code=0, attempts=1, duration_s=1.0,
        documents=[] if cancelled else [DocumentRecord(kind=str(document["kind"]), path=DOCUMENT)],
    )  # fmt: skip
    status = {"status": "cancelled", "exit_code": 103} if cancelled else {"status": "passed", "exit_code": 0}
    record = sample_run.record(steps=[step], message=None, **status)
    plan = {
        "plan": {
            "run_id": RUN, "job": "stage5", "target": "l4", "workspace": "w", "tree_sha256": "ab" * 32,
            "env": {"VARIANT": "fused", "PYTHONPATH": "kernels"}, "steps": [planned],
        },
        "target": {"kind": "local", "name": "l4"}, "source": {"tree_sha256": "ab" * 32},
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "run.json").write_text(record.model_dump_json())


def test_a_proven_winner_becomes_a_row_of_the_table(workspace: Workspace) -> None:
    finished(workspace, tuning(0.85))
    table = workspace.root / "kernels/flashcore/tilings.json"
    before = table.read_text()
    shown = workspace.fcctl("tune", "--adopt", RUN, "--dry-run").stdout
    added = [line for line in shown.splitlines() if line.startswith("+ ")]
    assert len(added) == 1
    assert RUN in added[0]
    assert "0.850 [0.840, 0.860] on held-out cases" in shown
    assert table.read_text() == before
    assert workspace.json("tune", "--adopt", RUN, "--yes")["written"]
    rows = [row for row in tilings.load(table) if row.run == RUN]
    assert [(row.variant, row.gpu.name, row.gpu.sms, str(row.shape)) for row in rows] == [
        ("fused", "NVIDIA L4", 58, "1,8,512,64")
    ]
    assert rows[0].settings == {"TILE_M": 64, "TILE_N": 64, "STAGES": 1, "WARPS_KV": 2, "WARP_ROWS": 32}
    assert not workspace.json("tune", "--adopt", RUN, "--yes")["diff"]  # it is there


def test_what_is_not_proven_is_refused_unless_one_insists(workspace: Workspace) -> None:
    finished(workspace, tuning(0.995))
    refused = workspace.fcctl("tune", "--adopt", RUN, "--yes", check=8)
    assert "the interval contains 1" in refused.stderr
    assert "--force" in refused.stderr
    taken = workspace.fcctl("tune", "--adopt", RUN, "--force", "--dry-run").stdout
    assert "adopted because of --force; reason against it: the best takes 0.995" in taken


SPEC = {
    "tune": "flashcore", "space": "list them", "serve": "s", "cases": ["mission"], "held_out": ["s256", "batch2"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tune": "other"}, "the run's search is flashcore"),
        ({"trials": [{"number": 5, "params": {"TILE_M": "64\nx"}, "gpu": "NVIDIA L4"}]}, "is not a valid"),
        ({"gpu": {"name": "L4\x1b[2J", "sms": 58}}, "the name of its GPU is invalid"),
    ],
)
def test_what_the_search_cannot_have_found_is_refused_however_one_insists(
    workspace: Workspace, changes: dict[str, Any], said: str
) -> None:
    finished(workspace, {**tuning(0.85), **changes}, SPEC)
    before = (workspace.root / "kernels/flashcore/tilings.json").read_text()
    refused = workspace.fcctl("tune", "--adopt", RUN, "--yes", "--force", check=6)
    assert said in refused.stderr
    assert "\x1b" not in refused.stderr
    assert (workspace.root / "kernels/flashcore/tilings.json").read_text() == before


def test_a_document_without_the_measurement_that_was_asked_for_proves_nothing(workspace: Workspace) -> None:
    finished(workspace, tuning(0.85), SPEC)
    assert workspace.json("tune", "--adopt", RUN, "--dry-run")["doubts"] == []
    document = tuning(0.85)
    document["final"][0]["held_out"] = None
    finished(workspace, document, SPEC)
    assert "not measured on the held-out cases" in workspace.fcctl("tune", "--adopt", RUN, "--yes", check=8).stderr


CUT_OFF = {
    "complete": False, "final": [], "search": {"budget": 128},
    "summary": {"states": {"complete": 12, "pruned": 5}},
}  # fmt: skip


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_search_that_was_cancelled_is_named_as_that_with_what_it_had_tried(
    workspace: Workspace, force: tuple[str, ...]
) -> None:
    """Its best were not measured again, so that there is nothing to insist on."""
    finished(workspace, {**tuning(0.85), **CUT_OFF}, SPEC, cancelled=True)
    refused = workspace.fcctl("tune", "--adopt", RUN, *force, "--yes", check=8).stderr
    assert f"run {RUN} has no winner to adopt, even with --force" in refused
    assert "ended as cancelled, with results of 17 of 128 trials: 12 complete, 5 pruned" in refused
    assert f"resume it: fcctl run --resume {RUN}; to see the trials: fcctl logs {RUN}" in refused


def test_what_a_cancelled_search_had_measured_again_is_taken_by_force(workspace: Workspace) -> None:
    finished(workspace, {**tuning(0.85), "complete": False}, SPEC, cancelled=True)
    assert "ended as cancelled" in workspace.fcctl("tune", "--adopt", RUN, "--yes", check=8).stderr
    assert workspace.json("tune", "--adopt", RUN, "--yes", "--force")["written"]


@pytest.mark.parametrize("left", ["[", json.dumps({"kind": "metrics"}), None], ids=["torn", "another kind", "nothing"])
def test_of_a_search_that_left_nothing_to_read_that_is_told(workspace: Workspace, left: str | None) -> None:
    finished(workspace, tuning(0.85), SPEC, cancelled=True)
    document = workspace.root / "results/runs" / RUN / DOCUMENT
    if left is None:
        document.unlink()
    else:
        document.write_text(left)
    said = workspace.fcctl("tune", "--adopt", RUN, "--yes", check=7).stderr
    assert "its step search ended as cancelled, without a readable document of its trials" in said


def test_a_document_that_the_record_of_a_step_that_passed_does_not_name_is_left_alone(workspace: Workspace) -> None:
    finished(workspace, tuning(0.85), SPEC, cancelled=True)
    path = workspace.root / "results/runs" / RUN / "run.json"
    path.write_text(path.read_text().replace('"status":"cancelled"', '"status":"passed"'))
    assert "without a readable document" in workspace.fcctl("tune", "--adopt", RUN, "--force", check=7).stderr


def test_the_difference_is_one_that_git_applies(workspace: Workspace) -> None:
    table = "adopt: {file: t.txt, write: \"printf 'a\\fb\\nd'\"}"
    search = workspace.root / "tune/flashcore.yaml"
    search.write_text(search.read_text().partition("adopt:")[0] + table + "\n")
    (workspace.root / "t.txt").write_text("a\fb\nc")
    finished(workspace, tuning(0.85), SPEC)
    diff = workspace.json("tune", "--adopt", RUN, "--dry-run")["diff"]
    subprocess.run(["git", "apply", "-"], cwd=workspace.root, input=diff, text=True, check=True)
    assert (workspace.root / "t.txt").read_text() == "a\fb\nd"
