"""Runs as MLflow keeps them in files: ``mlruns/<experiment>/<run>/{meta.yaml, params, metrics, tags}``.

The layout of MLflow's file store, which ``mlflow ui --backend-store-uri DIR`` shows and ``mlflow.search_runs`` reads.
An experiment is a job; a run's id there is made from its id here, so that exporting twice makes nothing twice.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from orchestrator.base.errors import ConflictError, FcctlError
from orchestrator.results.export.table import rows
from orchestrator.results.look import Shown

#: MLflow's own numbers of a run's status: FINISHED and FAILED.
FINISHED, FAILED = 3, 4
_STATS = ("p50", "p90", "p99", "min", "max", "mean", "stddev")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.\- ]+")


def write(runs: Iterable[Shown], root: Path) -> list[str]:
    """Write into ``root``, which is made; the ids of the runs that were written.

    Raises:
        ConflictError: ``root`` is something else than a folder of MLflow's.
        FcctlError: it cannot be written.
    """
    if root.exists() and (not root.is_dir() or (any(root.iterdir()) and not any(root.glob("*/meta.yaml")))):
        raise ConflictError(f"{root} is there and no folder of MLflow's", hint="name another one with -o")
    try:
        return [_run(shown, root) for shown in runs]
    except OSError as exc:
        raise FcctlError(f"could not write {root}", cause=exc.strerror, hint="name a writable folder with -o") from exc


def _run(shown: Shown, root: Path) -> str:
    record = shown.record
    experiment = str(int(hashlib.sha256(record.job.encode()).hexdigest()[:12], 16) + 1)
    run_id = hashlib.sha256(record.run_id.encode()).hexdigest()[:32]
    began, ended = _ms(record.started or record.created), _ms(record.finished)
    home = (root / experiment).absolute().as_uri()
    _meta(root / experiment, artifact_location=home, creation_time=began, experiment_id=experiment,
          last_update_time=ended, lifecycle_stage="active", name=record.job)  # fmt: skip
    folder = root / experiment / run_id
    _meta(folder, artifact_uri=f"{home}/{run_id}/artifacts", end_time=ended, entry_point_name="",
          experiment_id=experiment, lifecycle_stage="active", run_id=run_id, run_name=record.run_id, run_uuid=run_id,
          source_name="", source_type=4, source_version="", start_time=began,
          status=FINISHED if record.status == "passed" else FAILED, tags=[], user_id="fcctl")  # fmt: skip
    for kind in ("artifacts", "metrics", "params", "tags"):
        (folder / kind).mkdir(exist_ok=True)
    gpu = record.host.get("gpu")
    params = {**record.settings, "target": record.target, "gpu": gpu.get("name") if isinstance(gpu, dict) else None,
              "driver": gpu.get("driver") if isinstance(gpu, dict) else None}  # fmt: skip
    tags = {"mlflow.runName": record.run_id, "mlflow.source.git.commit": record.source.git_commit,
            "fcctl.tree_sha256": record.source.tree_sha256, "fcctl.status": record.status}  # fmt: skip
    _values(folder / "params", params)
    _values(folder / "tags", tags)
    _metrics(folder / "metrics", shown, ended)
    return record.run_id


def _metrics(folder: Path, shown: Shown, when: int) -> None:
    """``mission.fused.hot.p50`` in the benchmark's unit; several launches are steps of one metric."""
    found: dict[str, list[float]] = {"cost_usd": [shown.record.cost.usd]}
    for row in rows([shown]):
        name = ".".join(str(row[key]) for key in ("benchmark", "variant", "mode") if row[key])
        for stat in _STATS:
            if row[stat] is not None:
                found.setdefault(_name(f"{name}.{stat}"), []).append(row[stat])
    for name, values in found.items():
        lines = (f"{when} {value!r} {step}\n" for step, value in enumerate(values))
        (folder / name).write_text("".join(lines))


def _values(folder: Path, values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value not in (None, ""):
            (folder / _name(name)).write_text(str(value)[:5000])


def _meta(folder: Path, **values: Any) -> None:
    import yaml

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.yaml").write_text(yaml.safe_dump(values))


def _name(text: str) -> str:
    """A name of MLflow's: also one of a file, and never one that leads elsewhere."""
    return _NOT_A_NAME.sub("_", text)[:200].lstrip(".") or "_"


def _ms(iso: str) -> int:
    try:
        return int(datetime.fromisoformat(iso).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0
