"""Several machines as one cluster: this one and whoever joins, or the hosts of a scheduler that is there already.

Hosts are found by what their workers tell the scheduler (``workers.membership``); they come late, go and come back.
What this side has to say to them are events of the topic :data:`CONTROL`, which each host asks for: so one that comes
later hears it, too.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from types import MappingProxyType
from typing import Callable, Optional, Sequence

from fcctl_tune.errors import MissingDependency, TuneError
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers import dask_settings, join
from fcctl_tune.workers.interfaces import Host
from fcctl_tune.workers.local import DaskCluster, LocalCluster
from fcctl_tune.workers.membership import Membership

#: The topic of what hosts are told: ``{"to": a host's key or "", "say": reason}``, after which they end.
CONTROL = "fcctl-tune-control"
#: How often the scheduler is asked who is there, seconds.
LOOK_S = 0.5
#: How long hosts have to hear the goodbye, seconds; far more than it takes one that is there, however busy.
GOODBYE_S = 20.0
#: After the first host is complete, how long others have to come before the GPU model is chosen, seconds.
SETTLE_S = 3.0


class Looking:
    """Now and then."""

    def __init__(self) -> None:
        self._at = 0.0

    def is_due(self) -> bool:
        now = time.monotonic()
        due = now - self._at >= LOOK_S
        if due:
            self._at = now
        return due


class Fleet(LocalCluster):
    """This machine, which is ``host`` and starts at once, and those that join while it searches; ``file`` is where
    others learn how."""

    settings = MappingProxyType({"distributed.scheduler.worker-ttl": "60s"})  # for one that went without a word

    def __init__(self, host: Host, file: str, notice: Callable[[str], None], recipe: TrialSpec) -> None:
        super().__init__(host, notice, recipe)
        self.file = file
        self._membership: Optional[Membership] = None
        self._looking = Looking()

    @property
    def hosts(self) -> Sequence[Host]:
        return (self.host, *(self._membership.hosts if self._membership is not None else ()))

    def ready(self) -> None:
        """As of :class:`LocalCluster`, and others can join."""
        super().ready()
        pem = None
        if self.tls is not None:
            with open(self.tls, encoding="ascii") as stream:
                pem = stream.read()
        self.ending.callback(self._withdraw)
        try:
            join.offer(self.file, int(self.address.rpartition(":")[2]), pem, secrets.token_hex(16))
        except OSError as error:
            raise MissingDependency("%s: %s" % (self.file, error.strerror), "choose another file: --fleet") from None
        version = dask_settings.version()
        self._membership = Membership(version, self.notice, self._dismiss, model=self.host.model, own=self.host.name)
        self._membership.deaths = self.deaths

    def _withdraw(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.file)

    def mend(self) -> None:
        """As of :class:`LocalCluster`, and see who came and who went."""
        super().mend()
        if self._membership is not None and self._looking.is_due():
            self._membership.look(self.workers(), time.monotonic())

    def leave_out(self, host: str, reason: str) -> None:
        if self._membership is None or host == self.host.key:
            super().leave_out(host, reason)
        else:
            self._membership.leave_out(host, reason)

    def _dismiss(self, host: str, reason: str) -> None:
        self.client.log_event(CONTROL, {"to": host, "say": reason})

    def goodbye(self, reason: str) -> None:
        """Tell all others that the search is over; they end."""
        if self._membership is None:
            return
        self._dismiss("", reason)
        deadline = time.monotonic() + GOODBYE_S
        while len(self.workers()) > len(self.pool.workers) and time.monotonic() < deadline:
            time.sleep(0.1)


class Scheduled(DaskCluster):
    """The hosts of a scheduler that others run, at ``address``; ``tls`` is a file with the key it wants, ``wait_s`` how
    long a host may take to come, or to come back once none is left."""

    def __init__(self, address: str, tls: Optional[str], wait_s: float, notice: Callable[[str], None] = print) -> None:
        super().__init__(notice)
        self.address, self.tls, self.wait_s = address, tls, wait_s
        self._looking = Looking()
        self._here = time.monotonic()  # when a host was there last

    @property
    def hosts(self) -> Sequence[Host]:
        return self._membership.hosts

    def ready(self) -> None:
        """Wait until a host is complete, and choose whose GPU model is searched on.

        Raises:
            TuneError: Dask is missing; nobody is there.
        """
        if not join.Join(self.address).answers(self.tls):
            raise TuneError(
                "no scheduler answers at %s" % self.address,
                "is it running, reachable from here, and is --tls the file with its key and certificate?",
            )
        self.ending.enter_context(dask_settings.required())
        self.connect(self.address, dask_settings.security(self.tls))
        self._membership = Membership(dask_settings.version(), self.notice, lambda *_: None)
        self._membership.deaths = self.deaths
        self._here = time.monotonic()
        while not self.hosts:
            self._look()
        settled = time.monotonic() + SETTLE_S
        while time.monotonic() < settled:
            self._look()
        self._membership.choose()

    def _look(self) -> None:
        self.mend()
        time.sleep(0.1)

    def mend(self) -> None:
        """See who came and who went. Raises: TuneError: nobody has been there for too long."""
        if not self._looking.is_due():
            return
        if self.client.status != "running":
            raise TuneError("the scheduler at %s is gone" % self.address, "the same command goes on once it is back")
        try:
            workers = self.workers()
        except OSError:
            workers = {}
        now = time.monotonic()
        self._membership.look(workers, now)
        if self.hosts:
            self._here = now
        elif now - self._here > self.wait_s:
            raise TuneError(
                "no host has been there for %d s: the scheduler at %s has %d workers, none of them fit"
                % (self.wait_s, self.address, len(workers)),
                "on each host: python -m fcctl_tune member --host NAME --scheduler %s" % self.address,
            )

    def leave_out(self, host: str, reason: str) -> None:
        self._membership.leave_out(host, reason)

    def goodbye(self, reason: str) -> None:
        """They go on: the next search may be theirs, too."""
