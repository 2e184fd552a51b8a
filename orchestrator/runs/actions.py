"""Carries out the actions that :func:`orchestrator.runs.lifecycle.decide` asks for. Each has its line in the journal
before its effect, and its result after it, or it is done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from fcctl_remote import wire
from orchestrator.base.errors import DiskError, FcctlError, HostFault, MachineStopped
from orchestrator.base.journal import JournalEntry
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.shutdown_timer import Armed, arm, disarm
from orchestrator.machines.targets import StartOptions
from orchestrator.money.caps import worst_case_minutes
from orchestrator.results.records import RunRecord
from orchestrator.runs import local_steps as prewake
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.lifecycle import UNWRITTEN, Action, Mode, Stage, State, advance, fold, may_wait
from orchestrator.runs.notices import of_run, of_stopped, of_unwritten
from orchestrator.runs.record import add_report, omitted_of, record_of, steps_here, unfetched
from orchestrator.runs.services import Services
from orchestrator.runs.source import Source
from orchestrator.runs.transfer import (
    Collection,
    amount,
    collect,
    delete_old_runs,
    follow,
    make_room,
    send_bundles,
    send_source,
)

if TYPE_CHECKING:
    from orchestrator.results.store.active import FileActiveRun
    from orchestrator.runs.machine.run_lease import RunLease


class RunActions:
    """One active run, and what can be done about it. Owns neither the run nor the link."""

    def __init__(
        self,
        services: Services,
        link: ReconnectingHost,
        active: FileActiveRun,
        mode: Mode,
        source: Source | None = None,
        waking: StartOptions | None = None,
    ) -> None:
        self.services = services
        self.link = link
        self.active = active
        self.mode = mode
        self._source = source
        self._waking = waking or StartOptions()
        self._collection: Collection | None = None
        self.saved = SavedPlan.model_validate(active.plan)
        #: What the journal says, folded.
        self.state: State = fold(active.journal.entries())
        #: Whether this process did anything for the run but complete it; and whether its journal is on disk.
        self._moved, self._written = False, True
        #: The machine, where it is one that fcctl turns on and off.
        self.machine: RunLease | None = None
        if self.saved.fence_s is not None:
            from orchestrator.runs.machine.run_lease import RunLease

            self.machine = RunLease(services, link, active, self.saved, self.log)

    @property
    def run_id(self) -> str:
        return self.active.run_id

    @property
    def is_on_a_machine(self) -> bool:
        """Whether the host has the run, as far as is known, and is a machine that fcctl turns on and off."""
        had = self.state.machine not in ("none", "due") and self.state.stopped is None
        return had and Stage.SUBMITTING <= self.state.stage <= Stage.ENDED

    def make(self, move: Action) -> RunRecord | None:
        """Make one move; the record, if that was the last."""
        if move is Action.COMPLETE:
            return self._complete()
        self._moved = True
        makes: dict[Action, Callable[[], None]] = {
            Action.PREWAKE: self._prewake,
            Action.SETTLE_HERE: self._settle_here,
            Action.ACQUIRE: self.acquire,
            Action.SYNC: self._sync,
            Action.SUBMIT: self._submit,
            Action.ASK: self._ask,
            Action.FOLLOW: self._follow,
            Action.WAIT: self.wait,
            Action.COLLECT: self._collect,
            Action.RELEASE: self._release,
            Action.ABANDON: self._abandon,
        }
        makes[move]()
        return None

    def _prewake(self) -> None:
        """The steps that belong here; only if all of them went well does the run cost anything."""
        self.log("prewake")
        try:
            stepped = prewake.carry_out(self.services, self.active, self.saved, self._wanted_source())
        except KeyboardInterrupt:
            self._settle_here("interrupted before the machine was started")
            raise
        goes_on = bool(self.saved.plan.steps) and stepped.may_go_on(self.saved.before_wake)
        self.log("stepped", **stepped.line(goes_on=goes_on))

    def _settle_here(self, reason: str = "the fcctl process that ran its local steps was killed") -> None:
        stepped = prewake.recover(self.services, self.active, self.saved, reason)
        status = "cancelled" if self.mode == "launch" else "error"
        self.log("stepped", **{**stepped.line(goes_on=False), "status": status})

    def _abandon(self) -> None:
        self.log("abandoned", reason="fcctl stopped before it submitted the run; no step ran on the machine")

    def acquire(self) -> None:
        """Acquires the machine."""
        self.wanted_machine().acquire_for_steps(
            restart=self._waking.restart, allow_unfenced=self._waking.allow_unfenced
        )

    def _sync(self) -> None:
        self._arm()
        self.log("sync", tree_sha256=self.saved.source.tree_sha256)
        send_bundles(self.link, self.saved.plan, self.services.bundles, self.services.observer)
        if self.saved.plan.resume_from is not None:
            return  # the source is in the working folder of the run that this one resumes
        source = self._wanted_source()
        make_room(self.services, self.link)
        send_source(self.link, self.saved.plan, source, self.services.observer)

    def _wanted_source(self) -> Source:
        if self._source is None:
            raise ValueError("a launch needs the source")
        return self._source

    def _arm(self) -> None:
        """Before anything else runs on a machine that is ours to power off."""
        if not self.saved.target.owned:
            return
        self.log("arm")
        if self.machine is not None:
            armed: Armed | None = self.machine.arm()
        else:
            plan = self.saved.plan
            worst_s = worst_case_minutes(plan.steps, plan.max_minutes) * 60
            armed = arm(self.link, plan.run_id, worst_s, self.services.observer)
        if armed is not None:
            self.log("armed", token=armed.token, deadline=armed.deadline, before=armed.before)

    def _disarm(self) -> None:
        for entry in self.active.journal.entries():
            if entry.kind == "armed":
                disarm(self.link, entry.data["token"], self.services.observer)

    def _submit(self) -> None:
        adopted = prewake.adopted(self.stepped(), self.active.intake().read_json, self.services.observer)
        plan = self._within_budget(replace(self.saved.plan, adopted=[*self.saved.plan.adopted, *adopted]))
        self.log("submit", **({} if plan.stop_by is None else {"stop_by": plan.stop_by}))
        secrets = self.services.secrets(plan.secrets)
        reply = self.link.call(lambda s: s.submit(plan, secrets))
        self.log("submitted", state=reply.state)
        if self.machine is not None:
            self.machine.arm_again()

    def _within_budget(self, plan: wire.RunPlan) -> wire.RunPlan:
        """Returns ``plan`` with the time at which the host has to end the run for its budget to hold."""
        if self.saved.stop_at_usd is None:
            return plan
        if self.machine is not None:
            return self.machine.within_budget(plan)
        return replace(plan, stop_by=self.link.host_now() + self.saved.worst_case_minutes * 60)

    def _ask(self) -> None:
        self.services.observer.phase("find", f"looking for {self.run_id} on {self.saved.target.name}")
        if self.ask() is not None:
            self.log("submitted", state="found")
        else:
            # Without its snapshot, a submission that is on its way yet is refused when it arrives.
            try:
                self.link.ask(lambda s: s.forget(self.run_id))
            except HostFault as fault:
                if fault.fault == "conflict":  # it has just arrived
                    raise
            self.log("abandoned", reason="fcctl stopped while it submitted the run; the host did not receive the run")

    def ask(self) -> wire.RunSummary | None:
        """The run's summary at the host; None if the host does not know it."""
        found = self.link.ask(lambda s: s.status([self.run_id]))
        return found[0] if found else None

    def _follow(self) -> None:
        summary = follow(self.link, self.run_id, self.services, self._guard())
        if summary is None:
            self._unknown_there()
        else:
            self.log("ended", status=summary.status)

    def _guard(self) -> Callable[[wire.WatchReply], None] | None:
        """Watches the caps while the run is followed; None without caps."""
        if not self.saved.caps:
            return None
        from orchestrator.runs.cost.budget_guard import Guard

        return Guard(self.services, self.link, self.saved, self.active.journal, self.log).after

    def _unknown_there(self) -> None:
        reason = f"{self.saved.target.name} no longer has this run: its ~/.fcctl was deleted or replaced"
        self.log("lost", reason=reason)

    def _runs_there(self) -> bool:
        """Whether the host has the run, and it has not ended."""
        summary = self.ask()
        return summary is not None and summary.status not in wire.RUN_ENDINGS

    def _collect(self) -> None:
        if self.state.without_outcome != "lost":
            ours = tuple(f"steps/{step.id}/" for step in self.stepped())
            most = self._affordable_bytes()
            intake = self.active.intake(most)
            try:
                self._collection = collect(
                    self.link, self.run_id, intake, self.services, lambda path: not path.startswith(ours)
                )
            except HostFault as fault:
                if fault.fault != "not_found" or self.ask() is not None:
                    raise
                self._unknown_there()
            else:
                self._note_unaffordable(most)
        found = self._collection or Collection(0, 0, [])
        self.log("collected", omitted=[wire.encode(o) for o in found.omitted], bytes=found.bytes)

    def _affordable_bytes(self) -> int | None:
        """How many bytes the caps allow to fetch: the cloud bills them. None: without a limit."""
        if self.machine is None or not self.saved.caps:
            return None
        from orchestrator.runs.cost.machine_cost import affordable_bytes

        return affordable_bytes(self.active.journal.entries(), self.saved, self.services.clock.now())

    def _note_unaffordable(self, most: int | None) -> None:
        left = [one.path for one in self._collection.omitted if one.reason == "too_large"] if self._collection else []
        if most is not None and left:
            more = f" and {len(left) - 1} more" if left[1:] else ""
            self.services.observer.note(
                f"{left[0]}{more} stays on the machine's disk: the cloud bills what is fetched, and this run's worst"
                f" case pays for {amount(most)} of results"
            )

    def _complete(self) -> RunRecord:
        now = self.services.clock.now()
        account = (lambda record: record) if self.machine is None else self.machine.account
        record = record_of(self.active, self.saved, self.state, account, now)
        if self.state.without_outcome is None and self.machine is None:
            self._disarm()
        if self.state.without_outcome is None:
            add_report(self.services, self.active, self.saved, record)
        self.log("complete", status=record.status)
        self._settle_cost(record)
        try:
            self.active.complete(record)
        except DiskError as full:
            if self._moved:  # else the controller that did the rest has notified
                self.services.notify(of_unwritten(record, full.message, full.hint))
            raise
        self.services.notify(of_run(record))
        if self.state.without_outcome is None and self.machine is None and not record.omitted:
            delete_old_runs(self.services, self.link)
        if self.machine is not None and self.services.store.pending_releases():
            from orchestrator.runs.machine.pending_releases import retry_releases

            retry_releases(self.services, "due")
        return record

    def _settle_cost(self, record: RunRecord) -> None:
        """Book it before it is complete: from then on a person may delete it."""
        if record.cost.usd <= 0 and self.saved.worst_case_usd <= 0:
            return
        from orchestrator.runs.cost.owners import settle_run

        try:
            settle_run(self.services, record, self.saved, self.active.journal.entries())
        except FcctlError as error:
            self.services.observer.note(
                f"a later command will record the cost of {self.run_id}: {error.message} ({error.cause})"
            )

    def _release(self) -> None:
        machine = self.wanted_machine()
        if self.state.without_outcome is None:
            self._learn_why(machine)
            delete_old_runs(self.services, self.link)
        left = machine.releaser.left_behind()
        if left:
            self.services.recover_runs(self.services, left)
        machine.releaser.release(ran=self.state.without_outcome is None, on_disk=self._too_large())

    def _too_large(self) -> str | None:
        """What only the machine's disk has, because it is too large to fetch."""
        names = [omitted.path for omitted in omitted_of(self.active) if omitted.reason == "too_large"]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"{names[0]}{more} is only on its disk, because it is too large to fetch" if names else None

    def unwritten(self, full: DiskError) -> DiskError:
        """Releases the machine of an ended run whose results do not fit on this disk; returns the error to raise."""
        record = unfetched(self.active, self.saved, self.services.clock.now())
        if self.machine is not None:
            from orchestrator.runs.machine.release import on_its_disk

            self.machine.releaser.release(ran=False, on_disk=f"the results of {self.run_id} are on its disk")
            off = self._is_off(record.status)
            record = self.machine.account(record)
            full = on_its_disk(full, self.saved, record, off=off)
        if self.machine is not None or self.mode == "launch":  # else each later command would notify again
            self.services.notify(of_unwritten(record, full.message, full.hint))
        return full

    def _is_off(self, status: str) -> bool:
        """Whether the machine was just stopped; then the run waits until it is started for its results."""
        last = next(line for line in reversed(self.active.journal.entries()) if line.kind in ("released", "unreleased"))
        if last.data.get("how") not in ("stopped", "off"):
            return False
        reason = "this computer's disk has no space for its results"
        self.log("stopped", how=UNWRITTEN, status=status, reason=reason, at=last.data.get("stopped"))
        return True

    def _learn_why(self, machine: RunLease) -> None:
        """Logs why the machine went down under the run: only the cloud knows, of a time limit for example."""
        said = {entry.kind: entry.data for entry in self.active.journal.entries()}
        if said.get("ended", {}).get("status") != "preempted" or "stopped" in said or "went_down" in said:
            return
        why = machine.why_it_goes_down()
        if why is not None:
            self.log("went_down", how=why.how, status=why.status, reason=why.message, at=why.at)

    def wait(self) -> NoReturn:
        """Raises MachineStopped for a run whose results are on the disk of a machine that is off."""
        last = self.last_stopped()
        hint = (
            f"to resume the run: {self.saved.again}; to fetch only its results: fcctl pull-results --wake {self.run_id}"
        )
        if last.get("how") == UNWRITTEN:
            hint = f"free disk space on this computer, then fetch the results: fcctl pull-results --wake {self.run_id}"
        raise MachineStopped(
            str(last.get("reason")),
            how=str(last.get("how")),
            status=str(last.get("status")),
            cause=f"the results of run {self.run_id} so far are on the machine's disk",
            hint=hint,
        )

    def note_stopped(self, stopped: MachineStopped) -> None:
        """The machine is off, and the run's results are on its disk, if it has one."""
        facts = {"how": stopped.how, "status": stopped.status, "at": stopped.at}
        noted = self.log("stopped", reason=stopped.message, **facts)
        if not stopped.disk:
            self.log("lost", reason=stopped.message)
            return  # completing it notifies
        plan = self.saved.plan
        if noted or self.mode == "launch":  # else each later command would notify again
            notice = of_stopped(plan.run_id, plan.job, self.saved.target.name, stopped.status, stopped.message)
            self.services.notify(notice)

    def last_stopped(self) -> dict[str, object]:
        """What the journal says of the last time that the machine was stopped under the run."""
        return next(dict(e.data) for e in reversed(self.active.journal.entries()) if e.kind == "stopped")

    def wanted_machine(self) -> RunLease:
        """The machine of a run that must have one."""
        if self.machine is None:
            raise ValueError(f"target {self.saved.target.name} has no machine to start or stop")
        return self.machine

    def stepped(self) -> list[wire.StepResult]:
        """The steps that ran on this computer."""
        return steps_here(self.active.journal.entries())

    def log(self, kind: str, **data: object) -> bool:
        """Appends a line to the journal; False: it is in memory only. Raises DiskError if it must be on disk before its
        effect."""
        journal, written = self.active.journal, True
        if may_wait(kind, data):
            written = journal.append_if_possible(kind, **data)
        else:
            journal.append(kind, **data)
        if self._written and not written:
            failed = "could not write to this computer's disk"
            self.services.observer.note(f"{failed}: fcctl keeps the run's journal in memory only")
        self._written = written
        self.state = advance(self.state, JournalEntry(seq=0, time=self.services.clock.now(), kind=kind, data=data))
        return written
