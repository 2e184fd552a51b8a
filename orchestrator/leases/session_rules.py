"""Sessions: a machine that is kept warm for several runs, within one budget. Pure.

The dollars are bounded when the session starts: the machine's max run duration is what the budget buys (or
``--max-hours``, if that is less), so nothing that happens later can cost more. Between runs the machine's own shutdown
timer ends it.

==========  ==================================================  =========
journal     the effect it announces                             stage
==========  ==================================================  =========
begun       the session exists here; nothing happened yet       starting
acquire     the machine is about to be looked for and woken     starting
cloud       the cloud is about to be asked for a change         (as was)
acquired    the machine answers, and its deadline is known      starting
opened      its own shutdown timer is set: runs may come        open
looked      it should have gone off by itself, and is still on  (as was)
release     the machine is about to be stopped                  leaving
==========  ==================================================  =========

What became of it is in ``end.json``; a session without one is not over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, Field

from orchestrator.base.journal import JournalEntry, newest
from orchestrator.base.models import KEPT
from orchestrator.machines.targets import Target
from orchestrator.money.caps import MINIMUM_BILLED_S, fence_within, fenced_worst_case_usd
from orchestrator.money.ledger import IDLE, SLIGHT_S, Line
from orchestrator.money.prices.rates import HourlyPlan

Stage = Literal["starting", "open", "leaving"]
#: How a session ended: stopped, its machine was found off, or it failed to start; ``open``: it has not.
How = Literal["stopped", "off", "failed", "open"]


class SavedSession(HourlyPlan):
    """``session.json``: the plan of the session, whatever the configuration says later."""

    schema_version: int = 1
    session_id: str
    created: float
    workspace: str
    target: Target
    budget_usd: float = Field(gt=0)
    max_hours: float | None = None
    idle_minutes: float = Field(gt=0)

    @property
    def fence_s(self) -> int:
        """The max run duration: what the budget buys, within ``max_hours`` and the target's limit; whole seconds."""
        machine = self.target.cloud
        limits = [fence_within(self.budget_usd, self.worst_rate)]
        limits += [self.max_hours * 3600] if self.max_hours is not None else []
        limits += [machine.max_run_minutes * 60] if machine is not None else []
        return int(min(limits))

    @property
    def worst_case_usd(self) -> float:
        """The most it can cost, whatever happens."""
        return fenced_worst_case_usd(self.fence_s, self.worst_rate)

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


class SessionRecord(BaseModel):
    """``end.json``: how a session ended. Times are epoch seconds, those of the machine by the cloud's clock."""

    model_config = KEPT

    schema_version: int = 1
    session_id: str
    target: str
    how: How
    reason: str
    created: float
    ended: float
    instance_id: str | None = None
    started: float | None = None
    stopped: float | None = None
    usd_per_hour: float = 0.0
    usd: float = 0.0
    budget_usd: float = 0.0
    runs: list[str] = []


@dataclass(frozen=True)
class Machine:
    """What the journal knows of the session's machine."""

    zone: str
    name: str
    instance_id: str
    project: str
    started: float | None
    deadline: float | None
    spot: bool
    #: Its price as the cloud showed it; None: an older version's journal.
    usd_per_hour: float | None = None


def stage(entries: Iterable[JournalEntry]) -> Stage:
    found: Stage = "starting"
    for entry in entries:
        if entry.kind == "opened":
            found = "open"
        elif entry.kind == "release":
            found = "leaving"
    return found


def machine_of(entries: Sequence[JournalEntry]) -> Machine | None:
    """The machine, once it answered."""
    facts = newest(entries, "acquired")
    if not facts:
        return None
    return Machine(
        str(facts["zone"]), str(facts["name"]), str(facts["instance_id"]), str(facts["project"]),
        facts.get("started"), facts.get("deadline"), bool(facts.get("spot")), facts.get("usd_per_hour"),
    )  # fmt: skip


def rate(saved: SavedSession, machine: Machine | None) -> float:
    """Dollars per hour of the machine as the cloud showed it, or as planned before."""
    if machine is None:
        return saved.usd_per_hour
    return saved.rate_in(machine.zone, spot=machine.spot, shown=machine.usd_per_hour)


@dataclass(frozen=True)
class SessionBudget:
    """What is spent and left of a session, dollars and seconds."""

    usd_per_hour: float
    spent: float
    left: float
    #: Until the machine is stopped by the cloud; the budget lasts no longer than that.
    seconds_left: float


def money(saved: SavedSession, machine: Machine | None, now: float) -> SessionBudget:
    """Args: now: epoch seconds."""
    price = rate(saved, machine)
    if machine is None or machine.started is None:
        return SessionBudget(price, 0.0, saved.budget_usd, float(saved.fence_s))
    spent = max(MINIMUM_BILLED_S, now - machine.started) / 3600 * price
    until = machine.deadline if machine.deadline is not None else machine.started + saved.fence_s
    return SessionBudget(price, spent, max(0.0, saved.budget_usd - spent), max(0.0, until - now))


def left_for_a_run(saved: SavedSession, machine: Machine | None, now: float) -> float:
    """Dollars that a run in the session may cost: what is left of the budget, and of the time."""
    stands = money(saved, machine, now)
    return min(stands.left, stands.seconds_left / 3600 * stands.usd_per_hour)


def attributed(lines: Iterable[Line], sessions: Iterable[SessionRecord]) -> list[Line]:
    """The ledger with the idle seconds of a session's machine as the session's."""
    on: dict[str, list[SessionRecord]] = {}
    for session in sessions:
        if session.instance_id is not None and session.started is not None:
            on.setdefault(session.instance_id, []).append(session)
    return [_of_session(line, on) for line in lines] if on else list(lines)


def _is_start(line: Line, started: float) -> bool:
    """Whether a line is billed for the time of being on that began at ``started``."""
    return line.on_since is not None and abs(line.on_since - started) < SLIGHT_S


def _of_session(line: Line, on: dict[str, list[SessionRecord]]) -> Line:
    if line.activity != IDLE or line.run_id is not None or line.machine is None:
        return line
    instance_id = line.machine.rpartition("(")[2].rstrip(")")
    for session in on.get(instance_id, []):
        until = session.stopped if session.stopped is not None else session.ended
        if session.started is not None and _is_start(line, session.started) and line.start <= until:
            return replace(line, run_id=session.session_id, job="session")
    return line
