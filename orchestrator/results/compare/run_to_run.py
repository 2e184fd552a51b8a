"""How much the runs of one machine differ where nothing changed: runs of the same source on the same target.

A comparison of one launch with another, or of sides measured at different times, is about as wrong as these differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from orchestrator.results.measurement import Measurement
from orchestrator.results.statistics.effect import MIN_FREEDOM, Spread


def run_to_run(measurements: Iterable[Measurement]) -> Spread | None:
    """The standard deviation between the medians of runs of one source, pooled over sources; None if there are too
    few. Takes measurements of one benchmark on one target; of a run with several launches one counts."""
    alike: dict[object, dict[str, float]] = {}
    for m in measurements:
        if m.status == "passed" and m.p50 > 0:
            same = (m.tree_sha256, m.unit, m.shape, m.method, m.gpu, m.driver, m.job)
            alike.setdefault(same, {}).setdefault(m.run_id, math.log(m.p50))
    freedom = sum(len(runs) - 1 for runs in alike.values())
    if freedom < MIN_FREEDOM:
        return None
    middles = [(fmean(runs.values()), runs) for runs in alike.values()]
    square = math.fsum((value - middle) ** 2 for middle, runs in middles for value in runs.values())
    return Spread(math.sqrt(square / freedom), "history", freedom)
