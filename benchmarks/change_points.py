"""The false alarms and the delay of ``fcctl results history``, measured on simulated series.

    python benchmarks/change_points.py [--trials 1000] [--write]

Each series is looked at after each run, as somebody does who watches it. ``--write`` puts the tables into
docs/statistics.md.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

sys.path[:0] = [str(root := Path(__file__).resolve().parent.parent), str(root / "remote")]

from benchmarks.tables import command, in_parallel  # noqa: E402
from fcctl_remote.base.estimates import quantile  # noqa: E402
from orchestrator.results.compare.ranks import ALPHA, change_points  # noqa: E402

RUNS, STEP, LATEST = 60, 0.05, 20


@dataclass(frozen=True)
class Flat:
    """A series without a change: ``memory`` of the run before, ``noise`` of a run, Student's t with ``tails``."""

    memory: float = 0.0
    noise: float = 0.01
    tails: int = 0

    def values(self, rng: np.random.Generator, count: int) -> np.ndarray:
        fresh = 0.5 * rng.standard_t(self.tails, count) if self.tails else rng.normal(0, 1, count)
        fresh[1:] *= np.sqrt(1 - self.memory**2)
        for i in range(1, count):
            fresh[i] += self.memory * fresh[i - 1]
        return np.asarray(10 * np.exp(self.noise * fresh))

    @property
    def name(self) -> str:
        kind = f"Student's t with {self.tails} degrees of freedom" if self.tails else "normal"
        return f"{kind}, memory {self.memory:g}"


@dataclass(frozen=True)
class Stepped(Flat):
    """The same, and slower by :data:`STEP` after ``before`` runs."""

    noise: float = 0.007
    before: int = 25


def ever_alarmed(flat: Flat, trials: int, seed: int = 0, alpha: float = ALPHA) -> float:
    """The share of series with an alarm at any of their looks. What is told stays told, so that the last look shows
    every alarm there was; but for episodes, of which there is none to be seen earlier either."""
    rng = np.random.default_rng(seed)
    return sum(bool(change_points(flat.values(rng, RUNS), alpha=alpha)) for _ in range(trials)) / trials


def delays(stepped: Stepped, trials: int, seed: int = 0) -> list[int]:
    """For each series, the number of runs after the step until it was reported; :data:`LATEST` + 1 if it never was."""
    rng = np.random.default_rng(seed)
    return [_delay(stepped, stepped.values(rng, stepped.before + LATEST)) for _ in range(trials)]


def _delay(stepped: Stepped, values: np.ndarray) -> int:
    values[stepped.before :] *= 1 + STEP

    def is_told(seen: int) -> bool:
        return any(step.start >= stepped.before - 2 for step in change_points(values[: stepped.before + seen]))

    return 1 + bisect_left(range(1, LATEST + 1), True, key=is_told)  # it stays told


FLAT = (*map(Flat, (0.0, 0.3, 0.6, 0.8, 0.9, 0.95)), Flat(tails=2), Flat(tails=3))
STEPS = tuple(
    Stepped(memory, noise, before=before)
    for noise, before in ((0.007, 12), (0.007, 25), (0.01, 25), (0.01, 40), (0.015, 40))
    for memory in (0.0, 0.3, 0.6, 0.9)
)


def flat_row(flat: Flat, trials: int) -> str:
    return f"| {flat.name} | {100 * ever_alarmed(flat, trials):.1f} % |"


def step_row(stepped: Stepped, trials: int) -> str:
    found = sorted(delays(stepped, trials))
    middle, late = (f"{d:.0f}" if d <= LATEST else f"over {LATEST}" for d in (median(found), quantile(found, 0.9)))
    within = 100 * sum(delay <= 5 for delay in found) / trials
    noise = f"{100 * stepped.noise:g} %"
    return f"| {noise} | {stepped.before} | {stepped.memory:g} | {middle} | {late} | {within:.1f} % |"


def tables(trials: int) -> str:
    """Both as Markdown."""
    flat = in_parallel(flat_row, FLAT, trials)
    steps = in_parallel(step_row, STEPS, trials)
    return "\n".join([
        f"| flat series of {RUNS} runs, looked at after each | ever alarmed |", "|---|---:|", *flat, "",
        f"| runs differ by | runs before {100 * STEP:.0f} % | memory | median delay | nine in ten | within 5 runs |",
        "|---:|---:|---:|---:|---:|---:|", *steps, "",
        f"{trials} series a row.",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(command("benchmarks/change_points.py", __doc__, tables))
