"""All runs that are home, and a benchmark over them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fcctl_remote.wire import RUN_ENDINGS

if TYPE_CHECKING:
    from orchestrator.views.dashboard.site import DashboardContext

ROWS = 50
MISSION = "mission"
#: Measurements that one picture is made of.
POINTS = 2000


def routes(site: DashboardContext) -> Sequence[Route]:
    pages = _History(site)
    return [Route("/history", pages.runs), Route("/history/trend", pages.trend)]


class _History:
    def __init__(self, site: DashboardContext) -> None:
        self._site = site

    async def runs(self, request: Request) -> Response:
        given = {key: request.query_params.get(key) or None for key in ("job", "target", "status")}
        asked = request.query_params.get("page", "1")
        page = min(max(1, int(asked)), 10_000) if asked.isdigit() and len(asked) < 9 else 1
        rows = await asyncio.to_thread(self._site.store.rows, limit=page * ROWS + 1, **given)
        shown = rows[(page - 1) * ROWS : page * ROWS]
        more = urlencode({**{k: v for k, v in given.items() if v}, "page": page + 1}) if len(rows) > page * ROWS else ""
        known = await asyncio.to_thread(self._site.store.rows, limit=500)
        names = {key: sorted({getattr(row, key) for row in known}) for key in ("job", "target")}
        return self._site.page(
            "history", request, rows=shown, given=given, more=more, names=names, statuses=RUN_ENDINGS
        )  # fmt: skip

    async def trend(self, request: Request) -> Response:
        """One benchmark over the runs: series, change points, records."""
        choices = await asyncio.to_thread(self._site.store.benchmarks)
        usual = MISSION if any(name == MISSION for name, _ in choices) else choices[0][0] if choices else ""
        benchmark = request.query_params.get("benchmark") or usual
        variant = request.query_params.get("variant")
        wanted = {"benchmark": benchmark, **({"variant": variant} if variant else {})}
        found = await asyncio.to_thread(self._site.store.measurements, limit=POINTS, **wanted) if benchmark else []
        made = []
        if found:
            answer = await self._site.children.work("trend", measurements=[asdict(m) for m in found])
            # Shapes and text only: views/report/drawing.py leaves nothing else in a picture.
            made = [{**one, "svg": Markup(one["svg"])} for one in answer["series"]]  # noqa: S704
        return self._site.page(
            "trend", request, series=made, benchmark=benchmark, variant=variant or "",
            benchmarks=sorted({b for b, _ in choices}), variants=sorted({v for _, v in choices if v}),
        )  # fmt: skip
