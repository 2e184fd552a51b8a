"""How long a timing may take: a GPU that would wait for the next build measures the present one better instead.

Builds come in at some rate; that times the number of GPUs is the time a GPU has for each trial. What its check leaves
of that goes into repeats, of each rung in proportion. Where timing is slower than building, nothing is added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from fcctl_tune.halving import Halving

#: Share of a GPU's time for a trial that may be planned with; the rest is for what comes in bursts.
USED = 0.95
#: Times as many repeats as asked for; few values, since the default is timed as often as what is compared with it. More
#: say no more about a kernel.
FACTORS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 34, 40, 48, 56, 64)
#: The most a trial's timings may take because of it, seconds: what a search learns late it cannot act on.
LONGEST_S = 1.0
#: Weight of the newest figure in the running means.
NEW = 0.2


@dataclass
class Pace:
    """Figures of this search, in seconds."""

    halving: Halving
    _interval: Optional[float] = None  # between two builds
    _built_at: Optional[float] = None
    _check: Optional[float] = None
    _repeat: Optional[float] = None  # of all cases together, once
    _repeats: Optional[float] = None  # of a trial, as halving has them

    def built(self, now: float) -> None:
        """A build came in at ``now`` (of one monotonic clock)."""
        if self._built_at is not None:
            self._interval = _mean(self._interval, now - self._built_at)
        self._built_at = now

    def timed(self, repeats: int, bench_s: float, check_s: Optional[float]) -> None:
        """``repeats`` of each case took ``bench_s``; None if nothing was checked."""
        self._repeat = _mean(self._repeat, bench_s / repeats)
        if check_s is not None:
            self._check = _mean(self._check, check_s)

    def ended(self, rung: int) -> None:
        """A trial came as far as ``rung``."""
        self._repeats = _mean(self._repeats, float(sum(self.halving.repeats[: rung + 1])))

    def factor(self, gpus: int) -> int:
        """How many times as many repeats are worth taking now, of :data:`FACTORS`."""
        if not self._interval or not self._repeat or not self._repeats:
            return 1
        a_trial = min(USED * gpus * self._interval - (self._check or 0.0), LONGEST_S)
        fits = a_trial / (self._repeat * self._repeats)
        return max((n for n in FACTORS if n <= fits), default=1)


def _mean(mean: Optional[float], new: float) -> float:
    return new if mean is None else mean + NEW * (new - mean)
