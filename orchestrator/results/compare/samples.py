"""What is wrong with the samples of two sides, so that a comparison would rest on it: each is said, none decides."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fcctl_remote.base.estimates import NEEDS
from orchestrator.results.compare.rows import Row
from orchestrator.results.statistics.effect import Effect

#: Share of the samples of a launch that may be left out because they cannot be times.
MOST_LEFT_OUT = 0.05
#: Metrics that depend on the number of samples, and by how much those numbers may differ.
BY_COUNT, ALIKE = ("min", "p90", "p99"), 1.1
#: Times of one benchmark so many times apart are in different units, if nobody states one.
OTHER_UNIT = 100.0


def obstacles(old: Sequence[Row], new: Sequence[Row], metric: str, effect: Effect | None) -> list[str]:
    """Why a difference of ``metric`` would mean nothing."""
    reasons = [
        f"{row.launch.left_out} of {row.launch.left_out + len(row.launch.samples)} samples of a launch are no times"
        for row in (*old, *new)
        if row.launch.left_out > MOST_LEFT_OUT * (row.launch.left_out + len(row.launch.samples))
    ][:1]
    counts = [min(row.launch.count for row in side) for side in (old, new)]
    most = max(row.launch.count for row in (*old, *new))
    if metric in BY_COUNT and most > ALIKE * min(counts):
        reasons.append(f"the {metric} of {min(counts)} samples against that of {most}: compare --metric p50")
    if effect is None:
        needs = NEEDS.get(metric)
        reasons.append(f"no {metric}" + (f": that takes {needs} samples in a launch" if needs else ""))
    elif not new[0].unit and abs(math.log(effect.ratio)) > math.log(OTHER_UNIT):
        reasons.append(f"no unit is stated, and the times are {max(effect.ratio, 1 / effect.ratio):.0f} times apart")
    return reasons


def notes(old: Sequence[Row], new: Sequence[Row], metric: str) -> list[str]:
    """What a reader of the figures has to know."""
    rows = (*old, *new)
    found = []
    left_out = sum(row.launch.left_out for row in rows)
    if left_out:
        found.append(f"{left_out} of {left_out + sum(len(r.launch.samples) for r in rows)} samples are no times "
                     "(not a finite number above 0, or a million times off) and are left out")  # fmt: skip
    lost = sum(row.launch.value(metric) is None for row in rows)
    if lost:
        found.append(f"{lost} of {len(rows)} launches have no {metric} and are left out")
    if not any(row.unit for row in rows):
        found.append("no unit is stated: both sides are taken to have the same")
    return found
