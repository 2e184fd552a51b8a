"""Evolution against random search at equal budget, on recorded landscapes, seed by seed.

    python benchmarks/search.py [LANDSCAPE ..] [--budget N].. [--ahead N].. [--seeds 10] [--json] [--write]

Needs no GPU: what each configuration came to was recorded (benchmarks/landscapes). ``--write`` puts the table into
docs/search.md. Exit code 1 if evolution wins fewer than 8 of 10 seeds with 128 trials, one at a time. All landscapes
take about two minutes of processor time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "remote")]

from benchmarks.figures import Figure  # noqa: E402
from benchmarks.landscape import Landscape  # noqa: E402
from benchmarks.tables import put  # noqa: E402
from fcctl_tune.errors import TuneError  # noqa: E402
from fcctl_tune.search import optimizer as search  # noqa: E402
from fcctl_tune.search.records import Trial, TrialRecord, best_so_far  # noqa: E402

LANDSCAPES = sorted((ROOT / "benchmarks" / "landscapes").glob("*.json"))
PAGE = ROOT / "docs" / "search.md"
COLUMNS = (
    "landscape", "configurations", "trials", "under way", "evolution wins", "equal", "above the best", "random's",
)  # fmt: skip
WINS = 0.8
BUDGETS, SEEDS = (32, 128), 10
#: Trials under way while the next is proposed: builds run ahead of the GPU on a host with 16 cores.
AHEAD = 16


def run(
    landscape: Landscape, strategy: str, seed: int, budget: int, ahead: int = 0, elites: int = 6
) -> list[TrialRecord]:
    """A search over ``landscape``; its records by number. With ``ahead`` so many trials are under way at any time."""
    space = landscape.space
    known: list[TrialRecord] = []
    flying: deque[Trial] = deque()
    tried: set[str] = set()
    for number in range(budget):
        trial: Trial | None = Trial(0, space.default, "default")
        if number > 0:
            pending = tuple(one.params for one in flying)
            history = search.History(space, tuple(known), pending, tried, budget)
            trial = search.propose(strategy, history, search.rng_of(seed, number), elites)
        if trial is None:
            break
        tried.add(space.key(trial.params))
        flying.append(trial)
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
        """The best time that a side found (0: the strategy, 1: random search), over the landscape's best time, less 1;
        the geometric mean over all seeds."""
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


def measure_all() -> list[Figure]:
    """What the page promises: with the larger budget, one trial at a time. About a minute."""
    budget = max(BUDGETS)
    found = []
    for path in LANDSCAPES:
        c = contest(Landscape.load(str(path)), budget, range(SEEDS))
        name = f"search: evolution beats chance on {c.landscape.name}, {budget} trials"
        found.append(Figure(name, float(c.wins), f"of {len(c.pairs)} seeds", WINS * len(c.pairs), at_least=True))
    return found


def row(c: Contest) -> tuple[str, ...]:
    return (
        c.landscape.name,
        f"{len(c.landscape)}, {len(c.landscape.values)} work",
        str(c.budget),
        str(1 + c.ahead),
        f"{c.wins} of {len(c.pairs)}",
        str(c.ties),
        f"{100 * c.behind(0):.1f} %",
        f"{100 * c.behind(1):.1f} %",
    )


def table(found: Sequence[Contest]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row(c)) + " |" for c in found])


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks/search.py", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("landscapes", nargs="*", metavar="LANDSCAPE", help="recorded ones (default: all here)")
    add("--budget", type=int, action="append", help=f"trials of each search (default {BUDGETS})")
    add("--ahead", type=int, action="append", help=f"trials under way beside the one told last (default 0 and {AHEAD})")
    add("--seeds", type=int, default=SEEDS, help=f"so many, from 0 (default {SEEDS})")
    add("--strategy", choices=search.STRATEGIES, default="evolution", help="against random search")
    add("--json", action="store_true", help="JSON lines instead of a table")
    add("--write", action="store_true", help=f"put the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args(argv)
    try:
        found = [
            contest(landscape, budget, range(options.seeds), ahead, options.strategy)
            for landscape in (Landscape.load(str(path)) for path in options.landscapes or LANDSCAPES)
            for budget in options.budget or BUDGETS
            for ahead in options.ahead or (0, AHEAD)
        ]
    except TuneError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print("\n".join(json.dumps(c.to_dict()) for c in found) if options.json else table(found))
    if options.write:
        put(PAGE, f"\n{table(found)}\n", "contests: benchmarks/search.py --write", "end of contests")
    judged = [c for c in found if c.budget == max(BUDGETS) and c.ahead == 0]
    return int(any(c.wins < WINS * len(c.pairs) for c in judged))


if __name__ == "__main__":
    sys.exit(main())
