"""The lease of a run's cloud machine. Not loaded for machines that fcctl does not start (``local``, ``ssh``)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from fcctl_remote import wire
from orchestrator.base.errors import BudgetError, FcctlError, HostFault, HostUnusable, LinkLost, MachineStopped
from orchestrator.base.journal import newest
from orchestrator.leases.machine_lease import MachineLease, facts
from orchestrator.machines.cloud import Power
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.provision.actions import MachineRequest, PlannedPrice, Purpose
from orchestrator.machines.provision.ready import STOP_LIMIT_S, Log, StoppedDuringStart, make_ready
from orchestrator.machines.shutdown_timer import Armed, TimerLimits, arm_idle, arm_within, move_later
from orchestrator.machines.targets import CloudTarget, SandboxTarget
from orchestrator.money.caps import LEAST_S, began_to_cost, reserve_s, stop_by, worst_case_minutes
from orchestrator.results.records import RunRecord
from orchestrator.runs.cost.machine_cost import machine_cost, machine_record, rate_of
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.lifecycle import UNWRITTEN
from orchestrator.runs.machine.pending_releases import neighbours
from orchestrator.runs.machine.release import Releaser
from orchestrator.runs.record import stopped_under
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.results.store.active import FileActiveRun

#: What a machine that is on already must have left after the steps' worst case, to send and fetch, seconds.
NEED_MARGIN_S = 5 * 60.0
#: How often the cloud is asked about a machine whose link is lost, seconds.
CHECK_EVERY_S = 5.0
#: How long a machine that runs, and was reached before, may take to answer again, seconds.
REVIVE_S = 30.0
#: How much later than the machine itself the cloud may know that it goes down, and how often it is asked, seconds.
GOES_DOWN_S = 20.0
GOES_DOWN_EVERY_S = 1.0


class RunLease(MachineLease):
    """Acquires a run's machine, enforces its deadline, checks on it and releases it."""

    def __init__(
        self, services: Services, host: ReconnectingHost, active: FileActiveRun, saved: SavedPlan, log: Log
    ) -> None:
        if not isinstance(saved.target, CloudTarget | SandboxTarget):
            raise TypeError(f"target {saved.target.name} is not a cloud machine")
        target, purpose = services.clouds.resolve(saved.target), Purpose(active.run_id, saved.plan.workspace)
        super().__init__(services, target, purpose, host, active.journal.entries, self._log)
        self._written = log
        self.services, self.active, self.saved = services, active, saved
        self.releaser = Releaser(services, self, saved)
        self._checked = float("-inf")
        host.doubts.append(self.check)

    @property
    def run_id(self) -> str:
        return self.active.run_id

    def _log(self, kind: str, **data: object) -> object:
        if self.saved.session_abroad and kind == "cloud" and data.get("action") in ("start", "create"):
            from orchestrator.runs.cost.spending import set_aside_start

            set_aside_start(self.services, self.saved)
        return self._written(kind, **data)

    def acquire_for_steps(self, *, restart: bool = False, allow_unfenced: bool = False) -> None:
        """Acquires the machine for all steps of the run. Raises FcctlError; the journal has what was started."""
        saved, in_budget = self.saved, self.saved.stop_at_usd is not None
        need_s = saved.worst_case_minutes * 60 + (self.reserve_s() if in_budget else NEED_MARGIN_S)
        if in_budget and saved.plan.resume_from is not None:
            need_s = LEAST_S  # it was started for this a moment ago, for as long as the budget lasts
        request = MachineRequest(
            max_run_s=int(self.target.max_run_minutes * 60) if saved.fence_s is None else saved.fence_s,
            need_s=need_s,
            # A session of another workspace may be over unnoticed.
            start=saved.session is None or saved.session_abroad,
            restart=restart,
            allow_unfenced=allow_unfenced,
            planned=_planned(saved),
        )
        self.acquire(request)
        if saved.session is not None and saved.session_abroad:
            from orchestrator.runs.machine.pending_releases import visit

            visit(self.services, saved.session, self.run_id)

    def wake(self, seconds: int, planned: SavedPlan) -> None:
        """Starts the machine again for ``seconds`` to fetch what is on its disk; never creates it. ``planned`` has its
        price."""
        self.acquire(MachineRequest(max_run_s=seconds, need_s=60.0, create=False, planned=_planned(planned)))
        if self.target.owned and self.acquired().get("turned_on"):
            self._arm_to_fetch(min(seconds, planned.wake_s))

    def _arm_to_fetch(self, seconds: float) -> None:
        """The shutdown timer, until a run has set its own. A machine that refuses it has only the cloud's limit: its
        results are fetched nevertheless."""
        limits = TimerLimits(self.acquired().get("deadline"), self.token, fresh=True)
        self.log("arm")
        try:
            deadline = arm_idle(self.host, limits, seconds, f"fetching the results of {self.run_id}")
        except (HostUnusable, HostFault) as error:
            self.services.observer.note(f"{self.target.instance} has no shutdown timer: {error.message}")
        else:
            self.log("armed", token=limits.token, deadline=deadline)

    def join(self) -> bool:
        """Whether somebody else has started the machine that the run waits for, and it answers."""
        known = self.services.book.known(self.target.project, self.target.instance)
        if known is None or known.instance_id != self.last_known().get("instance_id"):
            return False
        warm = self.warm(MachineRequest(max_run_s=0, need_s=60.0))
        if warm is None:
            return False
        self.log("acquire", joins=True)
        self.log("acquired", **facts(*warm), warm=True, turned_on=False, joins=True)
        return True

    def acquire(self, request: MachineRequest) -> None:
        self.services.left_on.had_by(self.run_id)
        super().acquire(request)

    def _wait_for_others(self) -> None:
        clock = self.services.clock
        deadline = clock.monotonic() + STOP_LIMIT_S
        while clock.monotonic() < deadline:
            if not any(n.is_releasing for n in neighbours(self.services, self.target, self.run_id)):
                return
            self.services.observer.phase("wake", f"waiting until another run has released {self.target.instance}")
            clock.sleep(0.2)

    def arm(self) -> Armed:
        """Sets the machine's shutdown timer. Raises BudgetError if the machine goes off before the steps are done."""
        acquired, plan = self.acquired(), self._plan_within_budget()
        limits = TimerLimits(acquired.get("deadline"), self.token, fresh=bool(acquired.get("turned_on")))
        worst_s = worst_case_minutes(plan.steps, plan.max_minutes) * 60
        return arm_within(self.host, limits, plan.run_id, worst_s, self.services.observer)

    def arm_again(self) -> None:
        """Sets the timer again on a machine that was on: until the host had this run, it took the machine for idle at
        the end of another one, and moved the timer earlier."""
        until = newest(self.entries(), "acquire", "armed").get("deadline")
        if until is not None and not self.acquired().get("turned_on"):
            with suppress(FcctlError):  # what keeps us from there is found out where the run is followed
                move_later(self.host, until, self.token, f"run {self.run_id} has begun")

    def within_budget(self, plan: wire.RunPlan) -> wire.RunPlan:
        """``plan`` with the time at which the host program has to end the run for its budget to hold, if it has one."""
        until = self.stop_by()
        if until is None or plan.idle_stop_s is None or self.acquired().get("turned_on"):
            return replace(plan, stop_by=until)
        # The deadline of a machine that was on already is not this run's: idling counts against the budget there.
        return replace(plan, stop_by=until, idle_stop_s=min(plan.idle_stop_s, self.reserve_s() / 2))

    def stop_by(self) -> float | None:
        """When the run has to end for its budget to hold, epoch seconds of the machine's clock; None without one."""
        usd, acquired, entries = self.saved.stop_at_usd, self.acquired(), self.entries()
        if usd is None:
            return None
        now = self.host.host_now()
        if acquired.get("turned_on") and acquired.get("started") is not None:
            began = float(acquired["started"])
        else:
            line = began_to_cost(entries, machine=True)
            began = now - (self.active.journal.age(line) if line is not None else 0.0)
        rate = rate_of(entries, self.saved) + self.saved.rest_rate
        return stop_by(usd - self.saved.egress_usd, rate, began, acquired.get("deadline"))

    def reserve_s(self) -> float:
        """Seconds of the time that the budget buys which ending the run takes."""
        return reserve_s(float(self.saved.fence_s or 0))

    def _plan_within_budget(self) -> wire.RunPlan:
        """The plan, no longer than its budget lasts. Raises BudgetError if starting the machine used all of it."""
        until, plan = self.stop_by(), self.saved.plan
        if until is None:
            return plan
        left = (until - self.host.host_now()) / 60
        if left <= 0:
            raise BudgetError(
                f"starting {self.target.instance} used the whole budget of ${self.saved.stop_at_usd:.2f}",
                hint="raise the cap, or try again: another boot may be faster",
            )
        return replace(plan, max_minutes=left if plan.max_minutes is None else min(left, plan.max_minutes))

    def check(self) -> None:
        """Raises MachineStopped if the cloud says that the machine is off; remembers a new address. No answer proves
        nothing."""
        now = self.services.clock.monotonic()
        if now - self._checked < CHECK_EVERY_S:
            return
        self._checked = now
        try:
            stopped = self.why_stopped()
        except FcctlError:
            return
        if stopped is not None:
            raise stopped

    def why_it_goes_down(self) -> MachineStopped | None:
        """Why the machine goes down, as its host program said; None if it does not, or the cloud cannot tell."""
        clock = self.services.clock
        deadline = clock.monotonic() + GOES_DOWN_S
        while True:
            try:
                stopped = self.why_stopped()
            except FcctlError:
                return None
            if stopped is not None and stopped.how != "unknown":
                return stopped
            if clock.monotonic() >= deadline:
                return None
            clock.sleep(GOES_DOWN_EVERY_S)

    def revive(self, *, wait: bool = True) -> None:
        """Connects again if the machine runs and ``wait`` is set. Raises MachineStopped if it does not run, FcctlError
        if it cannot be reached or the cloud does not say."""
        stopped = self.why_stopped()
        if stopped is not None:
            raise stopped
        zones = [str(self.last_known()["zone"])] if self.last_known() else list(self.start_requests())
        if not zones:
            raise MachineStopped(f"{self.target.instance} was not started yet", how="unknown", status="lost")
        if not wait:
            return
        machine = self.services.clouds.open(self.target).machine(zones[0], self.target.instance)
        if machine is None or machine.power is not Power.RUNNING:
            return
        patient = self.target.model_copy(update={"wake_timeout_s": REVIVE_S})
        try:
            make_ready(self.services, patient, machine, self.host, self.log)
        except StoppedDuringStart:
            stopped = self.why_stopped()
            raise (stopped or LinkLost(f"{machine.name} does not answer")) from None

    def account(self, record: RunRecord) -> RunRecord:
        """``record`` with what the machine cost, and why it was stopped under the run if it was."""
        entries = self.entries()
        cost = machine_cost(entries, self.saved, record.steps)
        record = record.model_copy(update={"cost": cost, "machine": machine_record(entries)})
        ends = (e.data for e in reversed(entries) if e.kind in ("stopped", "went_down"))
        stopped = next((end for end in ends if end.get("how") != UNWRITTEN), None)
        if stopped is None or record.status == "cancelled":
            return record
        hint = f"to resume at the first unfinished step: {self.saved.again}"
        if self.saved.fleet_of is not None:
            hint = f"this run was a worker of a search; to resume the search: {self.saved.again}"
        return stopped_under(record, stopped["status"], str(stopped["reason"]), hint)


def _planned(saved: SavedPlan) -> PlannedPrice | None:
    return None if saved.target.kind == "sandbox" else PlannedPrice(saved.worst_machine_rate, saved.rest_usd_per_hour)
