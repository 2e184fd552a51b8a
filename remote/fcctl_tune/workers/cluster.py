"""A search's hosts in Dask: this machine, with those that join it, or the hosts of a scheduler elsewhere.

Hosts are known by the facts that their workers send the scheduler (``workers.membership``). They come and go.
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
from fcctl_tune.workers import dask_settings, folders, membership
from fcctl_tune.workers.hosts import CallFailed, Host, resource
from fcctl_tune.workers.membership import CONTROL, Membership
from fcctl_tune.workers.pool import WorkerPool

#: Seconds that the scheduler and its client have to close.
CLOSE_S = 5.0
#: Seconds that workers have to start; the first import from a cold disk is slow.
START_S = 90.0
#: Seconds between two looks at the scheduler's workers.
LOOK_S = 0.5
#: Seconds that hosts have to leave after they were dismissed.
GOODBYE_S = 20.0
#: Seconds from the first complete host to the choice of the GPU model.
SETTLE_S = 3.0


class DaskCluster(abc.ABC):
    """Carries calls out on hosts, within its context and once it is :meth:`ready`; :meth:`submit` names them."""

    membership: Optional[Membership] = None

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.notice = notice
        self.deaths: List[str] = []
        self.ending = contextlib.ExitStack()
        self._looked_at = 0.0

    def __enter__(self) -> DaskCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abc.abstractmethod
    def hosts(self) -> Sequence[Host]:
        """The present hosts, with GPUs of one model. Calls on a lost host give no result."""

    def ready(self) -> None:  # noqa: B027 - others are, once they are entered
        """Raises: TuneError: Dask is missing, or the workers do not start."""

    @abc.abstractmethod
    def mend(self) -> None:
        """Replace workers, update the hosts. Raises: TuneError, if the search cannot continue."""

    @abc.abstractmethod
    def leave_out(self, host: str, reason: str) -> None:
        """Exclude the host with this key."""

    def goodbye(self, reason: str) -> None:  # noqa: B027 - only hosts that joined are dismissed
        """Dismiss the hosts that joined this search."""

    def connect(self, to: Any, security: Any) -> None:
        """Use the scheduler ``to``: an address, or a scheduler of this process."""
        from distributed import Client

        from fcctl_tune.workers.calls import Calls

        self.client = Client(to, set_as_default=False, security=security)  # type: ignore[no-untyped-call]
        self.ending.callback(self.client.close, timeout=CLOSE_S)
        self.calls = Calls(self.client)

    def submit(self, function: Callable[..., Any], *arguments: Any, slot: str, host: str, priority: int = 0) -> str:
        """Call ``function(*arguments)`` in a ``cpu`` or ``gpu`` slot of the host with the key ``host``, a higher
        ``priority`` first. The first argument is the search's TrialSpec."""
        return self.calls.submit(function, *arguments, resource=resource(slot, host), priority=priority)

    def cancel(self, call: str) -> None:
        self.calls.cancel(call)

    def results(self, seconds: float) -> List[Tuple[str, Any]]:
        """Wait; the calls that ended, each with its result, a :class:`CallFailed`, or a TuneError for the search."""
        return self.calls.results(seconds)

    def wake(self) -> None:
        """Make :meth:`results` return; called from a signal handler or another thread."""
        self.calls.wake()

    def workers(self) -> Any:
        """The scheduler's facts of each worker, by address."""
        return self.client.scheduler_info(n_workers=-1)["workers"]

    def is_look_due(self) -> bool:
        now = time.monotonic()
        due = now - self._looked_at >= LOOK_S
        self._looked_at = now if due else self._looked_at
        return due

    @abc.abstractmethod
    def carry_out(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call it where trials run. Raises: TuneError."""

    def close(self) -> None:
        """End everything that was started. Idempotent."""
        self.ending.close()


class OwnCluster(DaskCluster):
    """``host``, which is this machine, and hosts that join by the file ``offer``, if one is given. The serve command of
    ``trial_spec`` starts with the workers."""

    def __init__(self, host: Host, notice: Callable[[str], None], trial_spec: TrialSpec, offer: str = "") -> None:
        super().__init__(notice)
        self.host, self.trial_spec, self.offer = host, trial_spec, offer

    @property
    def hosts(self) -> Sequence[Host]:
        return (self.host, *(self.membership.hosts if self.membership is not None else ()))

    def __enter__(self) -> OwnCluster:
        """Start the workers' processes, which import meanwhile."""
        try:
            self.pem = dask_settings.certificate()
            if self.pem is None:
                self.notice("openssl is not installed: the search's workers use loopback without encryption")
            folder = self.ending.enter_context(folders.for_workers(self.trial_spec.folder))
            self.pool = WorkerPool(self.host, folder, trial_spec=self.trial_spec)
            self.ending.callback(self.pool.end)
            self.pool.launch()
        except BaseException:
            self.close()
            raise
        return self

    def carry_out(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def ready(self) -> None:
        """Start the scheduler, wait for every worker of this machine, and admit other hosts."""
        ttl = {"distributed.scheduler.worker-ttl": "60s"} if self.offer else {}  # for a host that fell silent
        self.ending.enter_context(dask_settings.applied(**ttl))
        from distributed import LocalCluster as Scheduler

        security = dask_settings.security(self.pem)
        scheduler = Scheduler(  # type: ignore[no-untyped-call]
            n_workers=0, host="127.0.0.1", protocol="tls://" if security else "tcp://", security=security,
            dashboard_address=None, silence_logs=False,
        )  # fmt: skip
        self.ending.callback(scheduler.close, timeout=CLOSE_S)
        address: str = scheduler.scheduler_address
        self.pool.tell(address, self.pem)
        self.connect(scheduler, security)
        self._wait()
        if self.offer:
            self._write_offer(int(address.rpartition(":")[2]))

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while len(self.workers()) < len(self.pool.workers):  # no other host knows the scheduler yet
            self.mend()
            if time.monotonic() > deadline:
                hint = "check whether they can run: %s -m fcctl_tune.workers.worker --help" % sys.executable
                raise TuneError("the search's workers did not start within %d s" % START_S, hint)
            time.sleep(0.02)

    def _write_offer(self, port: int) -> None:
        self.ending.callback(self._remove_offer)
        try:
            membership.offer(self.offer, port, self.pem, secrets.token_hex(16))
        except OSError as error:
            raise MissingDependency("%s: %s" % (self.offer, error.strerror), "choose another file: --fleet") from None
        version, model = dask_settings.version(), self.host.model
        self.membership = Membership(version, self.notice, self._dismiss, self.deaths, model=model, own=self.host.name)

    def _remove_offer(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.offer)

    def mend(self) -> None:
        """Replace workers that died; update the hosts. Raises: TuneError, if a worker dies again and again."""
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
    """The hosts of a scheduler that others run at ``address``, which stay after the search.

    ``pem`` is its key with its certificates; while there is no host, the search waits for one for ``wait_s`` seconds.
    """

    membership: Membership

    def __init__(self, address: str, pem: Optional[str], wait_s: float, notice: Callable[[str], None]) -> None:
        super().__init__(notice)
        self.address, self.pem, self.wait_s = address, pem, wait_s
        self._seen_at = time.monotonic()  # of the last host

    @property
    def hosts(self) -> Sequence[Host]:
        return self.membership.hosts

    def __enter__(self) -> ScheduledCluster:
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        return self

    def _connect(self) -> None:
        """Wait until a host is complete, and choose the GPU model. Raises: TuneError."""
        if not membership.Join(self.address, self.pem).answers():
            hint = "check that it runs and can be reached, and that --tls is the file with its key and certificate"
            raise TuneError("no scheduler answers at %s" % self.address, hint)
        self.ending.enter_context(dask_settings.applied())
        self.connect(self.address, dask_settings.security(self.pem))
        self.membership = Membership(dask_settings.version(), self.notice, lambda *_: None, self.deaths)
        self._seen_at = time.monotonic()
        settled: Optional[float] = None
        while settled is None or time.monotonic() < settled:
            self.mend()
            if self.hosts and settled is None:
                settled = time.monotonic() + SETTLE_S
            time.sleep(0.1)
        self.membership.choose()

    def mend(self) -> None:
        """Update the hosts. Raises: TuneError, after too long without one."""
        if not self.is_look_due():
            return
        if self.client.status != "running":
            raise TuneError(
                "lost the scheduler at %s" % self.address,
                "when it runs again, run the same command: the search continues",
            )
        try:
            workers = self.workers()
        except OSError:
            workers = {}
        now = time.monotonic()
        self.membership.look(workers, now)
        if self.hosts:
            self._seen_at = now
        elif now - self._seen_at > self.wait_s:
            raise TuneError(
                "no suitable host for %d s: the scheduler at %s has %d workers, and the search can use none of them"
                % (self.wait_s, self.address, len(workers)),
                "on each host: python -m fcctl_tune member --host NAME --scheduler %s" % self.address,
            )

    def leave_out(self, host: str, reason: str) -> None:
        self.membership.leave_out(host, reason)

    def carry_out(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """In a ``cpu`` slot of the first host; if that is lost, there is no result."""
        host = self.hosts[0].key
        call = self.submit(function, *arguments, slot="cpu", host=host)
        while host in [one.key for one in self.hosts]:
            for ended, outcome in self.results(0.25):
                if isinstance(outcome, TuneError):
                    raise outcome
                if isinstance(outcome, CallFailed):
                    raise TuneError("%s: %s" % (function.__name__, outcome))
                if ended == call:
                    return outcome
            self.mend()
        raise TuneError("the host of %s was lost" % function.__name__, "run the same command again")
