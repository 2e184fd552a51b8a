"""Tests that look at ranks only, and what many of them together mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

#: Up to this many values in all, and without ties, the rank test counts every arrangement.
EXACT = 50


def rank_test(a: Sequence[float], b: Sequence[float]) -> float:
    """Two-sided p of the Wilcoxon-Mann-Whitney test that ``a`` and ``b`` have one distribution.

    Exact for at most :data:`EXACT` values without ties; else the normal approximation with corrections for ties and
    for continuity. 1.0 if either side is empty.
    """
    n, m = len(a), len(b)
    ranks, ties = midranks([*a, *b])
    u = sum(ranks[:n]) - n * (n + 1) / 2
    if n + m <= EXACT and not ties:
        counts = _arrangements(n, m)
        least = int(min(u, n * m - u))
        return min(1.0, 2 * sum(counts[: least + 1]) / sum(counts))
    total = n + m
    variance = n * m / 12 * (total + 1 - sum(t**3 - t for t in ties) / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values as Holm adjusts them: calling those at most alpha significant is wrong anywhere in the family with
    a probability of at most alpha, however the tests depend on each other."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, worst = [1.0] * len(p_values), 0.0
    for place, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p_values) - place) * p_values[i]))
        adjusted[i] = worst
    return adjusted


def midranks(values: Sequence[float]) -> tuple[list[float], list[int]]:
    """Mid-ranks from 1, and the sizes of the groups of equal values."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    ranks, ties, start = [0.0] * len(values), [], 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for i in order[start : end + 1]:
            ranks[i] = (start + end) / 2 + 1
        if end > start:
            ties.append(end - start + 1)
        start = end + 1
    return ranks, ties


@cache
def _arrangements(n: int, m: int) -> list[int]:
    """How many of the orders of ``n`` and ``m`` values have each U, from 0 to ``n * m`` (Mann and Whitney, 1947)."""
    counts = [1] + [0] * (n * m)
    for i in range(1, n + 1):  # times (1 - q^(m+i)) / (1 - q^i): the Gaussian binomial coefficient
        for u in range(n * m, m + i - 1, -1):
            counts[u] -= counts[u - m - i]
        for u in range(i, n * m + 1):
            counts[u] += counts[u - i]
    return counts
