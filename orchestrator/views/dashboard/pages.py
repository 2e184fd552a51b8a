"""The pages of the dashboard besides those of one run; the navigation; and the server: one socket on loopback, until
Ctrl-C, with limits on connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, cast
from urllib.parse import urlencode

import h11
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from orchestrator.base.errors import ConflictError
from orchestrator.base.run_id import is_valid
from orchestrator.base.sanitize import clean
from orchestrator.leases.session_rules import underway
from orchestrator.machines.targets import CloudTarget, SshTarget, Target
from orchestrator.money.prices.rates import usd_per_hour
from orchestrator.money.totals import Grouping, totals
from orchestrator.results.compare.compare import MOST_SIDES
from orchestrator.results.look import MISSION
from orchestrator.runs.cost.estimate import as_last_seen
from orchestrator.runs.cost.outlook import MachineOn, Outlook
from orchestrator.runs.cost.spending import lines
from orchestrator.schedules.fire import FiringRecords, Scheduler
from orchestrator.schedules.os_scheduler import is_installed
from orchestrator.views.blocks import Block, Cell, Grid, Heading, Text, more
from orchestrator.views.dashboard import run_pages
from orchestrator.views.dashboard.guard import Access
from orchestrator.views.dashboard.lists import (
    compare,
    compare_answer,
    history,
    open_sessions,
    options,
    outlook_of,
    overview,
    part,
)
from orchestrator.views.dashboard.site import Backend, DashboardContext, Section
from orchestrator.views.figures import age, duration, usd
from orchestrator.views.live_run import telemetry_text
from orchestrator.views.live_runs import LiveRun
from orchestrator.views.tables.money import (
    TIMES,
    caps_bars,
    caps_grid,
    forecast_grid,
    note_text,
    totals_bars,
    totals_grid,
)
from orchestrator.views.tables.plan import firings_grid, progress_blocks, schedules_grid
from orchestrator.workspace.workspace import find_workspace

FIRINGS, LEDGER_ROWS = 30, 200
GROUPS = (*TIMES, "job", "target", "activity", "run", "machine")

Page = Callable[[DashboardContext, Request], Awaitable[Response]]


async def trend(site: DashboardContext, request: Request) -> Response:
    """One benchmark over the runs: series, change points, records."""
    choices = await asyncio.to_thread(site.store.benchmarks)
    usual = MISSION if any(name == MISSION for name, _ in choices) else choices[0][0] if choices else ""
    asked = _Trend.of(request, usual)
    lists = [
        ("benchmark", asked.benchmark, options(sorted({b for b, _ in choices}))[1:]),
        ("variant", asked.variant, options(sorted({v for _, v in choices if v}))),
    ]
    return site.page("trend", request, filters=lists, asked=asked, most=MOST_SIDES)


async def trend_charts(site: DashboardContext, request: Request) -> Response:
    asked = _Trend.of(request)
    return await part(site, "trend", benchmark=asked.benchmark, variant=asked.variant, ends=asked.ends)


@dataclass(frozen=True)
class _Trend:
    """What is asked of the trends: two runs are the ends of a part of them."""

    benchmark: str
    variant: str
    ends: list[str]

    @classmethod
    def of(cls, request: Request, usual: str = "") -> _Trend:
        given = request.query_params
        ends = [name for name in given.getlist("run") if is_valid(name)]
        return cls(given.get("benchmark") or usual, given.get("variant") or "", ends if len(ends) > 1 else [])

    @property
    def query(self) -> str:
        return urlencode({"benchmark": self.benchmark, "variant": self.variant, "run": self.ends}, doseq=True)


# ------------------------------------------------------------------------------------------------ hosts
async def hosts(site: DashboardContext, request: Request) -> Response:
    """The targets of the workspace: what they are, what they cost, what runs there, what ran last."""
    config, services = site.backend.config, site.backend.services
    runs, rows = await site.live.now(), []
    kept = [one.saved.target.name for one in underway(services.sessions)]
    for name, target in sorted(config.targets.items()):
        last = await asyncio.to_thread(site.store.rows, limit=1, target=name)
        price = usd_per_hour(target, as_last_seen(services, target, config.budget))
        machines = [one for one in site.live.money.machines if one.target == name]
        active = [run for run in runs if run.target == name]
        rows.append((
            name, Cell(target.kind, "started and stopped by fcctl" if target.owned else ""), clean(place(target), 120),
            usd(price) if price else "",
            _state(machines, active, site.now()) or _unseen(target, kept, active), *_now(active),
            Cell(clean(last[0].job, 40), f"{last[0].status}, {age(last[0].created, site.now())} ago",
                 href=f"/runs/{last[0].run_id}") if last else "",
        ))  # fmt: skip
    header = ("target", "kind", "location", "per hour", "machine", "active run", "load", "last run")
    grid = Grid(header, tuple(rows), "Targets of this workspace", numbers=(3,))
    return site.blocks("Hosts", request, [grid, *open_sessions(services)])


def _work(active: Sequence[LiveRun]) -> str:
    """What a machine that is on does: ``starting``, ``busy`` or ``ready``."""
    return "ready" if not active else "starting" if all(run.state == "starting" for run in active) else "busy"


def _unseen(target: Target, kept: Sequence[str], active: Sequence[LiveRun]) -> str | Cell:
    """The state of a machine that has no cost here: an emulated one that is in use, or one that is off."""
    if target.name in kept:
        return Cell(_work(active), "kept on by a session")
    return "" if not target.owned else _work(active) if active else "off"


def _state(machines: Sequence[MachineOn], active: Sequence[LiveRun], now: float) -> str | Cell:
    """Since when the machine is on, what it has cost, and what stops it; empty if none is known to be on."""
    if not machines:
        return ""
    one = machines[0]
    cost = one.usd(now)
    limit = f"stops in {duration(max(0.0, one.until - now))} at the latest" if one.until else "no time limit"
    return Cell(
        _work(active),
        f"on for {duration(now - one.started)}{f', {usd(cost)}' if cost is not None else ''}, {limit}: {one.stop}",
    )


def _now(runs: Sequence[LiveRun]) -> tuple[str | Cell, str]:
    if not runs:
        return "none", ""
    run = runs[0]
    return Cell(clean(run.job, 40), run.state, href=f"/runs/{run.run_id}"), telemetry_text(
        run.sample
    ) if run.sample else ""


def place(target: Target) -> str:
    """Where the machine is, in one line."""
    if isinstance(target, SshTarget):
        user = f"{target.user}@" if target.user else ""
        return f"{user}{target.host}" + (f":{target.port}" if target.port else "")
    if isinstance(target, CloudTarget):
        return f"{target.instance} in {', '.join(target.zones)} of {target.project}"
    return "this computer" if target.kind == "local" else "an emulated cloud on this computer"


# ------------------------------------------------------------------------------------------------ schedules
async def schedules(site: DashboardContext, request: Request) -> Response:
    """When each schedule is due next, how its last run ended, what it spent."""
    return site.blocks("Schedules", request, await asyncio.to_thread(_schedules, site))


def _schedules(site: DashboardContext) -> list[Block]:
    config, services, records = site.backend.config, site.backend.services, FiringRecords(site.store.root)
    scheduler = Scheduler(config.schedules, records, services.spending, config.budget, services.clock)
    blocks: list[Block] = []
    if not is_installed(site.backend.root):
        text = "Scheduler not installed, so nothing starts these jobs. To install it: fcctl schedule install"
        blocks.append(Text(text, style="notice"))
    blocks.append(schedules_grid(scheduler.statuses()))
    firings = [(name, firing) for name in config.schedules for firing in records.read(name)]
    if firings:
        newest = sorted(firings, key=lambda one: one[1].at, reverse=True)[:FIRINGS]
        blocks += [Heading("Firings"), firings_grid(newest)]
    return blocks


# ------------------------------------------------------------------------------------------------ spending
async def spending(site: DashboardContext, request: Request) -> Response:
    """The caps, the forecast and the ledger."""
    given = request.query_params.get("by", "day")
    by = given if given in GROUPS else "day"
    return site.blocks(
        "Spending", request, await asyncio.to_thread(_spending, site, by),
        filters=[("by", by, [(name, name) for name in GROUPS])],
    )  # fmt: skip


def _spending(site: DashboardContext, by: str) -> list[Block]:
    services, budget = site.backend.services, site.backend.config.budget
    found = outlook_of(site)
    sums = site.reused(f"totals {by}", lambda: totals(lines(services), cast("Grouping", by), budget.zone))
    blocks: list[Block] = [*caps_bars(found), *_reserved(found)]
    shown = sums[-LEDGER_ROWS:] if by in TIMES else sums[:LEDGER_ROWS]
    if sums:
        blocks += [totals_bars(shown, by), totals_grid(shown, by, budget.timezone), *more(sums, LEDGER_ROWS)]
    else:
        blocks.append(Text("No costs yet. The worst case of a run: fcctl cost plan JOB"))
    if found.forecast.total:
        blocks += [Heading("Forecast"), forecast_grid(found)]
    notes = [note_text(note) for note in found.remarks]
    return [
        *blocks, Heading("Caps"), caps_grid(found), Heading("Audit"), *(Text(note) for note in notes[:FIRINGS]),
        *more(notes, FIRINGS),
        Text("To compare the ledger with the cloud's records: fcctl hosts audit", style="hint"),
    ]  # fmt: skip


def _reserved(found: Outlook) -> Iterator[Grid]:
    rows = tuple(
        (clean(one.reservation.target, 40), usd(one.usd), "?" if one.so_far_usd is None else usd(one.so_far_usd),
         clean(one.ends, 120), Cell(clean(one.command, 300), kind="code"))
        for one in found.reservations
    )  # fmt: skip
    if rows:
        header = ("target", "reserved", "cost so far", "reserved for", "command to stop it")
        yield Grid(header, rows, "Reserved for active runs and machines", numbers=(1, 2))


def _has_costs(site: DashboardContext) -> bool:
    live = site.live
    active = live.money.today_usd or live.money.machines or any(run.usd_per_hour for run in live.runs)
    return bool(active) or any(row.usd for row in site.store.rows(limit=500))


async def phases(site: DashboardContext, request: Request) -> Response:
    """How far the project is."""
    workspace = find_workspace(site.backend.root)
    found = await asyncio.to_thread(workspace.progress, site.backend.services)
    return site.blocks("Progress", request, list(progress_blocks(found)))


def _routes(pages: dict[str, Page]) -> Callable[[DashboardContext], list[Route]]:
    return lambda site: [Route(path, partial(page, site)) for path, page in pages.items()]


#: The navigation. A section is one line here: it plugs in its routes, and appears where it has data.
SECTIONS = (
    Section("/", "Overview", _routes({"/": overview})),
    Section("/history", "Runs", _routes({"/history": history})),
    Section("/trends", "Trends", _routes({"/trends": trend, "/trends/charts": trend_charts})),
    Section("/runs", "", run_pages.routes, lambda _: False),
    Section("/progress", "Progress", _routes({"/progress": phases}), lambda site: bool(site.backend.config.phases)),
    Section("/compare", "Compare", _routes({
        "/compare": compare, "/compare/answer": partial(compare_answer, bars_only=False),
        "/compare/bars": partial(compare_answer, bars_only=True),
    })),
    Section("/hosts", "Hosts", _routes({"/hosts": hosts})),
    Section(
        "/schedules", "Schedules", _routes({"/schedules": schedules}), lambda site: bool(site.backend.config.schedules)
    ),
    Section("/spending", "Spending", _routes({"/spending": spending}), _has_costs),
)  # fmt: skip


#: At once; a process on macOS may have 256 files open.
MOST = 100
#: From a connection, or the first byte of its next request, until that request is whole, seconds.
REQUEST_S = 10.0


class Connection(H11Protocol):
    """One that has no whole request by :data:`REQUEST_S` is closed; and of too many, the oldest such one."""

    _waiting: ClassVar[dict[Connection, asyncio.TimerHandle]] = {}

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST:
            next(iter(self._waiting)).transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._wait()
        else:
            self._served()

    def connection_lost(self, exc: Exception | None) -> None:
        self._served()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self not in self._waiting:
            self._waiting[self] = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _served(self) -> None:
        if (timer := self._waiting.pop(self, None)) is not None:
            timer.cancel()


#: What a browser that goes away mid-stream, or a slow one, may hold of us.
BACKLOG = 128
GRACE_S = 2


@dataclass
class Server:
    """Bound, not yet answering; :attr:`link` opens it in one browser."""

    socket: socket.socket
    access: Access

    @property
    def link(self) -> str:
        return self.access.link

    @property
    def port(self) -> int:
        return self.access.port

    def serve(self, backend: Backend) -> None:
        """Answer until SIGINT or SIGTERM."""
        import uvicorn

        from orchestrator.views.dashboard.pages import SECTIONS
        from orchestrator.views.dashboard.site import application

        config = uvicorn.Config(
            application(backend, self.access, SECTIONS),
            log_config=None, access_log=False, server_header=False, date_header=False, proxy_headers=False,
            ws="none", http=Connection, loop="asyncio", lifespan="on", timeout_graceful_shutdown=GRACE_S,
            h11_max_incomplete_event_size=32 * 1024,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[self.socket])


def bind(port: int, announce: Callable[[str], None]) -> Server:
    """A server on 127.0.0.1, on any free port if ``port`` is 0.

    Raises:
        ConflictError: the port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise ConflictError(
            f"port {port} of 127.0.0.1 is not available",
            cause=error.strerror,
            hint="let the system choose a free port: fcctl ui --port 0",
        ) from error
    listener.listen(BACKLOG)
    return Server(listener, Access(listener.getsockname()[1], announce))
