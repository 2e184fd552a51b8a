"""A search's machines as Dask sees them: this one, this one and those that join it, or those of a scheduler elsewhere.

Hosts are known by what their workers tell the scheduler (``workers.membership``). They come late, go and come back.
"""

from __future__ import annotations

import abc
import contextlib
import os
import secrets
import sys
import time
from typing import Any, Callable, List, Optional, Sequence, Tuple

from fcctl_tune.errors import MissingDependency, TuneError
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers import dask_settings, join, scratch
from fcctl_tune.workers.interfaces import CallFailed, Host, resource
from fcctl_tune.workers.membership import CONTROL, Membership
from fcctl_tune.workers.pool import WorkerPool

#: How long the scheduler and its client have at the end, seconds.
CLOSE_S = 5.0
#: How long workers have to come up, seconds: the first import from a cold disk takes a while.
START_S = 90.0
#: How often the scheduler is asked who is there, seconds.
LOOK_S = 0.5
#: How long hosts have to hear the goodbye, seconds; far more than it takes one that is there, however busy.
GOODBYE_S = 20.0
#: After the first host is complete, how long others have to come before the GPU model is chosen, seconds.
SETTLE_S = 3.0


class DaskCluster(abc.ABC):
    """A ``Cluster``, once it is :meth:`ready`; :meth:`close` ends all that was started."""

    membership: Optional[Membership] = None

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.notice = notice
        self.deaths: List[str] = []
        self.ending = contextlib.ExitStack()
        self._looked_at = 0.0
        scratch.sweep()
        self.folder = self.ending.enter_context(scratch.folder())

    def __enter__(self) -> DaskCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abc.abstractmethod
    def hosts(self) -> Sequence[Host]: ...

    @abc.abstractmethod
    def ready(self) -> None:
        """Raises: TuneError: Dask is missing, or no host is there in time."""

    @abc.abstractmethod
    def mend(self) -> None: ...

    @abc.abstractmethod
    def leave_out(self, host: str, reason: str) -> None: ...

    def goodbye(self, reason: str) -> None:  # noqa: B027 - most have nobody to tell
        """Tell those that came for this search that it is over."""

    def connect(self, to: Any, security: Any) -> None:
        """Have calls carried out by the scheduler ``to``: its address, or one of this process."""
        from distributed import Client

        from fcctl_tune.workers.calls import Calls

        self.client = Client(to, set_as_default=False, security=security)  # type: ignore[no-untyped-call]
        self.ending.callback(self.client.close, timeout=CLOSE_S)
        self.calls = Calls(self.client)

    def submit(self, function: Callable[..., Any], *arguments: Any, slot: str, host: str, priority: int = 0) -> str:
        return self.calls.submit(function, *arguments, resource=resource(slot, host), priority=priority)

    def cancel(self, call: str) -> None:
        self.calls.cancel(call)

    def results(self, seconds: float) -> List[Tuple[str, Any]]:
        return self.calls.results(seconds)

    def wake(self) -> None:
        self.calls.wake()

    def workers(self) -> Any:
        """What the scheduler knows of each, by address."""
        return self.client.scheduler_info(n_workers=-1)["workers"]

    def is_look_due(self) -> bool:
        now = time.monotonic()
        due = now - self._looked_at >= LOOK_S
        self._looked_at = now if due else self._looked_at
        return due

    def carry_out(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a call gives in a ``cpu`` slot of the first host; of another, if that is lost.

        Raises:
            TuneError: it gives nothing.
        """
        call = host = ""
        while True:
            keys = [one.key for one in self.hosts]
            if keys and host not in keys:
                self.cancel(call)
                host = keys[0]
                call = self.submit(function, *arguments, slot="cpu", host=host)
            for ended, outcome in self.results(0.25):
                if ended != call:
                    continue
                if isinstance(outcome, CallFailed):
                    raise TuneError("%s: %s" % (function.__name__, outcome))
                if isinstance(outcome, TuneError):
                    raise outcome
                return outcome
            self.mend()

    def close(self) -> None:
        """End everything that was started; doing it twice is harmless."""
        self.ending.close()


class OwnCluster(DaskCluster):
    """``host``, which is this machine, and those that join; others learn how from the file ``offer``, if there is one.
    What serves for trials of ``trial_spec`` comes up with the workers."""

    def __init__(self, host: Host, notice: Callable[[str], None], trial_spec: TrialSpec, offer: str = "") -> None:
        super().__init__(notice)
        self.host, self.trial_spec, self.offer = host, trial_spec, offer

    @property
    def hosts(self) -> Sequence[Host]:
        return (self.host, *(self.membership.hosts if self.membership is not None else ()))

    def __enter__(self) -> OwnCluster:
        """Start the workers' processes; they import while we do."""
        try:
            self.tls = dask_settings.certificate(self.folder)
            if self.tls is None:
                self.notice("no openssl here: the search's workers talk over loopback unencrypted")
            self.pool = WorkerPool(self.host, self.folder, self.tls, trial_spec=self.trial_spec)
            self.ending.callback(self.pool.end)
            self.pool.launch()
        except BaseException:
            self.close()
            raise
        return self

    def ready(self) -> None:
        """Start the scheduler, wait until every worker of this machine is there, and let others join."""
        ttl = {"distributed.scheduler.worker-ttl": "60s"} if self.offer else {}  # for one that went without a word
        self.ending.enter_context(dask_settings.applied(**ttl))
        from distributed import LocalCluster as Scheduler

        security = dask_settings.security(self.tls)
        scheduler = Scheduler(  # type: ignore[no-untyped-call]
            n_workers=0, host="127.0.0.1", protocol="tls://" if security else "tcp://", security=security,
            dashboard_address=None, silence_logs=False,
        )  # fmt: skip
        self.ending.callback(scheduler.close, timeout=CLOSE_S)
        address: str = scheduler.scheduler_address
        self.pool.tell(address)
        self.connect(scheduler, security)
        self._wait()
        if self.offer:
            self._let_others_join(int(address.rpartition(":")[2]))

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while len(self.workers()) < len(self.pool.workers):  # nobody else knows of the scheduler yet
            self.mend()
            if time.monotonic() > deadline:
                raise TuneError(
                    "the search's workers did not come up within %d s" % START_S,
                    "%s -m fcctl_tune.workers.worker --help   shows whether they can run at all" % sys.executable,
                )
            time.sleep(0.02)

    def _let_others_join(self, port: int) -> None:
        pem = None
        if self.tls is not None:
            with open(self.tls, encoding="ascii") as stream:
                pem = stream.read()
        self.ending.callback(self._withdraw)
        try:
            join.offer(self.offer, port, pem, secrets.token_hex(16))
        except OSError as error:
            raise MissingDependency("%s: %s" % (self.offer, error.strerror), "choose another file: --fleet") from None
        version, model = dask_settings.version(), self.host.model
        self.membership = Membership(version, self.notice, self._dismiss, self.deaths, model=model, own=self.host.name)

    def _withdraw(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.offer)

    def mend(self) -> None:
        """Replace workers that died, and see who came and who went.

        Raises:
            TuneError: a worker dies again and again.
        """
        for worker in self.pool.ended():
            self.deaths.append(worker.name)
            self.pool.replace(worker)
        if self.membership is not None and self.is_look_due():
            self.membership.look(self.workers(), time.monotonic())

    def leave_out(self, host: str, reason: str) -> None:
        """Raises: TuneError: without this machine there is no search."""
        if self.membership is None or host == self.host.key:
            raise TuneError("this machine cannot be used%s: %s" % (" as %s" % host if host else "", reason))
        self.membership.leave_out(host, reason)

    def _dismiss(self, host: str, reason: str) -> None:
        self.client.log_event(CONTROL, {"to": host, "say": reason})

    def goodbye(self, reason: str) -> None:
        if self.membership is None:
            return
        self._dismiss("", reason)
        deadline = time.monotonic() + GOODBYE_S
        while len(self.workers()) > len(self.pool.workers) and time.monotonic() < deadline:
            time.sleep(0.1)


class ScheduledCluster(DaskCluster):
    """The hosts of a scheduler that others run, at ``address``; they stay when the search is over, for the next one.

    ``tls`` is a file with the key it wants, ``wait_s`` how long a host may take to come, or to come back once none is
    left.
    """

    membership: Membership

    def __init__(self, address: str, tls: Optional[str], wait_s: float, notice: Callable[[str], None]) -> None:
        super().__init__(notice)
        self.address, self.tls, self.wait_s = address, tls, wait_s
        self._here = time.monotonic()  # when a host was there last

    @property
    def hosts(self) -> Sequence[Host]:
        return self.membership.hosts

    def ready(self) -> None:
        """Wait until a host is complete, and choose whose GPU model is searched on."""
        if not join.Join(self.address).answers(self.tls):
            raise TuneError(
                "no scheduler answers at %s" % self.address,
                "is it running, reachable from here, and is --tls the file with its key and certificate?",
            )
        self.ending.enter_context(dask_settings.applied())
        self.connect(self.address, dask_settings.security(self.tls))
        self.membership = Membership(dask_settings.version(), self.notice, lambda *_: None, self.deaths)
        self._here = time.monotonic()
        settled: Optional[float] = None
        while settled is None or time.monotonic() < settled:
            self.mend()
            if self.hosts and settled is None:
                settled = time.monotonic() + SETTLE_S
            time.sleep(0.1)
        self.membership.choose()

    def mend(self) -> None:
        """See who came and who went. Raises: TuneError: nobody has been there for too long."""
        if not self.is_look_due():
            return
        if self.client.status != "running":
            raise TuneError("the scheduler at %s is gone" % self.address, "the same command goes on once it is back")
        try:
            workers = self.workers()
        except OSError:
            workers = {}
        now = time.monotonic()
        self.membership.look(workers, now)
        if self.hosts:
            self._here = now
        elif now - self._here > self.wait_s:
            raise TuneError(
                "no host has been there for %d s: the scheduler at %s has %d workers, none of them fit"
                % (self.wait_s, self.address, len(workers)),
                "on each host: python -m fcctl_tune member --host NAME --scheduler %s" % self.address,
            )

    def leave_out(self, host: str, reason: str) -> None:
        self.membership.leave_out(host, reason)
