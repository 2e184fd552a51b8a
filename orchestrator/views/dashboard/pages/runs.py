"""What goes on now and what was last; one run, live or home; its logs; cancel and run again."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from orchestrator.base import result_file
from orchestrator.base.errors import FcctlError, RunNotFound
from orchestrator.base.run_id import is_valid
from orchestrator.base.sanitize import clean_text
from orchestrator.results.look import Shown, show
from orchestrator.results.records import RunRecord
from orchestrator.views.dashboard.live import HEARTBEAT_S
from orchestrator.views.dashboard.redirect import see
from orchestrator.views.failure import failed_steps, log_end
from orchestrator.views.live.overview import LiveRun
from orchestrator.views.live.top import rate
from orchestrator.views.report.page import POLICY as REPORT_POLICY

if TYPE_CHECKING:
    from orchestrator.views.dashboard.site import DashboardContext

RECENT = 15
LOG_BYTES = 512 * 1024
REPORTS_KEPT = 4


def routes(site: DashboardContext) -> Sequence[Route]:
    pages = _Runs(site)
    return [
        Route("/", pages.index),
        Route("/live", pages.live),
        Route("/runs/{run_id}", pages.one),
        Route("/runs/{run_id}/live", pages.follow),
        Route("/runs/{run_id}/log/{step}", pages.log),
        Route("/runs/{run_id}/report", pages.report),
        Route("/runs/{run_id}/again", pages.plan_again),
        Route("/runs/{run_id}/again", pages.run_again, methods=["POST"]),
        Route("/runs/{run_id}/cancel", pages.cancel, methods=["POST"]),
    ]


class _Runs:
    def __init__(self, site: DashboardContext) -> None:
        self._site = site
        self._reports: OrderedDict[str, str] = OrderedDict()
        #: What became of the cancels asked for here, by run id.
        self._cancels: dict[str, str] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        self._rendered: tuple[int, str] = (-1, "")

    # -------------------------------------------------------------------------------------------- all of them
    async def index(self, request: Request) -> Response:
        runs = await self._site.live.now()
        rows = await asyncio.to_thread(self._site.store.rows, limit=RECENT)
        return self._site.page("runs", request, runs=runs, rows=rows, **self._money(runs))

    async def live(self, _: Request) -> Response:
        return _stream(self._live())

    async def _live(self) -> AsyncIterator[str]:
        version = -1
        while not self._site.live.closing.is_set():
            newer = await self._site.live.after(version)
            if newer == version:
                yield ": nothing new\n\n"
            else:
                version = newer
                yield _event("runs", {"html": self._list_fragment(version)})

    def _list_fragment(self, version: int) -> str:
        """The list as all browsers get it: made once for each version."""
        if self._rendered[0] != version:
            runs = self._site.live.runs
            self._rendered = (version, self._site.render("live_runs", runs=runs, **self._money(runs)))
        return self._rendered[1]

    def _money(self, runs: Sequence[LiveRun]) -> dict[str, Any]:
        money, budget = self._site.live.money, self._site.backend.config.budget
        return {
            "rate": rate(runs, money),
            "today": money.today_usd,
            "cap": budget.per_run_usd,
            "day_cap": budget.per_day_usd,
            "machines": money.machines,
        }

    # -------------------------------------------------------------------------------------------- one of them
    async def one(self, request: Request) -> Response:
        run_id = await self._resolve(request)
        if await asyncio.to_thread(self._site.store.is_complete, run_id):
            shown = await asyncio.to_thread(show, self._site.store, run_id)
            ends = await asyncio.to_thread(_ends, shown)
            facts = _facts(shown.record)
            return self._site.page("run", request, run=shown.record, logs=_logs(shown.record), ends=ends, **facts)
        if await asyncio.to_thread(self._site.store.plan_of, run_id) is None:
            raise RunNotFound(f"there is no run {run_id}", hint="History lists the runs")
        run = await self._site.live.await_run(run_id)
        if run is None:  # it came home meanwhile, or its machine keeps all others waiting
            return see(request.url.path if self._site.store.is_complete(run_id) else "/")
        return self._site.page("live_run", request, run=run, **self._of(run))

    def _of(self, run: LiveRun) -> dict[str, Any]:
        cap = self._site.backend.config.budget.per_run_usd
        return {"cap": cap, "cancel": self._cancels.get(run.run_id, "")}

    async def follow(self, request: Request) -> Response:
        run_id = await self._resolve(request)
        if not self._site.store.is_complete(run_id) and self._site.store.plan_of(run_id) is None:
            raise RunNotFound(f"there is no run {run_id}", hint="History lists the runs")
        last = request.headers.get("last-event-id", "")
        return _stream(self._follow(run_id, int(last) if last.isdigit() else 0))

    async def _follow(self, run_id: str, after: int) -> AsyncIterator[str]:
        """State and log of one run in one stream, until it is home."""
        queue: asyncio.Queue[str | None] = asyncio.Queue(maxsize=8)
        tasks = [
            asyncio.create_task(self._states(run_id, queue)),
            asyncio.create_task(self._lines(run_id, after, queue)),
        ]
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _states(self, run_id: str, queue: asyncio.Queue[str | None]) -> None:
        version, live = -1, self._site.live
        while not live.closing.is_set():
            newer = await live.after(version, HEARTBEAT_S)
            if self._site.store.is_complete(run_id):
                await queue.put(_event("home", {}))
                break
            run = live.find(run_id)
            if newer != version and run is not None:
                await queue.put(_event("state", {"html": self._site.render("live_state", run=run, **self._of(run))}))
            version = newer
        await queue.put(None)

    async def _lines(self, run_id: str, after: int, queue: asyncio.Queue[str | None]) -> None:
        async for piece in self._site.logs.follow(run_id, after):
            if piece is None:
                await queue.put(": nothing new\n\n")
            else:
                await queue.put(_event("log", {"step": piece.step, "text": piece.text}, piece.end))

    # -------------------------------------------------------------------------------------------- what it left
    async def log(self, request: Request) -> Response:
        run_id = await self._resolve(request)
        record = await asyncio.to_thread(self._site.store.get, run_id)
        step = next((s for s in record.steps if s.id == request.path_params["step"]), None)
        content = result_file.tail(self._site.store.folder(run_id), step.log, LOG_BYTES) if step and step.log else None
        if step is None or content is None:
            raise HTTPException(404, "no such log")
        if request.query_params.get("raw") is not None:
            return PlainTextResponse(content.data, headers={"content-disposition": "inline"})
        text = clean_text(content.data.decode(errors="replace"))
        return self._site.page("log", request, run=record, step=step, text=text, cut=content.cut)

    async def report(self, request: Request) -> Response:
        run_id = await self._resolve(request)
        await asyncio.to_thread(self._site.store.get, run_id)
        if run_id not in self._reports:
            folder = str(self._site.store.folder(run_id))
            made = await self._site.children.work("report", runs=[folder], version=self._site.backend.version)
            self._reports[run_id] = made["html"]
            while len(self._reports) > REPORTS_KEPT:
                self._reports.popitem(last=False)
        policy = f"{REPORT_POLICY}; frame-ancestors 'none'"
        return HTMLResponse(self._reports[run_id], headers={"content-security-policy": policy})

    # -------------------------------------------------------------------------------------------- actions
    async def plan_again(self, request: Request) -> Response:
        """What running it again would do and could cost, before anybody agrees."""
        record = await self._complete(request)
        plan = await self._site.children.fcctl(*_again(record), "--dry-run")
        return self._site.page("again", request, run=record, plan=plan)

    async def run_again(self, request: Request) -> Response:
        await self._site.require_token(request)
        record = await self._complete(request)
        run_id = await self._site.children.launch(*_again(record), "--yes", "--color=never")
        if run_id:
            await self._begun(run_id)
        return see(f"/runs/{run_id}" if run_id else "/")

    async def _begun(self, run_id: str) -> None:
        """Return once the store knows the run: its command names it a moment before."""
        store = self._site.store
        for _ in range(100):
            if store.is_complete(run_id) or store.plan_of(run_id) is not None:
                return
            await asyncio.sleep(0.1)

    async def cancel(self, request: Request) -> Response:
        await self._site.require_token(request)
        run_id = await self._resolve(request)
        if not self._site.store.is_complete(run_id) and self._cancels.get(run_id) != "cancelling":
            self._cancels[run_id] = "cancelling"
            task = asyncio.create_task(self._cancel(run_id))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)
        return see(f"/runs/{run_id}")

    async def _cancel(self, run_id: str) -> None:
        try:
            told = await self._site.children.fcctl("cancel", run_id)
        except FcctlError as error:
            self._cancels[run_id] = f"not cancelled: {error.message}"
            return
        left = not_cancelled(told)
        if left:  # a search on several machines, of which one is away
            self._cancels[run_id] = f"not cancelled: {left}"
        else:
            self._cancels.pop(run_id, None)

    async def _complete(self, request: Request) -> RunRecord:
        return await asyncio.to_thread(self._site.store.get, await self._resolve(request))

    async def _resolve(self, request: Request) -> str:
        """The run of the address: a whole id, so that a name from it never means more than one run."""
        run_id: str = request.path_params["run_id"]
        if not is_valid(run_id):
            raise RunNotFound("that is no run's id", hint="History lists the runs")
        return run_id


def not_cancelled(told: Any) -> str:
    """Which of the runs that ``fcctl cancel --json`` speaks of it could not cancel, and why; empty if there is none."""
    rows = [row for row in told["runs"] if row.get("error")]
    return "; ".join(f"{row['run_id']}: {row['error']}" for row in rows)


def _again(record: RunRecord) -> list[str]:
    """The command that does the same once more, with the source as it is now."""
    settings = [word for key, value in record.settings.items() for word in ("--set", f"{key}={value}")]
    return ["run", record.job, "--on", record.target, *settings]


def _facts(record: RunRecord) -> dict[str, Any]:
    judged = [g for step in record.steps for g in step.gates if g.verdict != "not_applicable"]
    return {
        "gates": [(step.id, gate) for step in record.steps for gate in step.gates],
        "met": sum(g.verdict == "pass" for g in judged),
        "judged": len(judged),
    }


def _logs(record: RunRecord) -> frozenset[str]:
    return frozenset(step.id for step in record.steps if step.log)


def _ends(shown: Shown) -> list[tuple[str, str]]:
    """The last lines of the logs of the steps that stopped the run, by step."""
    ends = [(step.id, log_end(shown.folder, step.log)) for step in failed_steps(shown.record)]
    return [(step, "\n".join(lines)) for step, lines in ends if lines]


def _event(name: str, data: dict[str, Any], event_id: int | None = None) -> str:
    """One server-sent event; JSON has no line feeds outside its strings' escapes."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {name}\ndata: {json.dumps(data)}\n\n"


def _stream(events: AsyncIterator[str]) -> StreamingResponse:
    return StreamingResponse(events, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
