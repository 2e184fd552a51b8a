"""``plan.json`` of the controller: all that is needed to finish a run, whoever finishes it and whatever the
configuration says by then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, ValidationError

from fcctl_remote import wire
from orchestrator.base.errors import ConflictError
from orchestrator.base.models import KEPT
from orchestrator.base.text import json_text
from orchestrator.machines.targets import Target
from orchestrator.money.caps import (
    TRANSFER_MARGIN_S,
    as_gcp,
    fence_s,
    fenced_worst_case_usd,
    worst_case_minutes,
    worst_case_usd,
)
from orchestrator.money.deadline import Cap, fence_within, reserve_s, seconds_within
from orchestrator.money.prices.rates import HourlyPlan
from orchestrator.results.records import SourceRecord
from orchestrator.runs.job.saved_fleet import Fleet

if TYPE_CHECKING:
    from orchestrator.results.store_api import Store

#: Past the steps' worst case, what a run in a session needs for sending and fetching, seconds.
SESSION_MARGIN_S = 5 * 60.0


class SavedPlan(HourlyPlan):
    """What :meth:`orchestrator.results.store_api.Store.begin` keeps of a run before anything happens."""

    model_config = ConfigDict(**KEPT, arbitrary_types_allowed=True)

    schema_version: int = 1
    plan: wire.RunPlan
    target: Target
    source: SourceRecord
    #: Steps that run on this computer first, with their whole environment.
    before_wake: list[wire.StepSpec] = Field(default_factory=list)
    settings: dict[str, str] = Field(default_factory=dict)
    #: What fetching as much as earlier runs of the job left costs, dollars.
    egress_usd: float = 0.0
    #: The caps that are checked while it is followed.
    caps: list[Cap] = Field(default_factory=list)
    #: Whether a report is added to the collected artifacts.
    report: bool = False
    #: The session on whose machine it runs, and which releases that machine.
    session: str | None = None
    #: Whether that session is another workspace's of this user.
    session_abroad: bool = False
    #: It may start although its worst case costs more: it is ended before it has cost so many dollars.
    stop_at_usd: float | None = None
    #: The other machines of a search that has several; and, in their plans, the run that is the search.
    fleet: Fleet | None = None
    fleet_of: str | None = None

    @property
    def again(self) -> str:
        """The command that resumes it after its machine was stopped."""
        if self.fleet_of is not None:  # it is of no use by itself
            return f"fcctl tune --resume {self.fleet_of}"
        return f"fcctl run --resume {self.plan.run_id}"

    @property
    def worst_case_minutes(self) -> float:
        """Wall clock of the run's steps if each ran into its timeout in every attempt; with a budget to stop at, no
        longer than that lasts."""
        steps = worst_case_minutes(self.plan.steps, self.plan.max_minutes)
        if self.stop_at_usd is None:
            return steps
        fence = self.fence_s
        bought = float(fence) if fence is not None else seconds_within(self.stop_at_usd, self.worst_rate)
        return min(steps, (bought - reserve_s(bought)) / 60)

    @property
    def fence_s(self) -> int | None:
        """Fence 1 of a machine that fcctl starts for this run, in seconds; None if it starts none for it."""
        machine = as_gcp(self.target) if self.plan.steps else None
        if machine is None:
            return None
        minutes = worst_case_minutes(self.plan.steps, self.plan.max_minutes)
        if self.stop_at_usd is None:
            return fence_s(minutes, machine)
        whole = fence_s(min(minutes, machine.max_run_minutes), machine)
        return int(min(float(whole), fence_within(self.stop_at_usd - self.egress_usd, self.worst_rate)))

    @property
    def worst_case_usd(self) -> float:
        """The most the run can cost; where fcctl starts the machine, whatever becomes of the run and of fcctl.

        In a session the machine is on already, and its fence is the session's.
        """
        rate, fence = self.worst_rate, self.fence_s
        if self.session is not None and self.stop_at_usd is None:
            return worst_case_usd(self.worst_case_minutes + SESSION_MARGIN_S / 60, rate) + self.egress_usd
        if fence is None:
            return worst_case_usd(self.worst_case_minutes, rate)
        return fenced_worst_case_usd(fence, rate) + self.egress_usd

    @property
    def wake_s(self) -> int:
        """The maximum run duration of a start that only fetches what is on the machine's disk, seconds: boot and
        transfers. Raises ConflictError if fcctl does not start this machine."""
        machine = as_gcp(self.target)
        if machine is None:
            raise ConflictError(
                f"{self.target.name} is not a machine that fcctl turns on", hint="turn it on, then: fcctl pull-results"
            )
        return int(min(machine.max_run_minutes * 60, machine.wake_timeout_s + TRANSFER_MARGIN_S))

    @property
    def wake_usd(self) -> float:
        """The most such a start can cost, dollars."""
        return fenced_worst_case_usd(self.wake_s, self.worst_rate) + self.egress_usd

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`model_validate` reads them back."""
        return self.model_dump(mode="json")


def read_saved(store: Store, run_id: str) -> SavedPlan | None:
    """The saved plan of an active or complete run; None if it cannot be read."""
    try:
        return SavedPlan.model_validate(store.plan_of(run_id) or plan_at_home(store, run_id))
    except ValidationError:
        return None


def plan_at_home(store: Store, run_id: str) -> dict[str, Any]:
    """The saved plan of a complete run; empty if it cannot be read."""
    try:
        found = json_text.loads((store.folder(run_id) / "plan.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
