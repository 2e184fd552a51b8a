"""What the workflows need from the world. Adapters provide it; the simulation and the tests provide it too.

All calls block. Everything that waits goes through :class:`Clock`, so that virtual time can stand in for the real.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from orchestrator.base.clock_api import Clock
from orchestrator.base.observer import Observer
from orchestrator.leases.session_api import HeldSession, SessionBook
from orchestrator.machines.cloud_api import Cloud, Clouds, Login, MachineBook
from orchestrator.machines.host_api import Bundle, Bundles, HostConnector, HostSession, Transfer
from orchestrator.machines.tunnel_api import Passage, Stream, Tunnels
from orchestrator.money.usage_api import Sightings
from orchestrator.results.compare.source_history import SourceChanges, SourceHistory
from orchestrator.results.records import RunRecord
from orchestrator.results.store_api import ActiveRun, IncomingRun, Intake, Journal, Store
from orchestrator.runs.notices import Notifier
from orchestrator.runs.source.api import Source, SourceReader
from orchestrator.schedules.firings_api import FiringBook

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
    #: Completes those of these runs that have ended, for the controller that left them.
    recover_runs: Callable[[Services, Sequence[str]], object] = field(kw_only=True)
    #: Ends the sessions whose machine is off, or whose fcctl was killed at it.
    recover_sessions: Callable[[Services], None] = field(kw_only=True)
