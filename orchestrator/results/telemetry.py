"""A run's telemetry, read back: what the machine did while the steps ran. The file came from a host: nothing in it
need be there or have the right type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.base import json_text, safe_paths
from orchestrator.base.sanitize import listed, number, objects

FILE = "telemetry.jsonl"
MAX_BYTES = 256 * 1024 * 1024
MAX_LINE_BYTES = 64 * 1024
#: Points a series is thinned to: more than a screen can show helps nobody.
POINTS = 300
GPU_KEYS = ("util_pct", "mem_used_mb", "sm_mhz", "power_w", "temp_c")
HOST_KEYS = ("cpu_pct", "mem_used_mb")


@dataclass(frozen=True)
class Sample:
    """One moment: epoch seconds on the host's clock, finite numbers by key, and why the GPU was slowed, if it was."""

    time: float
    values: dict[str, float]
    throttled: tuple[str, ...] = ()


@dataclass(frozen=True)
class Series:
    """Samples of the GPU that worked most, or of the machine if it has none."""

    samples: tuple[Sample, ...] = ()
    gpu: str | None = None
    gpus: int = 0


def load(folder: Path, points: int = POINTS) -> Series:
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
    """What is read of one line of the file; None if it is no sample."""
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
            samples.append(Sample(float(sample["time"]), _numbers(gpu, GPU_KEYS), reasons))
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
