"""What happens in an episode: what the user types, and what goes wrong when. Drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from tests.simulation.accounts import Over
from tests.simulation.world import Fault, Kind

#: More than all commands of a schedule together may cost, so that only what happens elsewhere spends it.
PROJECT_USD = 50.0
#: The machine that spends it.
ELSEWHERE = "elsewhere"
KINDS: tuple[Kind, ...] = (
    "kill", "kill", "kill_after", "kill_after", "interrupt", "sleep", "cut", "lost_reply", "lost_reply", "cloud_down",
    "stockout", "preempt", "preempt", "crash", "console", "slow_stop", "skew", "full", "other",
)  # fmt: skip
AMOUNTS: dict[str, tuple[float, float]] = {
    "sleep": (60, 6 * 3600), "cut": (5, 1500), "cloud_down": (30, 1200), "stockout": (30, 4000),
    "slow_stop": (60, 500), "pending": (1, 100), "stale": (1, 25), "kill_late": (1, 20),
    "skew": (-1800, 1800), "full": (60, 3000),
    "unreadable": (60, 40_000), "laptop_full": (60, 20_000),
}  # fmt: skip


Command = Literal[
    "run", "detach", "ps", "attach", "cancel", "wake", "go on", "session", "session stop", "never", "tick", "serve",
    "prune", "rush", "crowd", "up", "delete",
]  # fmt: skip
COMMANDS: tuple[Command, ...] = ("run", "ps", "ps", "attach", "cancel", "wake", "go on", "go on")


@dataclass(frozen=True)
class FiringPlan:
    """A job at set times, within a budget."""

    every_minutes: int = 60
    budget_usd: float = 0.5
    per_month_usd: float = 0.6
    #: A run that is killed does not take its firing with it.
    strictly: bool = False


@dataclass(frozen=True)
class Schedule:
    """All that makes an episode what it is: replayed, it happens again."""

    seed: int
    faults: tuple[Fault, ...]
    #: What the user types, one after another; ``never`` ends it: nobody comes back.
    commands: tuple[Command, ...]
    release: Literal["stop", "keep", "delete"] = "stop"
    exists: bool = True
    #: ``--budget``, with ``--stop-at-budget``, of every run.
    stop_at: float | None = None
    #: ``[budget] per_day_usd``, ``per_month_usd``, ``project_usd``; one of :data:`PROJECT_USD` is spent elsewhere.
    day_cap: float | None = None
    month_cap: float | None = None
    project_cap: float | None = None
    firings: FiringPlan | None = None
    #: ``on_stockout = "rebuild"``, and only the first zone has no stock when there is none.
    rebuild: bool = False
    #: Whether disks cost nothing, so that runs alone spend the caps.
    free_disks: bool = False
    #: Whether each run has a local step that needs nvcc, which only the builder has.
    builder: bool = False
    #: When the first command is typed, seconds after :data:`EPOCH`.
    begins: float = 0.0

    @property
    def caps(self) -> dict[Over, float]:
        """Those that the runs of the schedule can spend."""
        own: dict[Over, float | None] = {
            "day": self.day_cap, "month": self.month_cap, "project": self.project_cap,
        }  # fmt: skip
        return {over: cap for over, cap in own.items() if cap is not None and cap != PROJECT_USD}

    @property
    def has_company(self) -> bool:
        """Whether another fcctl goes on beside the first."""
        return any(fault.kind in ("beside", "abroad") for fault in self.faults)

    @property
    def spent_elsewhere(self) -> Over | None:
        """The cap that is."""
        if self.day_cap == PROJECT_USD:
            return "day"
        return "month" if self.month_cap == PROJECT_USD else "project" if self.project_cap == PROJECT_USD else None

    def __str__(self) -> str:
        faults = " ".join(map(str, self.faults)) or "-"
        money = f" stop_at={self.stop_at}" if self.stop_at is not None else ""
        for name in ("day_cap", "month_cap", "project_cap"):
            money += f" {name}={getattr(self, name)}" if getattr(self, name) is not None else ""
        money += f" {self.firings}" if self.firings is not None else ""
        money += " rebuild" if self.rebuild else ""
        money += " free_disks" if self.free_disks else ""
        money += " builder" if self.builder else ""
        money += f" begins={self.begins:.0f}" if self.begins else ""
        return (
            f"seed={self.seed} {'+'.join(self.commands)} release={self.release} exists={self.exists}{money}"
            f" faults: {faults}"
        )


def draw(seed: int) -> Schedule:
    """A random schedule; the same for the same seed."""
    rng = random.Random(seed)
    count = rng.choice((1, 1, 2, 2, 3, 4, 6))
    faults = []
    for _ in range(count):
        kind = rng.choice(KINDS)
        low, high = AMOUNTS.get(kind, (0.0, 0.0))
        amount = round(rng.uniform(low, high)) if kind in AMOUNTS else 0.0
        # Waking takes some 40 effects, a whole run some 200.
        at = rng.randint(1, 50) if rng.random() < 0.5 else rng.randint(40, 220)
        if kind in ("preempt", "crash", "console"):
            at = rng.randint(30, 200)
        faults.append(Fault(at, kind, amount))
    commands: list[Command] = ["run"]
    for _ in range(rng.randint(0, 3)):
        commands.append(rng.choice(COMMANDS))
    commands.append(rng.choice(("ps", "ps", "never")))
    release = rng.choice(("stop", "stop", "stop", "keep", "delete"))
    made = Schedule(seed, tuple(sorted(faults)), tuple(commands), release, rng.random() < 0.75)  # type: ignore[arg-type]
    made = _with_lost_results(_with_company(_with_money(made)))
    return _with_pending(_with_misreports(_with_builder(_with_rush(_with_rebuilds(_with_firings(_with_caps(made)))))))


def _with_money(schedule: Schedule) -> Schedule:
    """Every fourth schedule has a session in it, every fourth a budget to stop at, every fifth a cap of the project
    that something else spends; several of them, now and then."""
    rng = random.Random(f"money {schedule.seed}")
    if rng.random() < 0.25:
        first, *rest = schedule.commands
        session: list[Command] = ["session", first, *rest]
        if rng.random() < 0.6:
            session.insert(rng.randint(1, len(session) - 1), "session stop")
        if rng.random() < 0.3:
            session.insert(rng.randint(1, len(session) - 1), "run")
        schedule = replace(schedule, commands=tuple(session))
    if rng.random() < 0.25:
        schedule = replace(schedule, stop_at=round(rng.uniform(0.05, 0.35), 3))
    if rng.random() < 0.2:
        bill = Fault(rng.randint(40, 220), "bill")
        schedule = replace(schedule, faults=tuple(sorted((*schedule.faults, bill))))
        cap = rng.choice(("project_cap", "project_cap", "day_cap", "month_cap"))
        schedule = replace(schedule, **{cap: PROJECT_USD})  # type: ignore[arg-type]
    return schedule


def _with_company(schedule: Schedule) -> Schedule:
    """In every eighth schedule another fcctl goes on beside the first; in half of those there is no machine yet."""
    rng = random.Random(f"company {schedule.seed}")
    if rng.random() >= 0.125:
        return schedule
    kind: Kind = rng.choice(("beside", "abroad"))
    faults = [*schedule.faults, Fault(rng.randint(1, 40) if rng.random() < 0.8 else rng.randint(40, 220), kind)]
    if rng.random() < 0.3:
        faults.append(Fault(rng.randint(1, 10), "stockout", round(rng.uniform(20, 400))))
    exists = schedule.exists and rng.random() < 0.4
    return replace(schedule, faults=tuple(sorted(faults)), exists=exists)


def _with_lost_results(schedule: Schedule) -> Schedule:
    """In every eighth schedule the machine's disk cannot be read, or the laptop's is full; in every sixth nobody
    follows the first run."""
    rng = random.Random(f"lost results {schedule.seed}")
    if rng.random() < 0.125:
        kind: Kind = rng.choice(("unreadable", "laptop_full"))
        low, high = AMOUNTS[kind]
        at = rng.randint(40, 220) if kind == "unreadable" or rng.random() < 0.7 else rng.randint(1, 60)
        fault = Fault(at, kind, round(rng.uniform(low, high)))
        schedule = replace(schedule, faults=tuple(sorted((*schedule.faults, fault))))
    if rng.random() < 1 / 6:
        first = schedule.commands.index("run")
        commands = (*schedule.commands[:first], "detach", *schedule.commands[first + 1 :])
        schedule = replace(schedule, commands=commands)  # type: ignore[arg-type]
    return schedule


def _with_caps(schedule: Schedule) -> Schedule:
    """Every fourth schedule has caps that a few runs reach, and begins shortly before a day or a month ends. No clock
    jumps, and no computer that has another book starts anything."""
    rng = random.Random(f"caps {schedule.seed}")
    if rng.random() >= 0.25 or schedule.spent_elsewhere is not None:
        return schedule
    caps = {f"{over}_cap": round(rng.uniform(0.45, 1.8), 2) for over in rng.sample(("day", "month", "project"), 2)}
    commands: list[Command] = list(schedule.commands)
    commands[1:1] = [rng.choice(("run", "run", "detach"))] * rng.randint(0, 4)
    if rng.random() < 0.35 and "session" not in commands:
        commands[rng.randint(0, 1)] = rng.choice(("crowd", "rush"))
    for _ in range(rng.choice((0, 0, 1, 2))):
        commands.insert(rng.randint(1, len(commands)), rng.choice(("up", "delete", "delete", "wake", "go on")))
    return replace(
        schedule,
        commands=tuple(commands),
        faults=tuple(fault for fault in schedule.faults if fault.kind not in ("abroad", "skew")),
        free_disks=rng.random() < 0.7,
        begins=round(rng.uniform(11.0, 16.0) * 3600) + rng.choice((0, 16 * 86400)),
        **caps,  # type: ignore[arg-type]
    )


def _with_firings(schedule: Schedule) -> Schedule:
    """In every tenth schedule nobody types a run: the firings of a schedule do. No clock jumps, for the times that are
    due are told by it."""
    rng = random.Random(f"firings {schedule.seed}")
    if rng.random() >= 0.1 or schedule.has_company:
        return schedule
    budget = round(rng.uniform(0.44, 0.6), 2)
    choices: tuple[Command, ...] = ("tick", "tick", "serve", "serve", "ps", "attach", "cancel")
    commands = ["tick", "serve", *(rng.choice(choices) for _ in range(rng.randint(2, 5)))]
    return Schedule(
        schedule.seed,
        tuple(f for f in schedule.faults if f.kind not in ("other", "beside", "abroad", "skew", "bill")),
        tuple(commands),  # type: ignore[arg-type]
        rng.choice(("stop", "delete")),
        schedule.exists,
        firings=FiringPlan(
            rng.choice((30, 60)), budget, round(budget + rng.uniform(0.0, 0.5), 2), strictly=rng.random() < 0.5
        ),
        begins=rng.choice((0.0, 16 * 86400 + 13 * 3600.0)),
    )


def _with_rebuilds(schedule: Schedule) -> Schedule:
    """In every tenth schedule a machine that exists has no stock in its zone at times, and is made in another one of a
    snapshot of its disk."""
    rng = random.Random(f"rebuilds {schedule.seed}")
    if schedule.firings is not None or schedule.caps or schedule.has_company or rng.random() >= 0.12:
        return schedule
    if rng.random() < 0.2:
        return _with_only_copy(schedule, rng)
    begins = rng.choice((rng.randint(1, 12), rng.randint(60, 300)))
    faults = [Fault(begins, "stockout", round(rng.uniform(600, 20_000)))]
    faults += [f for f in schedule.faults if f.kind not in ("other", "beside", "abroad", "skew", "bill", "stockout")]
    if rng.random() < 0.5:
        faults.append(Fault(rng.randint(60, 300), "preempt"))
    if rng.random() < 0.4:
        faults.append(Fault(begins + rng.randint(5, 40), rng.choice(("beside", "kill"))))
    if rng.random() < 0.4:
        faults.append(Fault(rng.randint(60, 500), "deleted"))
    choices: tuple[Command, ...] = ("run", "run", "detach", "ps", "prune", "prune", "go on", "wake", "cancel")
    commands = ["run", *(rng.choice(choices) for _ in range(rng.randint(2, 5))), rng.choice(("prune", "ps"))]
    return Schedule(
        schedule.seed,
        tuple(sorted(faults)),
        tuple(commands),
        schedule.release,
        exists=True,
        rebuild=True,  # type: ignore[arg-type]
    )


def _with_only_copy(schedule: Schedule, rng: random.Random) -> Schedule:
    """A snapshot is made of a machine with results on it, fcctl is killed before a machine is made of the snapshot, and
    then a person deletes the first one."""
    choices: tuple[Command, ...] = ("run", "prune", "ps")
    commands = ("detach", "ps", "run", "run", *(rng.choice(choices) for _ in range(rng.randint(0, 2))), "prune")
    killed = rng.randint(78, 90)
    faults = (
        Fault(rng.randint(40, 57), "stockout", 20_000.0),
        Fault(killed, "kill"),
        Fault(killed + rng.randint(2, 12), "deleted"),
    )
    return Schedule(schedule.seed, faults, commands, schedule.release, exists=True, rebuild=True)


def _with_rush(schedule: Schedule) -> Schedule:
    """Now and then several controllers start runs at one moment, and all of them together fit the caps."""
    rng = random.Random(f"rush {schedule.seed}")
    drawn = schedule.firings is not None or schedule.caps or schedule.has_company or schedule.rebuild
    if drawn or "session" in schedule.commands or rng.random() >= 0.05:
        return schedule
    commands = ("rush", *schedule.commands[1:])
    faults = tuple(fault for fault in schedule.faults if fault.kind != "other")
    return replace(schedule, commands=commands, faults=faults, project_cap=schedule.project_cap or 3.5)


def _with_builder(schedule: Schedule) -> Schedule:
    """In every tenth schedule runs compile on a builder first."""
    rng = random.Random(f"builders {schedule.seed}")
    return replace(schedule, builder=schedule.firings is None and rng.random() < 0.1)


def _with_misreports(schedule: Schedule) -> Schedule:
    """In every eighth schedule a change of a machine happens, and the cloud says that it failed."""
    rng = random.Random(f"misreports {schedule.seed}")
    if rng.random() >= 0.125:
        return schedule
    fault = Fault(rng.randint(1, 60) if rng.random() < 0.8 else rng.randint(60, 220), "misreported")
    return replace(schedule, faults=tuple(sorted((*schedule.faults, fault))))


def _with_pending(schedule: Schedule) -> Schedule:
    """In every eighth schedule the cloud takes a while to begin what it was asked for, in every other eighth one it
    shows late what is done, in a third one a request is on its way when its controller is killed."""
    kinds: tuple[Kind, ...] = ("pending", "stale", "kill_late")
    for kind in kinds:
        rng = random.Random(f"{kind} {schedule.seed}")
        if rng.random() < 0.125:
            fault = Fault(rng.randint(1, 60), kind, round(rng.uniform(*AMOUNTS[kind])))
            schedule = replace(schedule, faults=tuple(sorted((*schedule.faults, fault))))
    return schedule
