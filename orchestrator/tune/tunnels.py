"""Tunnels of a fleet: from each worker host's loopback, through this computer, to the scheduler on the leader.

Each machine has one connection for them, beside those of the runs, in its own thread. A broken connection is restored
while the search runs.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from orchestrator.base.errors import FcctlError, HostFault, HostUnusable, LinkLost
from orchestrator.machines.connect.reconnect import BACKOFF_S
from orchestrator.machines.interfaces import Stream, TunnelConnection, Tunnels
from orchestrator.machines.targets import Target
from orchestrator.tune import fleet_rules as rules
from orchestrator.tune.fleet_rules import Scheduler

#: Seconds between two looks before and after a connection is in use.
SOON_S = 0.3
STANDING_S = 3.0
#: Seconds that a tunnel has to close at the end.
CLOSE_S = 10.0
#: After a connection of so many seconds the next attempt comes at once.
SOUND_S = 30.0
_log = logging.getLogger(__name__)

#: Whether a run's host has it by now.
OnHost = Callable[[str], bool]


class Tunnel(ABC):
    """Keeps a connection to one machine open from its run's submission to :meth:`close`."""

    def __init__(self, tunnels: Tunnels, target: Target, on_host: OnHost) -> None:
        self.target = target
        #: Called in the tunnel's thread when it gives up.
        self.on_failure: Callable[[FcctlError], None] = lambda _: None
        self.connection: TunnelConnection | None = None
        self._tunnels = tunnels
        self._on_host = on_host
        #: The machine's run, once it is to be reached.
        self.run_id: str | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"fcctl-tunnel-{target.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_up(self) -> bool:
        return self.connection is not None

    def close(self) -> None:
        self._closed.set()

    def join(self) -> None:
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _keep(self) -> None:
        attempt = 0
        while not self._closed.is_set():
            if self.run_id is None or not self._on_host(self.run_id):
                self._closed.wait(SOON_S)
                continue
            began = time.monotonic()
            try:
                self._connect()
            except (HostUnusable, HostFault) as error:
                self.on_failure(error)
                return
            except FcctlError as error:
                _log.info("the tunnel to %s: %s (%s)", self.target.name, error.message, error.cause)
            except Exception as error:  # noqa: BLE001 - reported
                _log.exception("the tunnel to %s", self.target.name)
                self.on_failure(FcctlError(f"unexpected {type(error).__name__}: {error}"))
                return
            attempt = 0 if time.monotonic() - began > SOUND_S else attempt
            self._closed.wait(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
            attempt += 1

    def _connect(self) -> None:
        with contextlib.closing(self._tunnels.open(self.target)) as connection:
            self.connection = connection
            try:
                self._use(connection)
            finally:
                self.connection = None

    @abstractmethod
    def _use(self, connection: TunnelConnection) -> None:
        """Until it is closed. Raises: FcctlError."""


class LeaderTunnel(Tunnel):
    """To the leader, with the search's scheduler."""

    scheduler: Scheduler | None = None

    def reach(self) -> Stream:
        """A connection to the scheduler; nothing else can be reached. Raises: FcctlError."""
        connection, scheduler = self.connection, self.scheduler
        if connection is None or scheduler is None:
            raise LinkLost(f"no connection to the search on {self.target.name} at the moment")
        return connection.dial(scheduler.port)

    def _use(self, connection: TunnelConnection) -> None:
        seen: bytes | None = None
        while not self._closed.is_set():
            data = connection.read(self.run_id or "", rules.SCHEDULER_FILE, rules.MAX_FILE_BYTES)
            if data is not None and data != seen:
                scheduler = Scheduler.read(data, self.target.name)
                if self._answers(connection, scheduler):
                    seen, self.scheduler = data, scheduler
            connection.check()
            self._closed.wait(SOON_S if seen is None else STANDING_S)

    @staticmethod
    def _answers(connection: TunnelConnection, scheduler: Scheduler) -> bool:
        """Raises HostUnusable if the machine does not forward ports."""
        try:
            connection.dial(scheduler.port).close()
        except HostFault:
            return False  # of an earlier search
        return True


class WorkerTunnel(Tunnel):
    """To a worker host, from whose loopback the scheduler is reached."""

    def __init__(self, tunnels: Tunnels, target: Target, on_host: OnHost, leader_tunnel: LeaderTunnel) -> None:
        super().__init__(tunnels, target, on_host)
        self._leader_tunnel = leader_tunnel

    def _use(self, connection: TunnelConnection) -> None:
        port, run_id = connection.listen(self._leader_tunnel.reach), self.run_id or ""
        invited: Scheduler | None = None
        while not self._closed.is_set():
            scheduler = self._leader_tunnel.scheduler
            if scheduler is not None and invited != scheduler:
                if connection.write(run_id, rules.JOIN_FILE, scheduler.invitation(port)):
                    invited = scheduler
            elif invited is not None:
                connection.check()
            self._closed.wait(SOON_S if invited is None else STANDING_S)
        connection.remove(run_id, rules.JOIN_FILE)  # with the key, which holds no more
