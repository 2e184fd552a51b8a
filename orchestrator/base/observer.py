"""What shows a command's progress, as an interface."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from fcctl_remote import wire


class Observer(Protocol):
    """Hears what a workflow does, to show it. Never decides anything."""

    def phase(self, name: str, detail: str = "") -> None: ...

    def event(self, event: wire.Event) -> None: ...

    def progress(self, reply: wire.WatchReply, log_tail: bytes) -> None: ...

    def note(self, message: str) -> None: ...

    def aside(self) -> AbstractContextManager[None]:
        """Releases the terminal for a while, for a question."""

    def close(self) -> None:
        """Restores the terminal."""
