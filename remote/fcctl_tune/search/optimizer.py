"""What to try next: elite-preserving evolution, and its controls, random and exhaustive search.

A strategy is a pure function of the history and of a random number generator. It proposes no configuration twice.

Evolution takes the candidate of the largest expected improvement, by a Gaussian process on the speeds of tried ones.
Speed is the best time so far over a configuration's time, so that all slow ones are alike; a failed trial counts as
slower than all. The covariance falls with the distance, a sum over the parameters, whose weights are fitted to the
speeds: by the gradient of their marginal likelihood (Rasmussen and Williams, "Gaussian Processes for Machine
Learning", 2006, chapter 5) and of a log-normal prior.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, AbstractSet, Iterable, List, Optional, Sequence, Tuple

from fcctl_tune.errors import TuneError
from fcctl_tune.search.records import Trial, TrialRecord, ranked
from fcctl_tune.search.space import Params, Space

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
    Places = npt.NDArray[np.int64]


STRATEGIES = ("evolution", "random", "exhaustive")
#: Draws that may all be tried already, before the untried ones are listed.
DRAWS = 64

#: Evolution: of the budget one trial in so many, and at most so many, are spread, each the least familiar of a few.
SPREAD_SHARE, MOST_SPREAD, SPREAD_OF = 5, 20, 4
#: Share of random proposals.
CHANCE = 0.05
#: Up to so many untried configurations are all candidates; of more, so many children of elites and random strangers.
CANDIDATES, CHILDREN, STRANGERS = 1536, 256, 256


@dataclass(frozen=True)
class History:
    """Recorded trials by number, and pending ones; ``tried`` has the keys of both, ``budget`` counts all trials."""

    space: Space
    records: Tuple[TrialRecord, ...]
    pending: Tuple[Params, ...]
    tried: AbstractSet[str]
    budget: int = 128

    @property
    def number(self) -> int:
        """The number of the trial to propose."""
        return len(self.records) + len(self.pending)

    def is_new(self, params: Params) -> bool:
        return self.space.key(params) not in self.tried

    def untried(self, rng: random.Random) -> Optional[Params]:
        """An untried configuration, each equally likely; None if there is none."""
        for _ in range(DRAWS):
            one = self.space.draw(rng)
            if self.is_new(one):
                return one
        if self.space.is_counted:
            left = [one for one in self.space.all if self.is_new(one)]
            return dict(left[rng.randrange(len(left))]) if left else None
        return next((one for one in self.space.configurations(rng) if self.is_new(one)), None)


def propose(strategy: str, history: History, rng: random.Random, elites: int = 6) -> Optional[Trial]:
    """An untried configuration; None when none is left. ``elites``: how many of the best are parents in evolution."""
    if strategy == "evolution":
        return _evolution(history, rng, elites)
    if strategy == "exhaustive":  # in the parameters' order
        space = history.space
        all_of_it = space.all if space.is_counted else space.configurations()
        one = next((one for one in all_of_it if history.is_new(one)), None)
        return Trial(history.number, dict(one), "in order") if one is not None else None
    return _random(history, rng)


def _random(history: History, rng: random.Random) -> Optional[Trial]:
    """Without replacement: the control."""
    one = history.untried(rng)
    return Trial(history.number, one, "random") if one is not None else None


def _evolution(history: History, rng: random.Random, elites: int) -> Optional[Trial]:
    """Offspring of the ``elites`` best so far.

    A first part of the budget is spread over the space. Then each proposal is the best untried one by the surrogate
    model; in a large space, the best of some offspring and some random ones. A share of the proposals is random.
    """
    parents = ranked(history.records)[:elites]
    if not parents or history.number < spread(history.budget):
        return _spread(history, rng)
    if rng.random() < CHANCE:
        return _random(history, rng)
    candidates = list({history.space.key(c.params): c for c in _candidates(history, parents, rng)}.values())
    if not candidates:
        return None
    scores = expected_improvements(history.space, history.records, history.pending, [c.params for c in candidates], rng)
    return candidates[scores.index(max(scores))]


def _spread(history: History, rng: random.Random) -> Optional[Trial]:
    """Of a few random ones, that with the least tried values."""
    seen = Counter(
        (name, params[name])
        for params in (*(r.params for r in history.records), *history.pending)
        for name in history.space.names
    )
    few = [one for one in (history.untried(rng) for _ in range(SPREAD_OF)) if one is not None]
    if not few:
        return None
    return Trial(history.number, min(few, key=lambda one: sum(seen[item] for item in one.items())), "spread")


def _candidates(history: History, parents: Sequence[TrialRecord], rng: random.Random) -> Iterable[Trial]:
    """Legal and untried configurations."""
    size = history.space.size
    if size is not None and size - len(history.tried) <= CANDIDATES:
        yield from (Trial(history.number, dict(one), "surrogate") for one in history.space.all if history.is_new(one))
        return
    for _ in range(CHILDREN):
        child = _offspring(history, parents, rng)
        if child.params in history.space and history.is_new(child.params):
            yield child
    for _ in range(STRANGERS):
        one = history.untried(rng)
        if one is not None:
            yield Trial(history.number, one, "stranger")


def _offspring(history: History, parents: Sequence[TrialRecord], rng: random.Random) -> Trial:
    """A child of one or two of ``parents``, with up to three values changed."""
    space, first, second = history.space, rng.choice(parents), rng.choice(parents)
    child = {name: rng.choice((first, second)).params[name] for name in space.names}
    for parameter in rng.sample(space.parameters, min(rng.randrange(first is second, 4), len(space.parameters))):
        child[parameter.name] = rng.choice(parameter.values)
    source = f"of {first.number}" if first is second else f"of {first.number} and {second.number}"
    return Trial(history.number, child, source)


def spread(budget: int) -> int:
    """The number of first trials that are spread over the space."""
    return max(4, min(MOST_SPREAD, budget // SPREAD_SHARE))


def choose(strategy: str, space: Space, budget: int) -> str:
    """``auto``: exhaustive where the budget covers the space, else evolution. Raises TuneError: there is no such
    strategy."""
    if strategy == "auto":
        return "exhaustive" if space.size is not None and space.size <= budget else "evolution"
    if strategy not in STRATEGIES:
        raise TuneError(f"unknown strategy {strategy!r}", f"known: auto, {', '.join(STRATEGIES)}")
    return strategy


def rng_of(seed: int, number: int) -> random.Random:
    """Of one proposal alone, so that a killed search continues as if it had not been killed."""
    return random.Random(f"{seed}/{number}")  # noqa: S311 - a search is no secret


#: Trials of a fit, whose time is cubic: a longer search draws so many for each proposal.
MODELLED_TRIALS = 256
#: Trials that the parameters' weights are fitted to, and steps of that fit.
FITTED_TRIALS, STEPS = 96, 12
#: Prior of the logarithm of a parameter's weight: mean and standard deviation.
PRIOR = (-1.0, 1.5)
#: Of the fit's sign-based steps (Rprop): the first and the largest, and the factors after the same and the other sign.
FIRST_STEP, LARGEST_STEP, FASTER, SLOWER = 0.3, 1.0, 1.2, 0.5
#: Variance of a timing, as a share of the model's.
NOISE = 0.02
#: Speed of a trial that failed, as a share of the slowest that was timed.
FAILED = 0.5


def expected_improvements(
    space: Space,
    records: Sequence[TrialRecord],
    pending: Sequence[Params],
    candidates: Sequence[Params],
    rng: random.Random,
) -> List[float]:
    """For each of ``candidates`` by how much its speed is expected to exceed the best, in standard deviations.

    ``records`` need a timed one. Near a ``pending`` trial, whose speed is not known yet, uncertainty is less.
    """
    import numpy as np

    best = min((r for r in records if r.is_timed), key=lambda r: r.value or math.inf)
    others = [r for r in records if (r.is_timed or r.is_invalid) and r is not best]
    known = [best, *rng.sample(others, min(len(others), MODELLED_TRIALS - 1))]
    speeds = np.array([(best.value or 0.0) / r.value if r.is_timed and r.value else math.nan for r in known])
    speeds = np.where(np.isnan(speeds), FAILED * np.nanmin(speeds), speeds)
    targets = (speeds - speeds.mean()) / (float(speeds.std()) or 1.0)
    tried = _levels(space, [*(r.params for r in known), *pending])
    fitted, tables = tried[: min(len(known), FITTED_TRIALS)], _distances(space)
    each = np.array([_between(table, fitted[:, n], fitted[:, n]) for n, table in enumerate(tables)])
    weights = _weights(each, targets[: len(fitted)])
    tables = [weight * table for weight, table in zip(weights, tables)]  # noqa: B905 (Python 3.9)
    to_candidates = _total(tables, tried, _levels(space, candidates))
    mean, deviation = _predicted(_total(tables, tried, tried), to_candidates, targets)
    above = (mean - targets.max()) / deviation
    density = np.exp(-(above**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in above])
    scores = deviation * (above * below + density)
    return [float(score) for score in scores + 1e-12 * above]  # where all are 0, the likeliest


def _weights(distances: Floats, targets: Floats) -> Floats:
    """The parameters' weights that fit ``targets``; ``distances`` are [parameter, trial, trial]."""
    import numpy as np

    mean, deviation = PRIOR
    logs, step, before = (np.full(len(distances), value) for value in (mean, FIRST_STEP, 0.0))
    for _ in range(STEPS):
        covariance = np.exp(-np.tensordot(np.exp(logs), distances, 1))
        inverse = np.linalg.inv(covariance + NOISE * np.eye(len(targets)))
        solved = inverse @ targets
        variance = max(1e-6, float(targets @ solved) / len(targets))
        inner = (np.outer(solved, solved) / variance - inverse) * covariance
        gradient = -0.5 * np.exp(logs) * np.tensordot(distances, inner, 2) - (logs - mean) / deviation**2
        sign = np.sign(gradient)
        factor = np.where(sign == before, FASTER, np.where(before == 0, 1.0, SLOWER))
        step, before = np.minimum(step * factor, LARGEST_STEP), sign
        logs = logs + sign * step
    weights: Floats = np.exp(logs)
    return weights


