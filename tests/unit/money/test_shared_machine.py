"""What stays reserved while others start, use and stop the same machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.money.caps import fenced_worst_case_usd
from orchestrator.money.ledger import UsageRecord
from orchestrator.runs.cost.owners import release_kept, reservation, settle_reservations
from orchestrator.runs.cost.spending import set_aside_wake
from orchestrator.runs.machine.run_lease import RunLease
from tests.support.money_world import L4, ON_L4, STARTED, World, seen, session_record
from tests.support.stores import NOVEMBER


def test_a_machine_that_is_left_to_another_run_is_reserved_for_until_its_deadline(world: World) -> None:
    """That run may be refused or killed before it has the machine, and has reserved what its own time may cost."""
    run = world.begun(0.72, L4)
    run.log("acquire")
    run.log("cloud", action="start")
    run.log("acquired", **ON_L4)
    run.log("released", how="used", by="another")
    world.ended(run, 0.1)
    (kept,) = world.in_the_book().values()
    assert (kept.owner, kept.started) == ("kept", STARTED)
    assert kept.usd == pytest.approx(fenced_worst_case_usd(7200, 0.72))
    world.book.add_usage(seen(stopped=STARTED + 600))
    assert world.reserved() == {}


@pytest.mark.parametrize(
    ("had", "released"),
    [({"turned_on": False}, {"by": "its earlier owner"}), ({}, {"by": "a person", "stopped": STARTED + 60})],
    ids=["that was on before", "that went off and a person started"],
)
def test_a_machine_that_others_have_started_is_their_s(
    world: World, had: dict[str, Any], released: dict[str, Any]
) -> None:
    run = world.begun(0.72, L4)
    run.log("acquire")
    run.log("acquired", **{**ON_L4, **had})
    run.log("released", how="used", **released)
    world.ended(run, 0.1)
    assert world.in_the_book() == {}


@pytest.mark.parametrize("stopped", [False, True])
def test_hosts_down_keeps_what_is_for_a_later_start(world: World, stopped: bool) -> None:
    """Another fcctl has started the machine again, or is about to, since this one looked or stopped it."""
    asked = reservation(world.services, "up", "asked", L4, 1.0)
    with world.book.changing() as change:
        change.reserve(asked)
        change.reserve(asked.model_copy(update={"reservation_id": "on", "started": world.now + 40}))
        change.reserve(asked.model_copy(update={"reservation_id": "was on", "at": world.now - 60, "started": STARTED}))
        change.reserve(asked.model_copy(update={"reservation_id": "earlier", "at": world.now - 60}))
    release_kept(world.services, machine=("my-project", "vm"), looked=world.now - 1, stopped=stopped)
    assert list(world.in_the_book()) == ["asked", "on", *([] if stopped else ["earlier"])]


def on_since(started: float, until: float) -> UsageRecord:
    return seen(started=started, stopped=until, seen=until)


def test_what_a_machine_cost_before_a_run_had_it_is_not_of_what_the_run_may_cost(world: World) -> None:
    """It waits for a machine that is on for others, and starts it once that is off."""
    run = world.begun(0.72, L4)
    worst = run.saved.worst_case_usd
    run.log("acquire")
    world.now += 1000
    world.book.add_usage(on_since(NOVEMBER + 60, NOVEMBER + 960))
    assert sum(world.counted().values()) == pytest.approx(worst)
    run.log("cloud", action="start")
    began = world.now
    world.now += 100
    world.book.add_usage(seen(started=began, seen=world.now))
    assert sum(world.counted().values()) == pytest.approx(worst - 0.72 * 100 / 3600)
    run.log("acquired", **{**ON_L4, "started": began})
    world.now += 100
    assert sum(world.counted().values()) == pytest.approx(worst - 0.72 * 200 / 3600)


def test_what_a_machine_cost_before_its_session_is_not_of_what_the_session_may_cost(world: World) -> None:
    held = world.session(1.0)
    held.journal.append("acquire")
    world.now += 1000
    world.book.add_usage(on_since(NOVEMBER + 60, NOVEMBER + 960))
    began = world.now
    held.journal.append("cloud", action="start")
    held.journal.append("acquired", **{**ON_L4, "started": began})
    world.now += 100
    world.book.add_usage(seen(started=began, seen=world.now))
    assert sum(world.counted().values()) == pytest.approx(1.0 - 0.72 * 100 / 3600)


def test_a_machine_that_was_started_for_results_and_could_not_be_stopped_again_is_reserved_for(world: World) -> None:
    """The run waits as before, and its journal says that the machine is off."""
    run = world.begun(0.72, L4)
    run.log("acquire")
    run.log("acquired", **ON_L4)
    world.now += 60
    run.log("stopped", how="preempted", at=world.now)
    world.now += 60
    woken = set_aside_wake(world.services, run.saved, 0.2)
    run.log("acquire")
    run.log("cloud", action="start")
    world.store.add_pending_release(run.run_id, {"tried": world.now})
    world.now += 1
    run.log("stopped", how="preempted", at=None)
    assert world.counted()[woken] == pytest.approx(0.2)
    world.store.remove_pending_release(run.run_id)
    assert woken not in world.counted()


def test_a_run_that_turns_on_the_machine_of_another_workspace_s_session_has_reserved_it(
    world: World, tmp_path: Path
) -> None:
    """The session's workspace has not noticed that the machine went off, and may notice at any time."""
    there = World(tmp_path / "there", tmp_path / "ws/state")
    held = there.session(1.0)
    run = world.begun(0.72, L4, session=held.session_id, session_abroad=True)
    assert sum(world.counted().values()) == 1.0
    worst = run.saved.model_copy(update={"session": None}).worst_case_usd
    world.services.clouds = SimpleNamespace(resolve=lambda target: target)
    host: Any = SimpleNamespace(doubts=[])
    lease = RunLease(world.services, host, run.active, run.saved, run.log)
    for _ in range(2):
        lease.log("cloud", action="start")
        assert list(world.in_the_book()) == [run.run_id]
    held.end(session_record(held.session_id))
    settle_reservations(there.services)
    assert world.reserved() == there.reserved() == {run.run_id: worst}
    world.ended(run, 0.1)
    assert world.in_the_book() == {}
