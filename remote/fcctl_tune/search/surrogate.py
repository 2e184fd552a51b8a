"""What a search expects of configurations that it has not tried, from those that it has.

Two models of speed (the best time so far over a configuration's time, so that all slow ones are alike): what each
parameter's value adds on average, which a handful of trials can tell, and a small forest of random trees (Geurts et
al., "Extremely randomized trees", 2006), which finds cliffs and what only matters together. The more is known, the more
the forest counts. To the forest a configuration that failed has no speed at all; the effects leave it out, so that one
crash does not speak against each of its values.

Whoever proposes asks once, about all candidates, so the forest is never kept: all its trees grow at once, a level at a
time, and the candidates go down with them. On several GPUs a search proposes dozens of times a second, several at once.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Sequence

from fcctl_tune.search.records import TrialRecord
from fcctl_tune.search.space import Params, Space

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Bools = npt.NDArray[np.bool_]

TREES = 20
#: A tree grows from so many trials at most, drawn anew for each: a long search knows more, and must not propose slower.
MOST_ROWS = 128
#: Parameters at which a node tries a split, each at a random place; the best is kept.
SPLITS = 3
#: So many timed trials count as much for the forest as for the effects.
EVEN = 16
#: Sweeps that fit the effects, and trials by which a value is drawn towards no effect.
SWEEPS, SHRINK = 4, 1.0
#: A budget of so many trials is too small for curiosity.
SMALL = 10


@dataclass(frozen=True)
class SurrogateModel:
    """``rows`` has the levels of every trial that came to something, the timed ones first; ``targets`` their speed, in
    standard deviations from the mean of those that were timed."""

    space: Space
    rows: Ints
    targets: Floats
    timed: int

    @classmethod
    def of(cls, space: Space, records: Sequence[TrialRecord]) -> SurrogateModel:
        """From at least one record that was timed."""
        import numpy as np

        timed = [r for r in records if r.is_timed and r.value is not None]
        failed = [r for r in records if r.is_invalid]
        values = np.array([r.value for r in timed], float)
        speeds = values.min() / values
        scale = float(speeds.std()) or 1.0
        targets = np.concatenate([speeds, np.zeros(len(failed))]) - speeds.mean()
        return cls(space, _levels(space, [r.params for r in (*timed, *failed)]), targets / scale, len(timed))

    def promises(self, many: Sequence[Params], exploration_weight: Sequence[float], rng: random.Random) -> List[float]:
        """An acquisition score for each configuration: higher is faster or, by ``exploration_weight``, less known."""
        import numpy as np

        asked = _levels(self.space, many)
        found = forest(self.rows, self.targets, asked, np.random.RandomState(rng.getrandbits(32)))
        added = effects(self.rows[: self.timed], self.targets[: self.timed], asked)
        weight = self.timed / (self.timed + EVEN)
        promise = weight * found.mean(axis=0) + (1 - weight) * added + np.array(exploration_weight) * found.std(axis=0)
        return [float(one) for one in promise]


def exploration_weight(number: int, budget: int) -> float:
    """How many standard deviations of the trees count in favour of what they do not agree on: more where the budget
    leaves time to make something of it, and less and less towards its end."""
    return max(1.0, math.log2(budget / SMALL)) * max(0.0, 1.0 - number / budget)


def _levels(space: Space, many: Sequence[Params]) -> Ints:
    """A row for each configuration: the place of each of its values in the parameter's order."""
    import numpy as np

    places = [{value: place for place, value in enumerate(p.ordered)} for p in space.parameters]
    rows = [[known[one[p.name]] for p, known in zip(space.parameters, places)] for one in many]  # noqa: B905
    return np.array(rows, np.int64).reshape(len(many), len(places))


def effects(rows: Ints, targets: Floats, asked: Ints) -> Floats:
    """What the values of each of ``asked`` add together, each fitted in turns to what the others leave."""
    import numpy as np

    counts = [np.bincount(column) for column in rows.T]
    found = [np.zeros(len(count)) for count in counts]
    left = targets.copy()
    for _ in range(SWEEPS):
        for place, column in enumerate(rows.T):
            step = np.bincount(column, left) / (counts[place] + SHRINK)
            found[place] += step
            left -= step[column]
    added = np.zeros(len(asked))
    for column, effect in zip(asked.T, found):  # noqa: B905
        is_known = column < len(effect)
        added[is_known] += effect[column[is_known]]
    return added


