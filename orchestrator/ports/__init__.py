"""What the workflows need from the world. Adapters provide it; the simulation and the tests provide it too.

All calls block. Everything that waits goes through :class:`Clock`, so that virtual time can stand in for the real.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fcctl_remote import wire
from orchestrator.domain.notify import Notice
from orchestrator.domain.records import RunRecord
from orchestrator.ports.books import FiringBook, HeldSession, SessionBook, Sightings
from orchestrator.ports.cloud import Cloud, Clouds, Login, MachineBook
from orchestrator.ports.host import Bundle, Bundles, HostConnector, HostSession, Transfer
from orchestrator.ports.store import ActiveRun, IncomingRun, Intake, Journal, Store
from orchestrator.ports.tunnels import Passage, Stream, Tunnels

__all__ = [
    "ActiveRun",
    "Bundle",
    "Bundles",
    "Clock",
    "Cloud",
    "Clouds",
    "FiringBook",
    "HeldSession",
    "HostConnector",
    "HostSession",
    "IncomingRun",
    "Intake",
    "Journal",
    "Login",
    "MachineBook",
    "Notifier",
    "Observer",
    "Passage",
    "Reporter",
    "Services",
    "SessionBook",
    "Sightings",
    "Source",
    "SourceChanges",
    "SourceHistory",
    "SourceReader",
    "Store",
    "Stream",
    "Transfer",
    "Tunnels",
]


class Clock(Protocol):
    def now(self) -> float:
        """Epoch seconds."""

    def monotonic(self) -> float: ...

    def elapsed(self) -> float:
        """Seconds since some moment, those that this computer slept too. Setting its clock does not move it."""

    def sleep(self, seconds: float) -> None: ...


@dataclass(frozen=True)
class Source:
    """The workspace's files as they are now: what git tracks, and what is untracked but not ignored."""

    root: Path
    entries: tuple[wire.TreeEntry, ...]
    tree_sha256: str
    git_commit: str | None
    dirty: bool
    skipped: tuple[str, ...] = ()  # paths left out (sockets, links that leave the workspace), each worth a warning


class SourceReader(Protocol):
    def read(self, root: Path) -> Source: ...


@dataclass(frozen=True)
class SourceChanges:
    """What lies between two commits: (sha, subject) of each, newest first; (what happened, path) of each file."""

    commits: tuple[tuple[str, str], ...]
    files: tuple[tuple[str, str], ...]


class SourceHistory(Protocol):
    def changes(self, root: Path, old: str, new: str) -> SourceChanges | None:
        """None if a commit is not known here, or the workspace is in no repository."""


class Observer(Protocol):
    """Hears what a workflow does, to show it. Never decides anything."""

    def phase(self, name: str, detail: str = "") -> None: ...

    def event(self, event: wire.Event) -> None: ...

    def progress(self, reply: wire.WatchReply, log_tail: bytes) -> None: ...

    def note(self, message: str) -> None: ...

    def aside(self) -> AbstractContextManager[None]:
        """Leave the terminal to somebody else for a while: to a question."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class Notifier(Protocol):
    """Tells people who are not looking."""

    def send(self, notice: Notice) -> list[str]:
        """Tell whoever wants to know; what went wrong, one line each. Never raises."""


class Reporter(Protocol):
    """Makes the files that tell people what a run came to."""

    def files(self, record: RunRecord, folder: Path, settings: Mapping[str, str]) -> Mapping[str, bytes]:
        """Path within the run, and content, of each.

        Args:
            folder: holds what came home.
            settings: the environment that the job and the command line gave its steps.

        Raises:
            FcctlError: they cannot be made.
        """


@dataclass(frozen=True)
class Services:
    """All a workflow may touch."""

    clock: Clock
    hosts: HostConnector
    store: Store
    source: SourceReader
    observer: Observer
    clouds: Clouds
    book: MachineBook
    notifier: Notifier
    sightings: Sightings
    sessions: SessionBook
    bundles: Bundles
    reporter: Reporter | None = None
