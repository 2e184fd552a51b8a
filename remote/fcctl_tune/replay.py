"""Searches compared on recorded landscapes: evolution against random search at equal budget, seed by seed.

``python -m fcctl_tune replay LANDSCAPE.. [--budget N] [--seeds N] [--ahead N]``
"""

from __future__ import annotations

from collections import deque
from typing import Deque, List

from fcctl_tune import search
from fcctl_tune.landscape import Landscape
from fcctl_tune.records import Trial, TrialRecord


def run(
    landscape: Landscape, strategy: str, seed: int, budget: int, ahead: int = 0, elites: int = 6
) -> List[TrialRecord]:
    """A search over ``landscape``; its records by number.

    ``ahead``: so many trials are under way while the next is proposed, as when builds run ahead of the GPU.
    """
    chosen = search.make(strategy, elites)
    known: List[TrialRecord] = []
    flying: Deque[Trial] = deque()
    for number in range(budget):
        if number == 0:
            proposal = search.Proposal(landscape.space.default, "default")
        else:
            history = search.History.of(landscape.space, known, [t.params for t in flying], budget)
            found = chosen.propose(history, search.rng_of(seed, number))
            if found is None:
                break
            proposal = found
        flying.append(Trial(number, proposal.params, proposal.source))
        if len(flying) > ahead:
            known.append(landscape.try_out(flying.popleft()))
    known.extend(landscape.try_out(t) for t in flying)
    return known
