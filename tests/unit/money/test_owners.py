"""What releases a reservation: the record of what it was made for, found by name, and never time alone."""

from __future__ import annotations

import shutil
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.errors import BudgetError, ConflictError
from orchestrator.base.journal import JournalEntry
from orchestrator.machines.targets import GcpTarget, SandboxTarget
from orchestrator.money import firings
from orchestrator.money.billable import ResourceRecord
from orchestrator.money.book import NAME
from orchestrator.money.caps import FENCE_LATENESS_S, fenced_worst_case_usd
from orchestrator.money.ledger import ADDRESS, UsageRecord
from orchestrator.money.reservations import SURELY_OFF_S
from orchestrator.runs.cost.owners import _since_its_start, release_kept, reservation, settle_reservations, settle_run
from orchestrator.runs.cost.spending import lines, set_aside, set_aside_wake
from tests.support.budgets import listed
from tests.support.money_world import DEADLINE, L4, ON_L4, STARTED, Begun, World, seen, session_record
from tests.support.spending import reservation as made
from tests.support.stores import NOVEMBER, make_id


def on_l4(world: World, *how: tuple[str, dict[str, Any]]) -> Begun:
    """A run that had the machine, and what came then."""
    run = world.begun(0.72, L4)
    run.log("acquire")
    run.log("cloud", action="start")
    run.log("acquired", **ON_L4)
    for kind, data in how:
        run.log(kind, **data)
    return run


def booked(world: World) -> dict[str, float]:
    return {name: usage.cost.usd for name, (_, usage) in world.book.state().runs().items()}


@pytest.mark.parametrize(
    ("lines", "since"),
    [
        ([], None),
        ([("begun", 5, {})], 50.0),  # it has no machine yet: nothing is spent
        ([("acquire", -1, {}), ("cloud", 2, {"action": "start"})], 2.0),
        ([("acquire", -1.5, {}), ("cloud", 2, {"action": "start"})], 50.0),  # of the time before it was reserved
        ([("acquire", 0, {}), ("cloud", 2, {"action": "fence"})], 50.0),
        ([("acquire", 0, {}), ("acquired", 4, {"started": 3.0, "turned_on": True})], 3.0),
        ([("acquire", 0, {}), ("acquired", 4, {"started": -900.0, "turned_on": False})], 4.0),
        ([("acquire", 0, {}), ("acquired", 4, {}), ("cloud", 6, {"action": "start"})], 4.0),
        ([("acquire", 0, {}), ("acquire", 3, {}), ("acquired", 4, {})], 50.0),  # another time's machine
    ],
)
def test_since_when_a_machine_costs_of_what_was_reserved(
    lines: list[tuple[str, float, dict[str, Any]]], since: float | None
) -> None:
    """Epoch seconds since the reservation; it is 50 s old."""

    def at(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "started": NOVEMBER + data["started"]} if "started" in data else data

    entries = [JournalEntry(seq=1, time=NOVEMBER + s, kind=kind, data=at(data)) for kind, s, data in lines]
    found = _since_its_start(made("r", at=NOVEMBER), entries, NOVEMBER + 50)
    assert found.started == (None if since is None else NOVEMBER + since)


def test_the_first_start_of_a_machine_is_newer_than_none(world: World) -> None:
    world.begun(1.0)
    assert [one.newer_than for one in world.in_the_book().values()] == [0.0]
    world.book.add_usage(seen(stopped=STARTED + 60))
    run = world.begun(0.72, L4)
    assert world.in_the_book()[run.run_id].newer_than == STARTED


# --------------------------------------------------------------------------------------------------- by its own record
def test_a_run_s_end_books_it_and_releases_what_was_reserved(world: World) -> None:
    run, other = world.begun(1.0), world.begun(2.0)
    record = world.ended(run, 0.25)
    assert booked(world) == {run.run_id: 0.25}
    assert list(world.in_the_book()) == [other.run_id]
    settle_run(world.services, record, run.saved, run.active.journal.entries())
    assert (booked(world), list(world.in_the_book())) == ({run.run_id: 0.25}, [other.run_id])
    assert world.left(project_usd=9) == [("project", 6.75)]


def test_a_run_that_cost_nothing_and_reserved_nothing_is_not_booked(world: World) -> None:
    world.ended(world.begun(0.0), 0.0)
    assert not (world.folder / "state" / NAME).exists()


