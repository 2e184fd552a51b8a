"""The targets of the workspace: what they are, what they cost, what runs there, what ran last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from orchestrator.machines.targets import CloudTarget, SshTarget, Target
from orchestrator.money.prices.rates import usd_per_hour
from orchestrator.runs.cost.own_price import as_last_seen

if TYPE_CHECKING:
    from orchestrator.views.dashboard.site import DashboardContext


def routes(site: DashboardContext) -> Sequence[Route]:
    return [Route("/hosts", _Hosts(site).page)]


class _Hosts:
    def __init__(self, site: DashboardContext) -> None:
        self._site = site

    async def page(self, request: Request) -> Response:
        config, services = self._site.backend.config, self._site.backend.services
        runs = await self._site.live.now()
        hosts = []
        for name, target in sorted(config.targets.items()):
            last = await asyncio.to_thread(self._site.store.rows, limit=1, target=name)
            hosts.append({
                "target": target,
                "place": place(target),
                "usd_per_hour": usd_per_hour(target, as_last_seen(services, target, config.budget)),
                "runs": [run for run in runs if run.target == name],
                "last": last[0] if last else None,
            })  # fmt: skip
        return self._site.page("hosts", request, hosts=hosts)


def place(target: Target) -> str:
    """Where the machine is, in one line."""
    if isinstance(target, SshTarget):
        user = f"{target.user}@" if target.user else ""
        return f"{user}{target.host}" + (f":{target.port}" if target.port else "")
    if isinstance(target, CloudTarget):
        return f"{target.instance} in {', '.join(target.zones)} of {target.project}"
    return "this machine" if target.kind == "local" else "an emulated cloud on this machine"
