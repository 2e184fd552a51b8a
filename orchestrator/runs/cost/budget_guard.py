"""Ends a followed run before it breaks a cap. The host's ``stop_by`` and the cloud's deadline do so without it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from fcctl_remote import wire
from orchestrator.base.errors import BudgetError, FcctlError, HostFault
from orchestrator.machines.connect.reconnect import ReconnectingHost
from orchestrator.machines.provision.ready import Log
from orchestrator.money.caps import Cap, Window, began_to_cost, dollars, judge
from orchestrator.money.totals import Spending, start_of_day, start_of_month
from orchestrator.runs.cost.machine_cost import rate_of
from orchestrator.runs.job.saved_plan import SavedPlan
from orchestrator.runs.services import Services

if TYPE_CHECKING:
    from orchestrator.base.journal import FileJournal

#: How often other runs' spending, and the run's own, is computed, seconds.
BOOKS_EVERY_S = 60.0
LOOK_EVERY_S = 2.0
#: What a step gets to write down what it has before it is killed, seconds.
GRACE_S = 10.0


class Guard:
    """Watches the caps of one run; notes each event once."""

    def __init__(
        self, services: Services, link: ReconnectingHost, saved: SavedPlan, journal: FileJournal, log: Log
    ) -> None:
        self._services = services
        self._link = link
        self._saved = saved
        self._journal = journal
        self._log = log
        self._machine = saved.target.cloud is not None
        self._others: Spending | None = None  # what all the other runs have cost, and when that was computed
        self._computed = float("-inf")
        self._looked = float("-inf")
        self._warned: set[str] = set()
        self._ending = False
        self._tells = True

    def after(self, reply: wire.WatchReply) -> None:
        """Looks, unless the run has ended."""
        if reply.summary.status not in wire.RUN_ENDINGS:
            self.look()

    def look(self) -> None:
        """Warn of a cap that is nearly spent; end the run if one is about to be hit."""
        now = self._services.clock.monotonic()
        if self._ending or now - self._looked < LOOK_EVERY_S:
            return
        self._looked = now
        own, rate = self._own()
        if own is None:
            return
        for cap in self._saved.caps:
            spent = own if cap.over == "run" else self._within(cap.over, own, rate) + self._elsewhere().of(cap.over)
            strictly = cap.over != "run" or self._saved.stop_at_usd is not None
            verdict = judge(cap, spent, rate, strictly=strictly)
            if verdict == "stop":
                self._end(cap, spent)
                return
            if verdict == "warn" and cap.name not in self._warned:
                self._warned.add(cap.name)
                self._services.observer.note(f"${spent:.2f} of the cap of ${cap.usd:.2f} ({cap.name}) are spent")

    def _own(self) -> tuple[float | None, float]:
        """Returns the run's cost so far in dollars, and its price per hour, disks, address and egress included."""
        entries = self._journal.entries()
        rate = rate_of(entries, self._saved) + self._saved.rest_rate
        began = began_to_cost(entries, machine=self._machine)
        if began is None or rate <= 0:
            return None, rate
        return self._journal.age(began) / 3600 * rate + self._saved.egress_usd, rate

    def _within(self, window: Window, own: float, rate: float) -> float:
        """The part of the run's own cost that is of this day or month."""
        if window == "project":
            return own
        now = self._services.clock.now()
        start = start_of_day if window == "day" else start_of_month
        return min(own, (now - start(now, self._services.budget.zone)) / 3600 * rate)

    def _elsewhere(self) -> Spending:
        """What all the other runs have cost."""
        now = self._services.clock.monotonic()
        if self._others is None or now - self._computed >= BOOKS_EVERY_S:
            from orchestrator.runs.cost.spending import spent_without

            self._tell()
            self._computed = now
            with suppress(FcctlError, OSError):  # else what was read last; all that this run may cost is reserved
                self._others = spent_without(self._services, self._saved.plan.run_id)
        return self._others or Spending(0.0, 0.0, 0.0)

    def _tell(self) -> None:
        """Send the notices about the caps; after one that could not be sent, that is left to the next command."""
        from orchestrator.runs.cost.outlook import send_cap_notices

        if self._tells:
            try:
                problems = send_cap_notices(self._services)
            except (FcctlError, OSError) as error:  # of this computer's disk; the run continues, and is followed
                problems = [error.one_line if isinstance(error, FcctlError) else str(error)]
            self._tells = not problems
            for problem in problems:
                self._services.observer.note(problem)

    def _end(self, cap: Cap, spent: float) -> None:
        """The current step's notice and grace; what it has by then is collected as always."""
        self._ending = True
        reason = f"${spent:.2f} of the cap of ${cap.usd:.2f} ({cap.name}) are spent"
        self._services.observer.note(f"{reason}: fcctl stops the run")
        run_id = self._saved.plan.run_id
        self._log("over_budget", reason=reason)
        try:
            self._link.call(lambda s: s.cancel(run_id, reason, status="over_budget", grace_s=GRACE_S))
        except HostFault as e:
            if e.fault != "not_found":
                raise


def refuse_useless(saved: SavedPlan, least_s: float) -> None:
    """Raises BudgetError: the budget to stop at does not even buy ``least_s`` seconds."""
    bought = saved.fence_s if saved.fence_s is not None else saved.worst_case_minutes * 60
    if bought < least_s:
        raise BudgetError(
            f"{dollars(saved.stop_at_usd or 0)} pays for {max(0.0, bought):.0f} seconds of {saved.target.name}, too"
            f" few to start a run",
            cause=f"the price is ${saved.worst_rate:.2f} an hour, plus the late-stop allowance and the cloud's"
            f" minimum charge",
            hint="raise the cap, or wait until more of it is left; to see the caps: fcctl cost budget",
        )
