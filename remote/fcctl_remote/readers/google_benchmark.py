"""Reader ``google-benchmark``: ``--benchmark_out=FILE --benchmark_out_format=json``.

A repetition reports the mean over its iterations, so the samples here are such means: their spread is that of
repetitions, not of single calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fcctl_remote.readers import timing
from fcctl_remote.readers.source import ReaderError, a_list, an_object, clean, finite, load_json

_TO_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_AGGREGATES = {"mean": "mean", "median": "p50", "stddev": "stddev", "min": "min", "max": "max"}
#: Keys of an entry that are not counters the benchmark set itself.
_OWN = frozenset((
    "name", "family_index", "per_family_instance_index", "run_name", "run_type", "repetitions", "repetition_index",
    "threads", "iterations", "real_time", "cpu_time", "time_unit", "aggregate_name", "aggregate_unit",
    "error_occurred", "error_message", "skipped", "skip_message", "label",
))  # fmt: skip


def read(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001
    root = an_object(load_json(path), path)
    if "benchmarks" not in root or "context" not in root:
        raise ReaderError("%s: not a file of google-benchmark" % path, "--benchmark_out_format=json writes one")
    runs: dict[str, list[dict[str, Any]]] = {}
    for i, value in enumerate(a_list(root["benchmarks"], path + ": benchmarks")):
        item = an_object(value, "%s: benchmarks[%d]" % (path, i))
        runs.setdefault(clean(item.get("run_name", item.get("name", "?"))), []).append(item)
    entries = [_entry(name, items, path) for name, items in runs.items()]
    return timing.document([e for e in entries if e is not None], "google-benchmark", path)


def _entry(name: str, items: list[dict[str, Any]], path: str) -> dict[str, Any] | None:
    failed = [i for i in items if i.get("error_occurred") or i.get("skipped")]
    if failed:
        entry = timing.benchmark(name)
        entry["error"] = clean(failed[0].get("error_message") or failed[0].get("skip_message") or "skipped")
        return entry
    repetitions = [i for i in items if i.get("run_type", "iteration") == "iteration"]
    aggregates = {str(i.get("aggregate_name")): i for i in items if i.get("run_type") == "aggregate"}
    if repetitions:
        entry = timing.benchmark(name, [_us(i, "real_time", path) for i in repetitions])
        cpu = [_us(i, "cpu_time", path) for i in repetitions if "cpu_time" in i]
        entry["cpu_time_us"] = sum(cpu) / len(cpu) if cpu else None
        entry["iterations"] = sum(int(finite(i.get("iterations")) or 0) for i in repetitions)
        entry["counters"] = _counters(repetitions)
        return entry
    return _aggregated(name, aggregates, path)


def _aggregated(name: str, aggregates: dict[str, dict[str, Any]], path: str) -> dict[str, Any] | None:
    """An entry from ``--benchmark_report_aggregates_only``. BigO and RMS alone describe no time: None."""
    known: dict[str, Any] = {}
    for theirs, ours in _AGGREGATES.items():
        if theirs in aggregates:
            known[ours] = _us(aggregates[theirs], "real_time", path)
            known["n"] = int(finite(aggregates[theirs].get("repetitions")) or 0)
    return timing.benchmark(name, None, **known) if "mean" in known or "p50" in known else None


def _us(item: dict[str, Any], key: str, path: str) -> float:
    unit = item.get("time_unit", "ns")
    factor = _TO_US.get(unit) if isinstance(unit, str) else None
    value = timing.scaled(item.get(key), factor) if factor else None
    if value is None:
        where = "%s: %s" % (path, clean(item.get("name", "?"), 120))
        raise ReaderError("%s: no %s in %s" % (where, key, "/".join(_TO_US)))
    return value


def _counters(items: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the repetitions of ``bytes_per_second`` and whatever else the benchmark counts."""
    counters: dict[str, float] = {}
    for key in list(items[0])[:100]:
        values = [finite(i.get(key)) for i in items]
        numbers = [v for v in values if v is not None]
        if key not in _OWN and numbers and not isinstance(items[0][key], str):
            counters[clean(key, 80)] = sum(numbers) / len(numbers)
    return counters
