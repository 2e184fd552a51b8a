"""``plan.json`` of the controller: all that is needed to finish a run, whoever finishes it and whatever the
configuration says by then."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from fcctl_remote import wire
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

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; :meth:`model_validate` reads them back."""
        return self.model_dump(mode="json")
