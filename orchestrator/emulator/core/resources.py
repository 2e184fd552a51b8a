"""Formats of Compute Engine: paths and links, ids, fingerprints, 64-bit integers as strings."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from typing import Any

from orchestrator.emulator.core.refusals import ApiError, invalid

ROOT = "https://www.googleapis.com/compute/v1/"
_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def link(path: str) -> str:
    """The selfLink of ``projects/...``."""
    return ROOT + path


def path_of(url: str) -> str:
    """``projects/...`` of a full or partial URL."""
    return url[url.index("projects/") :] if "projects/" in url else url


def last(url: str) -> str:
    """The name a URL ends with."""
    return url.rstrip("/").rsplit("/", 1)[-1]


def new_id() -> str:
    """A fresh unsigned 64-bit id, as JSON carries it."""
    return str(secrets.randbelow(2**62) + 2**60)


def fingerprint(value: Any) -> str:
    """Base64 that changes with the value; clients decode it."""
    text = json.dumps(value, sort_keys=True)
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:9]).decode()


def check_fingerprint(given: Any, current: str, message: str) -> None:
    """Raises ApiError (412) unless ``given`` is ``current``, in either alphabet of base64."""
    if str(given or "").replace("-", "+").replace("_", "/") != current:
        raise ApiError("conditionNotMet", message)


def check_name(name: Any, field: str = "resource.name") -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(field, name, f"Must be a match of regex '{_NAME.pattern}'")
    return name


def check_labels(labels: Any) -> dict[str, str]:
    if not isinstance(labels, dict):
        raise invalid("labels", labels, "Must be a map of strings.")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key) or not isinstance(value, str) or not _LABEL_VALUE.fullmatch(value):
            raise invalid(f"labels.{key}", value, "Label keys and values are lower-case letters, digits, _ and -.")
    return dict(labels)


def check_metadata(metadata: Any) -> list[dict[str, str]]:
    """The items of a Metadata message, keys unique."""
    items = (metadata or {}).get("items", [])
    keys = [item.get("key") for item in items]
    if len(set(keys)) != len(keys) or not all(isinstance(key, str) and key for key in keys):
        raise invalid("metadata", keys, "Metadata keys are unique and not empty.")
    return [{"key": item["key"], "value": str(item.get("value", ""))} for item in items]


def seconds_of(duration: Any, field: str) -> int:
    """Whole seconds of a Duration message, whose int64 may be a string."""
    try:
        return int(duration.get("seconds", 0))
    except (AttributeError, TypeError, ValueError):
        raise invalid(field, duration, "Must be a Duration.") from None
