"""What to try next: elite-preserving evolution, and its controls, random and exhaustive search.

A strategy is a pure function of what is known and of a random number generator. It never proposes a configuration twice
and says None when there is none left.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import AbstractSet, ClassVar, Iterable, Optional, Protocol, Sequence, Tuple

from fcctl_tune.errors import TuneError
from fcctl_tune.search.records import TrialRecord, ranked
from fcctl_tune.search.space import Parameter, Params, Space
from fcctl_tune.search.surrogate import acquisition_scores, exploration_weight

STRATEGIES = ("evolution", "random", "exhaustive")
#: Draws that may all be known already, before what is left is listed.
DRAWS = 64

#: Evolution: the first trials, of the budget one in so many and at most so many, each the least familiar of a few.
SPREAD_SHARE, MOST_SPREAD, SPREAD_OF = 5, 20, 4
#: Shares: of proposals left to chance, of children with two parents, of mutations that go to a neighbouring value.
CHANCE, CROSS, STEP = 0.05, 0.5, 0.6
#: Candidates of a proposal: children at the most in each of two rounds, and strangers from the whole space.
CHILDREN, STRANGERS = 12, 48


@dataclass(frozen=True)
class History:
    """What is known when a proposal is made: told trials by number, and those under way. ``budget`` is all trials;
    ``tried`` has the keys of both."""

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
        """A configuration that was not tried, each equally likely; None if there is none."""
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


class Strategy(Protocol):
    learns: ClassVar[bool]  # from what was found, so that it should know as much of that as can be

    def propose(self, history: History, rng: random.Random) -> Optional[Proposal]:
        """The next configuration, never one that was tried; None when none is left."""


@dataclass(frozen=True)
class Random:
    """Without replacement: the control."""

    learns: ClassVar[bool] = False

    def propose(self, history: History, rng: random.Random) -> Optional[Proposal]:
        one = history.untried(rng)
        return Proposal(one, "random") if one is not None else None


@dataclass(frozen=True)
class Exhaustive:
    """Every legal configuration, in the parameters' order."""

    learns: ClassVar[bool] = False

    def propose(self, history: History, rng: random.Random) -> Optional[Proposal]:  # noqa: ARG002 - by contract
        one = next((one for one in _in_order(history.space) if history.is_new(one)), None)
        return Proposal(dict(one), "in order") if one is not None else None


def _in_order(space: Space) -> Iterable[Params]:
    return space.all if space.is_counted else space.configurations()


@dataclass(frozen=True)
class Evolution:
    """Offspring of the best so far, which stay parents until ``elites`` better ones are found.

    A first part of the budget is spread over the space. From then on each proposal is the best, by the surrogate model,
    of some offspring and some configurations drawn from the whole space, so that a search does not end where it began.
    A share of the proposals is left to chance, so that nothing is ruled out for good.
    """

    elites: int = 6
    learns: ClassVar[bool] = True

    def propose(self, history: History, rng: random.Random) -> Optional[Proposal]:
        parents = ranked(history.records)[: self.elites]
        if not parents or history.number < spread(history.budget):
            return self._spread(history, rng)
        if rng.random() < CHANCE:
            return Random().propose(history, rng)
        candidates = list({history.space.key(c.params): c for c in self._candidates(history, parents, rng)}.values())
        if not candidates:
            return None
        scores = acquisition_scores(
            history.space, history.records, history.pending, [c.params for c in candidates],
            exploration_weight(history.number, history.budget), rng,
        )  # fmt: skip
        return candidates[scores.index(max(scores))]

    def _spread(self, history: History, rng: random.Random) -> Optional[Proposal]:
        """Of a few random ones, that whose values have been tried least."""
        seen = Counter(
            (name, params[name])
            for params in (*(r.params for r in history.records), *history.pending)
            for name in history.space.names
        )
        few = [one for one in (history.untried(rng) for _ in range(SPREAD_OF)) if one is not None]
        if not few:
            return None
        return Proposal(min(few, key=lambda one: sum(seen[item] for item in one.items())), "spread")

    def _candidates(self, history: History, parents: Sequence[TrialRecord], rng: random.Random) -> Iterable[Proposal]:
        """Those that are legal and new. Where most children are known already, they are mutated further."""
        for attempt in range(2 * CHILDREN):
            child = _offspring(history.space, parents, rng, more=2 * attempt // CHILDREN)
            if child.params in history.space and history.is_new(child.params):
                yield child
        size = history.space.size
        if size is not None and size <= len(history.tried) + STRANGERS:
            yield from (Proposal(dict(one), "stranger") for one in history.space.all if history.is_new(one))
            return
        for _ in range(STRANGERS):
            one = history.untried(rng)
            if one is None:
                return
            yield Proposal(one, "stranger")


def _offspring(space: Space, parents: Sequence[TrialRecord], rng: random.Random, more: int) -> Proposal:
    """A child of one or two of ``parents``, mutated at 1 to 3 places or, if crossed, perhaps not; and ``more``."""
    first = _parent(parents, rng)
    child, source, crossed = dict(first.params), f"of {first.number}", False
    if len(parents) > 1 and rng.random() < CROSS:
        second = _parent([p for p in parents if p is not first], rng)
        child = {name: (first if rng.random() < 0.5 else second).params[name] for name in space.names}
        source, crossed = f"of {first.number} and {second.number}", rng.random() < 0.5
    places = 0 if crossed else 1 + (rng.random() < 0.4) + (rng.random() < 0.15)
    for _ in range(places + more):
        _mutate(space.parameters[rng.randrange(len(space.parameters))], child, rng)
    return Proposal(child, source)


def _parent(parents: Sequence[TrialRecord], rng: random.Random) -> TrialRecord:
    """The better of two drawn: parents are ranked."""
    return parents[min(rng.randrange(len(parents)), rng.randrange(len(parents)))]


def _mutate(parameter: Parameter, child: Params, rng: random.Random) -> None:
    """A step to a neighbouring value most of the time, where values have an order; else any other value."""
    values = parameter.ordered
    if len(values) < 2:
        return
    place = values.index(child[parameter.name])
    if parameter.is_ordinal and rng.random() < STEP:
        beside = [i for i in (place - 1, place + 1) if 0 <= i < len(values)]
        child[parameter.name] = values[beside[rng.randrange(len(beside))]]
        return
    other = rng.randrange(len(values) - 1)
    child[parameter.name] = values[other + (other >= place)]


def spread(budget: int) -> int:
    """How many first trials are spread over the space."""
    return max(4, min(MOST_SPREAD, budget // SPREAD_SHARE))


def choose(strategy: str, space: Space, budget: int) -> str:
    """``auto``: exhaustive where the budget covers the space, else evolution.

    Raises:
        TuneError: there is no such strategy.
    """
    if strategy == "auto":
        return "exhaustive" if space.size is not None and space.size <= budget else "evolution"
    if strategy not in STRATEGIES:
        raise TuneError(f"there is no strategy {strategy!r}", f"known: auto, {', '.join(STRATEGIES)}")
    return strategy


def make(strategy: str, elites: int = 6) -> Strategy:
    if strategy == "evolution":
        return Evolution(elites)
    return Exhaustive() if strategy == "exhaustive" else Random()


def rng_of(seed: int, number: int) -> random.Random:
    """The chance in one proposal: its own, so that a search goes on after a kill as if there had been none."""
    return random.Random(f"{seed}/{number}")  # noqa: S311 - a search is no secret
