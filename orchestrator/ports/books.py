"""What is kept beside the runs: sessions, the firings of schedules, and what machines were seen to do."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from orchestrator.domain.holdings import Holding
    from orchestrator.domain.ledger import Sighting
    from orchestrator.domain.records import JournalEntry
    from orchestrator.domain.schedule import Firing
    from orchestrator.domain.session import SessionRecord
    from orchestrator.ports.store import Journal


class FiringBook(Protocol):
    """What became of each time that a schedule was due, and who is at work on one."""

    def read(self, name: str) -> list[Firing]:
        """Oldest first."""

    def append(self, name: str, firings: tuple[Firing, ...]) -> None:
        """On disk when this returns."""

    def deciding(self) -> AbstractContextManager[bool]:
        """Whether this process alone decides what is due."""

    def firing(self, name: str) -> AbstractContextManager[bool]:
        """Whether this process alone runs a firing of ``name``."""

    def at_work(self, name: str) -> bool:
        """Whether some process runs a firing of ``name``."""


class Sightings(Protocol):
    """What the cloud was seen to say of machines' starts and stops, and of what stands there and is billed by the
    month; the ledger's other half beside the runs."""

    def note(self, sighting: Sighting) -> None:
        """On disk when this returns."""

    def all(self) -> list[Sighting]:
        """Oldest first."""

    def note_holding(self, holding: Holding) -> None:
        """On disk when this returns."""

    def holdings(self) -> list[Holding]:
        """Oldest first."""


class HeldSession(Protocol):
    """A session that this process alone changes, until :meth:`release`."""

    session_id: str

    @property
    def journal(self) -> Journal: ...

    def end(self, record: SessionRecord) -> None:
        """Write how it ended; it is over when this returns. May be repeated."""

    def release(self) -> None: ...


class SessionBook(Protocol):
    """The sessions of a workspace."""

    @property
    def place(self) -> str:
        """Where that workspace is, for people."""

    def starting(self) -> AbstractContextManager[bool]:
        """Whether this process alone may begin one now."""

    def begin(self, session_id: str, plan: dict[str, Any]) -> HeldSession: ...

    def open(self) -> list[str]:
        """Those that are not over, oldest first."""

    def claim(self, session_id: str) -> HeldSession | None:
        """None while another live process has it."""

    def plan_of(self, session_id: str) -> dict[str, Any] | None: ...

    def journal_of(self, session_id: str) -> list[JournalEntry]: ...

    def ended(self) -> list[SessionRecord]:
        """Those that are over, oldest first."""

    def abroad(self) -> list[tuple[SessionBook, str]]:
        """Those of this user's other workspaces that are not over, each with the book that it is in."""

    def visited(self, session_id: str, run_id: str) -> None:
        """Write down that a run of another workspace was in the session."""

    def visitors(self, session_id: str) -> list[str]:
        """The runs of other workspaces that were in the session."""
