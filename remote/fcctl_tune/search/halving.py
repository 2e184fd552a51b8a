"""Successive halving, asynchronously: a trial is timed briefly first, and longer only if it is among the best so far.

Nothing waits for a rung to fill: each decision is made on what has been seen when it is due (Li et al., "A System for
Massively Parallel Hyperparameter Tuning", 2020), and one that is left behind stays behind, since the search must hear
of it at once. Trial 0 is what all others are compared with, so it is always timed in full.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Tuple


@dataclass
class Halving:
    """``repeats`` are the timings of a case at each rung; of those seen at one, the best of every ``keep`` rise."""

    repeats: Tuple[int, ...] = (3, 9, 27)
    keep: int = 3
    _seen: List[List[float]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._seen = [[] for _ in self.repeats]

    @property
    def top(self) -> int:
        return len(self.repeats) - 1

    def rises(self, number: int, rung: int, value: float) -> bool:
        """Trial ``number`` came to ``value`` at ``rung``: is it timed at the next? Always False at the top, where it
        is complete; elsewhere False means pruned."""
        others = self._seen[rung]
        better = sum(other < value for other in others)
        others.append(value)
        if rung == self.top:
            return False
        return number == 0 or better < max(1, len(others) // self.keep)
