"""What a workspace spends right now, as this computer knows it: the machines that are on, and today's dollars."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.base.clock import iso
from orchestrator.base.journal import newest
from orchestrator.leases.find import open_on
from orchestrator.money import ledger as books
from orchestrator.money.ledger import UsageRecord
from orchestrator.runs.cost.outlook import outlook
from orchestrator.runs.cost.owners import command_in, store_in
from orchestrator.runs.cost.spending import is_past_fence
from orchestrator.runs.lifecycle import fold
from orchestrator.runs.services import Services


@dataclass(frozen=True)
class MachineOn:
    """One machine. Times are epoch seconds by the cloud's clock."""

    target: str
    name: str
    #: None: no price is known.
    usd_per_hour: float | None
    started: float
    #: When the cloud showed it last.
    seen: float
    #: When the cloud stops it; None: never, as far as is known.
    until: float | None
    #: The command that stops it.
    stop: str

    def usd(self, now: float) -> float | None:
        """What it has cost since it was started."""
        return None if self.usd_per_hour is None else max(0.0, now - self.started) / 3600 * self.usd_per_hour

    def as_json(self, now: float) -> dict[str, Any]:
        return {
            "target": self.target, "name": self.name, "usd_per_hour": self.usd_per_hour, "usd": self.usd(now),
            "started": iso(self.started), "seen": iso(self.seen), "until": iso(self.until), "stop": self.stop,
        }  # fmt: skip


def machines_on(services: Services) -> list[MachineOn]:
    """The machines that were on when last seen and are not past their deadline, the oldest start first."""
    state, scope, now = services.spending.state(), services.spending.scope, services.clock.now()
    told = [(line, word) for line, word in state.of("power", UsageRecord)
            if not word.emulated and scope.has(line.project, line.results, (word.project, word.name))]  # fmt: skip
    by = {id(word): line for line, word in told}
    last = {word.instance_id: word for word in books.latest(word for _, word in told)}
    return [
        MachineOn(one.target, one.name, one.usd_per_hour, one.started, one.seen, one.fence, stop)
        for one in last.values()
        if one.stopped is None and not is_past_fence(one.fence, now)
        for stop in [_stop(services, one, by[id(one)].results)]
    ]


def _stop(services: Services, word: UsageRecord, results: str) -> str:
    """The session that keeps it, else the run that is on it, else the machine itself is stopped."""
    session = open_on(services.sessions, word.instance_id, word.started)
    if session is not None:
        return session.how_to_stop
    store = store_in(services, results)
    for run_id in store.active():
        entries = store.journal_of(run_id)
        is_on_it = newest(entries, "acquired").get("instance_id") == word.instance_id
        if is_on_it and fold(entries).machine in ("held", "leaving"):
            return command_in(services, results, f"cancel {run_id}")
    return command_in(services, results, f"hosts down {word.target}")


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
