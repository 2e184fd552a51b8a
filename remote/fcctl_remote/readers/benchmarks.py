"""Readers of benchmark programs: ``google-benchmark``, ``pytest-benchmark``, ``nvbench``.

google-benchmark (``--benchmark_out=FILE --benchmark_out_format=json``): a repetition reports the mean over its
iterations, so the samples here are such means: their spread is that of repetitions, not of single calls.
pytest-benchmark: the file of ``pytest --benchmark-json`` or ``--benchmark-save`` (times in seconds).
nvbench: the file of ``--json`` (times in seconds). *Cold* runs flush the L2 before each launch, *batch* runs launch
back to back. It has mean, spread and extremes, no samples, hence no percentiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fcctl_remote.readers import timing
from fcctl_remote.readers.source import ReaderError, a_list, an_object, clean, finite, load_json, small

_US = 1e6
_GOOGLE_TO_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": _US}
_AGGREGATES = {"mean": "mean", "median": "p50", "stddev": "stddev", "min": "min", "max": "max"}
#: Keys of an entry that are not counters the benchmark set itself.
_GOOGLE_KEYS = frozenset((
    "name", "family_index", "per_family_instance_index", "run_name", "run_type", "repetitions", "repetition_index",
    "threads", "iterations", "real_time", "cpu_time", "time_unit", "aggregate_name", "aggregate_unit",
    "error_occurred", "error_message", "skipped", "skip_message", "label",
))  # fmt: skip


def _items(path: str, tool: str, second: str, hint: str) -> list[tuple[dict[str, Any], str]]:
    """The objects of the file's ``benchmarks`` and where each is; the file of ``tool`` also has the key ``second``."""
    root = an_object(load_json(path), path)
    if "benchmarks" not in root or second not in root:
        raise ReaderError("%s: not a file of %s" % (path, tool), hint)
    listed = "%s: benchmarks" % path
    places = ((value, "%s[%d]" % (listed, i)) for i, value in enumerate(a_list(root["benchmarks"], listed)))
    return [(an_object(value, where), where) for value, where in places]


def _whole_number(value: Any) -> int | None:
    number = finite(value)
    return None if number is None else int(number)


