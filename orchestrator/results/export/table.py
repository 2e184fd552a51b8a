"""The benchmarks of runs as a table: one row each, for spreadsheets, data frames and experiment trackers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import IO, Any

from orchestrator.base.errors import UsageError
from orchestrator.base.text.escape import csv_cell
from orchestrator.base.untrusted import part
from orchestrator.results.documents import Document
from orchestrator.results.look import Shown
from orchestrator.results.timings import Timing, timings

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
                found = {**_run(shown), **_benchmark(document, timing, shown)}
                yield {column: found[column] for column in COLUMNS}


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
    """The same columns and types whatever the runs hold.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # type: ignore[import-untyped]  # it ships without types
        from pyarrow import parquet
    except ImportError as exc:
        from orchestrator.base.extras import to_install

        raise UsageError("Parquet needs pyarrow", hint=f"{to_install('parquet')}; or --format csv") from exc
    types = (
        *((name, pa.string()) for name in TEXTS),
        *((name, pa.bool_()) for name in FLAGS),
        *((name, pa.int64()) for name in COUNTS),
        *((name, pa.float64()) for name in NUMBERS),
    )
    table = pa.Table.from_pylist(list(rows(runs)), schema=pa.schema(types))
    parquet.write_table(table, stream, compression="zstd")


def _run(shown: Shown) -> dict[str, Any]:
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
