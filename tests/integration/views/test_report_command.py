"""``fcctl results report`` as it is typed, and the report that a job with `report: true` leaves."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from orchestrator.app import SystemClock
from orchestrator.results.store.store import FileStore
from orchestrator.views.report import outputs
from orchestrator.views.report.outputs import find_chromium
from tests.browser.conftest import slower
from tests.support import reference_run
from tests.support.scripts import script
from tests.support.stores import completed
from tests.support.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Workspace:
    made = Workspace(tmp_path / "ws", private_home)
    reference_run.install(made.root / "results")
    return made


@pytest.fixture
def small(tmp_path: Path, private_home: Path) -> Workspace:
    """Its run has no documents: its report takes no time."""
    made = Workspace(tmp_path / "ws", private_home)
    completed(FileStore(made.root / "results", SystemClock(), note=print))
    return made


@pytest.mark.full
def test_every_form_by_the_files_ending(workspace: Workspace) -> None:
    workspace.fcctl("results", "report", "last", "-o", "out.html")
    assert (workspace.root / "out.html").read_text().startswith("<!doctype html>")
    workspace.fcctl("results", "report", "last", "-o", "reports/summary.md", "--charts", "charts")
    text = (workspace.root / "reports/summary.md").read_text()
    assert "](<../charts/latency.svg>)" in text
    names = {p.name for p in (workspace.root / "charts").iterdir()}
    stems = {"latency", "roofline", "stalls", "telemetry", "shapes-1", "shapes-2", "shapes-3"}
    assert names == {f"{s}.{e}" for s in stems for e in ("svg", "png")}
    for path in (workspace.root / "charts").glob("*.svg"):
        ET.fromstring(path.read_text())
    assert workspace.fcctl("results", "report", "last").stdout.startswith("# evidence on NVIDIA H200\n")


def test_json_is_one_document_or_says_what_was_written(workspace: Workspace) -> None:
    found = workspace.json("results", "report", "last", "last:evidence")
    assert found["schema_version"] == 1
    assert len(found["runs"]) == 1, "a run named twice is reported once"
    assert found["tables"][0]["rows"][0]["label"] == "flagship"
    written = workspace.json("results", "report", "last", "-o", "x.html")
    assert written["written"] == "x.html"
    assert written["format"] == "html"


def test_a_report_of_several_runs_begins_with_which_is_faster(workspace: Workspace) -> None:
    older = "20261121t080000z-evidence-gpu-host-0ddba1"
    slower(reference_run.install(workspace.root / "results", older))
    made = workspace.fcctl("results", "report", older, "last").stdout
    title, _, first, *_ = made.splitlines()
    assert title == "# evidence on NVIDIA H200"
    assert first.startswith("6eef63 against 0ddba1: mission flagship hot: 20.0 % faster. ")
    assert "## Comparison" in made.partition("## Results")[0]
    assert "- mission flagship hot: 20.0 % faster\n" in made


def test_mistakes_are_told_with_a_hint(small: Workspace) -> None:
    missing = small.fcctl("results", "report", "nope", check=102)
    assert "hint:" in missing.stderr
    nowhere = small.fcctl("results", "report", "last", "-o", "/proc/nowhere/x.html", check=1)
    assert "could not write" in nowhere.stderr
    none = small.fcctl("results", "report", "last", "-o", "x.pdf", env={"FCCTL_CHROMIUM": "no-such-browser"}, check=7)
    assert "no Chromium or Chrome" in none.stderr
    assert "apt install chromium" in none.stderr
    assert not (small.root / "x.pdf").exists()


def test_a_browser_that_fails_is_an_error_with_its_words(small: Workspace) -> None:
    broken = script(small.root / "browser", "echo no display >&2\nexit 3")
    done = small.fcctl("results", "report", "last", "-o", "x.pdf", env={"FCCTL_CHROMIUM": str(broken)}, check=1)
    assert "cause: no display" in done.stderr


@pytest.mark.full
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium on PATH to print a PDF with (apt install chromium)")
def test_a_pdf_through_a_real_chromium(workspace: Workspace) -> None:
    workspace.fcctl("results", "report", "last", "-o", "x.pdf")
    content = (workspace.root / "x.pdf").read_bytes()
    assert content.startswith(b"%PDF-")
    assert content.count(b"/Type /Page\n") + content.count(b"/Type /Page ") + content.count(b"/Type/Page/") >= 5


JOB = """\
title: told
report: true
env: {BUDGET: 5}
steps:
  - id: work
    run: |
      mkdir -p "$FCCTL_ARTIFACTS/reports" "$FCCTL_ARTIFACTS/bench"
      echo mine > "$FCCTL_ARTIFACTS/reports/summary.md"
      echo '{"us": 1}' > "$FCCTL_ARTIFACTS/bench/a.json"
      echo '{"kind": "metrics", "metrics": {"us": 1}}' > "$FCCTL_OUT/m.json"
      exit ${CODE:-0}
    gates: [metrics.metrics.us == 1]
"""


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_of_a_job_with_a_report_it_joins_the_artifacts_whoever_brings_the_run_home(
    tmp_path: Path, private_home: Path
) -> None:
    workspace = Workspace(tmp_path / "w", private_home)
    workspace.job("told", JOB)
    submitted = workspace.fcctl("run", "told", "--on", "here", "--set", "BUDGET=7", "--detach").stdout.strip()
    workspace.fcctl("attach", submitted)
    folder = workspace.only_folder()
    text = (folder / outputs.SUMMARY).read_text()
    assert re.match("# told on (here|NVIDIA)", text)
    assert "metrics.metrics.us" in text
    manifest = yaml.safe_load((folder / outputs.MANIFEST).read_text())
    assert (manifest["run_id"], manifest["status"], manifest["settings"]["BUDGET"]) == (submitted, "passed", "7")
    assert [entry["path"] for entry in manifest["files"]] == ["bench/a.json", "reports/summary.md"]
    assert json.loads((folder / "run.json").read_text())["run_id"] == submitted
    assert workspace.json("results", "show", submitted)["run"]["status"] == "passed"
