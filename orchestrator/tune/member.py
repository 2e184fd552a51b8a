"""A worker host of a search, and its run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from fcctl_remote import wire
from orchestrator.base.clock import Clock
from orchestrator.base.errors import ConflictError, FcctlError, HostError, MachineStopped, RunNotFound
from orchestrator.base.observer import Observer
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.results.records import RunRecord
from orchestrator.runs.lifecycle import Stage, fold
from orchestrator.runs.notices import SILENT_NOTIFIER
from orchestrator.runs.reopen import cancel, resumed
from orchestrator.runs.run import Detached, run
from orchestrator.runs.services import Services
from orchestrator.tune.tunnels import WorkerTunnel

if TYPE_CHECKING:
    from orchestrator.machines.targets import StartOptions
    from orchestrator.results.store.store import FileStore
    from orchestrator.runs.job.prepare import Prepared


#: Seconds between two tries to reach a host.
REACH_AGAIN_S = 15.0
#: Seconds between two looks at a thread that is to end.
TELL_S = 0.5
#: Seconds added to the time of a machine that was stopped: a minute is billed at least, and clouds stop late.
LATE_S = 90.0
_log = logging.getLogger(__name__)


class CancellableClock:
    """A clock whose sleep raises KeyboardInterrupt after :meth:`stop`, as for Ctrl-C, once ``may_end`` permits it."""

    def __init__(self, clock: Clock, may_end: Callable[[], bool]) -> None:
        self.now, self.monotonic, self.elapsed = clock.now, clock.monotonic, clock.elapsed
        self._clock = clock
        self._may_end = may_end
        self._stopped = threading.Event()

    def stop(self) -> None:
        self._stopped.set()

    def sleep(self, seconds: float) -> None:
        until = self._clock.monotonic() + seconds
        while True:
            if self._stopped.is_set() and self._may_end():
                self._stopped.clear()
                raise KeyboardInterrupt
            left = until - self._clock.monotonic()
            if left <= 0:
                return
            self._clock.sleep(min(left, 0.2))


class MemberEvents(Observer):
    """The observer of a member's run: what its user has to know becomes a note of the search."""

    def __init__(self, name: str, inner: Observer) -> None:
        self._name, self._inner = name, inner

    def phase(self, name: str, detail: str = "") -> None:
        _log.info("host %s: %s %s", self._name, name, detail)

    def event(self, event: wire.Event) -> None:
        if event.type == "queued":
            self.note(f"waits until {event.data.get('behind') or 'another run'} ends on this machine")
        elif event.type == "warning":
            self.note(str(event.data.get("message")))

    def note(self, message: str) -> None:
        self._inner.note(f"host {self._name}: {message}")


