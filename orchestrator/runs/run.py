"""Carries a run from wherever its journal says it is to verified results, for ``fcctl run`` and for every command that
recovers a dead controller's run. It also handles a machine that is off and a host that does not answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

from orchestrator.base.errors import (
    AuthError,
    CloudError,
    DiskError,
    FcctlError,
    HostError,
    HostFault,
    HostUnreachable,
    LinkLost,
    MachineStopped,
)
from orchestrator.base.files import disk_errors
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.targets import StartOptions
from orchestrator.results.records import RunRecord, RunStatus
from orchestrator.runs.actions import RunActions
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.lifecycle import Action, Stage, decide
from orchestrator.runs.services import Services
from orchestrator.runs.source import Source

if TYPE_CHECKING:
    from orchestrator.results.store.active import FileActiveRun


class Driver(RunActions):
    """Moves one active run along. Owns neither the run nor the link: the caller opens and closes both."""

    @property
    def submitted(self) -> bool:
        """Whether the host has the run, or may have it."""
        return self.state.stage >= Stage.SUBMITTING

    @property
    def ended_here(self) -> bool:
        """Whether the run ended on this computer, before a machine was started."""
        return self.state.without_outcome == "here"

    def begin(self) -> None:
        """The journal's first line: what this run is to do."""
        facts: dict[str, object] = {"before_wake": len(self.saved.before_wake)} if self.saved.before_wake else {}
        if self.saved.session is not None:
            facts["session"] = self.saved.session
        self.log("begun", **facts, **({"machine": True} if self.machine else {}))

    def launch(self) -> None:
        """Carries the run to RUNNING, from where the host needs no controller, or to its end."""
        cut_off = False
        with disk_errors("start the run", self.services.store.root):  # it is abandoned then
            while self.state.stage < Stage.RUNNING:
                try:
                    if cut_off:
                        self._sync()
                    else:
                        self._step()
                    cut_off = False
                except MachineStopped as stopped:
                    self._start_again(stopped)
                    cut_off = self.state.stage is Stage.SYNCING

    def _start_again(self, stopped: MachineStopped) -> None:
        """Starts a machine that its owner, maybe another computer, stopped before it had this run, which joined it.
        Raises ``stopped`` if this run had started it."""
        if self.machine is None or self.submitted or self.machine.acquired().get("turned_on", True):
            raise stopped
        self.services.observer.note(f"{stopped.message}; this run was not on it yet, and starts it again")
        self.acquire()

    @property
    def waits(self) -> bool:
        """Whether what the run has is on the disk of a machine that is off, as far as the journal knows."""
        return decide(self.state, self.mode) is Action.WAIT

    def join(self) -> None:
        """Continues on the machine that the run waits for if somebody else has started it."""
        if self.waits:
            self.wanted_machine().join()

    def wake(self, seconds: int, planned: SavedPlan) -> None:
        """Starts the machine again for ``seconds``, at the price in ``planned``, to fetch what is on its disk. Raises
        FcctlError if that fails; the machine is off again then."""
        try:
            self.wanted_machine().wake(seconds, planned)
        except BaseException:
            self.off_again()
            raise

    def off_again(self) -> None:
        """Stops the machine that was started for the run, which waits as before."""
        last = self.last_stopped()
        at = self.wanted_machine().releaser.turn_off_again()
        self.log("stopped", **{**last, "at": at})

    def collect_only(self) -> None:
        """Carries the run to COLLECTED; the machine is not released."""
        while self.state.stage < Stage.COLLECTED:
            self._step()

    @overload
    def finish(self) -> RunRecord: ...
    @overload
    def finish(self, *, wait: bool) -> RunRecord | None: ...
    def finish(self, *, wait: bool = True) -> RunRecord | None:
        """Carries the run to its end. Without ``wait``, returns None while it is active at the host."""
        with self._stopped_if_the_disk_fails():
            return self._finish(wait=wait)

    def _finish(self, *, wait: bool) -> RunRecord | None:
        revived = False
        while True:
            try:
                if not wait and decide(self.state, self.mode) is Action.FOLLOW and self._runs_there():
                    return None
                record = self._step()
            except MachineStopped as stopped:
                if not self.is_on_a_machine:
                    raise
                self.note_stopped(stopped)
                continue
            except DiskError as full:
                if self.state.stage is not Stage.ENDED:
                    raise
                raise self.unwritten(full) from full
            except HostError as lost:
                if revived or not self.is_on_a_machine:
                    raise
                revived = True
                self._revive(lost)
                continue
            if record is not None:
                return record

    def _revive(self, lost: HostError) -> None:
        """Finds out why the machine does not answer. Raises HostError if it runs and cannot be reached, or if the cloud
        does not answer either."""
        try:
            self.wanted_machine().revive(wait=self.link.hurry is None)
        except MachineStopped as stopped:
            self.note_stopped(stopped)
        except (AuthError, CloudError) as unknown:
            cause = (
                f"{lost.cause or lost.message}; fcctl could not find out whether the machine is on: {unknown.message}"
            )
            raise LinkLost(lost.message, cause=cause, hint=unknown.hint or lost.hint) from unknown

    def abandon(self, reason: str, status: RunStatus, hint: str | None = None) -> RunRecord:
        """Ends a run that is not on the host, as ``cancelled`` or ``error``. Raises ValueError if the host took it."""
        if self.state.stage >= Stage.RUNNING:
            raise ValueError(f"run {self.run_id} is on the host")
        self.log("abandoned", reason=reason, status=status, **({"hint": hint} if hint else {}))
        return self._to_the_end()

    def give_up(self, reason: str, *, disk: bool = True) -> RunRecord:
        """Ends a run as ``lost``; what was collected is kept. Without ``disk``, a stopped machine's disk is of no more
        use."""
        self.log("lost", reason=reason)
        self.log("collected")
        if not disk and self.machine is not None and self.state.stopped:
            self.machine.releaser.delete_stopped()
        return self._to_the_end()

    def _to_the_end(self) -> RunRecord:
        """Releases the machine and completes the run without asking the host."""
        with self._stopped_if_the_disk_fails():
            while True:
                record = self._step()
                if record is not None:
                    return record

    def cancel(self, reason: str, grace_s: float) -> None:
        """Asks the host to end the run; :meth:`finish` collects it. Raises MachineStopped if its machine is off."""
        if self.waits:
            self.wait()
        self.log("cancel", reason=reason)
        try:
            self.link.call(lambda s: s.cancel(self.run_id, reason, grace_s=grace_s))
        except HostFault as e:
            if e.fault != "not_found":
                raise
        except HostError as lost:
            if not self.is_on_a_machine:
                raise
            self._revive(lost)
            if self.waits:
                self.wait()
            raise

    @contextmanager
    def _stopped_if_the_disk_fails(self) -> Iterator[None]:
        """Stops a machine that no step runs on if this computer's disk fails in the block: a later command does the
        rest."""
        again = f"fcctl pull-results {self.run_id}"
        try:
            with disk_errors("read or write the run's files", self.services.store.root, again=again):
                yield
        except DiskError:
            is_at_work = Stage.SUBMITTING <= self.state.stage < Stage.ENDED
            if self.machine is not None and self.state.machine in ("held", "leaving") and not is_at_work:
                self.machine.releaser.stop_unrecorded()
            raise

    def unknown_there(self) -> bool:
        """After a submission that was refused: whether the host says that it does not have the run."""
        try:
            return self.state.stage is Stage.SUBMITTING and self.ask() is None
        except HostError:
            return False  # the next command asks again

    def _step(self) -> RunRecord | None:
        try:
            return self.make(decide(self.state, self.mode))
        except MachineStopped as stopped:
            if not self.is_on_a_machine:
                raise
            self.note_stopped(stopped)
            return None


