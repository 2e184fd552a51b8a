"""Reader ``pytest-benchmark``: the file of ``pytest --benchmark-json`` or ``--benchmark-save`` (times in seconds)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fcctl_remote.readers import timing
from fcctl_remote.readers.source import ReaderError, a_list, an_object, clean, load_json, small

_US = 1e6


def read(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001
    root = an_object(load_json(path), path)
    if "benchmarks" not in root or "machine_info" not in root:
        raise ReaderError("%s: not a file of pytest-benchmark" % path, "pytest --benchmark-json=FILE writes one")
    entries = a_list(root["benchmarks"], path + ": benchmarks")
    benchmarks = [_entry(e, "%s: benchmarks[%d]" % (path, i)) for i, e in enumerate(entries)]
    return timing.document(benchmarks, "pytest-benchmark", path)


def _entry(value: Any, where: str) -> dict[str, Any]:
    item = an_object(value, where)
    stats = an_object(item.get("stats"), where + ".stats")
    known: dict[str, Any] = {key: timing.scaled(stats.get(key), _US) for key in ("min", "max", "mean", "stddev")}
    known["p50"] = timing.scaled(stats.get("median"), _US)
    rounds = stats.get("rounds")
    known["n"] = rounds if isinstance(rounds, int) and not isinstance(rounds, bool) else None
    samples = _samples(stats.get("data"), where + ".stats.data")
    if samples:
        known = {}  # all of them follow from the samples
    elif known["p50"] is None and known["mean"] is None:
        raise ReaderError("%s: neither samples nor a median nor a mean" % where)
    entry = timing.benchmark(clean(item.get("name", "?")), samples, **known)
    _describe(entry, item)
    return entry


def _samples(value: Any, where: str) -> list[float]:
    samples: list[float] = []
    for i, seconds in enumerate(a_list(value, where) if value is not None else []):
        us = timing.scaled(seconds, _US)
        if us is None:
            raise ReaderError("%s[%d]: not a number" % (where, i))
        samples.append(us)
    return samples


def _describe(entry: dict[str, Any], item: dict[str, Any]) -> None:
    """Group, parameters, and what the test put into ``benchmark.extra_info``."""
    if item.get("group"):
        entry["group"] = clean(item["group"], 120)
    for key in ("params", "extra_info"):
        values = item.get(key)
        if isinstance(values, dict):
            kept = {clean(k, 80): small(v)[1] for k, v in list(values.items())[:50] if small(v)[0]}
            if kept:
                entry[key] = kept
    extra = item.get("extra_info")
    if isinstance(extra, dict):
        for key in ("variant", "mode"):
            if isinstance(extra.get(key), str):
                entry[key] = clean(extra[key], 80)
        found = timing.shape(extra.get("shape"))
        if found:
            entry["shape"] = found
