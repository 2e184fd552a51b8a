"""The published runs of an H100 and an H200, laid out as complete runs of a workspace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

_CONFIG = """[project]
name = "flashcore-example"

[targets.gpu-host]
kind = "ssh"
host = "gpu-host.invalid"
"""


def install(source: Path, results: Path, run_id: str | None = None) -> Path:
    """Put the published run in ``source`` into ``results/runs``, its documents where its steps wrote them; returns its
    folder there."""
    raw = json.loads((source / "run.json").read_text())
    raw["run_id"] = run_id or raw["run_id"]
    folder = results / "runs" / str(raw["run_id"])
    for step in raw["steps"]:
        out = folder / "steps" / step["id"] / "out"
        out.mkdir(parents=True)
        step["documents"] = []
        for file in sorted(source.glob(f"{step['id']}-*.json")):
            name = file.name.removeprefix(f"{step['id']}-")
            shutil.copyfile(file, out / name)
            kind = json.loads(file.read_text())["kind"]
            step["documents"].append({"kind": kind, "path": f"steps/{step['id']}/out/{name}"})
    shutil.copyfile(source / "telemetry.jsonl", folder / "telemetry.jsonl")
    (folder / "run.json").write_text(json.dumps({"target": "gpu-host", **raw}))
    return folder


def workspace(repository: Path, folder: Path) -> None:
    """Make ``folder`` a workspace with every published run of ``repository``."""
    (folder / "fcctl.toml").write_text(_CONFIG)
    for record in sorted(repository.glob("results/reference/*/*/run.json")):
        install(record.parent, folder / "results")
