"""Reader ``metrics``: a JSON object of numbers, the simplest thing a script can write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fcctl_remote.readers.source import ReaderError, clean, load_json

MAX_METRICS = 10_000


def read(path: str, env: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001 - all readers are called alike
    """Nested objects and lists are flattened with dots, true and false become 1 and 0; anything else is refused."""
    value = load_json(path)
    if not isinstance(value, dict):
        raise ReaderError("%s: expected an object of numbers, found %s" % (path, type(value).__name__))
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
            flat[_key(where, flat, path)] = int(item) if isinstance(item, bool) else item
        else:
            kind = "null" if item is None else "text"
            raise ReaderError(
                "%s: '%s' is %s, not a number" % (path, clean(where, 120), kind), "a metric must be a number"
            )
        if len(flat) + len(pending) > MAX_METRICS:
            raise ReaderError("%s: more than %d metrics" % (path, MAX_METRICS))
    if not flat:
        raise ReaderError("%s: contains no metric" % path)
    return {"kind": "metrics", "metrics": flat}


def _key(where: str, flat: Mapping[str, Any], path: str) -> str:
    key = clean(where, 200)
    if key in flat:
        raise ReaderError("%s: two values for '%s'" % (path, key))
    return key
