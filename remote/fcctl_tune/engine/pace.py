"""How much is under way at once, and how often a configuration is timed, so that neither builders nor GPUs wait.

A GPU that would wait for the next build takes more repeats of the present one instead. What its share of the builders
can bring in leaves it some time for each trial, and what the check leaves of that goes into repeats. This is estimated
from what builders could do, never from what came in lately: else a timing that keeps them waiting would look like slow
builders, and be made longer still.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional, Tuple

from fcctl_tune.search.halving import Halving

#: Times as many repeats as asked for; few values, since the default is timed as often as what is compared with it. More
#: say no more about a kernel.
FACTORS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 34, 40, 48, 56, 64)
#: What a trial takes of a GPU at least, seconds: of less, most is not the timing, and a GPU's clock and the place of an
#: input make as much of a difference as a configuration does.
LEAST_S = 0.05
#: The most its timings may take because of slow builders: what a search learns late it cannot act on.
LONGEST_S = 1.0
#: Built and not yet timed, for each GPU: as many as keep it busy, few enough that proposals know what was found.
AHEAD = 3
#: Weight of the newest figure in the running means: of what is much the same each time, and of what is not.
NEW, SLOWLY = 0.2, 0.05
#: Of all builds, so many are taken to be usable even where none is.
LEAST = 0.01


@dataclass
class Throughput:
    """Running means of this search: seconds, of a trial unless said."""

    halving: Halving
    _build: Optional[float] = None
    _usable: float = 1.0  # share of the builds that come to be timed
    _check: Optional[float] = None
    _bench: Optional[float] = None  # seconds of one timing, and its repeats
    _bench_repeats: Optional[float] = None
    _repeats: Optional[float] = None  # of a trial that is timed, in all of its timings, as halving has them

    def built(self, seconds: float, usable: bool) -> None:
        """A build took so long."""
        self._build = _mean(self._build, seconds, NEW)
        self._usable = max(LEAST, _mean(self._usable, float(usable), SLOWLY))

    def timed(self, repeats: int, bench_s: float, check_s: Optional[float]) -> None:
        """``repeats`` of each case took ``bench_s``; ``check_s`` is None if nothing was checked."""
        self._bench = _mean(self._bench, bench_s, SLOWLY)
        self._bench_repeats = _mean(self._bench_repeats, float(repeats), SLOWLY)
        if check_s is not None:
            self._check = _mean(self._check, check_s, NEW)

    def ended(self, rung: int) -> None:
        """A trial came as far as ``rung``."""
        self._repeats = _mean(self._repeats, float(sum(self.halving.repeats[: rung + 1])), SLOWLY)

    def factor(self, gpus: int, builders: int, *, is_behind: bool = False) -> int:
        """How many times as many repeats are worth taking now, of :data:`FACTORS`. One that ``is_behind`` its builders
        takes no more because of them."""
        if not (self._build and self._timing):
            return 1
        check, repeats = self._timing
        for_each = gpus * self._build / (builders * self._usable)  # seconds of a GPU, if no builder ever waits
        fits = 0.0 if is_behind else (min(for_each, LONGEST_S) - check) / repeats
        fewest = next((n for n in FACTORS if check + n * repeats >= LEAST_S), FACTORS[-1])
        return max(1, fewest if for_each < LEAST_S else 1, *(n for n in FACTORS if n <= fits))

    def under_way(self, gpus: int, builders: int) -> int:
        """How many trials keep so many GPUs and builders busy, and no more than that."""
        ahead = AHEAD * gpus
        if not (self._build and self._timing):
            return builders + ahead
        trial_s = max(LEAST_S, sum(self._timing))
        return ahead + min(builders, math.ceil(gpus * self._build / (self._usable * trial_s)))

    @property
    def _timing(self) -> Optional[Tuple[float, float]]:
        """Seconds of a GPU that a trial takes: for its check, and for as many repeats as halving has them.

        What a timing takes besides its repeats is spread over them, so each seems to take longer than it does; where
        there are more of them it does so less, and the factor comes to where it should be.
        """
        if not (self._bench and self._bench_repeats and self._repeats):
            return None
        return self._check or 0.0, self._bench / self._bench_repeats * self._repeats


def _mean(mean: Optional[float], new: float, weight: float) -> float:
    return new if mean is None else mean + weight * (new - mean)
