"""A session never costs more than its budget: the arithmetic, as properties."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import SystemClock
from orchestrator.base.errors import BudgetError
from orchestrator.base.journal import JournalEntry
from orchestrator.leases import session_rules as sessions
from orchestrator.leases.session_files import SessionFiles
from orchestrator.leases.session_rules import SavedSession, SessionRecord
from orchestrator.machines.targets import GcpTarget
from orchestrator.money.ledger import Line
from orchestrator.results.records import MachineRecord
from orchestrator.runs.cost.owners import settle_run
from orchestrator.runs.machine.pending_releases import session_on, within
from tests.support.money_world import L4, ON_L4, STARTED, World

TARGET = GcpTarget(name="l4", project="test-project", instance="vm", zones=["us-west1-c"], max_run_minutes=24 * 60)
ID = "20261121t081530z-session-l4-3fa9c1"


def planned(usd: float, rate: float, hours: float | None = None) -> SavedSession:
    return SavedSession(
        session_id=ID, created=0.0, workspace="w", target=TARGET, budget_usd=usd, max_hours=hours, idle_minutes=15,
        usd_per_hour=rate, worst_usd_per_hour=rate,
    )  # fmt: skip


@given(st.floats(0.05, 200), st.floats(0.01, 30), st.one_of(st.none(), st.floats(0.05, 24)))
def test_the_worst_case_is_within_the_budget(usd: float, rate: float, hours: float | None) -> None:
    saved = planned(usd, rate, hours)
    if saved.fence_s > 0:
        assert saved.worst_case_usd <= usd
    if hours is not None:
        assert saved.fence_s <= hours * 3600
    assert saved.fence_s <= TARGET.max_run_minutes * 60


@given(st.floats(0.1, 50), st.floats(0.01, 30), st.floats(0, 1e5))
def test_a_run_is_never_offered_more_than_is_left(usd: float, rate: float, later: float) -> None:
    saved = planned(usd, rate)
    machine = sessions.Machine("us-west1-c", "vm", "1", "p", 1000.0, 1000.0 + saved.fence_s, spot=False)
    stands = sessions.money(saved, machine, 1000.0 + later)
    left = sessions.left_for_a_run(saved, machine, 1000.0 + later)
    assert 0 <= left <= stands.left <= usd
    if left > 0:
        assert stands.spent + left <= usd + 1e-9


def test_the_results_of_its_runs_are_paid_from_its_budget(tmp_path: Path) -> None:
    world = World(tmp_path)
    saved = planned(1.0, 0.72).model_copy(update={"created": STARTED, "target": L4})
    held = world.sessions.begin(ID, saved.to_json())
    held.journal.append("acquired", project="my-project", name="vm", **ON_L4)
    held.journal.append("opened", until=STARTED + 7200)
    on = MachineRecord(
        project="my-project", zone="us-west1-c", name="vm", instance_id="7", began="2026-11-21T08:15:30Z"
    )

    def left_after(*egress_usd: float) -> float:
        for usd in egress_usd:
            run = world.begun(0.72, L4, session=ID)
            record = world.record(run, 0.1, machine=on)
            record = record.model_copy(update={"cost": record.cost.model_copy(update={"egress_usd": usd})})
            settle_run(world.services, record, run.saved, [])
            run.active.complete(record)
        found = session_on(world.services, L4)
        assert found is not None
        return within(world.services, world.begun(0.72, L4, session=ID).saved, found)[1].usd

    before = left_after()
    assert left_after(0.6) == pytest.approx(before - 0.6)
    with pytest.raises(BudgetError, match="is spent") as refused:
        left_after(0.6)
    assert refused.value.cause == "fetching the results of its runs cost $1.20 of it"


def test_nobody_sees_a_session_before_it_is_locked(tmp_path: Path) -> None:
    other, followed = SessionFiles(tmp_path, SystemClock()), set()

    class Looking(SystemClock):
        def now(self) -> float:
            followed.update(other.is_followed(name) for name in other.open())
            return super().now()

    SessionFiles(tmp_path, Looking()).begin(ID, {})
    assert followed == {True}
    assert (other.open(), other.claim(ID)) == ([ID], None)


def entry(kind: str, **data: object) -> JournalEntry:
    return JournalEntry(seq=1, time=5.0, kind=kind, data=data)


def test_its_stages() -> None:
    lines = [entry("begun"), entry("acquire"), entry("cloud", action="start", zone="z"), entry("opened"),
             entry("release")]  # fmt: skip
    assert [sessions.stage(lines[:n]) for n in (0, 3, 4, 5)] == ["starting", "starting", "open", "leaving"]
    assert sessions.machine_of(lines) is None


def test_only_idle_seconds_of_its_own_machine_and_time_are_its_own() -> None:
    session = SessionRecord(session_id=ID, target="l4", how="stopped", reason="", created=0, ended=400,
                            instance_id="7", started=100, stopped=390)  # fmt: skip
    mine = Line(150, 60, 0.1, "idle", "l4", machine="vm (7)", on_since=100)
    others = [
        Line(150, 60, 0.1, "idle", "l4", machine="vm (8)", on_since=100),
        Line(1000, 60, 0.1, "idle", "l4", machine="vm (7)", on_since=1000),
        Line(150, 60, 0.1, "bench", "l4", run_id="r", machine="vm (7)", on_since=100),
        Line(96, 54, 0.1, "idle", "l4", machine="vm (7)", on_since=90),  # the minute of the start before
    ]
    found = sessions.attributed([mine, *others], [session])
    assert (found[0].run_id, found[0].job, found[0].usd) == (ID, "session", 0.1)
    assert found[1:] == others
