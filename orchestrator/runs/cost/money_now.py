"""What a workspace spends right now: the machines that are on, and today's dollars against the day's cap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.runs.cost.machines_on import MachineOn, machines_on
from orchestrator.runs.cost.outlook import outlook
from orchestrator.runs.services import Services


@dataclass(frozen=True)
class MoneyNow:
    today_usd: float = 0.0
    #: The day's cap; None: none is set.
    day_cap_usd: float | None = None
    machines: tuple[MachineOn, ...] = ()

    @property
    def usd_per_hour(self) -> float:
        """Of the machines that are on."""
        return sum(one.usd_per_hour or 0.0 for one in self.machines)

    def as_json(self, now: float) -> dict[str, Any]:
        return {
            "machines": [one.as_json(now) for one in self.machines],
            "today": {"usd": round(self.today_usd, 6), "cap_usd": self.day_cap_usd},
        }


def money_now(services: Services) -> MoneyNow:
    """Reads it from this computer only. Today's dollars are those of ``cost budget``."""
    today = outlook(services).until_now.day
    return MoneyNow(today, services.budget.per_day_usd, tuple(machines_on(services)))
