"""``fcctl results prune`` in an episode, or a person who deletes runs: what they cost was spent all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from tests.simulation.episode import Episode


def delete_results(episode: Episode, services: Services) -> None:
    """All complete runs of the workspace go; nobody asks for what is left of them on machines any more."""
    runs = [row.run_id for row in services.store.rows()]
    services.store.delete(runs)
    for guest in episode.guests.values():
        for run_id in runs:
            guest.runs.pop(run_id, None)
