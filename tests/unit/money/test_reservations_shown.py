"""What is reserved, as a user reads it: what it costs, what ends it; and what a stop of its machine releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.leases.session_rules import SavedSession
from orchestrator.money.ledger import NEAR_S
from orchestrator.money.reservations import Reserved
from orchestrator.runs.cost import owners
from orchestrator.runs.cost.outlook import MoneyNow, machines_on
from orchestrator.runs.cost.owners import described, release_kept, reservation
from orchestrator.runs.cost.spending import set_aside_wake
from tests.support.money_world import DEADLINE, L4, ON_L4, STARTED, World, seen
from tests.support.stores import make_id


@pytest.mark.parametrize(
    ("owner", "started", "age_s", "looked_s", "stopped", "stays"),
    [
        ("kept", STARTED, 100.0, None, True, False),
        ("kept", STARTED, 100.0, 100.0, True, True),  # reserved when it was looked at, or since then
        ("kept", STARTED, 100.0, 99.0, True, False),
        ("up", STARTED, 100.0, 100.0, False, True),
        ("up", STARTED, 100.0, 99.0, False, False),
        ("up", None, 100.0, 100.0, True, True),
        ("up", None, 100.0, 99.0, True, False),
        ("up", None, 100.0, 99.0, False, True),  # it may be about to start
        ("up", None, NEAR_S, 99.0, False, True),
        ("up", None, NEAR_S + 1, 99.0, False, False),
        ("kept", None, 100.0, 99.0, False, False),
        ("session", None, 100.0, None, True, True),  # its own record releases it
    ],
)
def test_what_may_be_for_a_later_start_stays_reserved(
    world: World, owner: str, started: float | None, age_s: float, looked_s: float | None, stopped: bool, stays: bool
) -> None:
    """It was reserved ``age_s`` ago; the machine was looked at ``looked_s`` ago or, None, never."""
    one = reservation(world.services, owner, "x", L4, 1.0)  # type: ignore[arg-type]
    with world.book.changing() as change:
        change.reserve(one.model_copy(update={"at": world.now - age_s, "started": started}))
    looked = {} if looked_s is None else {"looked": world.now - looked_s}
    release_kept(world.services, machine=("my-project", "vm"), stopped=stopped, **looked)
    assert (list(world.in_the_book()) == ["x"]) == stays


# ------------------------------------------------------------------------------------------------ what a user reads
@pytest.mark.parametrize(
    ("records", "so_far", "rate", "ends", "command", "until"),
    [
        ([], None, 0.0, "its machine was never seen on", "fcctl hosts audit", None),
        (["vm-2"], None, 0.0, "its machine was never seen on", "fcctl hosts audit", None),
        ([{}], 0.36, 0.72, "on without a time limit", "fcctl hosts down l4", None),
        ([{"usd_per_hour": None}], None, 0.0, "on without a time limit", "fcctl hosts down l4", None),
        ([{"fence": DEADLINE}], 0.36, 0.72, "on until ", "fcctl hosts down l4", DEADLINE),
        ([{"started": STARTED + 900}], 0.18, 0.72, "on without a time limit", "fcctl hosts down l4", None),
    ],
)
def test_a_machine_that_a_person_turned_on_is_shown_with_what_it_costs_and_what_ends_it(
    world: World, records: list[Any], so_far: float | None, rate: float, ends: str, command: str, until: float | None
) -> None:
    power = [seen(**({"name": one} if isinstance(one, str) else one)) for one in records]
    up = reservation(world.services, "up", "up-1", L4, 1.0)
    world.now = STARTED + 1800
    found = described(world.services, Reserved(up, 1.0), power)
    assert found.so_far_usd == (None if so_far is None else pytest.approx(so_far))
    assert (found.usd_per_hour, found.command, found.until) == (rate, command, until)
    assert found.ends.startswith(ends)


@pytest.mark.parametrize(
    ("changes", "after_s", "on"),
    [
        ({}, 600, True),
        ({"stopped": STARTED + 60}, 600, False),
        ({"emulated": True}, 600, False),
        ({"project": "elsewhere", "name": "vm-2"}, 600, True),  # written by this workspace
        ({"fence": DEADLINE}, 7200 + 90, True),
        ({"fence": DEADLINE}, 7200 + 91, False),
        ({"usd_per_hour": None}, 600, True),
    ],
)
def test_which_machines_are_on(world: World, changes: dict[str, Any], after_s: float, on: bool) -> None:
    world.book.add_usage(seen(**changes))
    world.now = STARTED + after_s
    found = machines_on(world.services)
    assert [(one.name, one.started, one.stop) for one in found] == [
        (changes.get("name", "vm"), STARTED, "fcctl hosts down l4")
    ] * on
    assert MoneyNow().as_json(0.0) == {"machines": [], "today": {"usd": 0.0, "cap_usd": None}}
    now = MoneyNow(1.0, None, tuple(found))
    assert now.usd_per_hour == (0.72 if on and "usd_per_hour" not in changes else 0.0)
    assert now.as_json(world.now)["today"] == {"usd": 1.0, "cap_usd": None}


def test_others_machines_are_none_of_these_and_a_run_is_cancelled_where_it_has_one(
    world: World, tmp_path: Path
) -> None:
    theirs = World(tmp_path / "theirs", world.folder / "state", "theirs")
    theirs.book.add_usage(seen(name="vm-2", project="elsewhere", instance_id="9"))
    run = world.begun(0.72, L4)
    run.log("acquire")
    run.log("acquired", **ON_L4)
    world.book.add_usage(seen())
    assert [(one.name, one.stop) for one in machines_on(world.services)] == [("vm", f"fcctl cancel {run.run_id}")]


def test_a_session_is_shown_with_what_it_costs_while_its_machine_is_on(world: World) -> None:
    name = make_id("session")
    saved = SavedSession(
        session_id=name, created=STARTED, workspace="w", target=L4, budget_usd=5.0, idle_minutes=15,
        usd_per_hour=0.72, worst_usd_per_hour=0.72,
    )  # fmt: skip
    held = world.sessions.begin(name, saved.to_json())
    one = Reserved(reservation(world.services, "session", name, L4, 5.0), 5.0)
    world.now = STARTED + 1800

    def shown() -> tuple[float | None, float, float | None]:
        found = described(world.services, one, [])
        assert (found.ends, found.command) == (f"session {name}", "fcctl session stop")
        return found.so_far_usd, found.usd_per_hour, found.until

    assert shown() == (0.0, 0.0, None)
    held.journal.append("acquire")
    machine = {"project": "my-project", "zone": "us-west1-c", "name": "vm"}
    held.journal.append("acquired", **{**machine, **ON_L4})
    assert shown()[1:] == (0.0, DEADLINE), "its own timer is not set yet"
    held.journal.append("opened")
    assert shown() == (pytest.approx(0.36), 0.72, DEADLINE)


def test_what_is_over_costs_nothing_more_and_what_is_gone_is_said(world: World) -> None:
    run = world.begun(1.0)
    run.active.complete(world.record(run, 0.25))  # its controller is killed before that is booked
    found = described(world.services, Reserved(world.in_the_book()[run.run_id], 1.0), [])
    assert (found.so_far_usd, found.usd_per_hour, found.command, found.until) == (1.0, 0.0, "fcctl ps", None)
    up = reservation(world.services, "up", "up-1", L4, 1.0)
    world.now = STARTED - 60
    assert described(world.services, Reserved(up, 1.0), [seen()]).so_far_usd == 0.0, "a clock that is behind"
    for kind in ("run", "session"):
        gone = reservation(world.services, kind, make_id(), L4, 1.0)  # type: ignore[arg-type]
        found = described(world.services, Reserved(gone, 1.0), [])
        assert (found.text, found.so_far_usd) == ("its record no longer exists: fcctl hosts audit", None)
    held = world.session(1.0)
    found = described(world.services, Reserved(world.in_the_book()[held.session_id], 1.0), [])
    assert found.text == "its record cannot be read (fcctl hosts audit)"


def test_a_run_and_what_was_reserved_to_wake_its_machine_are_shown_with_what_each_has_cost(
    world: World, tmp_path: Path
) -> None:
    world.now = STARTED
    run = world.begun(0.72, L4)
    run.log("acquire")
    run.log("cloud", action="start")
    run.log("acquired", **ON_L4)
    world.now += 1000
    found = described(world.services, Reserved(world.in_the_book()[run.run_id], 1.0), [])
    assert (found.so_far_usd, found.usd_per_hour) == (pytest.approx(0.2), 0.72)
    assert (found.ends, found.command, found.until) == (f"run {run.run_id}", f"fcctl attach {run.run_id}", DEADLINE)
    run.log("submit")
    run.log("submitted")
    run.log("stopped", at=world.now)
    world.now += 1000
    found = described(world.services, Reserved(world.in_the_book()[run.run_id], 1.0), [])
    assert (found.so_far_usd, found.usd_per_hour) == (pytest.approx(0.2), 0.0)
    assert found.text == f"run {run.run_id}: its machine is off (fcctl pull-results --wake {run.run_id})"
    name = set_aside_wake(world.services, run.saved, 0.5)
    wake = world.in_the_book()[name]
    run.log("acquire")
    run.log("acquired", **{**ON_L4, "started": world.now})
    world.now += 500
    found = described(world.services, Reserved(wake, 0.5), [])
    assert (found.so_far_usd, found.usd_per_hour) == (pytest.approx(0.1), 0.72)
    assert found.ends == f"fetching the results of {run.run_id}"
    abroad = described(
        World(tmp_path / "theirs", tmp_path / "ws" / "state", "theirs").services, Reserved(wake, 0.5), []
    )
    assert abroad.command == f"fcctl -C {world.folder} attach {run.run_id}"


def test_a_run_that_is_completed_while_it_is_looked_at_has_not_lost_its_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.begun(1.0)
    (one,) = world.in_the_book().values()
    plan_of = world.store.plan_of

    def completed_before(run_id: str) -> dict[str, Any] | None:
        if not world.store.is_complete(run_id):
            run.active.complete(world.record(run, 0.1))
        return plan_of(run_id)

    monkeypatch.setattr(owners, "store_of", lambda *_: world.store)
    monkeypatch.setattr(world.store, "plan_of", completed_before)
    found = described(world.services, Reserved(one, 1.0), [])
    assert found.ends.startswith(f"run {run.run_id} has ended")
