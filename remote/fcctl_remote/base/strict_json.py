"""JSON that every parser reads the same way: what a step wrote may be valid for Python alone."""

from __future__ import annotations

import json
import math

from fcctl_remote.record import Any

#: The most digits of a whole number: more do not fit a double, and Python before 3.11 takes hours for a million.
MAX_DIGITS = 300
#: The deepest nesting: a reply adds some levels, and the controller's parser refuses 200.
MAX_NESTED = 100


def to_strict_json(value: Any) -> bytes:
    """:func:`to_json` for every parser: half a surrogate pair, which only Python's own reads, becomes a question mark.

    Raises: ValueError: ``value`` is nested too deep."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    except RecursionError:
        raise ValueError("nested too deep") from None


def parse_json(data: bytes | str) -> Any:
    """Strict JSON. Raises: ValueError: it is none, has NaN, infinity or an endless number, or is nested too deep."""
    try:
        value = json.loads(data, parse_int=_integer, parse_float=_real, parse_constant=_constant)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if len(data) > MAX_NESTED and _is_nested_deeper(value, MAX_NESTED):
        raise ValueError("nested too deep")
    return value


def _is_nested_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        inside = [one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))]
        level = [inner for values in inside for inner in values]
        if not level:
            return False
    return any(isinstance(one, (dict, list)) for one in level)


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("a number has %d digits" % len(text))
    return int(text)


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("the number %s is too large" % text[:40])
    return value


def _constant(text: str) -> float:
    raise ValueError("JSON has no number %s: write null, or leave the value out" % text)
