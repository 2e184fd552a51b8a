"""Results for other tools: runs as JSON, benchmarks as CSV or JSON lines, FlashCore's figures; a run's artifacts
outside the store (``--publish DIR``); and figures of another program as a run of the store, which says so by its
status, its job, its target, its id and the method of its benchmarks: no comparison with it has a verdict.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fcctl_remote import readers
from orchestrator.base import run_id as ids
from orchestrator.base.clock import Clock, epoch, iso
from orchestrator.base.errors import ConflictError, FcctlError, NotFoundError, UsageError
from orchestrator.base.json_text import pick
from orchestrator.base.sanitize import clean, csv_cell, finite, number, part, worded
from orchestrator.results.archive import Imported
from orchestrator.results.documents import Document
from orchestrator.results.look import Shown
from orchestrator.results.records import (
    IMPORTED,
    SCHEMA_VERSION,
    UNVERIFIED,
    DocumentRecord,
    RunRecord,
    SourceRecord,
    StepRecord,
)
from orchestrator.results.store.rows import gpu_name
from orchestrator.results.timings import HOW_TO, Peers, Timing, shape_of, timings

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore


#: The shape FlashCore's goals are about; the export speaks of it where a benchmark has it.
MISSION = "mission"


def whole(shown: Shown) -> dict[str, Any]:
    """run.json and every document in one object. Numbers JSON does not have (NaN) become null."""
    document: dict[str, Any] = finite(shown.as_json())
    del document["folder"]  # this machine's business
    return document


def flashcore(shown: Shown) -> dict[str, Any]:
    """``.results.mission.flashcore.p50``, ``.results.mission.pytorch.p50``, ``.config``, ``.speedup``: microseconds.

    ``speedup`` is PyTorch's median over ours, above 1 where ours is faster; null if PyTorch was not timed. Raises
    NotFoundError: the run has no benchmark of ours."""
    results: dict[str, dict[str, Any]] = {}
    config: dict[str, int] = {}
    for document in shown.documents.of("benchmark"):
        timed = timings(document.content)
        for case, (ours, theirs) in _pairs(timed).items():
            results.setdefault(case, {**_result(ours, theirs), "config": ours.shape})
            if case == MISSION or not config:
                config = ours.shape or shape_of(document.content.get("config")) or config
    if not results:
        raise NotFoundError(
            f"run {shown.record.run_id} has no benchmark to export",
            cause="none of its steps wrote a benchmark document with a p50",
            hint=HOW_TO,
        )
    main = results.get(MISSION) or next(iter(results.values()))
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": shown.record.run_id,
        "status": shown.record.status,
        "created": shown.record.created,
        "gpu": gpu_name(shown.record.host),
        "config": config,
        "results": results,
        "speedup": main["speedup"],
    }


def _pairs(found: list[Timing]) -> dict[str, tuple[Timing, Timing | None]]:
    """Case -> our timing and the reference's: of several variants the fastest, in the mode that comes first."""
    pairs: dict[str, tuple[Timing, Timing | None]] = {}
    peers = Peers(found, {})
    for timing in found:
        if timing.is_reference or timing.unit != "us":
            continue
        best = pairs.get(timing.case)
        if best is None or (timing.mode == best[0].mode and (timing.p50 or math.inf) < (best[0].p50 or 0.0)):
            pairs[timing.case] = (timing, next(iter(peers.references(timing)), None))
    return pairs


def _result(ours: Timing, theirs: Timing | None) -> dict[str, Any]:
    speedup = number(theirs.p50 / ours.p50) if theirs and theirs.p50 and ours.p50 else None
    return {"flashcore": _stats(ours), "pytorch": _stats(theirs) if theirs else None, "speedup": speedup}


def _stats(timing: Timing) -> dict[str, Any]:
    named = {key: timing.stats.get(key) for key in ("p50", "p90", "p99", "min", "max", "mean", "n")}
    return {**named, "name": timing.name, "variant": timing.variant or None, "mode": timing.mode or None}


#: The order is a promise: new columns go to the end.
COLUMNS = (
    "run_id", "created", "job", "target", "status", "git_commit", "tree_sha256", "gpu", "driver", "step", "benchmark",
    "case", "variant", "mode", "unit", "dirty", "reference", "b", "h", "s", "d", "n", "p50", "p90", "p99", "min", "max",
    "mean", "stddev", "usd",
)  # fmt: skip
STATISTICS = ("p50", "p90", "p99", "min", "max", "mean", "stddev")


