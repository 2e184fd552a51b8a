"""What the store has of a run before anything happens: its plan, target, caps, and the other machines of its search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, ValidationError

from fcctl_remote import wire
from orchestrator.base import json_text
from orchestrator.base.errors import ConflictError
from orchestrator.base.models import KEPT
from orchestrator.machines.targets import Target
from orchestrator.money.caps import (
    TRANSFER_MARGIN_S,
    Cap,
    fence_s,
    fence_within,
    fenced_worst_case_usd,
    reserve_s,
    seconds_within,
    worst_case_minutes,
)
from orchestrator.money.prices.rates import HourlyPlan
from orchestrator.results.records import SourceRecord

if TYPE_CHECKING:
    from orchestrator.results.store.store import FileStore

#: Past the steps' worst case, what a run in a session needs for sending and fetching, seconds.
SESSION_MARGIN_S = 5 * 60.0


class SavedPlan(HourlyPlan):
    """What :meth:`orchestrator.results.store.store.FileStore.begin` keeps of a run before anything happens."""

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
    #: The search that it helps, on one of several machines.
    fleet_of: str | None = None
    #: The run of ``before_wake`` on the target's builder, because this computer cannot compile; in that run's plan, the
    #: run that it is for.
    builder: SavedPlan | None = None
    builds_for: str | None = None

    @property
    def again(self) -> str:
        """The command that resumes it after its machine was stopped."""
        return f"fcctl run --resume {self.fleet_of or self.plan.run_id}"  # a helper is of no use by itself

    @property
    def worst_case_minutes(self) -> float:
        """Wall clock of the run's steps if each ran into its timeout in every attempt; with a budget to stop at, no
        longer than that lasts."""
        steps = worst_case_minutes(self.plan.steps, self.plan.max_minutes)
        if self.stop_at_usd is None:
            return steps
        longest = self.fence_s
        bought = float(longest) if longest is not None else seconds_within(self.stop_at_usd, self.worst_rate)
        return min(steps, (bought - reserve_s(bought)) / 60)

    @property
    def fence_s(self) -> int | None:
        """The max run duration of the machine that fcctl starts for this run, seconds; None if it starts none. In a
        session of another workspace the machine may be off unnoticed: it is started for no longer than its rest pays
        for."""
        machine = self.target.cloud if self.plan.steps else None
        if machine is None:
            return None
        minutes, usd = worst_case_minutes(self.plan.steps, self.plan.max_minutes), self.stop_at_usd
        if usd is not None:
            minutes = min(minutes, machine.max_run_minutes)
        elif self.session is not None and self.session_abroad:
            usd = min((cap.usd for cap in self.caps), default=None)
        whole = fence_s(minutes, machine)
        return whole if usd is None else int(min(float(whole), fence_within(usd - self.egress_usd, self.worst_rate)))

    @property
    def worst_case_usd(self) -> float:
        """The most the run can cost; where fcctl starts the machine, whatever becomes of the run and of fcctl.

        In a session the machine is on already, and its max run duration is the session's.
        """
        rate, longest = self.worst_rate, self.fence_s
        if self.session is not None and self.stop_at_usd is None:
            return (self.worst_case_minutes * 60 + SESSION_MARGIN_S) / 3600 * rate + self.egress_usd
        if longest is None:
            return self.worst_case_minutes / 60 * rate
        return fenced_worst_case_usd(longest, rate) + self.egress_usd

    @property
    def builder_usd(self) -> float:
        """The most that the run on its builder can cost."""
        return self.builder.worst_case_usd if self.builder is not None else 0.0

    @property
    def wake_s(self) -> int:
        """The maximum run duration of a start that only fetches what is on the machine's disk, seconds: boot and
        transfers. Raises ConflictError if fcctl does not start this machine."""
        machine = self.target.cloud
        if machine is None:
            raise ConflictError(
                f"fcctl cannot start the machine of {self.target.name}",
                hint="start it yourself, then: fcctl pull-results",
            )
        return int(min(machine.max_run_minutes * 60, machine.wake_timeout_s + TRANSFER_MARGIN_S))

    @property
    def wake_usd(self) -> float:
        """The most such a start can cost, dollars."""
        return fenced_worst_case_usd(self.wake_s, self.worst_rate) + self.egress_usd

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`model_validate` reads them back."""
        return self.model_dump(mode="json")


def read_saved(store: FileStore, run_id: str) -> SavedPlan | None:
    """The saved plan of an active or complete run; None if it cannot be read."""
    try:
        return SavedPlan.model_validate(store.plan_of(run_id) or plan_at_home(store, run_id))
    except ValidationError:
        return None


def plan_at_home(store: FileStore, run_id: str) -> dict[str, Any]:
    """The saved plan of a complete run; empty if it cannot be read."""
    try:
        found = json_text.loads((store.folder(run_id) / "plan.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def helped_by(plan: Mapping[str, Any]) -> str | None:
    """The run that the run of a saved ``plan`` only helps: a search, or one that it compiles for."""
    return plan.get("fleet_of") or plan.get("builds_for")
