"""Two runs beside each other, each benchmark with its verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.workflows.results import find

if TYPE_CHECKING:
    from orchestrator.web.site import Site

CHOICES = 200


def routes(site: Site) -> Sequence[Route]:
    return [Route("/compare", _Compare(site).page)]


class _Compare:
    def __init__(self, site: Site) -> None:
        self._site = site

    async def page(self, request: Request) -> Response:
        rows = await asyncio.to_thread(self._site.store.rows, limit=CHOICES)
        names = {side: request.query_params.get(side, "").strip() for side in ("old", "new")}
        found: dict[str, Any] | None = None
        sides: list[Any] = []
        if names["old"] and names["new"]:
            ids = [await asyncio.to_thread(find, self._site.store, names[side]) for side in ("old", "new")]
            sides = [await asyncio.to_thread(self._site.store.get, run_id) for run_id in ids]
            old, new = (str(self._site.store.folder(run_id)) for run_id in ids)
            found = await self._site.children.work("compare", old=old, new=new)
        return self._site.page("compare", request, rows=rows, names=names, found=found, sides=sides)
