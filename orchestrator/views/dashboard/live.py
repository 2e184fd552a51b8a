"""Active runs for all browsers: polled once for all of them, and not at all while no browser is open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock, Thread

from orchestrator.base.errors import FcctlError
from orchestrator.base.sanitize import LineCleaner
from orchestrator.runs.cost.outlook import MoneyNow, money_now
from orchestrator.runs.logs import read_logs
from orchestrator.runs.services import Services
from orchestrator.views.live.overview import LiveRun, Overview

_log = logging.getLogger("orchestrator.views.dashboard")

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
