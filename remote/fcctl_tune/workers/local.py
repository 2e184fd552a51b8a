"""Dask on this machine: a scheduler in this process and a :class:`fcctl_tune.workers.pool.WorkerPool`."""

from __future__ import annotations

import abc
import contextlib
import sys
import time
from typing import Any, Callable, List, Sequence, Tuple

from fcctl_tune.errors import TuneError
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers import dask_settings, scratch
from fcctl_tune.workers.interfaces import CallFailed, Host, resource
from fcctl_tune.workers.pool import WorkerPool

#: How long the scheduler and its client have at the end, seconds.
CLOSE_S = 5.0
#: How long workers have to come up, seconds: the first import from a cold disk takes a while.
START_S = 90.0


class DaskCluster(abc.ABC):
    """A ``Cluster``, once it is :meth:`ready`; :meth:`close` ends all that was started."""

    def __init__(self, notice: Callable[[str], None]) -> None:
        self.notice = notice
        self.deaths: List[str] = []
        self.ending = contextlib.ExitStack()
        scratch.sweep()
        self.folder = self.ending.enter_context(scratch.folder())

    def __enter__(self) -> DaskCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Whose machines they are makes the difference.
    @property
    @abc.abstractmethod
    def hosts(self) -> Sequence[Host]: ...

    @abc.abstractmethod
    def ready(self) -> None: ...

    @abc.abstractmethod
    def mend(self) -> None: ...

    @abc.abstractmethod
    def leave_out(self, host: str, reason: str) -> None: ...

    @abc.abstractmethod
    def goodbye(self, reason: str) -> None:
        """The search is over, for ``reason``: tell those who came for it."""

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
                if ended == call and isinstance(outcome, TuneError):
                    raise outcome
                if ended == call and isinstance(outcome, CallFailed):
                    raise TuneError("%s: %s" % (function.__name__, outcome))
                if ended == call:
                    return outcome
            self.mend()

    def close(self) -> None:
        """End everything that was started; doing it twice is harmless."""
        self.ending.close()


class LocalCluster(DaskCluster):
    """``host`` is this machine."""

    settings = dask_settings.NOTHING

    def __init__(self, host: Host, notice: Callable[[str], None], recipe: TrialSpec) -> None:
        """What serves for trials of ``recipe`` comes up with the workers."""
        super().__init__(notice)
        self.host, self.recipe = host, recipe

    @property
    def hosts(self) -> Sequence[Host]:
        return (self.host,)

    def __enter__(self) -> LocalCluster:
        """Start the workers' processes; they import while we do."""
        try:
            self.tls = dask_settings.certificate(self.folder)
            if self.tls is None:
                self.notice("no openssl here: the search's workers talk over loopback unencrypted")
            self.pool = WorkerPool(self.host, self.folder, self.tls, recipe=self.recipe)
            self.ending.callback(self.pool.end)
            self.pool.launch()
        except BaseException:
            self.close()
            raise
        return self

    def ready(self) -> None:
        """Start the scheduler, and wait until every worker is there.

        Raises:
            TuneError: Dask is missing, or they do not come up.
        """
        self.ending.enter_context(dask_settings.required(self.settings))
        from distributed import LocalCluster as Scheduler

        security = dask_settings.security(self.tls)
        scheduler = Scheduler(  # type: ignore[no-untyped-call]
            n_workers=0,
            host="127.0.0.1",
            protocol="tls://" if security else "tcp://",
            security=security,
            dashboard_address=None,
            silence_logs=False,
        )
        self.ending.callback(scheduler.close, timeout=CLOSE_S)
        self.address: str = scheduler.scheduler_address
        self.pool.tell(self.address)
        self.connect(scheduler, security)
        self._wait()

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

    def mend(self) -> None:
        """Replace workers that died.

        Raises:
            TuneError: one dies again and again.
        """
        for worker in self.pool.ended():
            self.deaths.append(worker.name)
            self.pool.replace(worker)

    def leave_out(self, host: str, reason: str) -> None:
        """Raises: TuneError: without this machine there is none."""
        raise TuneError("this machine cannot be used%s: %s" % (" as %s" % host if host else "", reason))

    def goodbye(self, reason: str) -> None:
        """Nobody else came for it."""
