"""What a search expects of configurations that it has not tried, from those that it has.

Two models of speed (the best time so far over a configuration's time, so that all slow ones are alike): what each
parameter's value adds on average, which a handful of trials can tell, and a small forest of random trees (Geurts et
al., "Extremely randomized trees", 2006), which finds cliffs and what only matters together. The more is known, the more
the forest counts. To the forest a configuration that failed has no speed at all; the effects leave it out, so that one
crash does not speak against each of its values.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple, Union

from fcctl_tune.records import TrialRecord
from fcctl_tune.space import Params, Space, Value

TREES = 10
#: Parameters at which a tree tries a split, each at a random place; the best is kept.
SPLITS = 3
#: So many timed trials count as much for the forest as for the effects.
EVEN = 16
#: Sweeps that fit the effects, and trials by which a value is drawn towards no effect.
SWEEPS, SHRINK = 4, 1.0
#: How many standard deviations of the trees count, in the beginning, in favour of what they do not agree on.
CURIOSITY = 2.0

Effects = Dict[Tuple[str, Value], float]
#: A value, or: parameter, level up to which it goes left, the two sides.
Tree = Union[float, Tuple[int, float, "Tree", "Tree"]]
Row = Tuple[int, ...]


@dataclass(frozen=True)
class Belief:
    levels: Tuple[Tuple[str, Mapping[Value, int]], ...]
    effects: Mapping[Tuple[str, Value], float]
    forest: Tuple[Tree, ...]
    weight: float  # of the forest

    @classmethod
    def of(cls, space: Space, records: Sequence[TrialRecord], rng: random.Random) -> Belief:
        """From at least one record that was timed."""
        timed = [r for r in records if r.is_timed and r.value is not None]
        failed = [r for r in records if r.is_invalid]
        values = [r.value or 0.0 for r in timed]
        least = min(values)
        speeds = [least / value for value in values]
        mean = math.fsum(speeds) / len(speeds)
        scale = math.sqrt(math.fsum((s - mean) ** 2 for s in speeds) / len(speeds)) or 1.0
        targets = [(s - mean) / scale for s in speeds]
        levels = tuple((p.name, {v: i for i, v in enumerate(p.ordered)}) for p in space.parameters)
        rows = [_row(levels, r.params) for r in (*timed, *failed)]
        grown = targets + [-mean / scale] * len(failed)
        forest = tuple(_grown(rows, grown, list(range(len(rows))), rng) for _ in range(TREES))
        effects = _effects(space, [r.params for r in timed], targets)
        return cls(levels, effects, forest, len(timed) / (len(timed) + EVEN))

    def promise(self, params: Params, curiosity: float) -> float:
        """How promising a configuration is: higher is faster or, so much as ``curiosity`` counts it, less known."""
        row = _row(self.levels, params)
        found = [_looked_up(tree, row) for tree in self.forest]
        mean = sum(found) / len(found)
        doubt = math.sqrt(sum((f - mean) ** 2 for f in found) / len(found))
        added = sum(self.effects.get(item, 0.0) for item in params.items())
        return self.weight * mean + (1 - self.weight) * added + curiosity * doubt


def _row(levels: Sequence[Tuple[str, Mapping[Value, int]]], params: Params) -> Row:
    return tuple([places[params[name]] for name, places in levels])


def _effects(space: Space, params: Sequence[Params], targets: Sequence[float]) -> Effects:
    """Of each value of each parameter, fitted in turns to what the others leave."""
    groups: Dict[Tuple[str, Value], List[int]] = {}
    for name in space.names:
        for i, one in enumerate(params):
            groups.setdefault((name, one[name]), []).append(i)
    left, effects = list(targets), dict.fromkeys(groups, 0.0)
    for _ in range(SWEEPS):
        for item, places in groups.items():
            step = sum([left[i] for i in places]) / (len(places) + SHRINK)
            effects[item] += step
            for i in places:
                left[i] -= step
    return effects


def _grown(rows: Sequence[Row], targets: Sequence[float], places: List[int], rng: random.Random) -> Tree:
    """A tree over ``places`` down to single rows, or to rows that no parameter tells apart."""
    total = sum([targets[i] for i in places])
    best: Tuple[float, int, float, List[int]] = (-1.0, 0, 0.0, [])
    tried = 0
    for column in rng.sample(range(len(rows[0])), len(rows[0])) if len(places) > 1 else ():
        here = [rows[i][column] for i in places]
        low, high = min(here), max(here)
        if low == high:
            continue
        limit = low + rng.random() * (high - low)
        left = [i for i in places if rows[i][column] <= limit]
        part, rest = sum([targets[i] for i in left]), len(places) - len(left)
        gain = part * part / len(left) + (total - part) ** 2 / rest
        if gain > best[0]:
            best = (gain, column, limit, left)
        tried += 1
        if tried == SPLITS:
            break
    gain, column, limit, left = best
    if not left:
        return total / len(places)
    right = [i for i in places if rows[i][column] > limit]
    return (column, limit, _grown(rows, targets, left, rng), _grown(rows, targets, right, rng))


def _looked_up(tree: Tree, row: Row) -> float:
    while isinstance(tree, tuple):
        tree = tree[2] if row[tree[0]] <= tree[1] else tree[3]
    return tree
