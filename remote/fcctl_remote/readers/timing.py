"""Benchmark documents: statistics over samples, in microseconds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from fcctl_remote.base.estimates import NEEDS, quantile
from fcctl_remote.readers.source import ReaderError, finite

MAX_SAMPLES = 10_000  # kept per benchmark; statistics are over all of them
STATS = ("p50", "p90", "p99", "min", "max", "mean", "stddev")
_SHAPE = re.compile(r"\bB(\d{1,9})_?H(\d{1,9})_?S(\d{1,9})_?D(\d{1,9})\b", re.IGNORECASE)


def statistics_us(samples: Sequence[float]) -> dict[str, Any]:
    """n, p50, p90, p99, min, max, mean and stddev of samples in us; a percentile of too few samples
    (:data:`fcctl_remote.base.estimates.NEEDS`) is null."""
    n = len(samples)
    stats: dict[str, Any] = {"n": n}
    stats.update(dict.fromkeys(STATS))
    if not n:
        return stats
    ordered = sorted(samples)
    mean = math.fsum(ordered) / n
    stats.update(p50=quantile(ordered, 0.5), min=ordered[0], max=ordered[-1], mean=mean)
    stats.update({name: quantile(ordered, int(name[1:]) / 100) for name, least in NEEDS.items() if n >= least})
    if n >= 2:
        stats["stddev"] = math.sqrt(math.fsum((x - mean) ** 2 for x in ordered) / (n - 1))
    return stats


def benchmark(name: str, samples: Sequence[float] | None = None, **known: Any) -> dict[str, Any]:
    """One entry of ``benchmarks``: statistics of the samples, then whatever the tool computed itself."""
    entry: dict[str, Any] = {"name": name, "unit": "us", "stats": statistics_us(samples or [])}
    entry["stats"].update({k: v for k, v in known.items() if v is not None})
    if samples and len(samples) <= MAX_SAMPLES:
        entry["samples"] = list(samples)
    return entry


def document(benchmarks: list[dict[str, Any]], tool: str, path: str) -> dict[str, Any]:
    if not benchmarks:
        raise ReaderError("%s: contains no benchmark" % path, "check that the benchmark's filter matches at least one")
    return {"kind": "benchmark", "tool": tool, "benchmarks": benchmarks, "comparisons": []}


def scaled(value: Any, factor: float) -> float | None:
    """``value * factor`` if that is a finite number, else None."""
    number = finite(value)
    return None if number is None else finite(number * factor)


def shape(value: Any) -> dict[str, int] | None:
    """``{B, H, S, D}`` from an object with those keys, or from text such as ``B1_H8_S512_D64``."""
    if isinstance(value, str):
        match = _SHAPE.search(value[:500])
        return dict(zip("BHSD", map(int, match.groups()))) if match else None  # noqa: B905
    if isinstance(value, dict) and all(type(value.get(k)) is int for k in "BHSD"):
        return {k: value[k] for k in "BHSD"}
    return None
