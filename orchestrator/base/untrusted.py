"""Parts of JSON that somebody else wrote: nothing in it need be there or have the right type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def number(value: object) -> float | None:
    """``value`` if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if math.isfinite(converted) else None


def listed(value: object) -> list[Any]:
    """``value`` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def objects(value: object) -> list[dict[str, Any]]:
    """The objects of a list; nothing, if it is no list."""
    return [v for v in listed(value) if isinstance(v, dict)]


def table(value: object) -> dict[str, Any]:
    """``value`` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def part(value: object, *keys: str) -> Any:
    """``value[key][key]...``, None where the way ends early."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def finite(value: Any) -> Any:
    """``value`` with null in place of numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list | tuple) else value
