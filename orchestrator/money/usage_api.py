"""What is kept beside the runs: sessions, the firings of schedules, and what machines were seen to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from orchestrator.money.billable import Holding
    from orchestrator.money.ledger import Sighting


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
