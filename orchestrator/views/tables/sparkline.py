"""A series of numbers as one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

BARS, PLAIN = "▁▂▃▄▅▆▇█", "_.-=+*%#"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """At most ``width`` characters, the lowest value the lowest bar. Of more values than that, medians of equal shares;
    an empty line for none."""
    bars = PLAIN if ascii_only else BARS
    shown = _medians(values, width)
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high - low <= 1e-9 * abs(high):
        return bars[len(bars) // 2] * len(shown)
    top = len(bars) - 1
    return "".join(bars[round((v - low) / (high - low) * top)] for v in shown)


def _medians(values: Sequence[float], width: int) -> list[float]:
    n = len(values)
    if n <= width:
        return list(values)
    return [median(values[i * n // width : (i + 1) * n // width]) for i in range(width)]
