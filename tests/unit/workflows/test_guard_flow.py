"""The live guard says each thing once, and tells the host to end the run before the cap is reached."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fcctl_remote import wire
from orchestrator.domain.guard import Cap
from orchestrator.domain.ledger import Spent
from orchestrator.domain.records import JournalEntry, SourceRecord
from orchestrator.domain.saved_plan import SavedPlan
from orchestrator.domain.target import SshTarget
from orchestrator.workflows import ledger
from orchestrator.workflows.guard import Guard

RUN = "20261121t081530z-j-t-3fa9c1"


class World:
    """Time, notes and a host, as far as the guard sees them."""

    def __init__(self, *caps: Cap, stop_at: float | None = None) -> None:
        self.time = 1000.0
        self.notes: list[str] = []
        self.cancelled: list[tuple[str, str]] = []
        self.journal = [JournalEntry(seq=1, time=1000.0, kind="submitted")]
        plan = wire.RunPlan(RUN, "j", "t", "w", "0" * 64, [wire.StepSpec("a", "x")])
        self.saved = SavedPlan(
            plan=plan, target=SshTarget(name="t", host="h"), source=SourceRecord(tree_sha256="0" * 64),
            usd_per_hour=3600.0, caps=list(caps), stop_at_usd=stop_at,
        )  # fmt: skip
        clock = SimpleNamespace(now=lambda: self.time, monotonic=lambda: self.time)
        services: Any = SimpleNamespace(clock=clock, observer=SimpleNamespace(note=self.notes.append))
        link: Any = SimpleNamespace(call=lambda action: action(self))
        self.guard = Guard(services, link, self.saved, lambda: self.journal, self._log)

    def _log(self, kind: str, **data: object) -> None:
        self.journal.append(JournalEntry(seq=2, time=self.time, kind=kind, data=data))

    def cancel(self, run_id: str, reason: str, status: str, grace_s: float) -> None:
        assert self.journal[-1].kind == "over_budget", "on disk before the host is told"
        assert grace_s > 0
        self.cancelled.append((run_id, status))

    def watch(self, seconds: int) -> None:
        for _ in range(seconds):
            self.time += 1
            self.guard.look()


def test_it_warns_once_and_ends_once() -> None:
    world = World(Cap(name="--budget", usd=100), stop_at=100)  # a dollar a second
    world.watch(79)
    assert world.notes == []
    world.watch(8)
    assert world.notes == ["$81.00 of the $100.00 of --budget are spent"]
    assert world.cancelled == []
    world.watch(60)
    assert world.cancelled == [(RUN, "over_budget")]
    assert len(world.notes) == 2
    assert "$91.00" in world.notes[1]


def test_what_others_spend_counts_against_the_day(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"day": 10.0}
    monkeypatch.setattr(ledger, "spent_without", lambda *_: Spent(spent["day"], 0.0, 0.0))
    world = World(Cap(name="per_day_usd of [budget]", usd=1000, over="day"))
    world.watch(100)
    assert (world.notes, world.cancelled) == ([], [])
    spent["day"] = 860.0
    world.watch(70)
    assert world.cancelled == [(RUN, "over_budget")]


def test_a_run_that_fits_is_not_cut_short() -> None:
    world = World(Cap(name="--budget", usd=100))
    world.watch(99)
    assert world.cancelled == []
    assert len(world.notes) == 1
