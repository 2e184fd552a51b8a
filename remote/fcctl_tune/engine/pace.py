"""How much is under way at once, and how long a timing may take, so that neither builders nor GPUs wait for the other.

A GPU that would wait for the next build measures the present one better instead: what its share of the builders can
bring in leaves it some time for each trial, and what the check leaves of that goes into repeats, of each rung in
proportion. The reckoning is with what builders could do, never with what came in lately: else a timing that keeps them
waiting would look like builders that are slow, and be made longer still.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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
class Cost:
    """What timings take: a line through those of late, weighted least squares. Without it, the short ones, of which
    there are most, would make long ones look dearer than they are."""

    _count: float = 0.0  # weighted sums: of 1, repeats, seconds, repeats squared, and their product
    _repeats: float = 0.0
    _seconds: float = 0.0
    _squares: float = 0.0
    _product: float = 0.0

    def add(self, repeats: int, seconds: float) -> None:
        keep = 1.0 - SLOWLY
        self._count = keep * self._count + 1
        self._repeats = keep * self._repeats + repeats
        self._seconds = keep * self._seconds + seconds
        self._squares = keep * self._squares + repeats**2
        self._product = keep * self._product + repeats * seconds

    @property
    def line(self) -> Optional[Tuple[float, float]]:
        """Seconds of a timing besides its repeats, and of each of those (all cases together); neither is negative, and
        where nothing can be told apart, all goes with the repeats."""
        if not self._repeats:
            return None
        spread = self._count * self._squares - self._repeats**2
        each = (self._count * self._product - self._repeats * self._seconds) / spread if spread > 1e-6 else 0.0
        besides = (self._seconds - each * self._repeats) / self._count
        return (besides, each) if each > 0 and besides > 0 else (0.0, self._seconds / self._repeats)


@dataclass
class Throughput:
    """Figures of this search: seconds, and of a trial."""

    halving: Halving
    _cost: Cost = field(default_factory=Cost)
    _build: Optional[float] = None
    _usable: float = 1.0  # share of the builds that come to be timed
    _check: Optional[float] = None
    _timings: Optional[float] = None  # of a trial that is timed
    _repeats: Optional[float] = None  # of all of those, as halving has them

    def built(self, seconds: float, usable: bool) -> None:
        """A build took so long."""
        self._build = _mean(self._build, seconds, NEW)
        self._usable = max(LEAST, _mean(self._usable, float(usable), SLOWLY))

    def timed(self, repeats: int, bench_s: float, check_s: Optional[float]) -> None:
        """``repeats`` of each case took ``bench_s``; None if nothing was checked."""
        self._cost.add(repeats, bench_s)
        if check_s is not None:
            self.checked(check_s)

    def checked(self, seconds: float) -> None:
        """Its share of several that were checked at once."""
        self._check = _mean(self._check, seconds, NEW)

    def ended(self, rung: int) -> None:
        """A trial came as far as ``rung``."""
        self._timings = _mean(self._timings, float(rung + 1), SLOWLY)
        self._repeats = _mean(self._repeats, float(sum(self.halving.repeats[: rung + 1])), SLOWLY)

    def factor(self, gpus: int, builders: int, *, is_behind: bool = False) -> int:
        """How many times as many repeats are worth taking now, of :data:`FACTORS`. One that ``is_behind`` its builders
        takes no more because of them."""
        if not (self._build and self._timing):
            return 1
        besides, repeats = self._timing
        for_each = gpus * self._build / (builders * self._usable)  # seconds of a GPU, if no builder ever waits
        fits = 0.0 if is_behind else (min(for_each, LONGEST_S) - besides) / repeats
        return max(1, self._fewest if for_each < LEAST_S else 1, *(n for n in FACTORS if n <= fits))

    def under_way(self, gpus: int, builders: int) -> int:
        """How many trials keep so many GPUs and builders busy, and no more than that."""
        ahead = AHEAD * gpus
        if not (self._build and self._timing):
            return builders + ahead
        besides, repeats = self._timing
        return ahead + min(builders, math.ceil(gpus * self._build / (self._usable * max(LEAST_S, besides + repeats))))

    @property
    def _fewest(self) -> int:
        """Of :data:`FACTORS`, with which a trial takes :data:`LEAST_S`."""
        besides, repeats = self._timing or (0.0, math.inf)
        return next((n for n in FACTORS if besides + n * repeats >= LEAST_S), FACTORS[-1])

    @property
    def _timing(self) -> Optional[Tuple[float, float]]:
        """Seconds of a GPU that a trial takes: besides its repeats, and for those, as often as halving has them."""
        line = self._cost.line
        if line is None or not self._repeats or not self._timings:
            return None
        return (self._check or 0.0) + line[0] * self._timings, line[1] * self._repeats


def _mean(mean: Optional[float], new: float, weight: float) -> float:
    return new if mean is None else mean + weight * (new - mean)
