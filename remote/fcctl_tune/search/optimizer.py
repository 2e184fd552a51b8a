"""What to try next: elite-preserving evolution, and its controls, random and exhaustive search.

A strategy is a pure function of the history and of a random number generator. It proposes no configuration twice.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import AbstractSet, Iterable, Optional, Sequence, Tuple

from fcctl_tune.errors import TuneError
from fcctl_tune.search.records import TrialRecord, ranked
from fcctl_tune.search.space import Params, Space
from fcctl_tune.search.surrogate import expected_improvements

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

    @classmethod
    def of(
        cls, space: Space, records: Sequence[TrialRecord], pending: Sequence[Params] = (), budget: int = 128
    ) -> History:
        tried = {space.key(params) for params in (*(r.params for r in records), *pending)}
        return cls(space, tuple(records), tuple(pending), tried, budget)

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


@dataclass(frozen=True)
class Proposal:
    params: Params
    source: str  # for people: random, mutation of 12, ..


def propose(strategy: str, history: History, rng: random.Random, elites: int = 6) -> Optional[Proposal]:
    """An untried configuration; None when none is left. ``elites``: how many of the best are parents in evolution."""
    if strategy == "evolution":
        return _evolution(history, rng, elites)
    if strategy == "exhaustive":  # in the parameters' order
        one = next((one for one in _in_order(history.space) if history.is_new(one)), None)
        return Proposal(dict(one), "in order") if one is not None else None
    return _random(history, rng)


def learns(strategy: str) -> bool:
    """Whether results change its proposals."""
    return strategy == "evolution"


def _random(history: History, rng: random.Random) -> Optional[Proposal]:
    """Without replacement: the control."""
    one = history.untried(rng)
    return Proposal(one, "random") if one is not None else None


def _in_order(space: Space) -> Iterable[Params]:
    return space.all if space.is_counted else space.configurations()


def _evolution(history: History, rng: random.Random, elites: int) -> Optional[Proposal]:
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


def _spread(history: History, rng: random.Random) -> Optional[Proposal]:
    """Of a few random ones, that with the least tried values."""
    seen = Counter(
        (name, params[name])
        for params in (*(r.params for r in history.records), *history.pending)
        for name in history.space.names
    )
    few = [one for one in (history.untried(rng) for _ in range(SPREAD_OF)) if one is not None]
    if not few:
        return None
    return Proposal(min(few, key=lambda one: sum(seen[item] for item in one.items())), "spread")


def _candidates(history: History, parents: Sequence[TrialRecord], rng: random.Random) -> Iterable[Proposal]:
    """Legal and untried configurations."""
    size = history.space.size
    if size is not None and size - len(history.tried) <= CANDIDATES:
        yield from (Proposal(dict(one), "surrogate") for one in history.space.all if history.is_new(one))
        return
    for _ in range(CHILDREN):
        child = _offspring(history.space, parents, rng)
        if child.params in history.space and history.is_new(child.params):
            yield child
    for _ in range(STRANGERS):
        one = history.untried(rng)
        if one is not None:
            yield Proposal(one, "stranger")


def _offspring(space: Space, parents: Sequence[TrialRecord], rng: random.Random) -> Proposal:
    """A child of one or two of ``parents``, with up to three values changed."""
    first, second = rng.choice(parents), rng.choice(parents)
    child = {name: rng.choice((first, second)).params[name] for name in space.names}
    for parameter in rng.sample(space.parameters, min(rng.randrange(first is second, 4), len(space.parameters))):
        child[parameter.name] = rng.choice(parameter.values)
    source = f"of {first.number}" if first is second else f"of {first.number} and {second.number}"
    return Proposal(child, source)


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
