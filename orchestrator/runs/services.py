"""What the workflows need from the world. Adapters provide it; the simulation and the tests provide it too.

All calls block. Everything that waits goes through the clock, so that virtual time can stand in for the real.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchestrator.leases.session_api import SessionBook
from orchestrator.machines.host_api import Bundles
from orchestrator.machines.parts import MachineParts
from orchestrator.money.usage_api import Sightings
from orchestrator.results.records import RunRecord
from orchestrator.results.store_api import Store
from orchestrator.runs.notices import Notifier
from orchestrator.runs.source.api import SourceReader


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


@dataclass(frozen=True, kw_only=True)
class Services(MachineParts):
    """All a workflow may touch."""

    store: Store
    source: SourceReader
    notifier: Notifier
    sightings: Sightings
    sessions: SessionBook
    bundles: Bundles
    reporter: Reporter | None = None
