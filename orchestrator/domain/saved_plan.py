"""``plan.json`` of the controller: all that is needed to finish a run, whoever finishes it and whatever the
configuration says by then."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from fcctl_remote import wire
from orchestrator.domain.budget import worst_case_minutes, worst_case_usd
from orchestrator.domain.records import SourceRecord
from orchestrator.domain.target import Target


class SavedPlan(BaseModel):
    """What :meth:`orchestrator.ports.Store.begin` keeps of a run before anything happens."""

    model_config = ConfigDict(extra="ignore", frozen=True, arbitrary_types_allowed=True)

    schema_version: int = 1
    plan: wire.RunPlan
    target: Target
    source: SourceRecord
    settings: dict[str, str] = {}
    usd_per_hour: float = 0.0

    @property
    def worst_case_minutes(self) -> float:
        """Wall clock of the run's steps if each ran into its timeout in every attempt."""
        return worst_case_minutes(self.plan.steps, self.plan.max_minutes)

    @property
    def worst_case_usd(self) -> float:
        return worst_case_usd(self.worst_case_minutes, self.usd_per_hour)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`model_validate` reads them back."""
        return self.model_dump(mode="json")
