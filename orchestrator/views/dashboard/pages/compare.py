"""Two sides beside each other, each benchmark with its verdict, and what else changed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.base.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.views.dashboard.site import DashboardContext

CHOICES = 200
#: Rows of each table of what else changed.
DIFFERENCES = 30


def routes(site: DashboardContext) -> Sequence[Route]:
    return [Route("/compare", _Compare(site).page)]


class _Compare:
    def __init__(self, site: DashboardContext) -> None:
        self._site = site

    async def page(self, request: Request) -> Response:
        rows = await asyncio.to_thread(self._site.store.rows, limit=CHOICES)
        tags = await asyncio.to_thread(self._site.store.tags)
        names = {side: request.query_params.get(side, "").strip() for side in ("old", "new")}
        found: dict[str, Any] | None = None
        if names["old"] and names["new"]:
            if any(name.startswith("-") for name in names.values()):
                raise UsageError("a run's name does not begin with a dash", hint="take one of the list")
            found = await self._site.children.fcctl("results", "compare", names["old"], names["new"])
        return self._site.page(
            "compare", request, rows=rows, tags=sorted(tags), names=names, found=found, most=DIFFERENCES
        )  # fmt: skip
