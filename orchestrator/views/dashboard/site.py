"""The dashboard as an application: pages behind the guard, and what they share; active runs, polled once for all
browsers, and not at all while no browser is open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib import resources
from pathlib import Path
from threading import Lock, Thread
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

import jinja2
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from orchestrator.base.errors import FcctlError
from orchestrator.base.sanitize import LineCleaner, clean
from orchestrator.runs.cost.outlook import MoneyNow, money_now
from orchestrator.runs.logs import read_logs
from orchestrator.runs.services import Services
from orchestrator.views.blocks import Block
from orchestrator.views.dashboard.children import STATUS, Children
from orchestrator.views.dashboard.guard import Access, Guard
from orchestrator.views.figures import age, duration, usd
from orchestrator.views.html import environment, styles
from orchestrator.views.live_run import telemetry_text
from orchestrator.views.live_runs import LiveRun, Overview
from orchestrator.views.top import rate
from orchestrator.workspace.config import Config

_log = logging.getLogger("orchestrator.views.dashboard")
#: A page's sums that took a second are shown again for so many seconds.
REUSED = 20.0
T = TypeVar("T")
_STATIC = {"app.css": "text/css", "app.js": "text/javascript", "favicon.svg": "image/svg+xml"}


@dataclass(frozen=True)
class Backend:
    """One workspace. Everything that runs, spends or takes memory is a child process: ``fcctl`` itself."""

    root: Path
    config: Config
    services: Services
    #: The command that runs fcctl in this workspace; arguments follow.
    fcctl: Sequence[str]
    version: str


class DashboardContext:
    """What every page may use: the workspace, what is live, children, templates."""

    def __init__(self, backend: Backend, access: Access, sections: Sequence[Section]) -> None:
        self.backend = backend
        self.access = access
        self.sections = sections
        self.store = backend.services.store
        self.children = Children(backend.fcctl, backend.root)
        self.live = LiveRuns(backend.services)
        self.logs = Logs(backend.services)
        #: Name -> when the cached value expires (monotonic seconds), and the value.
        self._kept: dict[str, tuple[float, object]] = {}

    def reused(self, name: str, make: Callable[[], T]) -> T:
        """The result of ``make()``, cached under ``name`` for :data:`REUSED` times as long as the call took."""
        known = self._kept.get(name)
        if known is None or time.monotonic() >= known[0]:
            begun, value = time.monotonic(), make()
            ended = time.monotonic()
            known = self._kept[name] = (ended + REUSED * (ended - begun), value)
        return cast("T", known[1])

    def now(self) -> float:
        return self.backend.services.clock.now()

    def page(self, name: str, request: Request, code: int = 200, **values: Any) -> HTMLResponse:
        """One page, from ``templates/<name>.html.j2``."""
        return HTMLResponse(self.render(name, path=request.url.path, **values), code)

    def blocks(self, title: str, request: Request, blocks: Sequence[Block], **values: Any) -> HTMLResponse:
        """A page of blocks; ``filters``: name, chosen value and options of each list."""
        return self.page("page", request, title=title, blocks=blocks, **{"filters": (), "level": 2, **values})

    def live_values(self, runs: Sequence[LiveRun]) -> dict[str, Any]:
        """What the list of active runs shows, with the money that goes now."""
        money, budget = self.live.money, self.backend.config.budget
        return {
            "runs": runs, "rate": rate(runs, money), "today": money.today_usd, "cap": budget.per_run_usd,
            "day_cap": budget.per_day_usd, "machines": money.machines,
        }  # fmt: skip

    def render(self, name: str, **values: Any) -> str:
        sections = [section for section in self.sections if section.is_there(self)]
        template = self._templates.get_template(f"{name}.html.j2")
        project = self.backend.config.project.name
        shared = {
            "sections": sections, "site": self, "now": self.now(), "project": project, "root": self.access.root,
            "for_paper": False, "level": 3,
        }  # fmt: skip
        return template.render({**shared, **values})

    @cached_property
    def _templates(self) -> jinja2.Environment:
        made = environment().overlay()
        made.filters = {
            **made.filters, "duration": duration, "clean": clean, "gauge": telemetry_text,
            "usd": usd, "spaced": lambda text: str(text).replace("_", " "),
        }  # fmt: skip
        made.globals["age"] = age
        return made

    async def require_token(self, request: Request) -> None:
        """Raises HTTPException unless one of our own pages asks."""
        form = dict(parse_qsl((await request.body()).decode("latin-1")))
        given = request.headers.get("x-fcctl-token") or form.get("token", "")
        if not self.access.may_act(given):
            raise HTTPException(403, "the page's token is missing or old: reload the page")


@dataclass(frozen=True)
class Section:
    """``path`` is where the navigation leads; ``routes`` are all of the section's."""

    path: str
    title: str
    routes: Callable[[DashboardContext], Sequence[Route]]
    is_there: Callable[[DashboardContext], bool] = lambda _: True


