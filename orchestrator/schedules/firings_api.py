"""The record of each schedule's firings, as an interface."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orchestrator.schedules.due import Firing


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
