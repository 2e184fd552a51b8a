"""What a ledger that was lost gets back from runs and sessions, and what nothing here knows."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.base.clock import iso
from orchestrator.base.errors import CloudError
from orchestrator.machines.cloud import Machine, Operation
from orchestrator.money.caps import FENCE_LATENESS_S
from orchestrator.money.ledger import NEAR_S
from orchestrator.money.reservations import Reservation
from orchestrator.results.records import CostRecord, MachineRecord, SittingRecord
from orchestrator.runs.cost.rebuild import LISTED_S, rebuild, settle_lost
from tests.support.money_world import L4, World, seen, session_record
from tests.support.spending import reservation
from tests.support.stores import NOVEMBER, completed, make_id

HOUR, LOST = 3600.0, make_id()
MACHINE = {"project": "my-project", "zone": "us-west1-c", "name": "vm", "instance_id": "7"}


def unknown(world: World) -> list[tuple[str, str]]:
    return [(one.kind, one.name) for one in rebuild(world.services, dry_run=True).unknown]


# ---------------------------------------------------------------------------------------------------- what nobody knows
@pytest.mark.parametrize("booked", [False, True])
def test_of_a_damaged_run_nobody_knows_the_cost_that_is_not_booked(world: World, booked: bool) -> None:
    run_id = world.spent(2.0)
    if booked:
        rebuild(world.services, dry_run=False)
    (world.store.folder(run_id) / "run.json").write_text("{")
    assert unknown(world) == [("damaged_runs", run_id)] * (not booked)


def test_a_session_or_a_reservation_without_a_record_is_named(world: World) -> None:
    session = world.sessions.begin(make_id("session"), {"target": "l4"})
    (world.results / "sessions" / session.session_id / "session.json").write_text("{")
    with world.book.changing() as change:
        for owner in ("run", "up"):
            change.reserve(reservation(LOST, 1.0, owner, results=str(world.results), reservation_id=owner))  # type: ignore[arg-type]
    assert unknown(world) == [("damaged_sessions", session.session_id), ("reservations_without_record", "run")]


@pytest.mark.parametrize(
    ("changes", "reserved", "named"),
    [
        ({}, False, True),
        ({"stopped": NOVEMBER + 60}, False, False),
        ({"emulated": True}, False, False),
        ({}, True, False),
        ({"name": "vm-2"}, True, True),
    ],
)
def test_a_machine_that_was_on_when_it_was_seen_last_is_named_unless_it_is_reserved_for(
    world: World, changes: dict[str, Any], reserved: bool, named: bool
) -> None:
    world.book.add_usage(seen(**changes))
    if reserved:
        with world.book.changing() as change:
            change.reserve(reservation("up", 1.0, "up", cloud_project="my-project", instance="vm"))
    assert [kind for kind, _ in unknown(world)] == ["machines_never_seen_off"] * named


@pytest.mark.parametrize(("usd", "rate", "named"), [(0.0, 0.0, True), (0.0, 0.72, False), (0.5, 0.0, False)])
def test_a_run_whose_machine_has_no_price_is_named(world: World, usd: float, rate: float, named: bool) -> None:
    machine = MachineRecord(**MACHINE, began=iso(NOVEMBER) or "")
    completed(world.store, cost=CostRecord(usd=usd, usd_per_hour=rate, billed_s=60), machine=machine)
    completed(world.store)  # on a machine that is simply there
    assert [kind for kind, _ in unknown(world)] == ["runs_without_price"] * named


# -------------------------------------------------------------------------------------------------- what comes back
@pytest.mark.parametrize(
    ("stopped", "deadline", "until", "bound"),
    [
        (1800, 3600, 1800, False),
        (None, 3600, 3600 + FENCE_LATENESS_S, True),
        (None, 3 * 3600, 2 * 3600, True),  # it has ended before
        (None, None, 2 * 3600, True),
        (None, -9000, 0, True),  # never before it was on
    ],
)
def test_a_session_s_machine_was_on_until_its_stop_or_until_the_limit(
    world: World, stopped: float | None, deadline: float | None, until: float, bound: bool
) -> None:
    session = world.sessions.begin(make_id("session"), {"target": "a plan by hand, or of another version"})

    def at(after: float | None) -> float | None:
        return None if after is None else NOVEMBER + after

    session.journal.append("acquired", **MACHINE, started=NOVEMBER, deadline=at(deadline))
    record = session_record(session.session_id)
    values = {"started": NOVEMBER, "ended": NOVEMBER + 2 * HOUR, "stopped": at(stopped), "usd_per_hour": 0.72}
    session.end(record.model_copy(update=values))
    (found,) = rebuild(world.services, dry_run=True).power
    assert (found.started, found.stopped, found.bound) == (NOVEMBER, NOVEMBER + until, bound)
    assert (found.instance_id, found.usd_per_hour, found.fence) == ("7", 0.72, at(deadline))


def test_when_the_machines_of_runs_were_on_comes_back(world: World) -> None:
    """Of those that a run turned off; the last time that each was on."""
    sittings = [SittingRecord(began=iso(NOVEMBER) or "", seconds=60.0, started=iso(NOVEMBER + s)) for s in (0, 900)]
    machine = MachineRecord(**MACHINE, began=iso(NOVEMBER) or "", ended=iso(NOVEMBER + 1000), sittings=sittings)
    cost = CostRecord(usd=0.1, usd_per_hour=0.72, billed_s=100)
    kept = machine.model_copy(update={"instance_id": "8", "ended": None})
    unstarted = machine.model_copy(
        update={"instance_id": "9", "sittings": [sittings[0].model_copy(update={"started": None})]}
    )
    without = machine.model_copy(update={"instance_id": "10", "sittings": []})
    for number, had in enumerate((machine, kept, unstarted, without, None)):
        completed(world.store, make_id(at=NOVEMBER + number), created=iso(NOVEMBER + number), cost=cost, machine=had)
    found = rebuild(world.services, dry_run=True).power
    assert [(one.instance_id, one.started, one.stopped, one.seen, one.usd_per_hour) for one in found] == [
        ("7", NOVEMBER + 900, NOVEMBER + 1000, NOVEMBER + 1000, 0.72)
    ]


def test_what_comes_back_is_in_the_book_once(world: World) -> None:
    run, ended = world.begun(1.0), world.spent(2.0)
    for name in world.in_the_book():
        with world.book.changing() as change:
            change.release(change.state.open()[name])
    assert rebuild(world.services, dry_run=True).usd == 2.0
    assert (world.in_the_book(), world.book.state().runs()) == ({}, {}), "it only told"
    found = rebuild(world.services, dry_run=False)
    assert ([one.run_id for one in found.runs], [one.usd for one in found.reservations]) == ([ended], [1.0])
    assert (list(world.in_the_book()), list(world.book.state().runs())) == ([run.run_id], [ended])
    again = rebuild(world.services, dry_run=False)
    assert (again.runs, again.reservations, again.power) == ((), (), ())


# ---------------------------------------------------------------------------------------- reservations without an owner
class Cloud:
    """Machines as the cloud lists them, and what was done to them."""

    def __init__(self, *machines: Machine, history: tuple[Operation, ...] = (), unasked: tuple[str, ...] = ()) -> None:
        self._machines, self._history, self._unasked = machines, history, unasked

    def machines(self, _labels: object) -> tuple[list[Machine], tuple[str, ...]]:
        return list(self._machines), self._unasked

    def machine(self, zone: str, name: str) -> Machine | None:
        return next((one for one in self._machines if (one.zone, one.name) == (zone, name)), None)

    def operations(self, _zone: str, _name: str) -> tuple[Operation, ...]:
        if not self._history:
            raise CloudError("no answer")
        return self._history


def instance(status: str) -> Machine:
    return Machine("my-project", "us-west1-c", "vm", "7", status)


def lost(world: World, owner: str, after_s: float, **changes: Any) -> Reservation:
    """A reservation of 1 dollar that nothing knows, and the time ``after_s``."""
    one = reservation(LOST, 1.0, owner, results=str(world.results), cloud_project="my-project",  # type: ignore[arg-type]
                      instance="vm", target="l4", **changes)  # fmt: skip
    with world.book.changing() as change:
        change.reserve(one)
    world.now = NOVEMBER + after_s
    return one


def op(kind: str, after_s: float) -> Operation:
    at = NOVEMBER + after_s
    return Operation("op", "us-west1-c", kind, "vm", "DONE", started=at, finished=at + 5, target_id="7")


@pytest.mark.parametrize(
    ("cloud", "released"),
    [
        (Cloud(instance("TERMINATED")), True),
        (Cloud(), True),
        (Cloud(instance("RUNNING")), False),
        (Cloud(instance("TERMINATED"), unasked=("us-west1-b",)), False),
    ],
    ids=["off", "gone", "on", "not all answered"],
)
def test_only_what_is_off_is_released_and_costs_all_that_was_reserved(world: World, cloud: Any, released: bool) -> None:
    lost(world, "run", 60)
    assert [one.reservation_id for one in settle_lost(world.services, cloud, [L4])] == [LOST] * released
    assert (list(world.in_the_book()) == []) == released
    costs = [usage.cost for _, usage in world.book.state().runs().values()]
    assert [(one.usd, one.billed_s, one.upper_bound) for one in costs] == [(1.0, HOUR, True)] * released


@pytest.mark.parametrize(
    ("after_s", "history", "released", "booked"),
    [
        (NEAR_S, (op("stop", -5000),), False, False),  # it may be about to start
        (NEAR_S + 1, (op("stop", -5000),), True, False),
        (NEAR_S + 1, (op("start", -NEAR_S - 1),), True, False),
        (NEAR_S + 1, (op("start", -NEAR_S),), True, True),
        (NEAR_S + 1, (op("insert", 5),), True, True),
        (NEAR_S + 1, (), True, True),  # the cloud does not say
        (LISTED_S, (op("stop", -5000),), True, False),
        (LISTED_S + 1, (op("stop", -5000),), True, True),  # its list does not go back so far
    ],
)
def test_one_that_was_to_be_turned_on_by_hand_costs_nothing_if_the_cloud_never_started_it(
    world: World, after_s: float, history: tuple[Operation, ...], released: bool, booked: bool
) -> None:
    lost(world, "up", after_s)
    found = settle_lost(world.services, Cloud(instance("TERMINATED"), history=history), [L4])  # type: ignore[arg-type]
    assert (len(found), len(world.book.state().runs())) == (released, booked)


@pytest.mark.parametrize(
    ("changes", "booked"),
    [
        ({"stopped": NOVEMBER, "instance_id": "6"}, False),
        ({"stopped": NOVEMBER - 1, "seen": NOVEMBER - 1}, True),  # of before
        ({"stopped": NOVEMBER - 1, "seen": NOVEMBER}, False),  # it was looked at since then, and had not been on again
        ({"stopped": NOVEMBER - 1, "seen": NOVEMBER, "instance_id": "6"}, True),  # another one of its name
        ({}, True),  # it was on
        ({"name": "vm-2", "stopped": NOVEMBER + 9}, True),
    ],
)
def test_what_the_ledger_has_of_the_machine_is_not_booked_once_more(
    world: World, changes: dict[str, Any], booked: bool
) -> None:
    lost(world, "run", 60)
    world.book.add_usage(seen(started=NOVEMBER - 100, **changes))
    settle_lost(world.services, Cloud(instance("TERMINATED")), [L4])  # type: ignore[arg-type]
    costs = [usage.cost for _, usage in world.book.state().runs().values()]
    assert [(one.usd, one.billed_s) for one in costs] == [(1.0, HOUR if "name" in changes else 5000.0)] * booked


@pytest.mark.parametrize(("after_s", "released"), [(NEAR_S, False), (NEAR_S + 1, True)])
def test_a_machine_that_no_target_names_may_be_too_new_to_be_listed(
    world: World, after_s: float, released: bool
) -> None:
    lost(world, "run", after_s)
    targets = [L4.model_copy(update={"instance": "vm-2"})]
    assert bool(settle_lost(world.services, Cloud(), targets)) == released  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"emulated": True}, {"unasked": True}], ids=str)
def test_what_can_cost_nothing_is_released_without_a_cost(world: World, changes: dict[str, bool]) -> None:
    one = lost(world, "run", 60, **changes)
    assert settle_lost(world.services, Cloud(), [L4]) == [one]  # type: ignore[arg-type]
    assert world.book.state().runs() == {}


def test_another_cloud_project_s_are_left_alone(world: World) -> None:
    lost(world, "run", 60)
    other = L4.model_copy(update={"project": "other"})
    assert settle_lost(world.services, Cloud(), [other]) == []  # type: ignore[arg-type]
    assert list(world.in_the_book()) == [LOST]
