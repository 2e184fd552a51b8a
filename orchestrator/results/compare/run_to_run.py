"""How much the runs of one machine differ where nothing changed: runs of the same source on the same target.

A comparison of one launch with another, or of sides measured at different times, is about as wrong as these differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from orchestrator.results.compare.rows import Key
from orchestrator.results.measurement import Measurement
from orchestrator.results.statistics.effect import MIN_FREEDOM, Spread


def run_to_run(measurements: Iterable[Measurement]) -> dict[Key, Spread]:
    """The standard deviation between the medians of runs of one source, pooled over sources, of each benchmark that
    has enough of them. Of a run with several launches one counts."""
    alike: dict[tuple[Key, object], dict[str, float]] = {}
    for m in measurements:
        if m.status == "passed" and m.p50 > 0:
            same = (m.tree_sha256, m.unit, m.shape, m.method, m.gpu, m.driver, m.job)
            alike.setdefault((Key(m.benchmark, m.variant, m.mode), same), {}).setdefault(m.run_id, math.log(m.p50))
    sums: dict[Key, tuple[float, int]] = {}
    for (key, _), runs in alike.items():
        middle = fmean(runs.values())
        square, freedom = sums.get(key, (0.0, 0))
        sums[key] = square + sum((v - middle) ** 2 for v in runs.values()), freedom + len(runs) - 1
    return {
        key: Spread(math.sqrt(square / freedom), "history", freedom)
        for key, (square, freedom) in sums.items()
        if freedom >= MIN_FREEDOM
    }