def application(backend: Backend, access: Access, sections: Sequence[Section]) -> Starlette:
    """The whole dashboard."""
    site = DashboardContext(backend, access, sections)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        site.live.start()
        try:
            yield
        finally:
            site.logs.closing = True
            await site.live.stop()

    routes = [Route("/static/{name}", _static)]
    routes += [route for section in sections for route in section.routes(site)]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={
            **dict.fromkeys((FcctlError, HTTPException, Exception), partial(_failed, site)),
            # The body was longer than any form of ours, or its sender has left.
            ClientDisconnect: lambda *_: Response(status_code=413),
        },
    )
    app.state.site = site
    app.router.redirect_slashes = False  # Starlette's own redirects do not know of the guard's path
    return app


def _failed(site: DashboardContext, request: Request, error: Exception) -> Response:
    """The page that says what went wrong."""
    if isinstance(error, FcctlError):
        shown, status = error, next((code for kind, code in STATUS.items() if isinstance(error, kind)), 502)
    elif isinstance(error, HTTPException):
        words, status = {404: "page not found", 405: "method not allowed"}, error.status_code
        shown = FcctlError(words.get(status, error.detail), hint="see the overview")
    else:
        name, status = type(error).__name__, 500
        _log.error("unexpected %s at %s", name, request.url.path, exc_info=error)
        shown = FcctlError(f"unexpected {name}", cause="this is a bug in fcctl; see its log file")
    return site.page("error", request, status, error=shown, status=status)


# ------------------------------------------------------------------------------------------------ files of ours
@cache
def _file(name: str) -> bytes:
    if name == "app.css":
        return styles("app").encode()
    return resources.files("orchestrator.views.dashboard").joinpath("static", name).read_bytes()


async def _static(request: Request) -> Response:
    """Three files by name; the name never becomes a path."""
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404)
    return Response(_file(name), media_type=_STATIC[name], headers={"cache-control": "private, max-age=300"})


POLL_S = 1.5
#: How often the ledger is added up; of a long one, so seldom that this takes at most a hundredth of the time.
MONEY_EVERY_S, MONEY_SHARE = 5.0, 100.0
#: Nobody has looked for so long: the machines are left in peace.
IDLE_S = 30.0
#: Of a run's log, the newest is kept for browsers that come late; and how many runs' logs.
LOG_CHARACTERS = 256 * 1024
LOGS = 8


