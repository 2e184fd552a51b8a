"""Durations as people write them."""

from __future__ import annotations

import re

#: Longer than this is a slip of the pen, not a timeout.
LONGEST_S = 7 * 24 * 3600.0
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
_PLAIN = re.compile(r"\d+(?:\.\d+)?")


def seconds(value: object) -> float:
    """Returns ``value`` in seconds. Raises ValueError if it is no duration, zero, or longer than a week."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"expected a duration such as 90s or 10m, not {value!r}")  # noqa: TRY004 - pydantic's validators speak ValueError
    total = _parse(value) if isinstance(value, str) else float(value)
    if not 0 < total <= LONGEST_S:
        raise ValueError(f"expected a duration above 0 and at most 7d, not {value}")
    return total


def _parse(text: str) -> float:
    text = text.strip().lower()
    if _PLAIN.fullmatch(text):
        return float(text)
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"expected a duration such as 90s or 10m, not {text!r}")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
