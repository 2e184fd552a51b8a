"""A job with `report: true`: its run's artifacts hold its report and a manifest, by whomever it is brought home."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from orchestrator.views.report import outputs
from tests.support.workspace import Workspace

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")

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


def test_the_report_joins_the_artifacts(tmp_path: Path, private_home: Path) -> None:
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