def rows(runs: Iterable[Shown]) -> Iterator[dict[str, Any]]:
    """A row for each benchmark that has a median; None where nobody said."""
    for shown in runs:
        record = shown.record
        run = {
            **pick(record, "run_id created job target status"), **pick(record.source, "git_commit tree_sha256 dirty"),
            "usd": record.cost.usd,
        }  # fmt: skip
        for document in shown.documents.of("benchmark"):
            for timing in timings(document.content):
                row = {**run, **_benchmark(document, timing, part(record.host, "gpu"))}
                yield {column: row[column] for column in COLUMNS}


def write_csv(runs: Iterable[Shown], stream: IO[bytes]) -> None:
    """With a header; text that a spreadsheet would take for a formula begins with an apostrophe."""
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows(runs):
        writer.writerow({key: csv_cell(value) if isinstance(value, str) else value for key, value in row.items()})
    text.detach()


def write_jsonl(runs: Iterable[Shown], stream: IO[bytes]) -> None:
    """One object a line."""
    for row in rows(runs):
        stream.write(json.dumps(row, allow_nan=False).encode() + b"\n")


def _benchmark(document: Document, timing: Timing, gpu: Any) -> dict[str, Any]:
    count = timing.stats.get("n")
    return {
        "step": document.step,
        "gpu": worded(document.content.get("device")) or worded(part(gpu, "name")),
        "driver": worded(part(document.content, "environment", "driver")) or worded(part(gpu, "driver")),
        "benchmark": timing.name, **pick(timing, "case unit"), "reference": timing.is_reference,
        "variant": timing.variant or None, "mode": timing.mode or None,
        **{axis.lower(): _fits((timing.shape or {}).get(axis)) for axis in "BHSD"},
        "n": _fits(int(count)) if count is not None else None,
        **{key: timing.stats.get(key) for key in STATISTICS},
    }  # fmt: skip


def _fits(value: int | None) -> int | None:
    return value if value is not None and abs(value) < 2**63 else None


SUMMARY = Path("reports/summary.md")


def publish(run: Path, into: Path) -> list[Path]:
    """Copies ``artifacts/`` of the run's folder to ``into/artifacts/``, and its report to ``into/reports/summary.md``.
    Files of the same names are replaced, others stay. Returns the copies. Raises NotFoundError: there is nothing;
    ConflictError: a file is where a folder must be, or the disk refuses."""
    source = run / "artifacts"
    pairs = [(path, into / "artifacts" / path.relative_to(source)) for path in sorted(source.rglob("*"))]
    if (source / SUMMARY).is_file():
        pairs.append((source / SUMMARY, into / SUMMARY))
    pairs = [(path, copy) for path, copy in pairs if path.is_file() and not path.is_symlink()]
    if not pairs:
        raise NotFoundError("the run left no artifacts to publish", hint=f"its files: {run}")
    try:
        for path, copy in pairs:
            copy.parent.mkdir(parents=True, exist_ok=True)
            temporary = copy.with_name(f".{copy.name}.new")
            shutil.copyfile(path, temporary)
            temporary.replace(copy)
    except OSError as error:
        hint = "name another folder: --publish DIR"
        raise ConflictError(f"the artifacts cannot be published in {into}", cause=str(error), hint=hint) from error
    return [copy for _, copy in pairs]


#: Part of the run's id, as job and target.
JOB, TARGET = "imported", "unverified"
_STEP, _DOCUMENT = "import", "steps/import/out/benchmark.json"


def import_figures(
    store: FileStore, clock: Clock, path: Path, reader: str, at: str | None, gpu: str | None, *, keep: bool = True
) -> Imported:
    """Take in one file of figures, measured ``at`` a time (ISO 8601, UTC unless it says otherwise; else the file's own
    ``created``) on ``gpu`` (else the file's own). Without ``keep``, read it only. Raises NotFoundError: there is no
    such file; UsageError: no date, or none that can be; FcctlError: the file is not what ``reader`` reads, or the disk
    is full."""
    if not path.exists():
        raise NotFoundError(f"the file {path} does not exist", hint=f"ls {shlex.quote(str(path.parent))}")
    try:
        document = readers.read(reader, str(path))
    except readers.ReaderError as error:
        hint = error.hint or "to see what each reader reads: fcctl help jobs"
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
