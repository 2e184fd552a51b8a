"""The published run of an H200 as a complete run in a store: real documents, real telemetry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flashcore import advice
from orchestrator.results import export
from orchestrator.results.documents import load
from orchestrator.results.look import Shown
from orchestrator.results.records import RunRecord

H200 = Path(__file__).resolve().parents[2] / "results/reference/h200/20261121t110151z-evidence-gpu-host-6eef63"


def install(results: Path, run_id: str | None = None, source: Path = H200) -> Path:
    """Put the run into ``results/runs``, with what FlashCore says of it today; returns its folder."""
    folder = export.install_published(source, results, run_id)
    for path in folder.glob("steps/*/out/*.json"):
        document = json.loads(path.read_text())
        advise(document)
        path.write_text(json.dumps(document))
    return folder


def advise(document: dict[str, Any], device: str | None = None) -> None:
    """Add what FlashCore writes into its documents today, and did not yet when the run was published."""
    if document["kind"] == "profile":
        document |= {"targets": advice.TARGETS, "levers": advice.LEVERS}
    for row in document.get("benchmarks", []):
        if "sdpa" not in row["variant"]:
            row["grade"] = advice.grade_of(row, row["name"].partition("/")[0], device or document["device"])


def shown(folder: Path) -> Shown:
    """A complete run's folder as the workflows show it."""
    record = RunRecord.model_validate_json((folder / "run.json").read_text())
    return Shown(record, folder, load(record, folder))
