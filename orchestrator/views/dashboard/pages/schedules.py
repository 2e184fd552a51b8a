"""The schedules of the workspace: when next, how the last one went, what they spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from orchestrator.views.dashboard.site import DashboardContext

FIRINGS = 30


def routes(site: DashboardContext) -> Sequence[Route]:
    async def page(request: Request) -> Response:
        found = await site.children.fcctl("schedule", "ls")
        firings = await site.children.fcctl("schedule", "ls", "--firings", "-n", str(FIRINGS))
        return site.page(
            "schedules", request, installed=found["installed"], schedules=found["schedules"],
            firings=firings["firings"],
        )  # fmt: skip

    return [Route("/schedules", page)]


def is_there(site: DashboardContext) -> bool:
    return bool(site.backend.config.schedules)
