"""Readers of JSON: ``google-benchmark``, ``pytest-benchmark``, ``nvbench``, ``flashcore`` and ``metrics``.

google-benchmark (``--benchmark_out=FILE --benchmark_out_format=json``): a repetition reports the mean over its
iterations, so the samples here are such means: their spread is that of repetitions, not of single calls.
pytest-benchmark: the file of ``pytest --benchmark-json`` or ``--benchmark-save`` (times in seconds).
nvbench: the file of ``--json`` (times in seconds). *Cold* runs flush the L2 before each launch, *batch* runs launch
back to back. It has mean, spread and extremes, no samples, hence no percentiles.
flashcore: the JSON of FlashCore's own scripts, which ``fcctl results export --format flashcore`` writes too:
``.results.mission.flashcore.p50``, ``.results.mission.pytorch.p50``, ``.config``, ``.speedup``; microseconds.
metrics: a JSON object of numbers, the simplest thing a script can write.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fcctl_remote.readers import source
from fcctl_remote.readers.source import MAX_ROWS, ReaderError, a_list, an_object, clean, finite, load_json, small

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
    root = an_object(load_json(path))
    if "benchmarks" not in root or second not in root:
        raise ReaderError("not a file of %s" % tool, hint)
    places = ((value, "benchmarks[%d]" % i) for i, value in enumerate(a_list(root["benchmarks"], "benchmarks")))
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
    entries = [_google_entry(name, items) for name, items in runs.items()]
    return source.document([e for e in entries if e is not None], "google-benchmark")


def _google_entry(name: str, items: list[dict[str, Any]]) -> dict[str, Any] | None:
    """None for BigO and RMS alone, which describe no time."""
    for item in items:
        if item.get("error_occurred") or item.get("skipped"):
            message = item.get("error_message") or item.get("skip_message") or "skipped"
            return {**source.benchmark(name), "error": clean(message)}
    repetitions = [i for i in items if i.get("run_type", "iteration") == "iteration"]
    if repetitions:
        entry = source.benchmark(name, [_google_us(i, "real_time") for i in repetitions])
        cpu = [_google_us(i, "cpu_time") for i in repetitions if "cpu_time" in i]
        entry["cpu_time_us"] = sum(cpu) / len(cpu) if cpu else None
        entry["iterations"] = sum(_whole_number(i.get("iterations")) or 0 for i in repetitions)
        entry["counters"] = _counters(repetitions)
        return entry
    known: dict[str, Any] = {}  # from --benchmark_report_aggregates_only
    for item in items:
        if item.get("run_type") == "aggregate" and str(item.get("aggregate_name")) in _AGGREGATES:
            known[_AGGREGATES[item["aggregate_name"]]] = _google_us(item, "real_time")
            known["n"] = _whole_number(item.get("repetitions")) or 0
    return source.benchmark(name, None, **known) if "mean" in known or "p50" in known else None


def _google_us(item: dict[str, Any], key: str) -> float:
    factor = _GOOGLE_TO_US.get(str(item.get("time_unit", "ns")))
    value = source.scaled(item.get(key), factor) if factor else None
    if value is None:
        name = clean(item.get("name", "?"), 120)
        raise ReaderError("%s: no %s in %s" % (name, key, "/".join(_GOOGLE_TO_US)))
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
    names = Counter(str(item.get("name")) for item, _ in items)
    for item, _ in items:
        if names[str(item.get("name"))] > 1 and item.get("fullname"):  # tests of several files
            item["name"] = item["fullname"]
    return source.document([_pytest_entry(*item) for item in items], "pytest-benchmark")


def _pytest_entry(item: dict[str, Any], where: str) -> dict[str, Any]:
    """Statistics, group, parameters, and what the test put into ``benchmark.extra_info``."""
    stats = an_object(item.get("stats"), where + ".stats")
    data = stats.get("data")
    samples = [
        source.scaled(seconds, _US) for seconds in (a_list(data, where + ".stats.data") if data is not None else [])
    ]
    if None in samples:
        raise ReaderError("%s.stats.data[%d]: not a number" % (where, samples.index(None)))
    known: dict[str, Any] = {}
    if not samples:  # all of them follow from the samples
        known = {key: source.scaled(stats.get(key), _US) for key in ("min", "max", "mean", "stddev")}
        known["p50"] = source.scaled(stats.get("median"), _US)
        known["n"] = stats["rounds"] if type(stats.get("rounds")) is int else None
        if known["p50"] is None and known["mean"] is None:
            raise ReaderError("%s: it has no samples, no median and no mean" % where)
    entry = source.benchmark(clean(item.get("name", "?")), [us for us in samples if us is not None], **known)
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
    shape = next(filter(None, map(source.shape, candidates)), None)
    if shape:
        entry["shape"] = shape


_MODES = (("cold", "nv/cold/"), ("batch", "nv/batch/"), ("cpu", "nv/cpu_only/"))


def nvbench(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001
    benchmarks: list[dict[str, Any]] = []
    for bench, _ in _items(path, "nvbench", "devices", "run the benchmark with --json FILE"):
        states = bench.get("states")
        for state in a_list(states, "states") if states is not None else []:
            benchmarks.extend(_state(bench, an_object(state, "state")))
    return source.document(benchmarks, "nvbench")


def _state(bench: dict[str, Any], state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    values = state.get("axis_values")
    axes = [v for v in (values[:50] if isinstance(values, list) else []) if isinstance(v, dict) and "name" in v]
    devices = bench.get("devices")
    if isinstance(devices, list) and len(devices) > 1:  # each state runs on all of them
        axes.append({"name": "device", "value": state.get("device")})
    params = _plain((v["name"], _whole(v.get("value")) if v.get("type") == "int64" else v.get("value")) for v in axes)
    name = clean(bench.get("name", "?"), 200)
    if params:
        name = clean("%s[%s]" % (name, ",".join("%s=%s" % item for item in params.items())))
    if state.get("is_skipped"):
        error = clean(state.get("skip_reason") or "skipped")
        yield {**source.benchmark(name), "params": params, "error": error}
        return
    summaries = _summaries(state)

    def us(tag: str) -> float | None:
        return source.scaled(summaries.get(tag, {}).get("value"), _US)

    for mode, tag in _MODES:
        time = tag + ("time/cpu/" if mode == "cpu" else "time/gpu/")
        known: dict[str, Any] = {key: us(time + key) for key in ("mean", "min", "max")}
        if known["mean"] is None:
            continue
        known.update(p50=us(time + "median"), stddev=us(time + "stdev/absolute"))
        known["n"] = _whole_number(summaries.get(tag + "sample_size", {}).get("value"))
        entry = {**source.benchmark(name, None, **known), "mode": mode, "params": params}
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


#: The case that ``config`` of the whole file is about, where there are several.
MISSION = "mission"
_REFERENCE = re.compile(r"^(?:py)?torch|^sdpa", re.IGNORECASE)
_FLASHCORE_HINT = (
    'a file with times in us: {"results": {"mission": {"flashcore": {"p50": 45.1}, "pytorch": {"p50": 46.0}}}}'
)


def flashcore(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001 - all readers are called alike
    """Each object of ``results.CASE`` with a ``p50`` is one benchmark; PyTorch's are references. A speedup is not
    taken over: it follows from the times."""
    root = an_object(load_json(path))
    if not isinstance(root.get("results"), dict):
        raise ReaderError("no object 'results'", _FLASHCORE_HINT)
    results = {clean(case, 120): an_object(value, "results") for case, value in root["results"].items()}
    entries = [entry for case, timed in results.items() for entry in _flashcore_case(case, timed)]
    if not entries:
        raise ReaderError("no p50 in results", _FLASHCORE_HINT)
    if len(entries) > MAX_ROWS:
        raise ReaderError("%d benchmarks; at most %d" % (len(entries), MAX_ROWS))
    whole = source.shape(root.get("config"))
    for entry in entries:
        if "shape" not in entry and whole and (entry["case"] == MISSION or len(results) == 1):
            entry["shape"] = whole
    document = source.document(entries, "flashcore")
    device = next((root[key] for key in ("gpu", "device") if isinstance(root.get(key), str)), None)
    return {**document, "device": clean(device, 120)} if device else document


def _flashcore_case(case: str, timed: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    shape = source.shape(timed.get("config"))
    for key, stats in timed.items():
        if not isinstance(stats, dict) or stats.get("p50") is None:
            continue
        known: dict[str, Any] = {name: finite(stats.get(name)) for name in source.STATS}
        for name, time in known.items():
            if (time is not None and time < 0) or (name == "p50" and not time):
                raise ReaderError("results.%s.%s.%s is not a time" % (case, clean(key, 80), name))
        counts = [finite(stats.get(name)) for name in ("n", "iterations")]
        known["n"] = next((int(count) for count in counts if count is not None and count > 0), None)
        is_reference = _REFERENCE.search(key) is not None
        name = stats.get("name") or ("%s/%s" % (case, key) if is_reference else case)
        entry = source.benchmark(clean(name, 200), **known)
        entry.update(case=case, variant=clean(stats.get("variant") or key, 80), mode=clean(stats.get("mode") or "", 40))
        if is_reference:
            entry["role"] = "reference"
        if shape:
            entry["shape"] = shape
        yield entry


MAX_METRICS = 10_000


def metrics(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001 - all readers are called alike
    """Nested objects and lists are flattened with dots, true and false become 1 and 0; anything else is refused."""
    value = load_json(path)
    if not isinstance(value, dict):
        raise ReaderError("expected an object of numbers, found %s" % type(value).__name__)
    if value.get("kind") == "metrics" and isinstance(value.get("metrics"), dict):
        value = value["metrics"]
    flat: dict[str, Any] = {}
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        where, item = pending.pop()
        if isinstance(item, (dict, list)):
            inner = item.items() if isinstance(item, dict) else ((str(i), v) for i, v in enumerate(item))
            pending.extend(reversed([("%s.%s" % (where, k) if where else k, v) for k, v in inner]))
        elif isinstance(item, (bool, int, float)):
            flat[_key(where, flat)] = int(item) if isinstance(item, bool) else item
        else:
            kind = "null" if item is None else "text"
            raise ReaderError("'%s' is %s, not a number" % (clean(where, 120), kind), "a metric must be a number")
        if len(flat) + len(pending) > MAX_METRICS:
            raise ReaderError("more than %d metrics" % MAX_METRICS)
    if not flat:
        raise ReaderError("contains no metric", empty=True)
    return {"kind": "metrics", "metrics": flat}


def _key(where: str, flat: Mapping[str, Any]) -> str:
    key = clean(where, 200)
    if key in flat:
        raise ReaderError("two values for '%s'" % key)
    return key
