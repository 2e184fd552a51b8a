"""Sessions: a machine that is kept warm for several runs, within one budget; and those that are not over, of this
workspace and of this user's other ones.

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

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from orchestrator.base.clock import Clock, epoch
from orchestrator.base.journal import JournalEntry, newest
from orchestrator.base.models import KEPT
from orchestrator.leases.session_files import SessionFiles
from orchestrator.machines.interfaces import Clouds
from orchestrator.machines.targets import CloudTarget, SandboxTarget, Target
from orchestrator.money.caps import MINIMUM_BILLED_S, fence_within, fenced_worst_case_usd
from orchestrator.money.ledger import IDLE, SLIGHT_S, Line
from orchestrator.money.prices.rates import HourlyPlan

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

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


def ended(files: SessionFiles) -> Iterator[SessionRecord]:
    """The sessions that are over, oldest first."""
    for end in files.ends():
        with suppress(ValidationError):
            yield SessionRecord.model_validate(end)


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


def _of_session(line: Line, on: dict[str, list[SessionRecord]]) -> Line:
    if line.activity != IDLE or line.run_id is not None or line.machine is None or line.on_since is None:
        return line
    instance_id = line.machine.rpartition("(")[2].rstrip(")")
    for session in on.get(instance_id, []):
        until = session.stopped if session.stopped is not None else session.ended
        is_same = session.started is not None and abs(line.on_since - session.started) < SLIGHT_S
        if is_same and line.start <= until:
            return replace(line, run_id=session.session_id, job="session")
    return line


@dataclass(frozen=True)
class OpenSession:
    """A session that is not over, as this computer knows it."""

    saved: SavedSession
    stage: Stage
    machine: Machine | None
    #: When it stops itself if unused, as of its start; when the cloud was last asked whether it is on.
    idle_until: float | None = None
    looked: float | None = None
    #: The book it is in, if that is another workspace's of this user.
    abroad: SessionFiles | None = None

    @property
    def how_to_stop(self) -> str:
        place = "" if self.abroad is None else f" -C {shlex.quote(self.abroad.place)}"
        return f"fcctl{place} session stop"


def underway(book: SessionFiles) -> Iterator[OpenSession]:
    """The open sessions, oldest first; asks no cloud."""
    for session_id in book.open():
        found = known(book, session_id)
        if found is not None:
            yield found


def everywhere(book: SessionFiles) -> Iterator[OpenSession]:
    """The same, and then those of this user's other workspaces."""
    yield from underway(book)
    for other, session_id in book.abroad():
        found = known(other, session_id)
        if found is not None:
            yield replace(found, abroad=other)


def known(book: SessionFiles, session_id: str) -> OpenSession | None:
    """The session as the book has it; None if its plan cannot be read."""
    try:
        saved = SavedSession.model_validate(book.plan_of(session_id))
    except ValidationError:
        return None
    entries = book.journal_of(session_id)
    idle_until = next((e.data.get("until") for e in reversed(entries) if e.kind == "opened"), None)
    looked = next((e.time for e in reversed(entries) if e.kind == "looked"), None)
    return OpenSession(saved, stage(entries), machine_of(entries), idle_until, looked)


def record_so_far(session: OpenSession, now: float) -> SessionRecord:
    """An open session as if it ended now, without its runs."""
    saved, machine = session.saved, session.machine
    budget = money(saved, machine, now)
    return SessionRecord(
        session_id=saved.session_id, target=saved.target.name, how="open", reason="still open", created=saved.created,
        ended=now, instance_id=machine.instance_id if machine else None, started=machine.started if machine else None,
        usd_per_hour=budget.usd_per_hour, usd=round(budget.spent, 6), budget_usd=saved.budget_usd,
    )  # fmt: skip


def open_on(book: SessionFiles, instance_id: str, started: float | None) -> OpenSession | None:
    """Returns the open session that started this machine at ``started`` by the cloud's clock, or at an unknown time."""
    for found in everywhere(book):
        machine = found.machine
        if found.stage != "open" or machine is None or machine.instance_id != instance_id:
            continue
        if started is None or machine.started is None or abs(machine.started - started) < 1.0:
            return found
    return None


def is_session_machine(clouds: Clouds, saved: SavedSession, target: CloudTarget) -> bool:
    """Whether ``target`` is the session's machine."""
    own = cloud_target(clouds, saved)
    return own is not None and (own.project, own.instance) == (target.project, target.instance)


def cloud_target(clouds: Clouds, saved: SavedSession) -> CloudTarget | None:
    """The session's machine; None if its sandbox sleeps, and with it the machine."""
    if not isinstance(saved.target, CloudTarget | SandboxTarget):
        return None
    return clouds.if_there(saved.target)


#: A session so long past the cloud's deadline is over, seconds.
LATE_S = 120.0


#: How often the cloud is asked about a session that should have idled out, seconds.
LOOK_AGAIN_S = 600.0


def is_past(clock: Clock, store: FileStore, found: OpenSession) -> bool:
    """Whether its machine should be off by now: by the cloud's deadline, or by its own timer if unused."""
    now, deadline = clock.now(), found.machine.deadline if found.machine is not None else None
    if deadline is not None and now > deadline + LATE_S:
        return True
    if found.idle_until is None or (found.looked is not None and 0 <= now - found.looked < LOOK_AGAIN_S):
        return False
    if any((store.plan_of(run_id) or {}).get("session") == found.saved.session_id for run_id in store.active()):
        return False
    newest = store.rows(limit=1, target=found.saved.target.name)
    ended = [(epoch(row.finished) or 0.0) + found.saved.idle_minutes * 60 for row in newest]
    return now > max([found.idle_until, *ended]) + LATE_S
