"""What the plan of a search over several machines keeps of the others."""

from __future__ import annotations

from pydantic import BaseModel

from orchestrator.domain.model_config import KEPT
from orchestrator.domain.target import Target


class Fleet(BaseModel):
    """The other machines, and what it takes to have them again."""

    model_config = KEPT

    members: list[Target]
    #: What the commands of trials find set; a target's own variables come on top.
    env: dict[str, str] = {}
    settings: dict[str, str] = {}
    #: What each machine's run may cost, dollars, if that was said.
    budget_usd: float | None = None
    stop_at_budget: bool = False
    #: What this search was until its machine was lost, the newest last: members may have been started for one of these.
    before: list[str] = []
