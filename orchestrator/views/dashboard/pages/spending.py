"""The caps and the ledger: what was spent, by what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

if TYPE_CHECKING:
    from orchestrator.views.dashboard.site import DashboardContext

GROUPS = ("day", "week", "month", "job", "target", "activity", "run", "machine")
ROWS = 200


def routes(site: DashboardContext) -> Sequence[Route]:
    async def page(request: Request) -> Response:
        asked = request.query_params.get("by", "day")
        by = asked if asked in GROUPS else "day"
        caps = await site.children.fcctl("cost", "budget")
        ledger = await site.children.fcctl("cost", "ledger", "--by", by)
        return site.page(
            "spending", request, caps=caps["caps"], reservations=caps["reservations"], forecast=caps["forecast"],
            timezone=caps["timezone"], totals=ledger["totals"], by=by, groups=GROUPS, most=ROWS,
        )  # fmt: skip

    return [Route("/spending", page)]


def is_there(site: DashboardContext) -> bool:
    """Whether anything has ever cost anything."""
    live = site.live
    active = live.money.today_usd or live.money.machines or any(run.usd_per_hour for run in live.runs)
    return bool(active) or any(row.usd for row in site.store.rows(limit=500))
