"""The ways of a search's machines to each other, kept open: to the scheduler on one of them, and from there to all.

Each machine has a connection of its own, beside those of the runs, in a thread of its own. One that breaks is made anew
for as long as the search goes on. Nothing here decides what runs where.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from orchestrator.base.errors import FcctlError, HostFault, HostUnusable, LinkLost
from orchestrator.machines.connect.reconnect import BACKOFF_S
from orchestrator.machines.targets import Target
from orchestrator.machines.tunnel_api import Stream, TunnelConnection, Tunnels
from orchestrator.tune.fleet.rules import (
    JOIN_FILE,
    JOURNAL,
    MAX_FILE_BYTES,
    MAX_JOURNAL_BYTES,
    SCHEDULER_FILE,
    SEED_FILE,
    Scheduler,
)

#: How often something that is about to happen is looked for, and whether what has happened still holds: seconds.
SOON_S = 0.3
STANDING_S = 3.0
#: How often what the search has found is fetched, in case its machine is lost: seconds.
REMEMBER_S = 10.0
#: At the end, how long a way may take to be closed, seconds.
CLOSE_S = 10.0
#: A way that held for so long was sound: the next attempt comes at once again.
SOUND_S = 30.0
_log = logging.getLogger(__name__)

#: Whether a run's host has it by now.
OnHost = Callable[[str], bool]


class Tunnel(ABC):
    """Keeps a passage to one machine open from the moment that its run is there, until :meth:`close`."""

    def __init__(self, tunnels: Tunnels, target: Target, on_host: OnHost) -> None:
        self.target = target
        #: Called, in the way's thread, if there is no use in trying on.
        self.on_failure: Callable[[FcctlError], None] = lambda _: None
        self.passage: TunnelConnection | None = None
        self._tunnels = tunnels
        self._on_host = on_host
        self._runs: list[str] = []
        self._closed = threading.Event()
        self._down_since: float | None = None  # once it was reached
        self._thread = threading.Thread(target=self._keep, name=f"fcctl-way-{target.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def set_run(self, run_id: str) -> None:
        """The machine's part in the search is this run, now."""
        self._runs.append(run_id)

    @property
    def _run_id(self) -> str | None:
        return self._runs[-1] if self._runs else None

    @property
    def is_up(self) -> bool:
        return self.passage is not None

    @property
    def away_s(self) -> float:
        """For how long its machine, which had been reached, is out of reach, seconds."""
        return 0.0 if self.is_up or self._down_since is None else time.monotonic() - self._down_since

    def close(self) -> None:
        self._closed.set()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _keep(self) -> None:
        attempt = 0
        while not self._closed.is_set():
            run_id = self._run_id
            if run_id is None or not self._on_host(run_id):
                self._closed.wait(SOON_S)
                continue
            began = time.monotonic()
            try:
                self._hold()
            except (HostUnusable, HostFault) as error:
                self.on_failure(error)
                return
            except FcctlError as error:
                _log.info("the way to %s: %s (%s)", self.target.name, error.message, error.cause)
            except Exception as error:  # noqa: BLE001 - it must not end without a word
                _log.exception("the way to %s", self.target.name)
                self.on_failure(FcctlError(f"unexpected {type(error).__name__}: {error}"))
                return
            attempt = 0 if time.monotonic() - began > SOUND_S else attempt
            self._closed.wait(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
            attempt += 1

    def _hold(self) -> None:
        with contextlib.closing(self._tunnels.open(self.target)) as passage:
            self.passage = passage
            try:
                self._use(passage)
            finally:
                self._down_since = time.monotonic()
                self.passage = None

    @abstractmethod
    def _use(self, passage: TunnelConnection) -> None:
        """Until it is closed. Raises: FcctlError."""


class LeaderTunnel(Tunnel):
    """The way to the machine that the search's scheduler is on."""

    scheduler: Scheduler | None = None
    #: What the search had found when it was looked at last.
    journal: bytes | None = None
    #: What it is to go on from, until it has been put there.
    seed: bytes | None = None

    def reach(self) -> Stream:
        """A connection to the scheduler; nothing else can be reached. Raises: FcctlError."""
        passage, scheduler = self.passage, self.scheduler
        if passage is None or scheduler is None:
            raise LinkLost(f"the search on {self.target.name} is out of reach for the moment")
        return passage.dial(scheduler.port)

    def _use(self, passage: TunnelConnection) -> None:
        seen: bytes | None = None
        due = time.monotonic()
        while not self._closed.is_set():
            run_id = self._run_id or ""
            if self.seed is not None and passage.write(run_id, SEED_FILE, self.seed):
                self.journal, self.seed = self.seed, None
            data = passage.read(run_id, SCHEDULER_FILE, MAX_FILE_BYTES)
            if data is not None and data != seen:
                scheduler = Scheduler.read(data, self.target.name)
                if self._answers(passage, scheduler):
                    seen, self.scheduler = data, scheduler
            passage.check()
            if seen is not None and time.monotonic() >= due:
                self._remember(passage, run_id)
                due = time.monotonic() + REMEMBER_S
            self._closed.wait(SOON_S if seen is None else STANDING_S)

    def _remember(self, passage: TunnelConnection, run_id: str) -> None:
        """Keep what was found, in case the machine is lost. A line that is just being written is left out."""
        journal = passage.read(run_id, JOURNAL, MAX_JOURNAL_BYTES)
        if journal:
            self.journal = journal[: journal.rfind(b"\n") + 1] or self.journal

    @staticmethod
    def _answers(passage: TunnelConnection, scheduler: Scheduler) -> bool:
        """Raises HostUnusable, if the machine does not forward ports: then nobody will ever get there."""
        try:
            passage.dial(scheduler.port).close()
        except HostFault:
            return False  # another search's, which is over: this one's comes
        return True


class WorkerTunnel(Tunnel):
    """The way to another machine, from whose loopback the scheduler is to be reached."""

    def __init__(self, tunnels: Tunnels, target: Target, on_host: OnHost, leader_tunnel: LeaderTunnel) -> None:
        super().__init__(tunnels, target, on_host)
        #: It may be another one later.
        self.leader_tunnel = leader_tunnel
        #: Runs there that an earlier fcctl may have told where the search is.
        self.before: Sequence[str] = ()

    def _use(self, passage: TunnelConnection) -> None:
        def reach() -> Stream:
            return self.leader_tunnel.reach()  # whichever that is by then

        port = passage.listen(reach)
        told: tuple[str, Scheduler] | None = None
        while not self._closed.is_set():
            run_id, scheduler = self._run_id, self.leader_tunnel.scheduler
            if run_id is not None and scheduler is not None and told != (run_id, scheduler):
                if passage.write(run_id, JOIN_FILE, scheduler.invitation(port)):
                    told = run_id, scheduler
                self._take_back(passage, [r for r in (*self.before, *self._runs) if r != run_id])
            elif told is not None:
                passage.check()
            self._closed.wait(SOON_S if told is None else STANDING_S)
        self._take_back(passage, [*self.before, *self._runs])

    @staticmethod
    def _take_back(passage: TunnelConnection, runs: Sequence[str]) -> None:
        """What these runs were told holds no more, and is a secret besides: it must not lie there."""
        for run_id in runs:
            passage.remove(run_id, JOIN_FILE)
