"""What happens in an episode of a search on several machines: what is typed, and what goes wrong when."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from orchestrator.base.observer import NoteKeeper
from tests.simulation.world import Killed

NAMES = ("l4", "l4-2", "l4-3")

Command = Literal["tune", "ps", "cancel"]
Trouble = Literal["preempt", "crash", "cut", "refuse", "slow", "forget", "asleep", "cloud_down", "stockout"]
AMOUNTS: dict[Trouble, tuple[float, float]] = {
    "cut": (5, 500), "refuse": (5, 300), "slow": (10, 200), "asleep": (5, 900), "cloud_down": (20, 400),
    "stockout": (20, 900),
}  # fmt: skip


@dataclass(frozen=True)
class Mishap:
    """``amount`` is in seconds."""

    at: float
    kind: Trouble
    name: str
    amount: float = 0.0

    def __str__(self) -> str:
        return f"{self.at:.0f}s:{self.kind}:{self.name}" + (f"({self.amount:.0f})" if self.amount else "")


@dataclass(frozen=True)
class Story:
    """All that makes an episode what it is: told again, it happens again."""

    seed: int
    names: tuple[str, ...]
    cloud: frozenset[str]
    commands: tuple[Command, ...]
    mishaps: tuple[Mishap, ...] = ()
    #: By command: what its main thread is struck with, when it is about to wait for the so-manieth time.
    strikes: tuple[tuple[int, int, type[BaseException]], ...] = ()
    #: Effects whose answer gets lost.
    unanswered: tuple[int, ...] = ()
    unfit: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    #: The search's machine makes up where its scheduler is.
    lies: bool = False
    budget_usd: float | None = None
    #: The longest that the search may take, seconds.
    limit_s: float = 1500.0

    @property
    def is_calm(self) -> bool:
        return not (self.mishaps or self.unanswered or self.closed or self.lies)

    def __str__(self) -> str:
        strikes = " ".join(f"{n}:{at}:{what.__name__}" for n, at, what in self.strikes)
        return (
            f"seed={self.seed} {'+'.join(self.commands)} cloud={sorted(self.cloud)} of {self.names}"
            f" unfit={sorted(self.unfit)} closed={sorted(self.closed)} lies={self.lies} budget={self.budget_usd}"
            f" limit={self.limit_s:.0f} | {' '.join(map(str, self.mishaps))} | {strikes} | {self.unanswered}"
        )


def draw(seed: int) -> Story:
    rng = random.Random(seed)
    names = NAMES[: rng.choice((2, 3, 3))]
    cloud = frozenset(rng.choice((names, names, (), tuple(n for n in names if rng.random() < 0.5))))
    mishaps = []
    kinds: tuple[Trouble, ...] = ("preempt", "preempt", "crash", "cut", "cut", "refuse", "slow", "forget", "asleep",
                                  "cloud_down", "stockout")  # fmt: skip
    for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 6))):
        kind = rng.choice(kinds)
        low, high = AMOUNTS.get(kind, (0.0, 0.0))
        when = rng.uniform(0, 200) if rng.random() < 0.5 else rng.uniform(60, 600)
        mishaps.append(Mishap(round(when), kind, rng.choice(names), round(rng.uniform(low, high))))
    commands: list[Command] = ["tune"]
    strikes = []
    if rng.random() < 0.5:
        strikes.append((0, rng.randint(1, 160), rng.choice((KeyboardInterrupt, KeyboardInterrupt, Killed))))
        commands += rng.choice((["ps"], ["cancel"], []))
    else:
        commands += rng.choice(([], ["ps"]))
    if strikes and strikes[0][2] is KeyboardInterrupt and rng.random() < 0.3:  # again, by who does not like to wait
        strikes.append((0, strikes[0][1] + rng.randint(1, 12), KeyboardInterrupt))
    unanswered = tuple(sorted(rng.randint(1, 600) for _ in range(rng.choice((0, 0, 1, 3)))))
    return Story(
        seed, names, cloud, tuple(commands), tuple(sorted(mishaps, key=lambda m: m.at)), tuple(strikes), unanswered,
        unfit=frozenset(n for n in names[1:] if rng.random() < 0.06),
        closed=frozenset(n for n in names if rng.random() < 0.04),
        budget_usd=rng.choice((None, None, round(rng.uniform(0.3, 1.2), 2))),
        limit_s=rng.choice((1500.0, 1500.0, 1500.0, 120.0)),
    )  # fmt: skip


class Told(NoteKeeper):
    """What the user reads."""

    def __init__(self, trace: Callable[[str], None]) -> None:
        super().__init__()
        self._trace = trace

    def note(self, message: str) -> None:
        super().note(message)
        self._trace(f"    note: {message}")
