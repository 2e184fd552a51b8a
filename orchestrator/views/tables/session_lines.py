"""How an open session stands, as a line and as JSON."""

from __future__ import annotations

from typing import Any

from orchestrator.base.sanitize import clean_text
from orchestrator.leases.session_rules import money
from orchestrator.sessions.session import SessionStatus
from orchestrator.views.figures import duration


def session_line(one: SessionStatus, now: float) -> str:
    """``l4  $0.71/h  spent $0.32  left $2.68  cap in 3 h 40 min  idle stop in 12 min``; ``now`` is epoch seconds."""
    saved, budget = one.found.saved, money(one.found.saved, one.found.machine, now)
    parts = [
        f"{saved.target.name}  ${budget.usd_per_hour:.2f}/h",
        f"spent ${budget.spent:.2f}",
        f"left ${budget.left:.2f} of ${saved.budget_usd:.2f}",
        f"stopped by the cloud in {duration(budget.seconds_left)}",
    ]
    if one.found.stage != "open":
        parts.append({"starting": "waking", "leaving": "stopping"}[one.found.stage])
    elif one.runs_on_it:
        parts.append(f"at work on {clean_text(one.runs_on_it[0])}")
    elif one.idle_stop is not None:
        parts.append(f"idle stop in {duration(max(0.0, one.idle_stop - now))}")
    return "  ".join(parts)


def session_json(one: SessionStatus, now: float) -> dict[str, Any]:
    saved, machine, budget = one.found.saved, one.found.machine, money(one.found.saved, one.found.machine, now)
    return {
        "session_id": saved.session_id,
        "target": saved.target.name,
        "stage": one.found.stage,
        "instance": machine.name if machine else None,
        "zone": machine.zone if machine else None,
        "started": machine.started if machine else None,
        "deadline": machine.deadline if machine else None,
        "usd_per_hour": budget.usd_per_hour,
        "spent_usd": round(budget.spent, 6),
        "left_usd": round(budget.left, 6),
        "budget_usd": saved.budget_usd,
        "seconds_to_cap": round(budget.seconds_left, 3),
        "idle_stop": one.idle_stop,
        "runs_on_it": list(one.runs_on_it),
    }