def test_a_run_that_reserved_nothing_is_booked_with_what_it_cost(world: World) -> None:
    run = world.begun(1.0, session="of somebody")
    world.ended(run, 0.25)
    assert booked(world) == {run.run_id: 0.25}


def test_a_session_s_run_that_kept_its_machine_on_reserves_nothing_beside_the_session(world: World) -> None:
    run = world.begun(0.72, L4, session="s")
    for kind, data in (("acquire", {}), ("acquired", ON_L4), ("released", {"how": "kept"})):
        run.log(kind, **data)
    run.saved = run.saved.model_copy(update={"session": None})
    world.ended(run, 0.1)
    assert (booked(world), world.in_the_book()) == ({run.run_id: 0.1}, {})


def test_a_session_s_end_releases_it(world: World) -> None:
    held = world.session(1.0)
    assert world.reserved() == {held.session_id: 1.0}
    held.end(session_record(held.session_id))
    assert world.reserved() == {}
    settle_reservations(world.services)
    assert world.in_the_book() == {}


def test_the_firing_of_a_run_is_booked_with_it(world: World) -> None:
    world.open(firing="ws/nightly@1.0 /results")
    run = world.begun(1.0)
    world.ended(run, 0.25)
    assert [usage.firing for _, usage in world.book.state().runs().values()] == ["ws/nightly@1.0 /results"]


def test_a_run_whose_firing_is_over_starts_nothing(world: World) -> None:
    """Its firing was killed and counted as one that started nothing; the run went on without it."""
    firings.start(world.book, "nightly", NOVEMBER, 1.0, cap=3.0, zone=UTC)
    firings.end(world.book, "nightly", NOVEMBER, None)
    world.open(firing=firings.firing_id(world.book.scope, "nightly", NOVEMBER))
    with pytest.raises(ConflictError, match="has already ended"):
        world.begun(1.0)
    assert (world.reserved(), world.store.active()) == ({}, [])


# ------------------------------------------------------------------------------------------------------ after a crash
def test_of_a_run_whose_controller_was_killed_all_stays_reserved(world: World) -> None:
    run = world.begun(1.0)
    run.log("submitted")
    run.killed()
    world.now += 10 * 86400
    world.open()
    settle_reservations(world.services)
    assert world.reserved() == {run.run_id: 1.0}


def test_a_run_that_is_complete_is_found_by_name(world: World) -> None:
    """Its controller was killed before the book was written, or the book could not be."""
    run = on_l4(world, ("unreleased", {}))
    run.active.complete(world.record(run, 0.25))
    worst = run.saved.worst_case_usd
    world.open()
    assert world.reserved() == {}, "its record counts"
    assert world.left(project_usd=9) == [("project", 8.75)]
    assert world.in_the_book()[run.run_id].usd == worst
    settle_reservations(world.services)
    assert booked(world) == {run.run_id: 0.25}
    assert list(world.in_the_book()) == [f"kept:7:{round(STARTED)}"], "and its machine may be on"


def test_the_next_start_books_what_a_crash_left(world: World) -> None:
    run = world.begun(1.0)
    run.active.complete(world.record(run, 0.25))
    world.open()
    world.services.budget = listed(per_day_usd=9)
    later = world.begun(2.0)
    assert (booked(world), list(world.in_the_book())) == ({run.run_id: 0.25}, [later.run_id])


def test_of_a_complete_run_whose_record_is_damaged_the_index_has_the_cost(world: World) -> None:
    run = world.begun(1.0)
    run.active.complete(world.record(run, 0.25))
    (world.store.folder(run.run_id) / "run.json").write_text("{")
    world.open()
    settle_reservations(world.services)
    assert list(world.in_the_book()) == [run.run_id], "fcctl cost budget lists it"
    assert booked(world) == {run.run_id: 0.25}
    assert world.reserved() == {run.run_id: 1.0}, "and the caps count the rest of it"


# ---------------------------------------------------------------------------------------------- runs that wait, wakes
def test_of_a_run_that_waits_only_what_it_has_cost_is_reserved(world: World) -> None:
    run = on_l4(world)
    worst = run.saved.worst_case_usd
    assert world.reserved() == {run.run_id: worst}
    world.now += 1000
    run.log("stopped", at=STARTED + 600)
    assert world.reserved() == {run.run_id: pytest.approx(0.12)}
    assert world.in_the_book()[run.run_id].usd == worst


