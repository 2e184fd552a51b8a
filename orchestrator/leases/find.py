"""The sessions that are not over, as their journals have them: of this workspace, and of this user's other ones."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydantic import ValidationError

from orchestrator.base.clock import Clock, epoch
from orchestrator.leases import session_rules as sessions
from orchestrator.leases.session_files import SessionFiles
from orchestrator.leases.session_rules import Machine, SavedSession
from orchestrator.machines.cloud_api import Clouds
from orchestrator.machines.targets import CloudTarget, SandboxTarget

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore


@dataclass(frozen=True)
class OpenSession:
    """A session that is not over, as this computer knows it."""

    saved: SavedSession
    stage: sessions.Stage
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
    return OpenSession(saved, sessions.stage(entries), sessions.machine_of(entries), idle_until, looked)


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
