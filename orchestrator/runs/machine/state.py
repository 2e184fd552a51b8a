"""What a run holds of its machine in a cloud, as its journal has it: the ground that all parts of the hold stand on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.journal import JournalEntry
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.provision.find import Log
from orchestrator.machines.provision.release import ReleaseRequest
from orchestrator.machines.shutdown_timer import token_of
from orchestrator.machines.targets import GcpTarget
from orchestrator.results.store_api import ActiveRun
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.services import Services

#: A start that was asked for, and never seen: how much earlier or later it can have been, with clocks that differ,
#: seconds.
EARLIER_S, LATER_S = 900.0, 1800.0
#: The same of one whose moment the cloud told.
SAME_S = 2.0


def turned_on(entries: Sequence[JournalEntry]) -> tuple[float, float] | None:
    """Between when a machine was turned on for a run, or a session, as its journal has it; None: it was not."""
    for entry in reversed(entries):
        if entry.kind == "acquired":
            started = entry.data.get("started") if entry.data.get("turned_on") else None
            return None if started is None else (started - SAME_S, started + SAME_S)
        if entry.kind == "cloud" and entry.data.get("action") in ("start", "create", "resume"):
            return entry.time - EARLIER_S, entry.time + LATER_S
    return None


@dataclass(frozen=True)
class LeaseState:
    """One active run and its machine. The journal is the only memory: nothing here is remembered beside it."""

    services: Services
    link: ReconnectingHost
    active: ActiveRun
    saved: SavedPlan
    log: Log
    #: The machine that is meant, as a target of its cloud.
    target: GcpTarget

    @property
    def run_id(self) -> str:
        return self.active.run_id

    @property
    def token(self) -> str:
        """What moves the timers that runs from this computer set on the machine."""
        return token_of(self.services.clouds.login(self.target), self.target)

    def entries(self) -> list[JournalEntry]:
        return self.active.journal.entries()

    def acquired(self) -> dict[str, Any]:
        """What is known of the machine since it was last acquired; empty: it never answered."""
        for entry in reversed(self.entries()):
            if entry.kind == "acquired":
                return entry.data
            if entry.kind == "acquire":
                break
        return {}

    def last_known(self) -> dict[str, Any]:
        """The machine that the run was on; empty: it never was on one."""
        return next((e.data for e in reversed(self.entries()) if e.kind == "acquired"), {})

    def zones(self) -> dict[str, float]:
        """Where the cloud was asked to turn a machine on since then, and when; the last place first."""
        zones: dict[str, float] = {}
        for entry in reversed(self.entries()):
            if entry.kind == "acquire":
                break
            if entry.kind == "cloud" and entry.data.get("action") in ("start", "create", "resume"):
                zones.setdefault(str(entry.data["zone"]), entry.time)
        return zones

    def holds(self) -> list[ReleaseRequest]:
        """What is to be let go."""
        acquired = self.acquired()
        if acquired:
            return [ReleaseRequest(str(acquired["zone"]), str(acquired["instance_id"]))]
        return [ReleaseRequest(zone, None, made_here=True, asked=at) for zone, at in self.zones().items()]