def test_one_that_was_stopped_before_it_reserved_once_more_may_cost_all_again(world: World) -> None:
    run = on_l4(world, ("stopped", {"at": STARTED + 600}))
    world.now += 10
    set_aside(world.services, run.active, run.saved)
    assert world.reserved() == {run.run_id: run.saved.worst_case_usd}


def test_what_was_reserved_to_wake_a_machine_is_free_once_it_is_off_again(world: World) -> None:
    run = on_l4(world, ("stopped", {"at": STARTED + 600}))
    world.now += 10
    name = set_aside_wake(world.services, run.saved, 0.5)
    assert world.reserved()[name] == 0.5
    world.now += 10
    run.log("acquire")
    assert world.reserved()[name] == 0.5
    run.log("acquired", **{**ON_L4, "started": world.now})
    world.now += 100
    run.log("stopped", at=world.now)
    assert list(world.reserved()) == [run.run_id]
    world.ended(run, 0.25)
    assert world.in_the_book() == {}


def test_a_run_takes_the_place_of_what_was_reserved_to_wake_its_machine(world: World) -> None:
    earlier = world.begun(0.0)
    woken = set_aside_wake(world.services, earlier.saved, 0.9)
    later = world.begun(0.0)
    saved = later.saved.model_copy(update={"usd_per_hour": 0.8})
    world.services.budget = listed(per_day_usd=1.0)
    with pytest.raises(BudgetError):
        set_aside(world.services, world.store.begin(make_id(), saved.to_json()), saved)
    set_aside(world.services, later.active, saved, replaces=[woken])
    assert {name: one.usd for name, one in world.in_the_book().items()} == {later.run_id: 0.8}


def test_a_run_that_waits_hides_nothing_of_what_its_machine_did_later(world: World) -> None:
    """It was kept on by another run, and nobody has seen it since."""
    run = on_l4(world)
    world.now += 1000
    run.log("stopped", at=STARTED + 600)
    world.book.add_usage(seen(stopped=STARTED + 600))
    again = STARTED + 2000
    world.book.add_usage(seen(started=again, seen=again + 10, fence=again + 1800 - FENCE_LATENESS_S))
    world.now = again + 36000
    assert world.left(project_usd=9) == [("project", pytest.approx(9 - (600 + 1800) * 0.72 / 3600))]


@pytest.mark.parametrize("owner", ["run", "up"])
def test_what_a_machine_has_cost_until_now_is_not_counted_beside_what_is_reserved_for_it(
    world: World, owner: str
) -> None:
    world.now = STARTED - 10
    with world.book.changing() as change:
        change.reserve(reservation(world.services, owner, make_id(), L4, 1.0))  # type: ignore[arg-type]
    world.book.add_usage(seen(fence=DEADLINE))
    for after_s in (10, 3000):
        world.now = STARTED + after_s
        assert world.left(project_usd=9) == [("project", pytest.approx(8.0))]


# ----------------------------------------------------------------------------------------------- machines left on
LEFT_ON = [("released", {"how": "kept"}), ("unreleased", {})]


@pytest.mark.parametrize("how", LEFT_ON, ids=lambda how: str(how[0]))
def test_a_machine_that_is_left_on_is_reserved_for_until_the_cloud_s_limit(
    world: World, how: tuple[str, dict[str, Any]]
) -> None:
    run = on_l4(world, how)
    world.ended(run, 0.1)
    (kept,) = world.in_the_book().values()
    assert (kept.owner, kept.owner_id, kept.reservation_id) == ("kept", run.run_id, f"kept:7:{round(STARTED)}")
    assert (kept.machine, kept.instance_id, kept.started) == (("my-project", "vm"), "7", STARTED)
    assert kept.usd == pytest.approx(fenced_worst_case_usd(7200, 0.72))


def test_a_machine_that_the_next_run_keeps_on_is_reserved_for_once(world: World) -> None:
    for _ in range(2):
        world.ended(on_l4(world, ("released", {"how": "kept"})), 0.1)
    assert list(world.in_the_book()) == [f"kept:7:{round(STARTED)}"]


@pytest.mark.parametrize(
    ("how", "changes"),
    [
        ([("released", {"how": "stopped"})], {}),
        ([("released", {"how": "deleted"})], {}),
        ([("released", {"how": "kept"})], {"session": "s"}),  # whose it is
    ],
    ids=["stopped", "deleted", "in a session"],
)
def test_one_that_is_off_or_a_session_s_is_not(
    world: World, how: list[tuple[str, dict[str, Any]]], changes: dict[str, Any]
) -> None:
    run = on_l4(world, *how)
    run.saved = run.saved.model_copy(update=changes)
    world.ended(run, 0.1)
    assert world.in_the_book() == {}