class Detached(Exception):
    """The run continues at the host without this controller, after a signal or Ctrl-C."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id


class NeverSubmitted(KeyboardInterrupt):
    """Ctrl-C, or a signal, before the host had the run, which is complete."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__(record.message)
        self.record = record


@dataclass(frozen=True)
class Finished:
    record: RunRecord
    driver: Driver


def run(
    services: Services,
    link: ReconnectingHost,
    saved: SavedPlan,
    source: Source,
    *,
    detach: bool = False,
    waking: StartOptions | None = None,
    begun: Callable[[], None] | None = None,
) -> Finished | None:
    """Launches a planned run and, unless ``detach``, collects it. ``begun`` is called once the run is on disk. Raises
    Detached on Ctrl-C once the host may have the run, NeverSubmitted before, BudgetError if it does not fit the caps,
    FcctlError if it cannot be submitted or its host stays unreachable."""
    active = services.store.begin(saved.plan.run_id, saved.to_json())
    try:
        if saved.worst_case_usd > 0:
            from orchestrator.runs.cost.spending import set_aside

            set_aside(services, active, saved)
        driver = Driver(services, link, active, "launch", source, waking)
        driver.begin()
        if begun is not None:
            begun()
    except BaseException:
        active.release()
        raise
    return collect_and_finish(driver, link, active, detach=detach)


def collect_and_finish(
    driver: Driver, link: ReconnectingHost, active: FileActiveRun, *, detach: bool = False
) -> Finished | None:
    """The rest of :func:`run` for a run that has begun; releases run and host."""
    try:
        _launch(driver)
        if detach and not driver.ended_here:
            active.journal.append_if_possible("detached")
            return None
        return Finished(driver.finish(), driver)
    except KeyboardInterrupt:
        raise _interrupted(driver, active) from None
    except (HostUnreachable, LinkLost) as e:
        raise _left_alone(e, driver) from e
    finally:
        active.release()
        link.close()


def _launch(driver: Driver) -> None:
    try:
        driver.launch()
    except FcctlError as e:
        if not driver.submitted or (isinstance(e, HostFault) and driver.unknown_there()):
            driver.abandon(f"{e.message}{f' ({e.cause})' if e.cause else ''}", "error", e.hint)
        raise


def _interrupted(driver: Driver, active: FileActiveRun) -> BaseException:
    if driver.ended_here:
        return NeverSubmitted(driver.finish())
    if driver.state.stage >= Stage.ENDED:
        return Detached(driver.run_id)
    if driver.submitted:
        active.journal.append_if_possible("detached")
        return Detached(driver.run_id)
    return NeverSubmitted(
        driver.abandon("interrupted before the run was submitted; no step ran on the machine", "cancelled")
    )


def _left_alone(error: HostUnreachable | LinkLost, driver: Driver) -> HostError:
    abandoned = driver.state.without_outcome == "abandoned"
    if not driver.submitted or (abandoned and isinstance(error, HostUnreachable)):
        return error  # with what keeps from getting there, and its own cure
    if abandoned:
        hint = f"no step was started there; to find the problem: fcctl doctor --on {driver.saved.target.name}"
        return LinkLost(error.message, cause=error.cause, hint=hint)
    return LinkLost(
        error.message,
        cause=error.cause,
        hint=f"the run continues on the machine; to follow it again: fcctl attach {driver.run_id}",
    )
