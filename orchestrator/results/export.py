"""Results for other tools: the benchmark table as CSV, JSON or Parquet, MLflow's folders, and baselines."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import os
import re
import stat
import tarfile
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from orchestrator.base.clock import epoch
from orchestrator.base.errors import ConflictError, FcctlError, NotFoundError, UsageError
from orchestrator.base.sanitize import csv_cell, finite, part
from orchestrator.results.documents import Document
from orchestrator.results.look import Shown
from orchestrator.results.measurement import HOW_TO
from orchestrator.results.records import IMPORTED, SCHEMA_VERSION
from orchestrator.results.store.rows import gpu_name
from orchestrator.results.timings import Timing, reference_of, shape_of, timings

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


def archive(runs: Iterable[Shown], stream: IO[bytes]) -> None:
    """Write the runs' folders as tar.gz, the same bytes for the same files whoever packs them, whenever."""
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0, compresslevel=6) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for run_id, folder, finished in sorted((s.record.run_id, s.folder, s.record.finished) for s in runs):
            _add(tar, folder, run_id, int(epoch(finished) or 0))


def _pairs(found: list[Timing]) -> dict[str, tuple[Timing, Timing | None]]:
    """Case -> our timing and the reference's: of several variants the fastest, in the mode that comes first."""
    pairs: dict[str, tuple[Timing, Timing | None]] = {}
    for timing in found:
        if timing.is_reference or timing.unit != "us":
            continue
        best = pairs.get(timing.case)
        if best is None or (timing.mode == best[0].mode and (timing.p50 or math.inf) < (best[0].p50 or 0.0)):
            pairs[timing.case] = (timing, reference_of(timing, found))
    return pairs


def _result(ours: Timing, theirs: Timing | None) -> dict[str, Any]:
    speedup = theirs.p50 / ours.p50 if theirs and theirs.p50 and ours.p50 else None
    return {"flashcore": _stats(ours), "pytorch": _stats(theirs) if theirs else None, "speedup": speedup}


def _stats(timing: Timing) -> dict[str, Any]:
    named = {key: timing.stats.get(key) for key in ("p50", "p90", "p99", "min", "max", "mean", "n")}
    return {**named, "name": timing.name, "variant": timing.variant or None, "mode": timing.mode or None}


def _add(tar: tarfile.TarFile, folder: Path, name: str, mtime: int) -> None:
    for top, folders, names in os.walk(folder, followlinks=False):
        folders.sort()
        here = Path(top)
        inside = Path(name) / here.relative_to(folder)
        _add_entry(tar, inside.as_posix(), tarfile.DIRTYPE, 0o755, mtime)
        for file in sorted(names):
            # What is no plain file was not put there by fcctl, and does not leave with an archive either.
            if stat.S_ISREG((here / file).lstat().st_mode):
                with (here / file).open("rb") as content:
                    _add_entry(tar, (inside / file).as_posix(), tarfile.REGTYPE, 0o644, mtime, content)


def _add_entry(
    tar: tarfile.TarFile, name: str, kind: bytes, mode: int, mtime: int, content: IO[bytes] | None = None
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, mtime
    info.size = os.fstat(content.fileno()).st_size if content else 0
    tar.addfile(info, content)


#: MLflow's own numbers of a run's status: FINISHED and FAILED.
FINISHED, FAILED = 3, 4
_STATS = ("p50", "p90", "p99", "min", "max", "mean", "stddev")
_NOT_A_NAME = re.compile(r"[^A-Za-z0-9_.\- ]+")


def write_mlflow(runs: Iterable[Shown], root: Path) -> list[str]:
    """Write into ``root``, which is made; the ids of the runs that were written. Raises ConflictError: ``root`` is
    something else than a folder of MLflow's; FcctlError: it cannot be written."""
    if root.exists() and (not root.is_dir() or (any(root.iterdir()) and not any(root.glob("*/meta.yaml")))):
        raise ConflictError(f"{root} exists, and is not a folder of MLflow", hint="choose another folder: -o DIR")
    try:
        return [_run(shown, root) for shown in runs]
    except OSError as exc:
        raise FcctlError(
            f"could not write {root}", cause=exc.strerror, hint="choose a folder that you may write to: -o DIR"
        ) from exc


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
          status=FINISHED if record.status in ("passed", IMPORTED) else FAILED, tags=[], user_id="fcctl")  # fmt: skip
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
        for key in _STATS:
            if row[key] is not None:
                found.setdefault(_name(f"{name}.{key}"), []).append(row[key])
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


