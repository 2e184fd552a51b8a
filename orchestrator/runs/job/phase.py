"""``[phases.NAME]`` of fcctl.toml: the plan of a project, phase by phase."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from orchestrator.base.models import WRITTEN
from orchestrator.machines.targets import Name


class Phase(BaseModel):
    """A phase of the project: a job whose gates are its targets, and what it is planned to take."""

    model_config = WRITTEN

    #: The job; the phase's own name if absent.
    job: Name | None = None
    title: Annotated[str, Field(max_length=80)] = ""
    #: Planned time of the machine.
    hours: Annotated[float, Field(ge=0, le=10_000)] | None = None
    #: Planned cost; ``hours`` at the target's price if absent.
    usd: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