def test_one_that_never_answered_and_could_not_be_stopped_may_cost_all_that_the_run_may(world: World) -> None:
    run = world.begun(0.72, L4)
    run.log("acquire")
    run.log("cloud", action="start")
    run.log("unreleased")
    world.ended(run, 0.0)
    (kept,) = world.in_the_book().values()
    assert (kept.owner, kept.usd, kept.started) == ("kept", run.saved.worst_case_usd, None)
    assert kept.reservation_id == f"kept:{run.run_id}"


@pytest.mark.parametrize("by", ["its run", "its machine"])
def test_whoever_turns_it_off_releases_it(world: World, by: str) -> None:
    run = on_l4(world, LEFT_ON[0])
    world.ended(run, 0.1)
    up = reservation(world.services, "up", "up-1", L4, 1.0)
    other = up.model_copy(update={"reservation_id": "other", "owner_id": "other", "instance": "vm-2"})
    active = world.begun(1.0)
    with world.book.changing() as change:
        change.reserve(up)
        change.reserve(other)
    if by == "its run":
        release_kept(world.services, owner_id=run.run_id)
        assert list(world.in_the_book()) == [active.run_id, "up-1", "other"]
    else:
        release_kept(world.services, machine=("my-project", "vm"))
        assert list(world.in_the_book()) == [active.run_id, "other"]


@pytest.mark.parametrize(
    ("said", "after_s", "counts"),
    [
        ([], 9e6, True),  # nobody has seen it since: no clock releases it
        ([seen()], 9e6, True),
        ([seen(stopped=STARTED + 600)], 0, False),
        ([seen(fence=DEADLINE)], 7000, True),
        ([seen(fence=DEADLINE)], 7200 + FENCE_LATENESS_S + SURELY_OFF_S - 1, True),
        ([seen(fence=DEADLINE)], 7200 + FENCE_LATENESS_S + SURELY_OFF_S + 1, False),
        ([seen(), seen(started=STARTED + 900)], 0, False),  # it was started again: that is another start
        ([seen(instance_id="8", stopped=STARTED + 600)], 0, True),  # another machine of its name
        ([seen(started=STARTED - 900, stopped=STARTED - 600)], 0, True),  # an earlier start's end
    ],
)
def test_a_machine_that_was_left_on_counts_until_the_cloud_says_that_it_is_off(
    world: World, said: list[UsageRecord], after_s: float, counts: bool
) -> None:
    world.ended(on_l4(world, LEFT_ON[0]), 0.1)
    for one in said:
        world.book.add_usage(one)
    world.now = STARTED + after_s
    assert (list(world.reserved()) == [f"kept:7:{round(STARTED)}"]) == counts


def test_a_machine_that_was_turned_on_by_hand_is_known_by_when_that_was(world: World) -> None:
    """Until it is up: then its reservation has its start."""
    with world.book.changing() as change:
        change.reserve(reservation(world.services, "up", "up-1", L4, 1.0))
    world.book.add_usage(seen(started=world.now - 5000, stopped=world.now - 4000))
    assert list(world.reserved()) == ["up-1"]
    world.book.add_usage(seen(started=world.now + 20, stopped=world.now + 600))
    assert world.reserved() == {}


# --------------------------------------------------------------------------------------- moved, deleted, and of others
def test_a_checkout_that_was_moved_has_the_runs_of_its_old_place(world: World, tmp_path: Path) -> None:
    complete, active = world.begun(1.0), world.begun(2.0)
    complete.active.complete(world.record(complete, 0.25))
    active.killed()
    world.moved(tmp_path / "moved")
    assert world.reserved() == {active.run_id: 2.0}
    settle_reservations(world.services)
    assert booked(world) == {complete.run_id: 0.25}
    claimed = world.store.claim(active.run_id)
    assert claimed is not None
    world.ended(Begun(claimed, active.saved), 0.5)
    assert world.in_the_book() == {}
    assert world.left(project_usd=9) == [("project", 8.25)]


def test_whoever_deletes_a_folder_frees_nothing(world: World) -> None:
    run, held = world.begun(1.0), world.session(2.0)
    run.killed()
    held.release()
    shutil.rmtree(world.results)
    world.open()
    settle_reservations(world.services)
    assert world.reserved() == {run.run_id: 1.0, held.session_id: 2.0}
    assert world.left(project_usd=9) == [("project", 6.0)]


