"""How often ``fcctl results compare`` is wrong, on simulated runs whose truth is known.

    python benchmarks/verdicts.py [--trials 1000] [--write]

Each scenario is tried many times without any difference (whatever is called faster or slower is a false alarm) and with
a new side that is 5 % slower in every benchmark. ``--write`` puts the table into docs/statistics.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path[:0] = [str(root := Path(__file__).resolve().parent.parent), str(root / "remote")]

from benchmarks.tables import command, in_parallel  # noqa: E402
from orchestrator.results.compare.effect import Launch, Spread  # noqa: E402
from orchestrator.results.compare.rows import Conditions, Key, Row  # noqa: E402
from orchestrator.results.compare.verdicts import ALPHA, Compared, Options, compare  # noqa: E402

SLOWDOWN = 1.05
COLUMNS = (
    "launches a side", "what the samples do", "benchmarks", "false alarms", "5 % slower, found",
    "called same or faster", "equal, called same", "interval holds the truth",
)  # fmt: skip
Rng = np.random.Generator
Noise = Callable[[Rng, int], np.ndarray]


# ------------------------------------------------------------------------------------------------ kinds of noise
def independent(rng: Rng, n: int) -> np.ndarray:
    """Logarithms of samples around 0: 1 % of independent noise."""
    return rng.normal(0, 0.01, n)


def autocorrelated(rng: Rng, n: int, memory: float = 0.9) -> np.ndarray:
    """AR(1), 1 %: a sample remembers 90 % of the one before."""
    steps = rng.normal(0, 0.01 * np.sqrt(1 - memory**2), n)
    found = np.empty(n)
    found[0] = rng.normal(0, 0.01)
    for i in range(1, n):
        found[i] = memory * found[i - 1] + steps[i]
    return found


def heavy_tailed(rng: Rng, n: int) -> np.ndarray:
    """Student's t with 2 degrees of freedom (no variance), and one sample in twenty hit by an interruption."""
    return 0.005 * rng.standard_t(2, n).clip(-100, 100) + np.where(rng.random(n) < 0.05, rng.exponential(0.5, n), 0)


def drifting(rng: Rng, n: int) -> np.ndarray:
    """A GPU that warms up or cools down by up to 3 % while it is measured, another way in each launch."""
    return independent(rng, n) + rng.uniform(-0.03, 0.03) * np.linspace(-0.5, 0.5, n)


def two_states(rng: Rng, n: int) -> np.ndarray:
    """Two levels 2 % apart, with changes at random: a clock that steps."""
    return 0.02 * (np.cumsum(rng.random(n) < 0.05) % 2) + rng.normal(0, 0.003, n)


def coarse(rng: Rng, n: int) -> np.ndarray:
    """A timer whose ticks are 2 % of the time."""
    return np.log(np.round(np.exp(rng.normal(0, 0.01, n)) / 0.02) * 0.02)


@dataclass(frozen=True)
class Scenario:
    name: str
    noise: Noise = independent
    launches: tuple[int, int] = (1, 1)
    samples: tuple[int, int] = (112, 112)
    benchmarks: int = 1
    #: True standard deviation between launches, and its tails: with ``rough`` one launch in ten is off by five of them.
    between: float = 0.007
    rough: bool = False
    #: All launches of the new side after those of the old, and by how much everything is slower then.
    apart: bool = False
    drift: float = 0.0
    controls: int = 0
    #: Earlier runs of one source that are known.
    known: int = 0
    metric: str = "p50"
    beyond: bool = False  # outside of what is promised


APART = "new side after the old"
SCENARIOS = (
    Scenario("independent samples"),
    Scenario("launches differ by 2 %", between=0.02),
    Scenario("launches differ by the whole 2.5 % that is assumed", between=0.025),
    Scenario("autocorrelated (0.9)", autocorrelated),
    Scenario("heavy tails", heavy_tailed),
    Scenario("heavy tails, p99 of 112 samples", heavy_tailed, metric="p99"),
    Scenario("the lowest of 112 samples", metric="min"),
    Scenario("drift of up to 3 % within the run", drifting),
    Scenario("two levels, 2 % apart", two_states),
    Scenario("a timer with ticks of 2 %", coarse),
    Scenario("20 samples against 200", samples=(20, 200)),
    Scenario("4 benchmarks, autocorrelated", autocorrelated, benchmarks=4),
    Scenario("8 runs known, launches differ by 0.7 %", known=8),
    Scenario("8 runs known, launches differ by 2 %", between=0.02, known=8),
    Scenario("4 runs known, launches differ by 2 %", between=0.02, known=4),
    Scenario("launches differ by 5 %, twice what is assumed", between=0.05, beyond=True),
    Scenario("4 old launches, one new", launches=(4, 1)),
    Scenario("independent samples", launches=(5, 5)),
    Scenario("autocorrelated (0.9)", autocorrelated, launches=(5, 5)),
    Scenario("heavy tails", heavy_tailed, launches=(5, 5)),
    Scenario("heavy tails, p99 of 112 samples", heavy_tailed, launches=(5, 5), metric="p99"),
    Scenario("the lowest of 112 samples", launches=(5, 5), metric="min"),
    Scenario("drift of up to 3 % within the run", drifting, launches=(5, 5)),
    Scenario("launches differ by 2 %", launches=(5, 5), between=0.02),
    Scenario("one launch in ten is far off", launches=(5, 5), rough=True),
    Scenario("4 launches against 8", launches=(4, 8), samples=(30, 112)),
    Scenario("12 benchmarks, autocorrelated", autocorrelated, launches=(5, 5), benchmarks=12),
    Scenario("12 benchmarks, launches differ by 2 %", launches=(8, 8), benchmarks=12, between=0.02),
    Scenario(APART, launches=(4, 4), apart=True),
    Scenario(f"{APART}, 1 % drift", launches=(4, 4), apart=True, drift=0.01),
    Scenario(f"{APART}, 1 % drift", launches=(8, 8), apart=True, drift=0.01),
    Scenario(f"{APART}, 1 % drift, a control", launches=(4, 4), apart=True, drift=0.01, controls=1),
    Scenario(f"{APART}, 1 % drift, a control", launches=(8, 8), apart=True, drift=0.01, controls=1),
    Scenario(f"{APART}, 3 % drift, a control", launches=(4, 4), apart=True, drift=0.03, controls=1),
    Scenario(f"{APART}, 3 % drift, 3 controls", launches=(8, 8), apart=True, drift=0.03, controls=3),
    Scenario("in turns, a control", launches=(4, 4), controls=1),
    Scenario(f"{APART}, 2 % drift, nothing shows it", launches=(8, 8), apart=True, drift=0.02, beyond=True),
)


