"""Carry one run to its end, from wherever its journal says it is.

``fcctl run`` and every command that finds a dead controller's run go through :class:`Driver`. What happened is read
from the journal, what to do next is :func:`orchestrator.domain.lifecycle.decide`; this module only makes the moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fcctl_remote import wire
from orchestrator.domain.lifecycle import Mode, Move, Stage, State, advance, decide, fold
from orchestrator.domain.notify import of_run, of_stopped
from orchestrator.domain.records import JournalEntry, RunRecord, RunStatus
from orchestrator.domain.saved_plan import SavedPlan
from orchestrator.errors import HostError, HostFault, MachineStopped
from orchestrator.ports import ActiveRun, Intake, Services, Source
from orchestrator.workflows import prewake
from orchestrator.workflows.account import add_report, record_of
from orchestrator.workflows.collect import Collection, collect
from orchestrator.workflows.follow import follow
from orchestrator.workflows.lease import Armed, arm, disarm
from orchestrator.workflows.link import Link
from orchestrator.workflows.sync import send_bundles, send_source
from orchestrator.workflows.tell import tell
from orchestrator.workflows.tidy import tidy_host
from orchestrator.workflows.waking import Waking
from orchestrator.workflows.watchers import watchers

if TYPE_CHECKING:
    from orchestrator.workflows.hold import MachineHold


class Driver:
    """Moves one active run along. Owns neither the run nor the link: the caller opens and closes both."""

    def __init__(
        self,
        services: Services,
        link: Link,
        active: ActiveRun,
        mode: Mode,
        source: Source | None = None,
        waking: Waking | None = None,
    ) -> None:
        self._services = services
        self._link = link
        self._active = active
        self._mode = mode
        self._source = source
        self._waking = waking or Waking()
        self._collection: Collection | None = None
        self.saved = SavedPlan.model_validate(active.plan)
        self.state: State = fold(active.journal.entries())
        self.folder: Path | None = None
        #: The machine, where it is one that fcctl turns on and off.
        self.machine: MachineHold | None = self._hold()

    def _hold(self) -> MachineHold | None:
        if self.saved.fence_s is None:
            return None
        from orchestrator.workflows.hold import MachineHold

        return MachineHold(self._services, self._link, self._active, self.saved, self._log)

    @property
    def run_id(self) -> str:
        return self._active.run_id

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
        self._log("begun", **facts, **({"machine": True} if self.machine else {}))

    def launch(self) -> None:
        """As far as RUNNING: the host has the run and needs nobody to go on. Or to its end, if that comes first."""
        while self.state.stage < Stage.RUNNING:
            self._step()

    def take_machine(self) -> None:
        """Have the machine before :meth:`launch`, which then goes on from there."""
        self._acquire()

    @property
    def waits(self) -> bool:
        """Whether what the run has is on the disk of a machine that is off, as far as the journal knows."""
        return decide(self.state, self._mode) is Move.WAIT

    def join(self) -> None:
        """If the machine that the run waits for was turned on by somebody else: go on there."""
        if self.waits:
            self._wanted_machine().join()

    def wake(self, seconds: int) -> None:
        """Turn the machine on again, with a limit of ``seconds``, for what is on its disk; then :meth:`finish`.

        Raises:
            FcctlError: it cannot be had; it is off again, and the run waits as before.
        """
        machine, last = self._wanted_machine(), self._last_stopped()
        try:
            machine.wake(seconds)
        except BaseException:
            at = machine.letting_go.turn_off_again()
            self._log("stopped", **{**last, "at": at})
            raise

    def collect_only(self) -> None:
        """To COLLECTED: everything is here, and the machine not let go."""
        while self.state.stage < Stage.COLLECTED:
            self._step()

    def intake(self) -> Intake:
        """What came home so far."""
        return self._active.intake()

    def _last_stopped(self) -> dict[str, object]:
        return next(dict(e.data) for e in reversed(self._active.journal.entries()) if e.kind == "stopped")

    def finish(self, *, wait: bool = True) -> RunRecord | None:
        """To the end. With ``wait=False``, None is the answer while the run still goes on at the host."""
        revived = False
        while True:
            try:
                if decide(self.state, self._mode) is Move.FOLLOW and not wait and not self._ended_already():
                    return None
                record = self._step()
            except MachineStopped as stopped:
                if not self._is_on_a_machine:
                    raise
                self._note_stopped(stopped)
                continue
            except HostError:
                if revived or not self._is_on_a_machine:
                    raise
                revived = True
                self._revive()
                continue
            if record is not None:
                return record

    @property
    def _is_on_a_machine(self) -> bool:
        """Whether the host has the run, as far as is known, and is a machine that fcctl turns on and off."""
        return self.state.machine == "held" and Stage.SUBMITTING <= self.state.stage <= Stage.ENDED

    def _revive(self) -> None:
        """The machine does not answer: it may be off, or have another address than the one that is remembered."""
        try:
            self._wanted_machine().watch.revive()
        except MachineStopped as stopped:
            self._note_stopped(stopped)

    def abandon(self, reason: str, status: RunStatus, hint: str | None = None) -> RunRecord:
        """End a run that the host does not have, as ``cancelled`` or ``error``; ``hint`` is what to do about it.

        Raises:
            ValueError: the host took it.
        """
        if self.state.stage >= Stage.RUNNING:
            raise ValueError(f"run {self.run_id} is on the host")
        self._log("abandoned", reason=reason, status=status, **({"hint": hint} if hint else {}))
        return self._to_the_end()

    def give_up(self, reason: str) -> RunRecord:
        """End a run whose host will not come back: what came home is kept, the run is ``lost``."""
        self._log("lost", reason=reason)
        self._log("collected")
        return self._to_the_end()

    def _to_the_end(self) -> RunRecord:
        """Nothing is asked of the host any more: let the machine go, and complete the run."""
        while True:
            record = self._step()
            if record is not None:
                return record

    def cancel(self, reason: str, grace_s: float) -> None:
        """Tell the host to end the run. It may have ended, or never have arrived; :meth:`finish` finds out.

        Raises:
            MachineStopped: its machine is off, and the run with it; only its results are to be fetched.
        """
        if self.waits:
            self._wait()
        self._log("cancel", reason=reason)
        try:
            self._link.call(lambda s: s.cancel(self.run_id, reason, grace_s=grace_s))
        except HostFault as e:
            if e.fault != "not_found":
                raise
        except HostError:
            if not self._is_on_a_machine:
                raise
            self._revive()
            if self.waits:
                self._wait()
            raise

    def ask(self) -> wire.RunSummary | None:
        """How the run stands at the host; None if the host does not know it."""
        found = self._link.call(lambda s: s.status([self.run_id]))
        return found[0] if found else None

    def unknown_there(self) -> bool:
        """After a submission that was refused: whether the host says that it does not have the run."""
        try:
            return self.state.stage is Stage.SUBMITTING and self.ask() is None
        except HostError:
            return False  # the next command asks again

    # ------------------------------------------------------------------------------------------------------- moves
    def _step(self) -> RunRecord | None:
        try:
            return self._move()
        except MachineStopped as stopped:
            if not self._is_on_a_machine:
                raise
            self._note_stopped(stopped)
            return None

    def _note_stopped(self, stopped: MachineStopped) -> None:
        """The machine is off, and the run's results are on its disk, if it has one."""
        facts = {"how": stopped.how, "status": stopped.status, "at": stopped.at}
        self._log("stopped", reason=stopped.message, **facts)
        if not stopped.disk:
            self._log("lost", reason=stopped.message)
            return  # and complete in a moment, which is told
        plan = self.saved.plan
        notice = of_stopped(plan.run_id, plan.job, self.saved.target.name, stopped.status, stopped.message)
        tell(self._services, notice)

    def _move(self) -> RunRecord | None:
        move = decide(self.state, self._mode)
        if move is Move.COMPLETE:
            return self._complete()
        makes: dict[Move, Callable[[], None]] = {
            Move.PREWAKE: self._prewake,
            Move.SETTLE_HERE: self._settle_here,
            Move.ACQUIRE: self._acquire,
            Move.SYNC: self._sync,
            Move.SUBMIT: self._submit,
            Move.ASK: self._ask,
            Move.FOLLOW: self._follow,
            Move.WAIT: self._wait,
            Move.COLLECT: self._collect,
            Move.RELEASE: self._release,
            Move.ABANDON: self._abandon,
        }
        makes[move]()
        return None

    def _prewake(self) -> None:
        """The steps that belong here; only if all of them went well does the run cost anything."""
        self._log("prewake")
        try:
            stepped = prewake.carry_out(self._services, self._active, self.saved, self._wanted_source())
        except KeyboardInterrupt:
            self._settle_here("interrupted before the machine was woken")
            raise
        self._log("stepped", **stepped.line(goes_on=stepped.status == "passed" and bool(self.saved.plan.steps)))

    def _settle_here(self, reason: str = "the fcctl that ran its first steps on this computer was killed") -> None:
        stepped = prewake.settle(self._services, self._active, reason)
        status = "cancelled" if self._mode == "launch" else "error"
        self._log("stepped", **{**stepped.line(goes_on=False), "status": status})

    def _abandon(self) -> None:
        self._log("abandoned", reason="the controller stopped before the run was submitted; nothing ran")

    def _acquire(self) -> None:
        self._wanted_machine().acquire(restart=self._waking.restart, allow_unfenced=self._waking.allow_unfenced)

    def _wanted_source(self) -> Source:
        if self._source is None:
            raise ValueError("a launch needs the source")
        return self._source

    def _sync(self) -> None:
        self._arm()
        self._log("sync", tree_sha256=self.saved.source.tree_sha256)
        send_bundles(self._link, self.saved.plan, self._services.bundles, self._services.observer)
        if self.saved.plan.resume_from is not None:
            return  # the source is there, in the working folder of the run that this one goes on with
        source = self._wanted_source()
        send_source(self._link, self.saved.plan, source, self._services.observer)

    def _arm(self) -> None:
        """Before anything else runs on a machine that is ours to power off."""
        if not self.saved.target.owned:
            return
        self._log("arm")
        if self.machine is not None:
            armed: Armed | None = self.machine.timer.arm()
        else:
            armed = arm(self._link, self.saved.plan, self._services.observer)
        if armed is not None:
            self._log("armed", token=armed.token, deadline=armed.deadline)

    def _disarm(self) -> None:
        for entry in self._active.journal.entries():
            if entry.kind == "armed":
                disarm(self._link, entry.data["token"], self._services.observer)

    def _submit(self) -> None:
        adopted = prewake.adopted(self.stepped(), self._active.intake().read_json, self._services.observer)
        plan = self._within_budget(replace(self.saved.plan, adopted=[*self.saved.plan.adopted, *adopted]))
        self._log("submit", **({} if plan.stop_by is None else {"stop_by": plan.stop_by}))
        reply = self._link.call(lambda s: s.submit(plan))
        self._log("submitted", state=reply.state)

    def _ask(self) -> None:
        self._services.observer.phase("find", f"looking for {self.run_id} on {self.saved.target.name}")
        if self.ask() is not None:
            self._log("submitted", state="found")
        else:
            self._log("abandoned", reason="the controller stopped while submitting, and the host never got the run")

    def _follow(self) -> None:
        journal = self._active.journal
        watch = watchers(self._services, self._link, self.saved, journal, self._log, self.machine)
        summary = follow(self._link, self.run_id, self._services, watch)
        if summary is None:
            reason = f"{self.saved.target.name} does not know this run any more: its ~/.fcctl is gone or was replaced"
            self._log("lost", reason=reason)
        else:
            self._log("ended", status=summary.status)

    def _within_budget(self, plan: wire.RunPlan) -> wire.RunPlan:
        """``plan`` with the host told when the run has to be over for its budget to hold."""
        if self.saved.stop_at_usd is None:
            return plan
        if self.machine is not None:
            return self.machine.timer.within_budget(plan)
        return replace(plan, stop_by=self._link.host_now() + self.saved.worst_case_minutes * 60)

    def _ended_already(self) -> bool:
        summary = self.ask()
        return summary is None or summary.status in wire.RUN_ENDINGS

    def _collect(self) -> None:
        if self.state.without_outcome != "lost":
            ours = tuple(f"steps/{step.id}/" for step in self.stepped())
            intake = self._active.intake()
            self._collection = collect(
                self._link, self.run_id, intake, self._services, lambda path: not path.startswith(ours)
            )
        omitted = self._collection.omitted if self._collection else []
        self._log("collected", omitted=[wire.encode(o) for o in omitted])

    def _complete(self) -> RunRecord:
        now = self._services.clock.now()
        record = record_of(self._active, self.saved, self.state, self.machine, now)
        if self.state.without_outcome is None and self.machine is None:
            self._disarm()
        if self.state.without_outcome is None:
            add_report(self._services, self._active, self.saved, record)
        self._log("complete", status=record.status)
        self.folder = self._active.complete(record)
        tell(self._services, of_run(record))
        if self.state.without_outcome is None and self.machine is None and not record.omitted:
            tidy_host(self._services, self._link)
        if self.machine is not None and self._services.store.owed():
            from orchestrator.workflows.debts import pay

            pay(self._services, "due")
        return record

    def _wanted_machine(self) -> MachineHold:
        if self.machine is None:
            raise ValueError(f"target {self.saved.target.name} has no machine to be turned on or off")
        return self.machine

    def _release(self) -> None:
        machine = self._wanted_machine()
        if self.state.without_outcome is None:
            tidy_host(self._services, self._link)
        left = machine.letting_go.left_behind()
        if left:
            from orchestrator.workflows.resume import settle

            settle(self._services, left)
        machine.letting_go.release(ran=self.state.without_outcome is None)

    def _wait(self) -> NoReturn:
        """Raise what is to be said of a run whose results are on the disk of a machine that is off."""
        last = self._last_stopped()
        raise MachineStopped(
            str(last.get("reason")),
            how=str(last.get("how")),
            status=str(last.get("status")),
            cause=f"what run {self.run_id} has so far is on its disk",
            hint=f"go on with it: fcctl run --resume {self.run_id}; or only fetch that:"
            f" fcctl pull-results --wake {self.run_id}",
        )

    def stepped(self) -> list[wire.StepResult]:
        """The steps that ran on this computer."""
        return prewake.results(self._active.journal.entries())

    def _log(self, kind: str, **data: object) -> None:
        self._active.journal.append(kind, **data)
        self.state = advance(self.state, JournalEntry(seq=0, time=self._services.clock.now(), kind=kind, data=data))