def google_benchmark(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001
    runs: dict[str, list[dict[str, Any]]] = {}
    for item, _ in _items(
        path, "google-benchmark", "context", "write one with --benchmark_out=FILE --benchmark_out_format=json"
    ):
        runs.setdefault(clean(item.get("run_name", item.get("name", "?"))), []).append(item)
    entries = [_google_entry(name, items, path) for name, items in runs.items()]
    return timing.document([e for e in entries if e is not None], "google-benchmark", path)


def _google_entry(name: str, items: list[dict[str, Any]], path: str) -> dict[str, Any] | None:
    """None for BigO and RMS alone, which describe no time."""
    for item in items:
        if item.get("error_occurred") or item.get("skipped"):
            message = item.get("error_message") or item.get("skip_message") or "skipped"
            return {**timing.benchmark(name), "error": clean(message)}
    repetitions = [i for i in items if i.get("run_type", "iteration") == "iteration"]
    if repetitions:
        entry = timing.benchmark(name, [_google_us(i, "real_time", path) for i in repetitions])
        cpu = [_google_us(i, "cpu_time", path) for i in repetitions if "cpu_time" in i]
        entry["cpu_time_us"] = sum(cpu) / len(cpu) if cpu else None
        entry["iterations"] = sum(_whole_number(i.get("iterations")) or 0 for i in repetitions)
        entry["counters"] = _counters(repetitions)
        return entry
    known: dict[str, Any] = {}  # from --benchmark_report_aggregates_only
    for item in items:
        if item.get("run_type") == "aggregate" and str(item.get("aggregate_name")) in _AGGREGATES:
            known[_AGGREGATES[item["aggregate_name"]]] = _google_us(item, "real_time", path)
            known["n"] = _whole_number(item.get("repetitions")) or 0
    return timing.benchmark(name, None, **known) if "mean" in known or "p50" in known else None


def _google_us(item: dict[str, Any], key: str, path: str) -> float:
    factor = _GOOGLE_TO_US.get(str(item.get("time_unit", "ns")))
    value = timing.scaled(item.get(key), factor) if factor else None
    if value is None:
        where = "%s: %s" % (path, clean(item.get("name", "?"), 120))
        raise ReaderError("%s: no %s in %s" % (where, key, "/".join(_GOOGLE_TO_US)))
    return value


def _counters(items: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the repetitions of ``bytes_per_second`` and whatever else the benchmark counts."""
    counters: dict[str, float] = {}
    for key in list(items[0])[:100]:
        numbers = [v for v in (finite(i.get(key)) for i in items) if v is not None]
        if key not in _GOOGLE_KEYS and numbers and not isinstance(items[0][key], str):
            counters[clean(key, 80)] = sum(numbers) / len(numbers)
    return counters


def pytest_benchmark(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001
    items = _items(path, "pytest-benchmark", "machine_info", "write one with pytest --benchmark-json=FILE")
    return timing.document([_pytest_entry(*item) for item in items], "pytest-benchmark", path)


def _pytest_entry(item: dict[str, Any], where: str) -> dict[str, Any]:
    """Statistics, group, parameters, and what the test put into ``benchmark.extra_info``."""
    stats = an_object(item.get("stats"), where + ".stats")
    data = stats.get("data")
    samples = [
        timing.scaled(seconds, _US) for seconds in (a_list(data, where + ".stats.data") if data is not None else [])
    ]
    if None in samples:
        raise ReaderError("%s.stats.data[%d]: not a number" % (where, samples.index(None)))
    known: dict[str, Any] = {}
    if not samples:  # all of them follow from the samples
        known = {key: timing.scaled(stats.get(key), _US) for key in ("min", "max", "mean", "stddev")}
        known["p50"] = timing.scaled(stats.get("median"), _US)
        known["n"] = stats["rounds"] if type(stats.get("rounds")) is int else None
        if known["p50"] is None and known["mean"] is None:
            raise ReaderError("%s: it has no samples, no median and no mean" % where)
    entry = timing.benchmark(clean(item.get("name", "?")), [us for us in samples if us is not None], **known)
    if item.get("group"):
        entry["group"] = clean(item["group"], 120)
    for key in ("params", "extra_info"):
        values = item.get(key)
        plain = _plain(values.items()) if isinstance(values, dict) else {}
        if plain:
            entry[key] = plain
    extra = item.get("extra_info")
    if isinstance(extra, dict):
        entry.update({key: clean(extra[key], 80) for key in ("variant", "mode") if isinstance(extra.get(key), str)})
        _add_shape(entry, extra.get("shape"))
    return entry


def _plain(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    return {clean(k, 80): small(v)[1] for k, v in list(pairs)[:50] if small(v)[0]}


def _add_shape(entry: dict[str, Any], *candidates: Any) -> None:
    shape = next(filter(None, map(timing.shape, candidates)), None)
    if shape:
        entry["shape"] = shape


_MODES = (("cold", "nv/cold/"), ("batch", "nv/batch/"), ("cpu", "nv/cpu_only/"))


def nvbench(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001
    benchmarks: list[dict[str, Any]] = []
    for bench, _ in _items(path, "nvbench", "devices", "run the benchmark with --json FILE"):
        states = bench.get("states")
        for state in a_list(states, path + ": states") if states is not None else []:
            benchmarks.extend(_state(bench, an_object(state, path + ": state")))
    return timing.document(benchmarks, "nvbench", path)


def _state(bench: dict[str, Any], state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    values = state.get("axis_values")
    axes = [v for v in (values[:50] if isinstance(values, list) else []) if isinstance(v, dict) and "name" in v]
    params = _plain((v["name"], _whole(v.get("value")) if v.get("type") == "int64" else v.get("value")) for v in axes)
    name = clean(bench.get("name", "?"), 200)
    if params:
        name = clean("%s[%s]" % (name, ",".join("%s=%s" % item for item in params.items())))
    if state.get("is_skipped"):
        error = clean(state.get("skip_reason") or "skipped")
        yield {**timing.benchmark(name), "params": params, "error": error}
        return
    summaries = _summaries(state)

    def us(tag: str) -> float | None:
        return timing.scaled(summaries.get(tag, {}).get("value"), _US)

    for mode, tag in _MODES:
        time = tag + ("time/cpu/" if mode == "cpu" else "time/gpu/")
        known: dict[str, Any] = {key: us(time + key) for key in ("mean", "min", "max")}
        if known["mean"] is None:
            continue
        known.update(p50=us(time + "median"), stddev=us(time + "stdev/absolute"))
        known["n"] = _whole_number(summaries.get(tag + "sample_size", {}).get("value"))
        entry = {**timing.benchmark(name, None, **known), "mode": mode, "params": params}
        _add_shape(entry, params, {k: _whole(v) for k, v in params.items()})
        yield entry


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() and len(value) < 10 else value


def _summaries(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Tag -> {name: value}, from a list of tagged summaries."""
    by_tag: dict[str, dict[str, Any]] = {}
    summaries = state.get("summaries")
    for summary in summaries[:500] if isinstance(summaries, list) else []:
        data = summary.get("data") if isinstance(summary, dict) else None
        if isinstance(data, list):
            pairs = [d for d in data[:100] if isinstance(d, dict)]
            by_tag[str(summary.get("tag"))] = {str(d.get("name")): d.get("value") for d in pairs}
    return by_tag
