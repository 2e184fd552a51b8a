"""What shows a command's progress."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from orchestrator.base.sanitize import clean

if TYPE_CHECKING:
    from fcctl_remote import wire

_log = logging.getLogger(__name__)


class Observer:
    """Is told what a workflow does, to show it; decides nothing. This one shows nothing; notes are in the log file."""

    def phase(self, name: str, detail: str = "") -> None: ...

    def event(self, event: wire.Event) -> None: ...

    def upload(self, sent: int, total: int, seconds: float) -> None:
        """``sent`` of at most ``total`` bytes after ``seconds``."""

    def progress(self, reply: wire.WatchReply, log_tail: bytes) -> None: ...

    def note(self, message: str) -> None:
        _log.info("%s", clean(message, 500))

    def aside(self) -> AbstractContextManager[None]:
        """Releases the terminal for a while, for a question."""
        return nullcontext()

    def close(self) -> None:
        """Restores the terminal."""


class NoteKeeper(Observer):
    """Shows nothing, and keeps the notes for its owner."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)