#: The order is a promise: new columns go to the end.
TEXTS = (
    "run_id", "created", "job", "target", "status", "git_commit", "tree_sha256", "gpu", "driver", "step", "benchmark",
    "case", "variant", "mode", "unit",
)  # fmt: skip
FLAGS = ("dirty", "reference")
COUNTS = ("b", "h", "s", "d", "n")
NUMBERS = ("p50", "p90", "p99", "min", "max", "mean", "stddev", "usd")
COLUMNS = (*TEXTS, *FLAGS, *COUNTS, *NUMBERS)


def rows(runs: Iterable[Shown]) -> Iterator[dict[str, Any]]:
    """A row for each benchmark that has a median; None where nobody said."""
    for shown in runs:
        for document in shown.documents.of("benchmark"):
            for timing in timings(document.content):
                row = {**_run_columns(shown), **_benchmark(document, timing, shown)}
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


def write_parquet(runs: Iterable[Shown], stream: IO[bytes]) -> None:
    """The same columns and types whatever the runs hold. Raises UsageError: pyarrow is not installed."""
    try:
        import pyarrow as pa  # type: ignore[import-untyped]  # it ships without types
        from pyarrow import parquet
    except ImportError as exc:
        from orchestrator.base.installation import to_install

        raise UsageError("Parquet needs pyarrow", hint=f"{to_install('parquet')}; or --format csv") from exc
    types = (
        *((name, pa.string()) for name in TEXTS),
        *((name, pa.bool_()) for name in FLAGS),
        *((name, pa.int64()) for name in COUNTS),
        *((name, pa.float64()) for name in NUMBERS),
    )
    table = pa.Table.from_pylist(list(rows(runs)), schema=pa.schema(types))
    parquet.write_table(table, stream, compression="zstd")


def _run_columns(shown: Shown) -> dict[str, Any]:
    record = shown.record
    gpu = record.host.get("gpu")
    return {
        "run_id": record.run_id,
        "created": record.created,
        "job": record.job,
        "target": record.target,
        "status": record.status,
        "git_commit": record.source.git_commit,
        "tree_sha256": record.source.tree_sha256,
        "dirty": record.source.dirty,
        "gpu": _text(part(gpu, "name")),
        "driver": _text(part(gpu, "driver")),
        "usd": record.cost.usd,
    }


def _benchmark(document: Document, timing: Timing, shown: Shown) -> dict[str, Any]:
    shape = timing.shape or {}
    whole = timing.stats.get("n")
    gpu = part(shown.record.host, "gpu")
    return {
        "step": document.step,
        "gpu": _text(document.content.get("device")) or _text(part(gpu, "name")),
        "driver": _text(part(document.content, "environment", "driver")) or _text(part(gpu, "driver")),
        "benchmark": timing.name,
        "case": timing.case,
        "variant": timing.variant or None,
        "mode": timing.mode or None,
        "unit": timing.unit,
        "reference": timing.is_reference,
        "b": _fits(shape.get("B")),
        "h": _fits(shape.get("H")),
        "s": _fits(shape.get("S")),
        "d": _fits(shape.get("D")),
        "n": _fits(int(whole)) if whole is not None else None,
        **{key: timing.stats.get(key) for key in NUMBERS if key != "usd"},
    }


def _fits(value: int | None) -> int | None:
    return value if value is not None and abs(value) < 2**63 else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