def side(scenario: Scenario, which: int, factor: float, rng: Rng) -> list[Row]:
    """The rows of one side. Half of what sets a launch apart it has in all benchmarks, half in one."""
    rows = []
    for n in range(scenario.launches[which]):
        shared = _offset(scenario, rng)
        time = (n + 0.5) / scenario.launches[which] + which * (1 if scenario.apart else 0.001)
        for i in range(scenario.benchmarks + scenario.controls):
            is_control = i >= scenario.benchmarks
            offset = (shared + _offset(scenario, rng)) / np.sqrt(2) + which * scenario.drift
            level = 10 * (i + 1) * (1 if is_control else factor)
            samples = level * np.exp(offset + scenario.noise(rng, scenario.samples[which]))
            key = Key(f"case{i}", "sdpa" if is_control else "kernel", "hot")
            launch, conditions = Launch(tuple(samples.tolist())), Conditions(device="GPU")
            rows.append(Row(key, launch, "us", (), "v1", is_control, conditions, time=time))
    return rows


def history(scenario: Scenario, rng: Rng) -> Spread | None:
    """The spread between runs that simulated earlier runs of the same code give, for one benchmark."""
    if not scenario.known:
        return None
    freedom = scenario.known - 1
    return Spread(scenario.between * float(np.sqrt(rng.chisquare(freedom) / freedom)), "history", freedom)


def _offset(scenario: Scenario, rng: Rng) -> float:
    far = 5.0 if scenario.rough and rng.random() < 0.1 else 1.0
    return float(rng.normal(0, scenario.between)) * far


@dataclass(frozen=True)
class Rates:
    """Shares of the trials; ``found`` and ``covered`` are of benchmarks."""

    false_alarms: float  # with anything called faster or slower that is not
    found: float  # called slower, being 5 % slower
    misjudged: float  # called faster or same, being 5 % slower
    same: float  # called same, being equal
    covered: float  # the 95 % interval holds the truth
    trials: int


def measure(scenario: Scenario, trials: int, seed: int = 0) -> Rates:
    """Try it ``trials`` times without a difference and as often with one."""
    rng = np.random.default_rng(seed)
    alarms, found, misjudged, same, covered = 0, 0, 0, 0, 0

    def judged(factor: float) -> tuple[Compared, ...]:
        sides = side(scenario, 0, 1.0, rng), side(scenario, 1, factor, rng)
        known = history(scenario, rng)
        return compare(*sides, Options(metric=scenario.metric), lambda _: known).benchmarks

    for _ in range(trials):
        equal = judged(1.0)
        alarms += any(b.verdict in ("faster", "slower") for b in equal)
        same += sum(b.verdict == "same" for b in equal)
        covered += sum(b.effect is not None and b.effect.low <= 1 <= b.effect.high for b in equal)
        slower = judged(SLOWDOWN)
        found += sum(b.verdict == "slower" for b in slower)
        misjudged += sum(b.verdict in ("faster", "same") for b in slower)
    total = trials * scenario.benchmarks
    return Rates(alarms / trials, found / total, misjudged / total, same / total, covered / total, trials)


def row(scenario: Scenario, trials: int) -> str:
    """The rates of one scenario, of Markdown."""
    rates = measure(scenario, trials)
    shown = [rates.false_alarms, rates.found, rates.misjudged, rates.same, rates.covered]
    cells = [f"{100 * value:.1f} %" for value in shown]
    name = f"*{scenario.name}*" if scenario.beyond else scenario.name
    launches = " and ".join(dict.fromkeys(str(n) for n in scenario.launches))
    return f"| {launches} | {name} | {scenario.benchmarks} | {' | '.join(cells)} |"


def table(trials: int) -> str:
    """All of them."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---|---|---:|---:|---:|---:|---:|---:|"]
    counted = f"{trials} pairs a row without a difference, {trials} with one; alpha is {100 * ALPHA:.0f} %."
    return "\n".join([*lines, *in_parallel(row, SCENARIOS, trials), "", counted])


if __name__ == "__main__":
    sys.exit(command("benchmarks/verdicts.py", __doc__, table))