def forest(rows: Ints, targets: Floats, asked: Ints, chance: np.random.RandomState) -> Floats:
    """What each of :data:`TREES` trees over ``rows`` says of each of ``asked``: [tree, asked].

    A tree goes down to single rows, or to rows that no parameter tells apart.
    """
    import numpy as np

    count = min(MOST_ROWS, len(rows))
    drawn = np.tile(np.arange(count), TREES)
    if count < len(rows):
        drawn = chance.random_sample((TREES, len(rows))).argsort(axis=1)[:, :count].ravel()
    level = _Level.of(
        rows=rows[drawn],
        targets=targets[drawn],
        sizes=np.full(TREES, count),
        asked=np.tile(asked, (TREES, 1)),
        places=np.repeat(np.arange(TREES), len(asked)),
    )
    said, who = np.zeros(TREES * len(asked)), np.arange(TREES * len(asked))
    while len(who):
        value, is_leaf = level.means, (level.low == level.high).all(axis=1)
        ends = is_leaf[level.places]
        said[who[ends]] = value[level.places[ends]]
        who = who[~ends]
        if len(who):
            level = level.grown(~is_leaf).split(chance)
    return said.reshape(TREES, len(asked))


@dataclass(frozen=True)
class _Level:
    """The nodes of all trees at one depth: ``rows`` and ``targets`` node by node, so many as ``sizes`` says, from
    ``low`` to ``high`` in each parameter; and the node (``places``) that each of ``asked`` has come to."""

    rows: Ints
    targets: Floats
    sizes: Ints
    asked: Ints
    places: Ints
    low: Ints
    high: Ints

    @classmethod
    def of(cls, rows: Ints, targets: Floats, sizes: Ints, asked: Ints, places: Ints) -> _Level:
        import numpy as np

        starts = np.cumsum(sizes) - sizes
        low, high = np.minimum.reduceat(rows, starts), np.maximum.reduceat(rows, starts)
        return cls(rows, targets, sizes, asked, places, low, high)

    @property
    def means(self) -> Floats:
        return self._sums(self.targets) / self.sizes

    def _sums(self, column: Floats) -> Floats:
        """Of each node."""
        import numpy as np

        return np.add.reduceat(column, np.cumsum(self.sizes) - self.sizes)

    def grown(self, wanted: Bools) -> _Level:
        """Those of the nodes ``wanted`` that somebody has come to; who came to others is left out."""
        import numpy as np

        came = wanted[self.places]
        kept = np.bincount(self.places[came], minlength=len(self.sizes)) > 0
        rows, places = np.repeat(kept, self.sizes), (np.cumsum(kept) - 1)[self.places[came]]
        low, high = self.low[kept], self.high[kept]
        return _Level(self.rows[rows], self.targets[rows], self.sizes[kept], self.asked[came], places, low, high)

    def split(self, chance: np.random.RandomState) -> _Level:
        """Its children, two of each node, by the best of a few random cuts."""
        import numpy as np

        count = len(self.sizes)
        nodes, row = np.arange(count), np.arange(len(self.rows))
        node, total = np.repeat(nodes, self.sizes), self._sums(self.targets)
        order = np.where(self.low == self.high, 2.0, chance.random_sample(self.low.shape)).argsort(axis=1)
        best, column, limit = np.full(count, -1.0), np.zeros(count, np.int64), np.zeros(count)
        for place in range(min(SPLITS, order.shape[1])):
            tried = order[:, place]
            bottom, top = self.low[nodes, tried], self.high[nodes, tried]
            cut = bottom + chance.random_sample(count) * (top - bottom)
            goes_left = (self.rows[row, tried[node]] <= cut[node]).astype(float)
            lefts, part = self._sums(goes_left), self._sums(goes_left * self.targets)
            rest = np.maximum(1.0, self.sizes - lefts)  # none where it is no cut, which is not taken
            gain = np.where(top > bottom, part**2 / lefts + (total - part) ** 2 / rest, -1.0)
            better = gain > best
            best[better], column[better], limit[better] = gain[better], tried[better], cut[better]
        child = 2 * node + (self.rows[row, column[node]] > limit[node])
        there, sizes = child.argsort(kind="stable"), np.bincount(child, minlength=2 * count)
        goes_right = self.asked[np.arange(len(self.asked)), column[self.places]] > limit[self.places]
        return _Level.of(self.rows[there], self.targets[there], sizes, self.asked, 2 * self.places + goes_right)
