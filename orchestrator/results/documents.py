"""The documents and the telemetry of a complete run, read back. Names and content came from a host and are not trusted:
nothing in them need be there or have the right type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.base import json_text, safe_paths
from orchestrator.base.json_text import Budget
from orchestrator.base.sanitize import listed, number, objects
from orchestrator.results.records import RunRecord, StepRecord

#: Documents of a run that are looked at.
MAX_DOCUMENTS = 500
#: Of a step.
WENT_WELL = ("passed", "warned")
#: Kind of a search's document, and its name.
TUNING = "tuning"


@dataclass(frozen=True)
class Document:
    """One JSON document a step wrote. ``path`` is relative to the run's folder."""

    step: str
    kind: str
    path: str
    content: dict[str, Any]


@dataclass(frozen=True)
class Documents:
    """What could be read, in the order of the steps, and a line for each that could not."""

    items: tuple[Document, ...]
    problems: tuple[str, ...] = ()

    def of(self, kind: str) -> list[Document]:
        return [d for d in self.items if d.kind == kind]


def load(record: RunRecord, folder: Path, budget: Budget | None = None) -> Documents:
    """Read the documents that ``record`` names from the run's ``folder``, and what cut-off searches had found.
    ``budget`` is the memory that they may take together; a run's own if absent."""
    items, problems = [], []
    budget, room = budget or Budget(), MAX_DOCUMENTS
    for step in record.steps:
        if len(step.documents) > room:
            rest = len(step.documents) - room
            problems.append(f"{step.id}: fcctl reads at most {MAX_DOCUMENTS} documents of a run; not read: {rest}")
        for ref in step.documents[:room]:
            room -= 1
            try:
                items.append(Document(step.id, ref.kind, ref.path, read(folder, ref.path, budget)))
            except (OSError, ValueError) as exc:
                problems.append(f"{step.id}: {ref.path}: {exc.strerror if isinstance(exc, OSError) else exc}")
        items += _untold(step, folder, budget)
    return Documents(tuple(items), tuple(problems))


def _untold(step: StepRecord, folder: Path, budget: Budget) -> Iterator[Document]:
    """What a search had found that was cut off: its record does not name it, since nobody looked at what a cancelled
    step had left. Of one that went well it does not name what the host found fault with."""
    if step.status in WENT_WELL or any(ref.kind == TUNING for ref in step.documents):
        return
    path = f"steps/{step.id}/out/{TUNING}.json"
    try:
        content = read(folder, path, budget)
    except (OSError, ValueError):
        return
    if content.get("kind") == TUNING:
        yield Document(step.id, TUNING, path, content)


def label(document: Document) -> str:
    """What ties documents of one kernel together: its label (the variant with its settings); empty without one."""
    return str(document.content.get("label") or document.content.get("variant") or "")


def read(folder: Path, path: str, budget: Budget) -> dict[str, Any]:
    """The document ``path`` of the run in ``folder``. Raises OSError: it is not there, or may not be read; ValueError:
    it is none, or takes more memory than ``budget`` has left."""
    stream, size = safe_paths.open_result(folder, path)
    with stream:
        if size > budget.left:
            raise json_text.TooLarge(f"its {size} bytes need more memory than fcctl allows for documents")
        content = stream.read(size)
    value = budget.loads(content)
    if not isinstance(value, dict):
        raise ValueError("not an object")  # noqa: TRY004  one kind of error for everything a host can get wrong
    return value


FILE = "telemetry.jsonl"
MAX_BYTES = 256 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024
#: The most points of a series that are kept; a screen shows no more.
POINTS = 300
GPU_KEYS = ("util_pct", "mem_used_mb", "sm_mhz", "power_w", "temp_c")
HOST_KEYS = ("cpu_pct", "mem_used_mb")


@dataclass(frozen=True)
class Sample:
    """One moment: epoch seconds on the host's clock, finite numbers by key, and why the GPU was slowed, if it was; None
    if it does not report that."""

    time: float
    values: dict[str, float]
    throttled: tuple[str, ...] | None = ()


@dataclass(frozen=True)
class Series:
    """Samples of the GPU that worked most, or of the machine if it has none."""

    samples: tuple[Sample, ...] = ()
    gpu: str | None = None
    gpus: int = 0


def load_telemetry(folder: Path, points: int = POINTS) -> Series:
    """The telemetry of the run in ``folder``, thinned to about ``points``; empty if there is none to be read."""
    kept: list[dict[str, Any]] = []
    every = 1
    for i, line in enumerate(_lines(folder)):
        if i % every:
            continue
        sample = parse(line)
        if sample is not None:
            kept.append(sample)
        if len(kept) >= 2 * points:  # twice as many as wanted: keep every other one, and read on that coarsely
            kept, every = kept[::2], every * 2
    return of(kept)


def parse(line: bytes | str) -> dict[str, Any] | None:
    """Returns the sample in one line of telemetry.jsonl; None if the line has none."""
    try:
        value = json_text.loads(line)
    except ValueError:
        return None
    if not isinstance(value, dict) or number(value.get("time")) is None:
        return None
    gpus = [{key: gpu[key] for key in (*GPU_KEYS, "name", "throttle") if key in gpu} for gpu in _gpus(value)]
    return {**{key: value[key] for key in ("time", *HOST_KEYS) if key in value}, **({"gpus": gpus} if gpus else {})}


def of(raw: list[dict[str, Any]]) -> Series:
    """A series of samples as the host writes them."""
    busy: dict[int, float] = {}
    for sample in raw:
        for i, gpu in enumerate(_gpus(sample)):
            busy[i] = busy.get(i, 0.0) + (number(gpu.get("util_pct")) or 0.0)
    if not busy:
        return Series(tuple(Sample(float(s["time"]), _numbers(s, HOST_KEYS)) for s in raw))
    chosen = max(busy, key=lambda i: (busy[i], -i))
    samples, name = [], None
    for sample in raw:
        gpus = _gpus(sample)
        if chosen < len(gpus):
            gpu = gpus[chosen]
            name = name or str(gpu.get("name") or "")
            # Low clocks of an idle GPU are no fault.
            reasons = tuple(str(r)[:60] for r in listed(gpu.get("throttle"))[:8] if r != "gpu_idle")
            known = reasons if isinstance(gpu.get("throttle"), list) else None
            samples.append(Sample(float(sample["time"]), _numbers(gpu, GPU_KEYS), known))
    return Series(tuple(samples), name or "GPU", len(busy))


def _lines(folder: Path) -> Iterator[bytes]:
    try:
        stream, size = safe_paths.open_result(folder, FILE)
    except (OSError, ValueError):
        return
    with stream:
        while size <= MAX_BYTES and (line := stream.readline(MAX_LINE_BYTES)):
            yield line


def _gpus(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return objects(listed(sample.get("gpus"))[:16])


def _numbers(value: dict[str, Any], keys: tuple[str, ...]) -> dict[str, float]:
    return {key: found for key in keys if (found := number(value.get(key))) is not None}
