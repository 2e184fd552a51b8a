"""The open sessions of a workspace, as an interface."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from orchestrator.base.journal import JournalEntry
    from orchestrator.leases.session_rules import SessionRecord
    from orchestrator.results.store_api import Journal


class LockedSession(Protocol):
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

    def begin(self, session_id: str, plan: dict[str, Any]) -> LockedSession: ...

    def open(self) -> list[str]:
        """Those that are not over, oldest first."""

    def claim(self, session_id: str) -> LockedSession | None:
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
