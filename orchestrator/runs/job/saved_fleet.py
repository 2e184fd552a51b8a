"""What the plan of a search over several machines keeps of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from orchestrator.base.models import KEPT
from orchestrator.machines.targets import Target


class Fleet(BaseModel):
    """The other machines of a search, and what starts them again."""

    model_config = KEPT

    members: list[Target]
    #: What the commands of trials find set; a target's own variables come on top.
    env: dict[str, str] = {}
    settings: dict[str, str] = {}
    #: What each machine's run may cost, dollars.
    budget_usd: float | None = None
    stop_at_budget: bool = False
    #: What this search was until its machine was lost, the newest last: members may have been started for one of these.
    before: list[str] = []


def searches_of(plan: Mapping[str, Any]) -> set[str]:
    """The ids of the run of a saved ``plan`` of a search, and of the runs that it continues."""
    run, fleet = plan.get("plan") or {}, plan.get("fleet") or {}
    return {one for one in (run.get("run_id"), run.get("resume_from"), *fleet.get("before", ())) if one}
