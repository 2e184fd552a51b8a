"""Carries one run to its end from wherever its journal says it is, for ``fcctl run`` and for every command that
recovers a dead controller's run. It also handles a machine that is off and a host that does not answer."""

from __future__ import annotations

from fcctl_remote import wire
from orchestrator.base.errors import AuthError, CloudError, DiskError, HostError, HostFault, LinkLost, MachineStopped
from orchestrator.results.records import RunRecord, RunStatus
from orchestrator.results.store_api import Intake
from orchestrator.runs.actions import RunActions
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.lifecycle import Action, Stage, State, decide


class Driver:
    """Moves one active run along. Owns neither the run nor the link: the caller opens and closes both."""

    def __init__(self, moves: RunActions) -> None:
        self._moves = moves

    @property
    def run_id(self) -> str:
        return self._moves.run_id

    @property
    def saved(self) -> SavedPlan:
        return self._moves.saved

    @property
    def state(self) -> State:
        """What the journal says, folded."""
        return self._moves.state

    @property
    def submitted(self) -> bool:
        """Whether the host has the run, or may have it."""
        return self.state.stage >= Stage.SUBMITTING

    @property
    def ended_here(self) -> bool:
        """Whether the run came to its end on this computer: no machine was woken for it, nothing was sent."""
        return self.state.without_outcome == "here"

    def begin(self) -> None:
        """The journal's first line: what this run is to do."""
        facts: dict[str, object] = {"before_wake": len(self.saved.before_wake)} if self.saved.before_wake else {}
        if self.saved.session is not None:
            facts["session"] = self.saved.session
        self._moves.log("begun", **facts, **({"machine": True} if self._moves.machine else {}))

    def launch(self) -> None:
        """As far as RUNNING: the host has the run and needs nobody to go on. Or to its end, if that comes first."""
        while self.state.stage < Stage.RUNNING:
            self._step()

    def take_machine(self) -> None:
        """Have the machine before :meth:`launch`, which then goes on from there."""
        self._moves.acquire()

    @property
    def waits(self) -> bool:
        """Whether what the run has is on the disk of a machine that is off, as far as the journal knows."""
        return decide(self.state, self._moves.mode) is Action.WAIT

    def join(self) -> None:
        """If the machine that the run waits for was turned on by somebody else: go on there."""
        if self.waits:
            self._moves.wanted_machine().join()

    def wake(self, seconds: int, planned: SavedPlan) -> None:
        """Starts the machine again for ``seconds``, at the price in ``planned``, to fetch what is on its disk. Raises
        FcctlError if that fails; the machine is off again then."""
        try:
            self._moves.wanted_machine().wake(seconds, planned)
        except BaseException:
            self.off_again()
            raise

    def off_again(self) -> None:
        """What was woken for the run is off again, and the run waits as before."""
        last = self._moves.last_stopped()
        at = self._moves.wanted_machine().releaser.turn_off_again()
        self._moves.log("stopped", **{**last, "at": at})

    def collect_only(self) -> None:
        """To COLLECTED: everything is here, and the machine not let go."""
        while self.state.stage < Stage.COLLECTED:
            self._step()

    def intake(self) -> Intake:
        """What came home so far."""
        return self._moves.active.intake()

    def finish(self, *, wait: bool = True) -> RunRecord | None:
        """To the end. With ``wait=False``, None is the answer while the run still goes on at the host."""
        revived = False
        while True:
            try:
                if (
                    decide(self.state, self._moves.mode) is Action.FOLLOW
                    and not wait
                    and not self._moves.ended_already()
                ):
                    return None
                record = self._step()
            except MachineStopped as stopped:
                if not self._moves.is_on_a_machine:
                    raise
                self._moves.note_stopped(stopped)
                continue
            except DiskError as full:
                if self.state.stage is not Stage.ENDED:
                    raise
                raise self._moves.unwritten(full) from full
            except HostError as lost:
                if revived or not self._moves.is_on_a_machine:
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
            self._moves.wanted_machine().revive(wait=self._moves.link.hurry is None)
        except MachineStopped as stopped:
            self._moves.note_stopped(stopped)
        except (AuthError, CloudError) as unknown:
            cause = f"{lost.cause or lost.message}; and whether it is on is not known: {unknown.message}"
            raise LinkLost(lost.message, cause=cause, hint=unknown.hint or lost.hint) from unknown

    def abandon(self, reason: str, status: RunStatus, hint: str | None = None) -> RunRecord:
        """Ends a run that is not on the host, as ``cancelled`` or ``error``. Raises ValueError if the host took it."""
        if self.state.stage >= Stage.RUNNING:
            raise ValueError(f"run {self.run_id} is on the host")
        self._moves.log("abandoned", reason=reason, status=status, **({"hint": hint} if hint else {}))
        return self._to_the_end()

    def give_up(self, reason: str, *, disk: bool = True) -> RunRecord:
        """Ends a run as ``lost``; what was collected is kept. Without ``disk``, a stopped machine's disk is of no more
        use."""
        self._moves.log("lost", reason=reason)
        self._moves.log("collected")
        if not disk and self._moves.machine is not None and self.state.stopped:
            self._moves.machine.releaser.delete_stopped()
        return self._to_the_end()

    def _to_the_end(self) -> RunRecord:
        """Nothing is asked of the host any more: let the machine go, and complete the run."""
        while True:
            record = self._step()
            if record is not None:
                return record

    def cancel(self, reason: str, grace_s: float) -> None:
        """Asks the host to end the run; :meth:`finish` collects it. Raises MachineStopped if its machine is off."""
        if self.waits:
            self._moves.wait()
        self._moves.log("cancel", reason=reason)
        try:
            self._moves.link.call(lambda s: s.cancel(self.run_id, reason, grace_s=grace_s))
        except HostFault as e:
            if e.fault != "not_found":
                raise
        except HostError as lost:
            if not self._moves.is_on_a_machine:
                raise
            self._revive(lost)
            if self.waits:
                self._moves.wait()
            raise

    def ask(self) -> wire.RunSummary | None:
        """How the run stands at the host; None if the host does not know it."""
        return self._moves.ask()

    def stepped(self) -> list[wire.StepResult]:
        """The steps that ran on this computer."""
        return self._moves.stepped()

    def unknown_there(self) -> bool:
        """After a submission that was refused: whether the host says that it does not have the run."""
        try:
            return self.state.stage is Stage.SUBMITTING and self.ask() is None
        except HostError:
            return False  # the next command asks again

    def _step(self) -> RunRecord | None:
        try:
            return self._moves.make(decide(self.state, self._moves.mode))
        except MachineStopped as stopped:
            if not self._moves.is_on_a_machine:
                raise
            self._moves.note_stopped(stopped)
            return None
