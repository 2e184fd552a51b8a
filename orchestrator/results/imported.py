"""Figures that another program measured, as a run of the store that says so wherever it is shown: by its status, its
job, its target, its id and the method of its benchmarks. No comparison with it has a verdict.

The published runs of an H100 and an H200 are laid out as complete runs of a workspace here, too.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fcctl_remote import readers
from orchestrator.base import run_id as ids
from orchestrator.base.clock import Clock, epoch, iso
from orchestrator.base.errors import FcctlError, NotFoundError, UsageError
from orchestrator.base.sanitize import clean
from orchestrator.results.archive import Imported
from orchestrator.results.records import IMPORTED, UNVERIFIED, DocumentRecord, RunRecord, SourceRecord, StepRecord

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore


#: Part of the run's id, as job and target.
JOB, TARGET = "imported", "unverified"
_STEP, _DOCUMENT = "import", "steps/import/out/benchmark.json"


def import_figures(
    store: FileStore, clock: Clock, path: Path, reader: str, at: str | None, gpu: str | None, *, keep: bool = True
) -> Imported:
    """Take in one file of figures. Without ``keep``, read it only.

    Args:
        at: when they were measured, ISO 8601, UTC unless it says otherwise; else the file's own ``created``.
        gpu: the GPU they were measured on; else the file's own.

    Raises NotFoundError: there is no such file; UsageError: no date, or none that can be; FcctlError: the file is not
    what ``reader`` reads, or the disk is full."""
    if not path.exists():
        raise NotFoundError(f"the file {path} does not exist", hint=f"ls {shlex.quote(str(path.parent))}")
    try:
        document = readers.read(reader, str(path))
    except readers.ReaderError as error:
        hint = error.hint or "what each reader reads: docs/jobs.md"
        raise FcctlError(f"cannot import {path}", cause=error.message, hint=hint) from None
    content = path.read_bytes()
    when = _when(at, "--at", path, clock) if at else _when(_created(content), f"the date of {path},", path, clock)
    if gpu:
        document["device"] = gpu
    document["tool"] = UNVERIFIED
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    run_id = ids.new(JOB, TARGET, when, digest[:6])  # the same figures are the same run, whatever file has them
    if store.is_complete(run_id):
        return Imported(here_already=[run_id])
    record = _record(run_id, when, path.name, document, SourceRecord(tree_sha256=digest), clock)
    files = {
        f"artifacts/{path.name if path.name.isprintable() else 'figures.json'}": content,
        _DOCUMENT: json.dumps(document).encode(),
        "run.json": record.model_dump_json(indent=1).encode(),
    }
    run = store.incoming(run_id)
    try:
        for name, data in files.items():
            run.write(name, 0, data)
        run.check()
        if keep:
            run.finish()
    finally:
        run.discard()
    return Imported([run_id], files=1, bytes=len(content))


def _record(
    run_id: str, when: float, name: str, document: dict[str, Any], source: SourceRecord, clock: Clock
) -> RunRecord:
    at, today = iso(when) or "", (iso(clock.now()) or "")[:10]
    device = document.get("device")
    return RunRecord(
        run_id=run_id,
        job=JOB,
        title=f"Figures of {clean(name, 80)}",
        target=TARGET,
        status=IMPORTED,
        exit_code=0,
        message=f"{UNVERIFIED}: taken from {clean(name, 80)} on {today}; fcctl did not measure these figures",
        created=at,
        finished=at,
        source=source,
        host={"gpu": {"name": device}} if device else {},
        steps=[
            StepRecord(
                id=_STEP, status="skipped", message=UNVERIFIED,
                documents=[DocumentRecord(kind=document["kind"], path=_DOCUMENT)],
            )
        ],
    )  # fmt: skip


def _created(content: bytes) -> str | None:
    value = json.loads(content.decode("utf-8-sig")).get("created")
    return value if isinstance(value, str) else None


def _when(at: str | None, origin: str, path: Path, clock: Clock) -> float:
    if at is None:
        raise UsageError(
            f"{path} has no date of its figures", hint="give the day on which they were measured: --at 2026-10-14"
        )
    when, shown = epoch(at), clean(at, 40)
    if when is None:
        raise UsageError(f"{origin} '{shown}' is not a date", hint="example: --at 2026-10-14 or 2026-10-14T09:30")
    if not 0 < when <= clock.now():
        hint = "give the day on which the figures were measured: --at 2026-10-14"
        raise UsageError(f"{origin} {shown} is not in the past", hint=hint)
    return when


_CONFIG = """[project]
name = "flashcore-example"

[targets.gpu-host]
kind = "ssh"
host = "gpu-host.invalid"
"""


def install_published(source: Path, results: Path, run_id: str | None = None) -> Path:
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


def published_workspace(repository: Path, folder: Path) -> None:
    """Make ``folder`` a published_workspace with every published run of ``repository``."""
    (folder / "fcctl.toml").write_text(_CONFIG)
    for record in sorted(repository.glob("results/reference/*/*/run.json")):
        install_published(record.parent, folder / "results")
