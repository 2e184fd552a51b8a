"""The sessions that are not over, as their journals have them: of this workspace, and of this user's other ones."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pydantic import ValidationError

from orchestrator.domain import session as sessions
from orchestrator.domain.session import Machine, SavedSession
from orchestrator.domain.target import GcpTarget, SandboxTarget
from orchestrator.ports import Services, SessionBook


@dataclass(frozen=True)
class Open:
    """A session that is not over, as this computer knows it."""

    saved: SavedSession
    stage: sessions.Stage
    machine: Machine | None
    #: When it stops itself if no run comes, as it was when it began; when the cloud was last asked whether it is on.
    idle_until: float | None = None
    looked: float | None = None
    #: The book it is in, if that is another workspace's of this user.
    abroad: SessionBook | None = None

    @property
    def how_to_stop(self) -> str:
        place = "" if self.abroad is None else f" -C {shlex.quote(self.abroad.place)}"
        return f"fcctl{place} session stop"


def underway(services: Services) -> Iterator[Open]:
    """The sessions that are not over, oldest first; nobody is asked."""
    for session_id in services.sessions.open():
        found = known(services, session_id)
        if found is not None:
            yield found


def everywhere(services: Services) -> Iterator[Open]:
    """The same, and then those of this user's other workspaces."""
    yield from underway(services)
    for book, session_id in services.sessions.abroad():
        found = _read(book, session_id)
        if found is not None:
            yield replace(found, abroad=book)


def known(services: Services, session_id: str) -> Open | None:
    return _read(services.sessions, session_id)


def _read(book: SessionBook, session_id: str) -> Open | None:
    try:
        saved = SavedSession.model_validate(book.plan_of(session_id))
    except ValidationError:
        return None
    entries = book.journal_of(session_id)
    idle_until = next((e.data.get("until") for e in reversed(entries) if e.kind == "opened"), None)
    looked = next((e.time for e in reversed(entries) if e.kind == "looked"), None)
    return Open(saved, sessions.stage(entries), sessions.machine_of(entries), idle_until, looked)


def open_on(services: Services, instance_id: str, started: float | None) -> Open | None:
    """The open session that turned this machine on.

    Args:
        started: when the machine was turned on last, by the cloud's clock; None: nobody knows.
    """
    for found in everywhere(services):
        machine = found.machine
        if found.stage != "open" or machine is None or machine.instance_id != instance_id:
            continue
        if started is None or machine.started is None or abs(machine.started - started) < 1.0:
            return found
    return None


def means(services: Services, saved: SavedSession, target: GcpTarget) -> bool:
    """Whether ``target`` is the session's machine."""
    own = cloud_target(services, saved)
    return own is not None and (own.project, own.instance) == (target.project, target.instance)


def cloud_target(services: Services, saved: SavedSession) -> GcpTarget | None:
    """The session's machine; None if its sandbox sleeps, and with it the machine."""
    if not isinstance(saved.target, GcpTarget | SandboxTarget):
        return None
    return services.clouds.if_there(saved.target)
