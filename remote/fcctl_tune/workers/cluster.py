"""A search's hosts in Dask: this machine, with those that join it; calls to their workers, and the results.

Hosts are known by the facts that their workers send the scheduler (``workers.membership``). They come and go. A result
is an event on the worker's own connection to the scheduler: no connection to a worker is needed, which may be behind a
tunnel, and no result is lost with one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pickle
import queue
import sys
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from fcctl_tune.errors import MissingDependency, TuneError
from fcctl_tune.trial import process
from fcctl_tune.trial.tasks import TrialSpec
from fcctl_tune.workers import membership
from fcctl_tune.workers.hosts import CallFailed, Host, WorkerPool, resource
from fcctl_tune.workers.membership import CONTROL, Membership

#: Seconds that the scheduler and its client have to close.
CLOSE_S = 5.0
#: Seconds that workers have to start; the first import from a cold disk is slow.
START_S = 90.0
#: Seconds between two looks at the scheduler's workers.
LOOK_S = 0.5
#: Seconds that hosts have to leave after they were dismissed.
GOODBYE_S = 20.0


#: In the result of a command that was ended from outside, and the seconds that its worker then waits for its own end.
ENDED = ("SIGTERM", "SIGKILL", "SIGINT", "SIGHUP")
LAST_S = 1.0
#: More than there are calls: of one priority the oldest comes first.
STEP = 10**9
#: The topic of results.
TOPIC = "fcctl-tune-results"
#: Results returned at once, so that builders begin again in between.
AT_ONCE = 8
#: The variable of a member's workers: its host, as the scheduler is told, and its folders, as JSON.
MEMBER = "FCCTL_TUNE_MEMBER"


def carry_out(call: str, function: Callable[..., Any], trial_spec: TrialSpec, *arguments: Any) -> None:
    """In a worker: call ``function(trial_spec, *arguments)`` in its machine's folders. The result goes to TOPIC."""
    from distributed import get_worker

    member = os.environ.get(MEMBER)  # none on the machine that searches
    if member is not None:
        trial_spec = dataclasses.replace(trial_spec, **json.loads(member)["folders"])
    try:
        outcome = function(trial_spec, *arguments)
    except TuneError as error:
        outcome = TuneError(error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - sent to the engine
        outcome = CallFailed("%s: %s" % (type(error).__name__, error))
    process.never_if_ending()
    if any(name in repr(outcome) for name in ENDED):
        time.sleep(LAST_S)  # if the machine is stopping, this worker or the search ends too: the trial has no fault
    get_worker().log_event(TOPIC, {"call": call, "outcome": pickle.dumps(outcome)})


class Calls:
    """Calls by a Dask client, once it is connected; :meth:`submit` names them. Calls on a lost host give no result."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._futures: Dict[str, Any] = {}
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def connect(self, client: Any) -> None:
        self._client = client
        client.subscribe_topic(TOPIC, self._on_event)

    def submit(self, function: Callable[..., Any], *arguments: Any, slot: str, host: str, priority: int = 0) -> str:
        """Call ``function(*arguments)`` in a ``cpu`` or ``gpu`` slot of the host with the key ``host``, a higher
        ``priority`` first. The first argument is the search's TrialSpec."""
        number = next(self._numbers)
        call = "%s-%d" % (function.__name__, number)
        future = self._client.submit(
            carry_out, call, function, *arguments, key=call, resources={resource(slot, host): 1},
            priority=priority * STEP - number, pure=False,
        )  # fmt: skip
        self._futures[call] = future
        future.add_done_callback(functools.partial(self._on_end, call))
        return call

    def _on_event(self, event: Tuple[float, Any]) -> None:
        """In Dask's own thread."""
        self._ended.put((event[1]["call"], pickle.loads(event[1]["outcome"])))  # noqa: S301 - Dask's peers run code

    def _on_end(self, call: str, future: Any) -> None:
        """In Dask's own thread."""
        killed = future.status == "error"  # a call raises nothing: its workers died
        reason = "its workers died" if killed else "its result did not arrive"
        self._ended.put((call, CallFailed(reason, killed)))

    def cancel(self, call: str) -> None:
        future = self._futures.pop(call, None)
        if future is not None:
            future.cancel(force=True)

    def results(self, seconds: float) -> List[Tuple[str, Any]]:
        """Wait; the calls that ended, each with its result, a :class:`CallFailed`, or a TuneError for the search."""
        results = []
        with contextlib.suppress(queue.Empty):
            one = self._ended.get(timeout=seconds)
            while True:
                if one is not None and self._futures.pop(one[0], None) is not None:
                    results.append(one)
                if len(results) == AT_ONCE:
                    break
                one = self._ended.get_nowait()
        return results

    def wake(self) -> None:
        """Make :meth:`results` return; called from a signal handler or another thread."""
        self._ended.put(None)


class Cluster(Calls):
    """``host``, which is this machine, and hosts that join by the file ``offer``, if one is given.

    Carries calls out within its context and once it is :meth:`ready`. The serve command of ``trial_spec`` starts with
    the workers.
    """

    def __init__(self, host: Host, notice: Callable[[str], None], trial_spec: TrialSpec, offer: str = "") -> None:
        super().__init__()
        self.host, self.notice, self.trial_spec, self.offer = host, notice, trial_spec, offer
        self._membership: Optional[Membership] = None
        self._ending = contextlib.ExitStack()
        self._looked_at = 0.0

    @property
    def hosts(self) -> Sequence[Host]:
        """The present hosts, with GPUs of one model. Calls on a lost host give no result."""
        return (self.host, *(self._membership.hosts if self._membership is not None else ()))

    @property
    def deaths(self) -> int:
        """The number of times that a worker process of the search's own machine ended unexpectedly."""
        return sum(worker.deaths for worker in self._pool.workers)

    def __enter__(self) -> Cluster:
        """Start the workers' processes, which import meanwhile."""
        try:
            self._pem = membership.certificate()
            if self._pem is None:
                self.notice("openssl is not installed: the search's workers use loopback without encryption")
            folder = self._ending.enter_context(membership.for_workers(self.trial_spec.folder))
            self._pool = WorkerPool(self.host, folder, trial_spec=self.trial_spec)
            self._ending.callback(self._pool.end)
            self._pool.launch()
        except BaseException:
            self._ending.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    def ready(self) -> None:
        """Start the scheduler, wait for every worker of this machine, and admit other hosts. Raises: TuneError: Dask is
        missing, or the workers do not start."""
        ttl = {"distributed.scheduler.worker-ttl": "60s"} if self.offer else {}  # for a host that fell silent
        self._ending.enter_context(membership.applied(**ttl))
        from distributed import Client
        from distributed import LocalCluster as Scheduler

        security = membership.security(self._pem)
        scheduler = Scheduler(  # type: ignore[no-untyped-call]  # Dask is half typed
            n_workers=0, host="127.0.0.1", protocol="tls://" if security else "tcp://", security=security,
            dashboard_address=None, silence_logs=False,
        )  # fmt: skip
        self._ending.callback(scheduler.close, timeout=CLOSE_S)
        address: str = scheduler.scheduler_address
        self._pool.tell(address, self._pem)
        client = Client(scheduler, set_as_default=False, security=security)  # type: ignore[no-untyped-call]  # as above
        self._ending.callback(client.close, timeout=CLOSE_S)
        self.connect(client)
        self._wait()
        if self.offer:
            self._write_offer(int(address.rpartition(":")[2]))

    def _wait(self) -> None:
        deadline = time.monotonic() + START_S
        while len(self._workers()) < len(self._pool.workers):  # no other host knows the scheduler yet
            self.mend()
            if time.monotonic() > deadline:
                hint = "check whether they can run: %s -m fcctl_tune.workers.worker --help" % sys.executable
                raise TuneError("the search's workers did not start within %d s" % START_S, hint)
            time.sleep(0.02)

    def _write_offer(self, port: int) -> None:
        self._ending.callback(self._remove_offer)
        try:
            membership.offer(self.offer, port, self._pem)
        except OSError as error:
            raise MissingDependency("%s: %s" % (self.offer, error.strerror), "choose another file: --fleet") from None
        self._membership = Membership(self.notice, self._dismiss, self.host)

    def _remove_offer(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.offer)

    def _workers(self) -> Any:
        """The scheduler's facts of each worker, by address."""
        return self._client.scheduler_info(n_workers=-1)["workers"]

    def mend(self) -> None:
        """Replace workers that died; update the hosts. Raises: TuneError, if a worker dies again and again."""
        for worker in self._pool.ended():
            self._pool.replace(worker)
        now = time.monotonic()
        if self._membership is not None and now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._membership.look(self._workers(), now)

    def leave_out(self, host: str, reason: str) -> None:
        """Exclude the host with this key. Raises: TuneError: without this machine there is no search."""
        if self._membership is None or host == self.host.key:
            raise TuneError("this machine cannot be used%s: %s" % (" as %s" % host if host else "", reason))
        self._membership.leave_out(host, reason)

    def _dismiss(self, host: str, reason: str) -> None:
        self._client.log_event(CONTROL, {"to": host, "say": reason})

    def goodbye(self, reason: str) -> None:
        """Dismiss the hosts that joined this search."""
        if self._membership is None:
            return
        self._dismiss("", reason)
        deadline = time.monotonic() + GOODBYE_S
        while len(self._workers()) > len(self._pool.workers) and time.monotonic() < deadline:
            time.sleep(0.1)
