"""Fence 2 of a run's machine: its own shutdown timer, and the moment at which the money for the run ends."""

from __future__ import annotations

from dataclasses import replace

from fcctl_remote import wire
from orchestrator.base.errors import BudgetError
from orchestrator.machines.shutdown_timer import Armed, Fence, arm_within
from orchestrator.money.caps import worst_case_minutes
from orchestrator.money.deadline import began_to_cost, reserve_s, stop_by
from orchestrator.runs.cost.machine_cost import rate_of
from orchestrator.runs.machine.state import LeaseState


class Timer:
    """Sets the timer of one run's machine, and tells the host program how long the budget lasts."""

    def __init__(self, held: LeaseState) -> None:
        self._held = held

    def arm(self) -> Armed:
        """Sets the machine's shutdown timer. Raises BudgetError if the machine goes off before the steps are done."""
        held, acquired = self._held, self._held.acquired()
        fence = Fence(acquired.get("deadline"), held.token, fresh=bool(acquired.get("turned_on")))
        plan = self._bounded()
        worst_s = worst_case_minutes(plan.steps, plan.max_minutes) * 60
        return arm_within(held.link, fence, plan.run_id, worst_s, held.services.observer)

    def within_budget(self, plan: wire.RunPlan) -> wire.RunPlan:
        """``plan`` with the host program told when the money for it ends, if it is to stop at its budget."""
        until = self.stop_by()
        if until is None or plan.idle_stop_s is None or self._held.acquired().get("turned_on"):
            return replace(plan, stop_by=until)
        # Fence 1 of a machine that was on already is not this run's: idling counts against the budget there.
        return replace(plan, stop_by=until, idle_stop_s=min(plan.idle_stop_s, self.reserve_s() / 2))

    def stop_by(self) -> float | None:
        """When the run has to be over for its budget to hold, epoch seconds of the machine's clock; None: no matter."""
        held = self._held
        usd, acquired, entries = held.saved.stop_at_usd, held.acquired(), held.entries()
        if usd is None:
            return None
        now = held.link.host_now()
        if acquired.get("turned_on") and acquired.get("started") is not None:
            began = float(acquired["started"])
        else:
            line = began_to_cost(entries, machine=True)
            began = now - (held.active.journal.age(line) if line is not None else 0.0)
        rate = rate_of(entries, held.saved) + held.saved.rest_rate
        return stop_by(usd - held.saved.egress_usd, rate, began, acquired.get("deadline"))

    def reserve_s(self) -> float:
        """What ending the run takes of the time that its budget buys, seconds."""
        return reserve_s(float(self._held.saved.fence_s or 0))

    def _bounded(self) -> wire.RunPlan:
        """The plan, no longer than its budget lasts. Raises BudgetError if starting the machine used all of it."""
        held, until = self._held, self.stop_by()
        plan = held.saved.plan
        if until is None:
            return plan
        left = (until - held.link.host_now()) / 60
        if left <= 0:
            raise BudgetError(
                f"waking {held.target.instance} took all that ${held.saved.stop_at_usd:.2f} buys",
                hint="raise the cap, or try again: another boot may be faster",
            )
        return replace(plan, max_minutes=left if plan.max_minutes is None else min(left, plan.max_minutes))