def test_a_session_whose_file_is_damaged_frees_nothing(world: World) -> None:
    held = world.session(2.0)
    (world.results / "sessions" / held.session_id / "session.json").write_text("{")
    settle_reservations(world.services)
    assert world.reserved() == {held.session_id: 2.0}


@pytest.fixture
def theirs(world: World) -> World:
    """Another project of the user, in a workspace that names the same machine."""
    return World(world.folder.parent / "theirs", world.folder / "state", "theirs", L4)


def test_another_workspace_s_run_on_this_one_s_machine_counts_here(world: World, theirs: World) -> None:
    run, elsewhere = theirs.begun(0.72, L4), theirs.begun(1.0)
    worst = run.saved.worst_case_usd
    assert world.reserved() == {run.run_id: worst}
    assert set(theirs.reserved()) == {run.run_id, elsewhere.run_id}
    run.active.complete(theirs.record(run, 0.1))  # its controller is killed before that is booked
    assert world.reserved() == {run.run_id: 0.1}, "its record is over there, and read there"
    settle_reservations(world.services)
    assert booked(world) == {run.run_id: 0.1}
    assert list(world.in_the_book()) == [elsewhere.run_id]


def test_another_workspace_s_wake_on_this_one_s_machine_is_over_with_its_run(world: World, theirs: World) -> None:
    run = on_l4(theirs)
    theirs.now += 10
    run.log("stopped", at=STARTED + 600)
    name = set_aside_wake(theirs.services, run.saved, 0.5)
    assert world.reserved() == {run.run_id: pytest.approx(0.12), name: 0.5}
    run.active.complete(theirs.record(run, 0.1))
    assert world.reserved() == {run.run_id: 0.1, name: 0.0}


def test_a_session_of_another_workspace_is_over_when_it_is_over_there(world: World, theirs: World) -> None:
    held = theirs.session(1.0)
    assert world.reserved() == {held.session_id: 1.0}
    held.end(session_record(held.session_id))
    assert world.reserved() == {}


def test_another_workspace_that_is_gone_frees_nothing(world: World, theirs: World) -> None:
    run, held = theirs.begun(0.72, L4), theirs.session(1.0)
    shutil.rmtree(theirs.folder)
    settle_reservations(world.services)
    assert set(world.reserved()) == {run.run_id, held.session_id}


def test_what_the_sandbox_reserves_is_nobody_s_money(world: World) -> None:
    run = world.begun(1.0, SandboxTarget(name="sandbox"))
    assert world.in_the_book()[run.run_id].emulated
    assert world.left(project_usd=9) == [("project", 9.0)]


def test_a_target_in_the_cloud_is_known_by_its_machine(world: World) -> None:
    one = reservation(world.services, "up", "up-1", L4, 1.0)
    assert (one.machine, one.project, one.results) == (("my-project", "vm"), "ws", str(world.results))
    box = reservation(world.services, "run", "r", world.targets[0], 1.0, suffix=".wake")
    assert (box.machine, box.reservation_id, box.owner_id) == (("", "box"), "r.wake", "r")
    assert (made("x").machine, made("x").newer_than) == (("", "box"), 0.0)
    other = L4.model_copy(update={"instance": "vm-2"})
    assert isinstance(other, GcpTarget)
    assert reservation(world.services, "up", "u", other, 1.0).machine == ("my-project", "vm-2")


def test_an_ephemeral_address_costs_where_the_machine_had_no_static_one(tmp_path: Path) -> None:
    """It had one for its first hour only; each of two starts has an address for half an hour."""
    world = World(tmp_path)
    for number in (0, 1):
        began = STARTED + number * 7200
        world.book.add_usage(seen(started=began, stopped=began + 1800, seen=began + 1800, address_usd_per_hour=0.005))
    address = {
        "project": "my-project", "kind": "address", "place": "us-west1", "name": "ip", "target": "l4",
        "created": STARTED - 60, "usd_per_month": 3.65,
    }  # fmt: skip
    for change in ({"seen": STARTED}, {"seen": STARTED + 3600, "gone": STARTED + 3600}):
        world.book.add_resource(ResourceRecord.model_validate({**address, **change}))
    world.now = STARTED + 86400
    found = [line for line in lines(world.services) if line.what == ADDRESS]
    assert [(line.start, round(line.usd, 6)) for line in found] == [(STARTED + 7200, 0.0025)]
