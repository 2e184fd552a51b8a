"""Reader ``nvbench``: the file of ``--json`` or ``--jsonbin``, or of ``--csv``.

nvbench times in seconds. *Cold* runs flush the L2 before each launch, *batch* runs launch back to back. The JSON file
alone carries mean, spread and extremes; single samples, hence percentiles, only with ``--jsonbin``.
"""

from __future__ import annotations

import csv
import math
import os
import struct
from collections.abc import Mapping
from typing import Any

from fcctl_remote.readers import timing
from fcctl_remote.readers.source import (
    ReaderError,
    a_list,
    an_object,
    clean,
    finite,
    lines,
    load_json,
    read_bytes,
    small,
)

_US = 1e6
_MODES = (("cold", "nv/cold/time/gpu/"), ("batch", "nv/batch/time/gpu/"), ("cpu", "nv/cpu_only/time/cpu/"))
_SAMPLES = "nv/json/bin:nv/cold/sample_times"
_SAMPLE_BYTES = 4  # little-endian float32 seconds


def read(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001
    first = next((line.lstrip("\ufeff \t") for line in lines(path) if line.strip()), "")
    benchmarks = _from_json(path) if first.startswith("{") else _from_csv(path)
    return timing.document(benchmarks, "nvbench", path)


# ------------------------------------------------------------------------------------------------ JSON
def _from_json(path: str) -> list[dict[str, Any]]:
    root = an_object(load_json(path), path)
    if "benchmarks" not in root or "devices" not in root:
        raise ReaderError("%s: not a file of nvbench" % path, "run the benchmark with --json FILE")
    found: list[dict[str, Any]] = []
    for i, value in enumerate(a_list(root["benchmarks"], path + ": benchmarks")):
        bench = an_object(value, "%s: benchmarks[%d]" % (path, i))
        states = bench.get("states")
        for state in a_list(states, path + ": states") if states is not None else []:
            found.extend(_state(bench, an_object(state, path + ": state"), path))
    return found


def _state(bench: dict[str, Any], state: dict[str, Any], path: str) -> list[dict[str, Any]]:
    params = _params(state)
    name = clean(bench.get("name", "?"), 200)
    if params:
        name += "[%s]" % ",".join("%s=%s" % item for item in params.items())
    if state.get("is_skipped"):
        entry = timing.benchmark(clean(name))
        entry.update(params=params, error=clean(state.get("skip_reason") or "skipped"))
        return [entry]
    summaries = _summaries(state)
    entries = []
    for mode, prefix in _MODES:
        values = {key: _seconds(summaries, prefix + key) for key in ("mean", "min", "max", "stdev/absolute", "median")}
        if values["mean"] is None:
            continue
        samples = _samples(summaries, path) if mode == "cold" else []
        count = finite(summaries.get("nv/%s/sample_size" % mode.replace("cpu", "cpu_only"), {}).get("value"))
        known = {"mean": values["mean"], "min": values["min"], "max": values["max"], "p50": values["median"]}
        known.update(stddev=values["stdev/absolute"], n=None if count is None else int(count))
        entry = timing.benchmark(clean(name), samples, **({} if samples else known))
        entry.update(mode=mode, params=params)
        found = timing.shape(params) or timing.shape({k: _whole(v) for k, v in params.items()})
        if found:
            entry["shape"] = found
        entries.append(entry)
    return entries


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdigit() and len(value) < 10 else value


def _params(state: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {}
    values = state.get("axis_values")
    for value in values[:50] if isinstance(values, list) else []:
        if isinstance(value, dict) and "name" in value and small(value.get("value"))[0]:
            number = _whole(value["value"]) if value.get("type") == "int64" else value["value"]
            params[clean(value["name"], 80)] = small(number)[1]
    return params


def _summaries(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Tag -> {name: value}, from a list of tagged summaries."""
    found: dict[str, dict[str, Any]] = {}
    summaries = state.get("summaries")
    for summary in summaries[:500] if isinstance(summaries, list) else []:
        data = summary.get("data") if isinstance(summary, dict) else None
        if isinstance(data, list):
            pairs = [d for d in data[:100] if isinstance(d, dict)]
            found[str(summary.get("tag"))] = {str(d.get("name")): d.get("value") for d in pairs}
    return found


def _seconds(summaries: dict[str, dict[str, Any]], tag: str) -> float | None:
    return timing.scaled(summaries.get(tag, {}).get("value"), _US)


def _samples(summaries: dict[str, dict[str, Any]], path: str) -> list[float]:
    """Samples of ``--jsonbin``, in us. The side file must lie in the JSON file's own folder or below it."""
    binary = summaries.get(_SAMPLES, {})
    name, size = binary.get("filename"), finite(binary.get("size"))
    if not isinstance(name, str) or not size or "\0" in name:
        return []
    folder = os.path.realpath(os.path.dirname(path) or ".")
    target = os.path.realpath(os.path.join(folder, name))
    if not os.path.isfile(target):  # nvbench writes the name relative to where it ran
        target = os.path.realpath(os.path.join(os.path.dirname(folder), name))
    if os.path.commonpath([folder, target]) != folder:
        raise ReaderError("%s: samples outside its folder: %s" % (path, clean(name, 120)))
    if not os.path.exists(target):
        return []  # left behind: the JSON file's own summaries still count
    data = read_bytes(target)
    if len(data) != int(size) * _SAMPLE_BYTES:
        raise ReaderError("%s: %d bytes of samples, %d expected" % (target, len(data), int(size) * _SAMPLE_BYTES))
    values = struct.unpack("<%df" % int(size), data)
    if not all(math.isfinite(v) for v in values):
        raise ReaderError("%s: a sample is not a finite number" % target)
    return [v * _US for v in values]


# ------------------------------------------------------------------------------------------------ CSV
_CSV_TIMES = (("cold", "GPU Time (sec)"), ("batch", "Batch GPU (sec)"))
_CSV_KNOWN = ("Benchmark", "Device", "Device Name", "Skipped")


def _from_csv(path: str) -> list[dict[str, Any]]:
    """Means only: the CSV has no spread whose unit would be the same in all versions of nvbench."""
    rows = csv.reader(line for line in lines(path) if line.strip())
    found: list[dict[str, Any]] = []
    try:
        header = next(rows, [])
        if "Benchmark" not in header or "Skipped" not in header:
            raise ReaderError("%s: neither JSON nor CSV of nvbench" % path, "run the benchmark with --json FILE")
        for row in rows:
            if len(row) != len(header):
                hint = "a value with a comma splits columns in nvbench's CSV; use --json"
                raise ReaderError(
                    "%s: line %d has %d columns, not %d" % (path, rows.line_num, len(row), len(header)), hint
                )
            found.extend(_row(header, row))
    except csv.Error as error:
        raise ReaderError("%s: not CSV: %s" % (path, clean(error))) from None
    return found


def _row(header: list[str], row: list[str]) -> list[dict[str, Any]]:
    first: dict[str, str] = {}  # of two columns of the same name, Noise and Samples, the first counts
    for column, value in zip(header, row):  # noqa: B905
        first.setdefault(column, value)
    axes = header[: header.index("Skipped")]
    params = {clean(c, 80): clean(first[c], 120) for c in axes if c not in _CSV_KNOWN and first[c]}
    name = clean(first["Benchmark"], 200)
    if params:
        name = clean("%s[%s]" % (name, ",".join("%s=%s" % item for item in params.items())))
    if first["Skipped"] == "Yes":
        entry = timing.benchmark(name)
        entry.update(params=params, error="skipped")
        return [entry]
    entries = []
    for mode, column in _CSV_TIMES:
        mean = timing.scaled(first.get(column) or None, _US)
        if mean is not None:
            count = finite(first.get("Samples") or None) if mode == "cold" else None
            entry = timing.benchmark(name, None, mean=mean, n=None if count is None else int(count))
            entry.update(mode=mode, params=params)
            entries.append(entry)
    return entries
