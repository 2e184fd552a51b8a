"""Reader ``flashcore``: the JSON of FlashCore's own scripts, which ``fcctl results export --format flashcore`` writes
too: ``.results.mission.flashcore.p50``, ``.results.mission.pytorch.p50``, ``.config``, ``.speedup``; microseconds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fcctl_remote.readers import timing
from fcctl_remote.readers.source import MAX_ROWS, ReaderError, an_object, clean, finite, load_json

#: The case that ``config`` of the whole file is about, where there are several.
MISSION = "mission"
_REFERENCE = re.compile(r"^(?:py)?torch|^sdpa", re.IGNORECASE)
_HINT = 'a file with times in us: {"results": {"mission": {"flashcore": {"p50": 45.1}, "pytorch": {"p50": 46.0}}}}'


def read(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001 - all readers are called alike
    """Each object of ``results.CASE`` with a ``p50`` is one benchmark; PyTorch's are references. A speedup is not
    taken over: it follows from the times."""
    root = an_object(load_json(path), path)
    if not isinstance(root.get("results"), dict):
        raise ReaderError("%s: no object 'results'" % path, _HINT)
    results = {clean(case, 120): an_object(value, "%s: results" % path) for case, value in root["results"].items()}
    entries = [entry for case, timed in results.items() for entry in _case(case, timed, path)]
    if not entries:
        raise ReaderError("%s: no p50 in results" % path, _HINT)
    if len(entries) > MAX_ROWS:
        raise ReaderError("%s: %d benchmarks; at most %d" % (path, len(entries), MAX_ROWS))
    whole = timing.shape(root.get("config"))
    for entry in entries:
        if "shape" not in entry and whole and (entry["case"] == MISSION or len(results) == 1):
            entry["shape"] = whole
    document = timing.document(entries, "flashcore", path)
    device = next((root[key] for key in ("gpu", "device") if isinstance(root.get(key), str)), None)
    return {**document, "device": clean(device, 120)} if device else document


def _case(case: str, timed: Mapping[str, Any], path: str) -> Iterator[dict[str, Any]]:
    shape = timing.shape(timed.get("config"))
    for key, stats in timed.items():
        if not isinstance(stats, dict) or stats.get("p50") is None:
            continue
        known: dict[str, Any] = {name: finite(stats.get(name)) for name in timing.STATS}
        for name, time in known.items():
            if (time is not None and time < 0) or (name == "p50" and not time):
                raise ReaderError("%s: results.%s.%s.%s is not a time" % (path, case, clean(key, 80), name))
        counts = [finite(stats.get(name)) for name in ("n", "iterations")]
        known["n"] = next((int(count) for count in counts if count is not None and count > 0), None)
        is_reference = _REFERENCE.search(key) is not None
        name = stats.get("name") or ("%s/%s" % (case, key) if is_reference else case)
        entry = timing.benchmark(clean(name, 200), **known)
        entry.update(case=case, variant=clean(stats.get("variant") or key, 80), mode=clean(stats.get("mode") or "", 40))
        if is_reference:
            entry["role"] = "reference"
        if shape:
            entry["shape"] = shape
        yield entry
