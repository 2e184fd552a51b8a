"""A workspace's money: a store, sessions and a book that are real, and a clock that is moved by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fcctl_remote import wire
from orchestrator.base.clock import iso
from orchestrator.leases.session_files import LockedSession, SessionFiles
from orchestrator.leases.session_rules import SessionRecord
from orchestrator.machines.targets import GcpTarget, SshTarget, Target
from orchestrator.money.ledger import UsageRecord
from orchestrator.money.reservations import Reservation
from orchestrator.results.records import CostLine, CostRecord, RunRecord, SourceRecord
from orchestrator.results.store.active import FileActiveRun
from orchestrator.results.store.store import FileStore
from orchestrator.runs.cost import spending
from orchestrator.runs.cost.owners import reservation, settle_run
from orchestrator.runs.cost.spending import set_aside
from orchestrator.runs.job.saved_plan import SavedPlan
from tests.support.budgets import listed
from tests.support.spending import book_in
from tests.support.stores import NOVEMBER, completed, make_id, make_record

BOX = SshTarget(name="box", host="h")
L4 = GcpTarget(name="l4", project="my-project", instance="vm", zones=["us-west1-c"], usd_per_hour=0.72)
STARTED, DEADLINE = NOVEMBER, NOVEMBER + 7200.0
#: What the journal has of a run that turned on the machine of L4.
ON_L4 = {"zone": "us-west1-c", "instance_id": "7", "started": STARTED, "deadline": DEADLINE, "turned_on": True}


def seen(**changes: Any) -> UsageRecord:
    """What the cloud showed of that machine ten seconds later."""
    return UsageRecord.model_validate({
        "project": "my-project", "zone": "us-west1-c", "name": "vm", "instance_id": "7", "target": "l4",
        "usd_per_hour": 0.72, "started": STARTED, "seen": STARTED + 10, **changes,
    })  # fmt: skip


def costing(usd: float) -> CostRecord:
    return CostRecord(usd=usd, billed_s=1.0, breakdown=[CostLine(activity="bench", seconds=1.0, usd=usd)])


class Begun:
    """A run that is not complete, as its controller has it."""

    def __init__(self, active: FileActiveRun, saved: SavedPlan) -> None:
        self.active, self.saved, self.run_id = active, saved, saved.plan.run_id

    def log(self, kind: str, **data: Any) -> None:
        self.active.journal.append(kind, **data)

    def killed(self) -> None:
        self.active.release()


class World:
    """One day in November, in a workspace of the project ``ws`` whose targets are ``box`` and ``l4``.

    Args:
        state: the folder of the user's book, if other workspaces share it.
    """

    def __init__(self, folder: Path, state: Path | None = None, project: str = "ws", *targets: Target) -> None:
        self.folder, self.results, self.state, self.project = folder, folder / "results", state, project
        self.now = NOVEMBER + 60
        self.clock: Any = SimpleNamespace(now=self._time, monotonic=self._time, elapsed=self._time)
        self.targets = targets or (BOX, L4)
        self.open()

    def _time(self) -> float:
        return self.now

    def open(self, firing: str | None = None) -> None:
        """What a new process opens."""
        self.store = FileStore(self.results, self.clock, note=lambda _: None)
        machines = [target.cloud for target in self.targets]
        self.book = book_in(
            self.state or self.folder / "state", project=self.project, results=self.results, clock=self.clock,
            machines=[(machine.project, machine.instance) for machine in machines if machine], firing=firing,
        )  # fmt: skip
        self.sessions = SessionFiles(self.results, self.clock)
        self.services: Any = SimpleNamespace(
            store=self.store, spending=self.book, sessions=self.sessions, clock=self.clock, budget=listed()
        )

    def moved(self, folder: Path) -> None:
        """The checkout gets another place."""
        self.folder.rename(folder)
        self.state = self.state or folder / "state"
        self.folder, self.results = folder, folder / "results"
        self.open()

    # ------------------------------------------------------------------------------------------------------- spending
    def spent(self, usd: float) -> str:
        """A complete run that the book does not know."""
        return completed(self.store, started=iso(NOVEMBER), cost=costing(usd))

    def begun(self, usd: float = 1.0, target: Target = BOX, **changes: Any) -> Begun:
        """An active run that may cost so much, of an hour at that price; what its start reserves is reserved."""
        run_id = make_id(target=target.name)
        plan = wire.RunPlan(run_id, "j", target.name, "w", "0" * 64, [wire.StepSpec("work", "x", timeout_s=3600)])
        source = SourceRecord(tree_sha256="0" * 64)
        saved = SavedPlan(plan=plan, target=target, source=source, usd_per_hour=usd, **changes)
        active = self.store.begin(run_id, saved.to_json())
        set_aside(self.services, active, saved)
        return Begun(active, saved)

    def record(self, run: Begun, usd: float, **changes: Any) -> RunRecord:
        return make_record(
            run.run_id, target=run.saved.target.name, started=iso(NOVEMBER), cost=costing(usd), **changes
        )

    def ended(self, run: Begun, usd: float, **changes: Any) -> RunRecord:
        """As a controller ends a run: what it cost is booked before it is complete."""
        record = self.record(run, usd, **changes)
        settle_run(self.services, record, run.saved, run.active.journal.entries())
        run.active.complete(record)
        return record

    def session(self, usd: float = 1.0, target: Target = L4) -> LockedSession:
        name = make_id("session", target.name)
        spending.reserve(self.services, reservation(self.services, "session", name, target, usd))
        return self.sessions.begin(name, {"target": target.name})

    # ---------------------------------------------------------------------------------------------------- what is left
    def left(self, **caps: float) -> list[tuple[str, float]]:
        return spending.remaining_budget(self.services, listed(**caps))

    def reserved(self) -> dict[str, float]:
        """What counts against the caps now, by what it was reserved for."""
        return {one.reservation_id: one.usd for one in spending.reservations(self.services)}

    def counted(self) -> dict[str, float]:
        """The same, less what the ledger has of it."""
        return {one.reservation.reservation_id: one.usd for one in spending.account_of(self.services).reserved}

    def in_the_book(self) -> dict[str, Reservation]:
        return self.book.state().open()


def session_record(session_id: str) -> SessionRecord:
    return SessionRecord(session_id=session_id, target="l4", how="stopped", reason="asked", created=1.0, ended=2.0)
