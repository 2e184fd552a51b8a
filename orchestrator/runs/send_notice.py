"""Notices to people who are not looking; their failure is a line and nothing more."""

from __future__ import annotations

from orchestrator.runs.notices import Notice
from orchestrator.runs.services import Services


def tell(services: Services, notice: Notice) -> None:
    """Send ``notice`` to whoever ``[notify]`` names."""
    for problem in services.notifier.send(notice):
        services.observer.note(problem)
