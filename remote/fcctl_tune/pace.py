"""How much is under way at once, and how long a timing may take, so that neither builders nor GPUs wait for the other.

A GPU that would wait for the next build measures the present one better instead: what its share of the builders can
bring in leaves it some time for each trial, and what the check leaves of that goes into repeats, of each rung in
proportion. The reckoning is with what builders could do, never with what came in lately: else a timing that keeps them
waiting would look like builders that are slow, and be made longer still.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

from fcctl_tune.halving import Halving

#: Share of a GPU's time that may be planned with; the rest is for what comes in bursts.
USED = 0.9
#: Times as many repeats as asked for; few values, since the default is timed as often as what is compared with it. More
#: say no more about a kernel.
FACTORS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 34, 40, 48, 56, 64)
#: The most a trial's timings may take because of it, seconds: what a search learns late it cannot act on.
LONGEST_S = 1.0
#: Built and not yet timed, for each GPU: as many as keep it busy, few enough that proposals know what was found.
AHEAD = 3
#: Weight of the newest figure in the running means: of what is much the same each time, and of what is not.
NEW, SLOWLY = 0.2, 0.05
#: Of all builds, so many are taken to be usable even where none is.
LEAST = 0.01


@dataclass
class Pace:
    """Figures of this search: seconds, and of a trial."""

    halving: Halving
    _build: Optional[float] = None
    _usable: float = 1.0  # share of the builds that come to be timed
    _check: Optional[float] = None
    _repeat: Optional[float] = None  # of all cases together, once
    _repeats: Optional[float] = None  # of a trial that is timed, as halving has them

    def built(self, seconds: float, usable: bool) -> None:
        """A build took so long."""
        self._build = _mean(self._build, seconds, NEW)
        self._usable = max(LEAST, _mean(self._usable, float(usable), SLOWLY))

    def timed(self, repeats: int, bench_s: float, check_s: Optional[float]) -> None:
        """``repeats`` of each case took ``bench_s``; None if nothing was checked."""
        self._repeat = _mean(self._repeat, bench_s / repeats, NEW)
        if check_s is not None:
            self._check = _mean(self._check, check_s, NEW)

    def ended(self, rung: int) -> None:
        """A trial came as far as ``rung``."""
        self._repeats = _mean(self._repeats, float(sum(self.halving.repeats[: rung + 1])), SLOWLY)

    def factor(self, gpus: int, builders: int) -> int:
        """How many times as many repeats are worth taking now, of :data:`FACTORS`."""
        if not (self._build and self._repeat and self._repeats):
            return 1
        for_each = gpus * self._build / (builders * self._usable)  # seconds of a GPU, if no builder ever waits
        a_trial = min(USED * for_each - (self._check or 0.0), LONGEST_S)
        fits = a_trial / (self._repeat * self._repeats)
        return max((n for n in FACTORS if n <= fits), default=1)

    def under_way(self, gpus: int, builders: int) -> int:
        """How many trials keep so many GPUs and builders busy, and no more than that."""
        ahead = AHEAD * gpus
        if self._build is None or not (self._repeat and self._repeats):
            return builders + ahead
        timing = self._usable * ((self._check or 0.0) + self._repeat * self._repeats)  # of a trial, at the least
        return ahead + min(builders, math.ceil(gpus * self._build / timing))


def _mean(mean: Optional[float], new: float, weight: float) -> float:
    return new if mean is None else mean + weight * (new - mean)