class Member:
    """Runs a worker host's part of a search in a thread. If its run is lost, the search continues without it.

    Args:
        make: services for this thread alone, with this observer.
    """

    def __init__(
        self, make: Callable[[Observer], Services], worker_tunnel: WorkerTunnel, prepared: Prepared,
        waking: StartOptions, observer: Observer,
    ) -> None:  # fmt: skip
        self.name, self.usd, self.status = prepared.saved.target.name, 0.0, "not started"
        self.run_id = prepared.saved.plan.run_id
        #: The search excluded this host and gave a reason.
        self.left_out = threading.Event()
        self.over = threading.Event()
        self._worker_tunnel, self._waking, self._prepared = worker_tunnel, waking, prepared
        self._events = MemberEvents(self.name, observer)
        self._plain = replace(make(self._events), notifier=SILENT_NOTIFIER)
        self._store = self._plain.store
        self._clock = CancellableClock(self._plain.clock, self._is_under_way)
        self._services = replace(self._plain, clock=self._clock)
        self._thread = threading.Thread(target=self._live, name=f"fcctl-member-{self.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, seconds: float | None = None) -> bool:
        """Wait ``seconds``, or without a limit, for the thread's end; whether it ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self, reason: str) -> None:
        """End its run and wait for the thread, which releases the machine that it started. A host that is out of reach
        ends at its own limits."""
        self.over.set()
        self._clock.stop()
        is_told = False
        while not self.join(TELL_S):
            is_told = is_told or (on_host(self._store, self.run_id) and self._is_told(reason))

    def _is_told(self, reason: str) -> bool:
        """False while the run is on its way to the host, which does not know it yet."""
        try:
            cancel(self._plain, self.run_id, reason=reason)
        except ConflictError:
            return False
        except FcctlError as error:  # it has just ended, or is out of reach
            _log.info("host %s: its run is not cancelled: %s", self.name, error.message)
        return True

    def _is_under_way(self) -> bool:
        return fold(self._store.journal_of(self.run_id)).stage < Stage.ENDED

    def _live(self) -> None:
        try:
            self._follow()
        except KeyboardInterrupt:
            self.status = "cancelled"
            if self._store.is_complete(self.run_id):
                self.usd = self._store.get(self.run_id).cost.usd
        except Exception as error:  # noqa: BLE001 - the search continues without this host
            _log.exception("host %s", self.name)
            self.status = "error"
            self._events.note(f"unexpected {type(error).__name__}: {error}; the search continues without this host")
        finally:
            self._worker_tunnel.close()
            close_waiting(self._plain, self.run_id)

    def _follow(self) -> None:
        """Follow the run to its end."""
        prepared, began = self._prepared, self._plain.clock.monotonic()
        self._worker_tunnel.run_id = self.run_id
        try:
            record = self._launch(prepared)
        except MachineStopped as stopped:
            self.status = stopped.status
            self.usd = prepared.saved.worst_rate * (self._plain.clock.monotonic() - began + LATE_S) / 3600
            self._judge(stopped.status, stopped.message)
            return
        except FcctlError as error:
            self.status = error.code
            cause = f" ({error.cause.splitlines()[0]})" if error.cause else ""
            self._events.note(
                f"could not be started: {error.message}{cause}" + (f". {error.hint}" if error.hint else "")
            )
            return
        if record is None:
            self.status = "no connection"
            return
        self.usd, self.status = record.cost.usd, record.status
        gave_up = any(step.status == "warned" for step in record.steps)
        if record.status == "passed" and gave_up:
            self._judge("lost", "it stopped waiting for the search")
        elif record.status not in ("passed", "cancelled", "over_budget", "idle"):
            failed = next((step for step in record.steps if step.status not in ("passed", "warned")), None)
            why = (failed.message if failed else None) or record.message or record.status
            hint = (failed.hint if failed else None) or record.hint or f"fcctl logs {record.run_id}"
            self._judge(record.status, why.splitlines()[0], hint)

    def _judge(self, status: str, why: str, hint: str = "") -> None:
        """Says why the search does without this host, unless it is over or has said so itself."""
        if self.over.is_set() or self.left_out.is_set():
            return
        if status in ("preempted", "lost"):
            self._events.note(f"{status}: {why}; the search continues without this host")
        else:
            self._events.note(f"cannot be used: {why}" + (f". {hint}" if hint else ""))

    def _launch(self, prepared: Prepared) -> RunRecord | None:
        link = ReconnectingHost(self._services.hosts, prepared.saved.target, self._clock, self._events)
        try:
            finished = run(self._services, link, prepared.saved, prepared.source, waking=self._waking)
        except Detached:
            return self._cancelled()
        except MachineStopped:
            raise
        except HostError as error:
            if not on_host(self._store, self.run_id):
                raise
            self._events.note(f"no connection: {error.cause or error.message}")
            return self._come_back()
        return finished.record if finished else None

    def _come_back(self) -> RunRecord | None:
        """Follow a submitted run whenever its host answers; None if its host does not answer after the search's end."""
        run_id = self.run_id
        while not self.over.is_set():
            try:
                with resumed(self._services, run_id) as driver:
                    return driver.finish()
            except KeyboardInterrupt:
                break
            except MachineStopped:
                raise
            except HostError as error:
                _log.info("host %s: %s", self.name, error.message)
            except RunNotFound:  # another fcctl has just collected it
                return self._store.get(run_id)
            self.over.wait(REACH_AGAIN_S)
        return self._cancelled()

    def _cancelled(self) -> RunRecord | None:
        """Cancel the submitted run and collect it; None if its host does not answer."""
        from fcctl_tune.workers.membership import PATIENCE_S

        run_id = self.run_id
        try:
            cancel(self._plain, run_id, reason="the search has ended")
        except RunNotFound:
            pass  # it is complete
        except FcctlError as error:
            self._events.note(
                f"no connection; its run ends by itself within {PATIENCE_S / 60:.0f} minutes; then collect it: fcctl "
                f"pull-results {run_id} ({error.cause or error.message})"
            )
            return None
        return self._store.get(run_id) if self._store.is_complete(run_id) else None


def close_waiting(services: Services, run_id: str) -> None:
    """Closes the run if its machine is off: nobody needs its results."""
    if services.store.is_complete(run_id):
        return
    try:
        with resumed(services, run_id, patience_s=0.0) as driver:
            if driver.waits:
                driver.give_up("its machine was stopped, and its results are not needed", disk=False)
    except RunNotFound:
        pass  # it never began, or another fcctl has just completed it
    except FcctlError as error:
        services.observer.note(f"run {run_id} is not complete yet: {error.message}")


def on_host(store: FileStore, run_id: str) -> bool:
    """Whether the run was submitted to its host, as its journal says."""
    return fold(store.journal_of(run_id)).stage >= Stage.SUBMITTING
