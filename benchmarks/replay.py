"""Searches compared on recorded landscapes: evolution against random search at equal budget, seed by seed.

``python -m benchmarks.replay LANDSCAPE.. [--budget N].. [--seeds N] [--ahead N] [--json]``
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.landscape import Landscape
from fcctl_tune.errors import TuneError
from fcctl_tune.search import optimizer as search
from fcctl_tune.search.records import Trial, TrialRecord, best_so_far

BUDGETS, SEEDS = (32, 128), 10
#: Trials under way while the next is proposed: builds run ahead of the GPU on a host with 16 cores.
AHEAD = 16


def run(
    landscape: Landscape, strategy: str, seed: int, budget: int, ahead: int = 0, elites: int = 6
) -> list[TrialRecord]:
    """A search over ``landscape``; its records by number. With ``ahead`` so many trials are under way at any time."""
    chosen = search.make(strategy, elites)
    space = landscape.space
    known: list[TrialRecord] = []
    flying: deque[Trial] = deque()
    tried: set[str] = set()
    for number in range(budget):
        proposal: search.Proposal | None = search.Proposal(space.default, "default")
        if number > 0:
            pending = tuple(trial.params for trial in flying)
            history = search.History(space, tuple(known), pending, tried, budget)
            proposal = chosen.propose(history, search.rng_of(seed, number))
        if proposal is None:
            break
        tried.add(space.key(proposal.params))
        flying.append(Trial(number, proposal.params, proposal.source))
        if len(flying) > ahead:
            known.append(landscape.try_out(flying.popleft()))
    return known + [landscape.try_out(trial) for trial in flying]


@dataclass(frozen=True)
class Contest:
    """One strategy against random search on one landscape: for each seed, the least value that each found."""

    landscape: Landscape
    strategy: str
    budget: int
    ahead: int
    pairs: tuple[tuple[float, float], ...]  # the strategy's, random search's
    matched_at: tuple[int | None, ...]  # the trial at which it was as good as random search in the end

    @property
    def wins(self) -> int:
        return sum(mine < control for mine, control in self.pairs)

    @property
    def ties(self) -> int:
        """Both found the very same figure, most often the best there is."""
        return sum(mine == control for mine, control in self.pairs)

    def behind(self, side: int) -> float:
        """How far above the best of the landscape a side (0: the strategy, 1: random) stays: the geometric mean of
        the ratio, less 1."""
        best = self.landscape.values[0]
        return statistics.geometric_mean(pair[side] / best for pair in self.pairs) - 1

    def to_dict(self) -> dict[str, Any]:
        return {
            "landscape": self.landscape.name, "origin": self.landscape.origin, "machine": self.landscape.machine,
            "configurations": len(self.landscape), "valid": len(self.landscape.values), "strategy": self.strategy,
            "budget": self.budget, "ahead": self.ahead, "seeds": len(self.pairs), "wins": self.wins, "ties": self.ties,
            "behind": self.behind(0), "control_behind": self.behind(1), "matched_at": list(self.matched_at),
        }  # fmt: skip


def contest(
    landscape: Landscape, budget: int, seeds: Sequence[int], ahead: int = 0, strategy: str = "evolution"
) -> Contest:
    """``strategy`` against random search, both with the same budget and seed. Raises TuneError: a search found nothing
    that works."""
    pairs, matched = [], []
    for seed in seeds:
        mine, control = (run(landscape, one, seed, budget, ahead) for one in (strategy, "random"))
        best, other = best_so_far(mine)[-1], best_so_far(control)[-1]
        if best is None or other is None:
            raise TuneError(f"{landscape.name}: no configuration of {budget} works")
        pairs.append((best, other))
        matched.append(next((n for n, value in enumerate(best_so_far(mine), 1) if value and value <= other), None))
    return Contest(landscape, strategy, budget, ahead, tuple(pairs), tuple(matched))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("landscapes", nargs="+", metavar="LANDSCAPE", help="a file that benchmarks/landscape.py wrote")
    parser.add_argument("--budget", type=int, action="append", help=f"trials of each search (default {BUDGETS})")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"so many, from 0 (default {SEEDS})")
    parser.add_argument("--ahead", type=int, default=0, help="trials under way at any time beside the one told last")
    parser.add_argument("--strategy", choices=search.STRATEGIES, default="evolution", help="against random search")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of a table")
    options = parser.parse_args(argv)
    try:
        for path in options.landscapes:
            landscape = Landscape.load(path)
            for budget in options.budget or BUDGETS:
                found = contest(landscape, budget, range(options.seeds), options.ahead, options.strategy)
                print(json.dumps(found.to_dict()) if options.json else _line(found), flush=True)
    except TuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _line(c: Contest) -> str:
    return (
        f"{c.landscape.name} ({len(c.landscape)} configurations, {c.landscape.origin}): {c.strategy} with {c.budget} "
        f"trials beats random in {c.wins} of {len(c.pairs)} seeds, {c.ties} equal; "
        f"behind the best {100 * c.behind(0):.1f} %, random {100 * c.behind(1):.1f} %"
    )


if __name__ == "__main__":
    sys.exit(main())