class LiveRuns:
    """Polls the active runs while anybody is interested."""

    def __init__(self, services: Services) -> None:
        self.version = 0
        self.runs: list[LiveRun] = []
        self.money = MoneyNow()
        self._services, self._count_at = services, 0.0
        self._overview = Overview(services)
        self._asked = 0.0
        self._first = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._poll())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self._overview.close)

    async def now(self) -> list[LiveRun]:
        """The runs as they stand; the first time, after asking their machines."""
        fresh = time.monotonic() - self._asked < IDLE_S
        self._asked = time.monotonic()
        if not fresh:
            self._first.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(4):
                await self._first.wait()
        return self.runs

    def find(self, run_id: str) -> LiveRun | None:
        """The run as it stood at the last look."""
        return next((run for run in self.runs if run.run_id == run_id), None)

    async def await_run(self, run_id: str, seconds: float = 8.0) -> LiveRun | None:
        """An active run, also one that began after the last look; None if the looks of ``seconds`` did not find it."""
        deadline = time.monotonic() + seconds
        while (found := self.find(run_id)) is None and time.monotonic() < deadline:
            await self.now()
            await asyncio.sleep(0.2)
        return found

    def _look(self) -> list[LiveRun]:
        """The active runs; the last known ones if they cannot be read (a full disk, a damaged folder)."""
        try:
            self._count()
            return self._overview.poll()
        except (FcctlError, OSError) as error:
            _log.warning("the active runs cannot be read: %s", error)
            return self.runs

    def _count(self) -> None:
        if (begun := time.monotonic()) >= self._count_at:
            self.money, ended = money_now(self._services), time.monotonic()
            self._count_at = ended + max(MONEY_EVERY_S, MONEY_SHARE * (ended - begun))

    async def _poll(self) -> None:
        while True:
            if time.monotonic() - self._asked < IDLE_S:
                runs = await asyncio.to_thread(self._look)
                if runs != self.runs:
                    self.runs = runs
                    self.version += 1
                self._first.set()
                await asyncio.sleep(POLL_S)
            else:
                await asyncio.sleep(0.2)


@dataclass(frozen=True)
class LogChunk:
    """Text of one step's log. ``end`` is where it ends, counted in characters since the first."""

    end: int
    step: str
    text: str


@dataclass
class _Log:
    chunks: deque[LogChunk] = field(default_factory=deque)
    end: int = 0
    kept: int = 0
    over: bool = False
    lock: Lock = field(default_factory=Lock)

    def add(self, step: str, text: str) -> None:
        """The newest text; of all, :data:`LOG_CHARACTERS` are kept."""
        text = text[-LOG_CHARACTERS:]
        with self.lock:
            self.end += len(text)
            self.kept += len(text)
            self.chunks.append(LogChunk(self.end, step, text))
            while self.kept > LOG_CHARACTERS and len(self.chunks) > 1:
                self.kept -= len(self.chunks.popleft().text)


class Logs:
    """The logs of active runs: one reader for each run, whatever the number of browsers."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._logs: dict[str, _Log] = {}
        self.closing = False

    def since(self, run_id: str, after: int) -> tuple[list[LogChunk], bool]:
        """Returns the parts of the log after its first ``after`` characters, and whether the log has ended. Only the
        newest :data:`LOG_CHARACTERS` are kept, so a slow browser misses older parts."""
        log = self._logs.get(run_id) or self._open(run_id)
        over = log.over
        with log.lock:
            return [chunk for chunk in log.chunks if chunk.end > after], over

    def _open(self, run_id: str) -> _Log:
        for old in [r for r, log in self._logs.items() if log.over][: max(0, len(self._logs) - LOGS + 1)]:
            del self._logs[old]
        log = self._logs[run_id] = _Log()
        Thread(target=self._read, args=(run_id, log), name="fcctl-ui-log", daemon=True).start()
        return log

    def _read(self, run_id: str, log: _Log) -> None:
        cleaners: dict[str, LineCleaner] = {}
        try:
            for piece in read_logs(self._services, run_id, None, wait=True):
                if text := cleaners.setdefault(piece.step, LineCleaner()).feed(piece.data).decode():
                    log.add(piece.step, text)
                if self.closing:
                    return
        except FcctlError as error:
            _log.info("the log of %s ends: %s", run_id, error)
        finally:
            log.over = True
