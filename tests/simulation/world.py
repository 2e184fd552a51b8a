"""Virtual time, and a list of what goes wrong when: the stage on which the true workflows play.

Everything a controller does to the world goes through :meth:`World.effect`, which counts. A schedule of faults names
counts: at the 17th effect the controller is killed, at the 23rd the laptop sleeps for two hours. So a schedule replays
exactly, and can be made shorter until nothing of it can be left out.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from orchestrator.base.errors import CloudError, FcctlError, HostUnreachable, LinkLost

T = TypeVar("T")

Kind = Literal[
    "kill",  # the controller dies before the effect
    "kill_after",  # the controller dies after it
    "kill_late",  # it dies while the effect is on its way, which happens `amount` seconds later
    "interrupt",  # Ctrl-C
    "sleep",  # the laptop sleeps for `amount` seconds
    "cut",  # the link is down for `amount` seconds
    "lost_reply",  # the effect happens, its answer does not arrive
    "misreported",  # the next change of a machine happens, and its operation ends with an error
    "cloud_down",  # the cloud's interface does not answer for `amount` seconds
    "stockout",  # no zone has stock for `amount` seconds
    "preempt",  # the machine is taken away
    "crash",  # the machine's system dies and boots again
    "console",  # a person stops the machine and starts it again
    "slow_stop",  # from now on a stop takes `amount` seconds
    "pending",  # from now on a change waits `amount` seconds until the cloud begins it
    "stale",  # from now on reads of a machine show a change `amount` seconds after its operation is DONE
    "skew",  # the laptop's clock jumps by `amount` seconds
    "full",  # the machine's disk is full for `amount` seconds
    "unreadable",  # what runs left on the machine's disk cannot be read for `amount` seconds
    "laptop_full",  # the laptop's disk is full for `amount` seconds
    "other",  # another fcctl does its whole work in between
    "beside",  # another fcctl of this computer begins, and both go on
    "abroad",  # the same of another computer
    "deleted",  # a person deletes the machine, which is off
    "bill",  # a machine elsewhere was on for nobody, and the project's cap is spent
    "power",  # the laptop loses its power (tests/power_cut), and with it what was not synced
]

EPOCH = 1_800_000_000.0


@dataclass(frozen=True, order=True)
class Fault:
    """At the ``at``-th effect. ``amount`` is in seconds where it means anything."""

    at: int
    kind: Kind
    amount: float = 0.0

    def __str__(self) -> str:
        return f"{self.at}:{self.kind}" + (f"({self.amount:g})" if self.amount else "")


class Killed(BaseException):
    """SIGKILL: nothing the controller does from here on has an effect."""


class Violation(AssertionError):
    """The world saw something that must never happen."""


@dataclass
class Actor:
    """One process of fcctl."""

    name: str
    alive: bool = True
    computer: str = "here"


@dataclass
class World:
    faults: dict[int, list[Fault]]
    rng: random.Random
    now: float = EPOCH
    effects: int = 0
    skew: float = 0.0
    link_down_until: float = 0.0
    cloud_down_until: float = 0.0
    no_stock_until: float = 0.0
    #: The zone that alone has no stock then; None: none has.
    no_stock_in: str | None = None
    disk_full_until: float = 0.0
    unreadable_until: float = 0.0
    laptop_full_until: float = 0.0
    stop_seconds: float = 20.0
    #: How long a change waits until the cloud begins it.
    pending_seconds: float = 0.0
    #: How long reads of a machine are behind an operation that is DONE.
    stale_seconds: float = 0.0
    #: The most that it ever was.
    longest_stop_s: float = 20.0
    #: Since when a cap is spent, and over what it is one.
    cap_spent_at: float | None = None
    cap_spent_over: Literal["day", "month", "project"] = "project"
    trace: list[str] = field(default_factory=list)
    #: When a start was requested that has no answer, by computer and machine.
    asked: dict[tuple[str, str], float] = field(default_factory=dict)
    #: What happens to machines; the cloud and the host hang themselves in.
    on: dict[str, Callable[[], None]] = field(default_factory=dict)
    _timers: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)

    # ---------------------------------------------------------------------------------------------------------- time
    def at(self, when: float, action: Callable[[], None]) -> None:
        """``action`` at ``when`` (epoch seconds of the true time)."""
        heapq.heappush(self._timers, (when, next(self._order), action))

    def advance(self, seconds: float) -> None:
        """Let time pass, and everything that is due happen in its order."""
        until = self.now + seconds
        self._happen(until)
        self.now = max(self.now, until)

    def happen_due(self) -> None:
        """Let happen what is due now, in its order; nobody else comes in between."""
        self._happen(self.now)

    def _happen(self, until: float) -> None:
        while self._timers and self._timers[0][0] <= until:
            when, _, action = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            action()

    def end_of_trouble(self) -> None:
        """From now on everything works; what cannot be read for good stays so."""
        self.faults.clear()
        self.link_down_until = self.cloud_down_until = self.no_stock_until = self.laptop_full_until = 0.0

    def next_timer(self) -> float | None:
        """When something happens by itself next, epoch seconds."""
        return self._timers[0][0] if self._timers else None

    # ------------------------------------------------------------------------------------------------------- effects
    def effect(self, actor: Actor, name: str, action: Callable[[], T], *, via: Literal["disk", "cloud", "host"]) -> T:
        """One effect of ``actor``, with what the schedule has in store for it.

        Raises:
            Killed: the actor is dead, or dies of this.
            LinkLost, CloudError, HostUnreachable: as the ports say.
        """
        if not actor.alive:
            raise Killed
        self.effects += 1
        struck = self.faults.get(self.effects, []) if actor.name != "other" else []
        self.trace.append(
            f"{self.now - EPOCH:9.1f} {self.effects:4d} {actor.name}: {name} " + " ".join(map(str, struck))
        )
        for fault in struck:
            if fault.kind == "kill_late":
                if via == "cloud":
                    self.at(self.now + fault.amount, lambda: self._arrive(action))
                self.kill(actor)
            self._before(actor, fault)
        self._reachable(via)
        result = action()
        self.advance({"disk": 0.01, "host": 0.2, "cloud": 0.4}[via])
        for fault in struck:
            if fault.kind == "kill_after":
                self.kill(actor)
            if fault.kind == "lost_reply" and via == "host":
                raise LinkLost("the link broke", cause="simulated")
            if fault.kind == "lost_reply" and via == "cloud":
                raise CloudError("no answer from the cloud", cause="simulated")
        return result

    @staticmethod
    def _arrive(action: Callable[[], object]) -> None:
        """Nobody hears the answer; who would wait for more is dead."""
        with suppress(FcctlError, Killed):
            action()

    def kill(self, actor: Actor) -> None:
        actor.alive = False
        raise Killed

    def _reachable(self, via: str) -> None:
        if via == "host" and self.now < self.link_down_until:
            self.advance(2.0)
            raise LinkLost("the link is down", cause="simulated")
        if via == "cloud" and self.now < self.cloud_down_until:
            self.advance(60.0)  # the adapter's own patience
            raise CloudError("no answer from the cloud", cause="simulated")

    def has_stock(self, zone: str) -> bool:
        return self.now >= self.no_stock_until or self.no_stock_in not in (None, zone)

    def unreachable(self, why: str) -> HostUnreachable:
        """What a login meets."""
        self.advance(3.0)
        return HostUnreachable("the machine cannot be reached", reason="timeout", cause=why)

    def _before(self, actor: Actor, fault: Fault) -> None:
        """What a fault does just before the effect it strikes."""
        until = self.now + fault.amount
        match fault.kind:
            case "kill":
                self.kill(actor)
            case "power":
                self.on["power"]()
                self.kill(actor)
            case "interrupt":
                raise KeyboardInterrupt
            case "sleep":
                self.advance(fault.amount)
                self.link_down_until = max(self.link_down_until, self.now + 1.0)
            case "slow_stop":
                self.stop_seconds = fault.amount
                self.longest_stop_s = max(self.longest_stop_s, fault.amount)
            case "pending" | "stale":
                setattr(self, f"{fault.kind}_seconds", fault.amount)
            case "skew":
                self.skew += fault.amount
            case "cut" | "cloud_down" | "stockout" | "full" | "unreadable" | "laptop_full":
                name = {"cut": "link_down", "stockout": "no_stock", "full": "disk_full"}
                setattr(self, f"{name.get(fault.kind, fault.kind)}_until", until)
            case "preempt" | "crash" | "console" | "other" | "beside" | "abroad" | "bill" | "deleted" | "misreported":
                self.on[fault.kind]()
        self.on["struck"]()
