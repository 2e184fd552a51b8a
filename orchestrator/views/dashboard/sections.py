"""The dashboard's navigation. A section is one line here: it plugs in its routes, and shows where it has data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.routing import Route

from orchestrator.views.dashboard.pages import compare, history, hosts, runs, schedules, spending

if TYPE_CHECKING:
    from orchestrator.views.dashboard.site import Site


def _always(_: Site) -> bool:
    return True


@dataclass(frozen=True)
class Section:
    """``path`` is where the navigation leads; ``routes`` are all of the section's."""

    path: str
    title: str
    routes: Callable[[Site], Sequence[Route]]
    is_there: Callable[[Site], bool] = _always


SECTIONS = (
    Section("/", "Runs", runs.routes),
    Section("/history", "History", history.routes),
    Section("/compare", "Compare", compare.routes),
    Section("/hosts", "Hosts", hosts.routes),
    Section("/schedules", "Schedules", schedules.routes, schedules.is_there),
    Section("/spending", "Spending", spending.routes, spending.is_there),
)