def _predicted(distances: Floats, to_candidates: Floats, targets: Floats) -> Tuple[Floats, Floats]:
    """Mean and standard deviation at each candidate; the first rows have ``targets``."""
    import numpy as np

    count = len(targets)
    factor = np.linalg.cholesky(np.exp(-distances) + NOISE * np.eye(len(distances)))
    whitened = np.linalg.solve(factor[:count, :count], targets)
    variance = max(1e-6, float(whitened @ whitened) / count)
    solved = np.linalg.solve(factor, np.exp(-to_candidates))
    spread = np.sqrt(np.maximum(1e-9, 1.0 - (solved**2).sum(axis=0)) * variance)
    return solved[:count].T @ whitened, spread


def _levels(space: Space, many: Sequence[Params]) -> Places:
    """[configuration, parameter]: the place of each value in the parameter's order."""
    import numpy as np

    places = [{value: place for place, value in enumerate(p.ordered)} for p in space.parameters]
    rows = [[known[one[p.name]] for p, known in zip(space.parameters, places)] for one in many]  # noqa: B905
    return np.array(rows, int).reshape(len(many), len(places))


def _distances(space: Space) -> List[Floats]:
    """For each parameter [value, value], in its order: from 0 to 1."""
    import numpy as np

    tables = []
    for parameter in space.parameters:
        places = np.arange(len(parameter.values), dtype=float)
        steps = np.abs(places[:, None] - places) / max(1.0, places[-1])
        tables.append(np.sqrt(steps) if parameter.is_ordinal else (steps > 0).astype(float))
    return tables


def _between(table: Floats, some: Places, others: Places) -> Floats:
    return table[some[:, None], others]


def _total(tables: Sequence[Floats], some: Places, others: Places) -> Floats:
    """[some, others]: the sum over the parameters."""
    import numpy as np

    total = np.zeros((len(some), len(others)))
    for place, table in enumerate(tables):
        total += _between(table, some[:, place], others[:, place])
    return total
