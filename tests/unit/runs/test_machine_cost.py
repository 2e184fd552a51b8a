"""What a run's machine cost, from the run's journal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fcctl_remote import wire
from orchestrator.base.clock import iso
from orchestrator.base.journal import JournalEntry
from orchestrator.machines.targets import GcpTarget
from orchestrator.money.caps import EGRESS_USD_PER_GIB, RESERVE_S, Cap
from orchestrator.results.records import MachineRecord, SourceRecord, StepRecord
from orchestrator.runs.cost.machine_cost import (
    LEAST_BYTES,
    SLOWEST_BYTES_S,
    CostSoFar,
    PowerOnPeriod,
    affordable_bytes,
    machine_cost,
    machine_record,
    of_journal,
    power_on_periods,
)
from orchestrator.runs.job.saved_plan import SavedPlan

TARGET = GcpTarget(name="l4", project="test-project", instance="vm", zones=["us-west1-c", "us-west1-a"])
MACHINE = {"project": "test-project", "zone": "us-west1-c", "name": "vm", "instance_id": "7", "deadline": None}


def plan() -> SavedPlan:
    step = wire.StepSpec(id="a", run="true", timeout_s=60)
    run_plan = wire.RunPlan("20261121t081530z-x-l4-3fa9c1", "x", "l4", "w", "", [step])
    rates = {"us-west1-c/on_demand": 0.72, "us-west1-c/spot": 0.36}
    return SavedPlan(
        plan=run_plan, target=TARGET, source=SourceRecord(tree_sha256=""), usd_per_hour=0.9, usd_by_place=rates
    )


def journal(*lines: tuple[float, str, dict[str, Any]]) -> list[JournalEntry]:
    return [JournalEntry(seq=i, time=time, kind=kind, data=data) for i, (time, kind, data) in enumerate(lines)]


def cold(**changes: Any) -> list[JournalEntry]:
    acquired = {**MACHINE, "turned_on": True, "started": 1005.0, "spot": False, **changes}
    return journal(
        (0, "begun", {"machine": True}), (1, "acquire", {}), (2, "cloud", {"action": "fence"}),
        (3, "cloud", {"action": "start"}), (50, "acquired", acquired), (51, "arm", {}), (60, "submitted", {}),
        (260, "ended", {}), (280, "collected", {}), (281, "release", {}), (282, "cloud", {"action": "stop"}),
        (300, "released", {"how": "stopped", "started": 1005.0, "stopped": 1300.0}), (301, "complete", {}),
    )  # fmt: skip


def parts(entries: list[JournalEntry], *steps: StepRecord) -> dict[str, float]:
    return {line.activity: line.seconds for line in machine_cost(entries, plan(), steps).breakdown}


def record_of(entries: list[JournalEntry]) -> MachineRecord:
    record = machine_record(entries)
    assert record is not None
    return record


def woken(off: float, started: float, stopped: float, action: str = "start", **changes: Any) -> list[JournalEntry]:
    """A run that was preempted, and went on on a machine that was started then."""
    return cold()[:7] + journal(
        (400, "stopped", {"how": "preempted", "at": off}), (900, "acquire", {}),
        (901, "cloud", {"action": action}),
        (950, "acquired", {**MACHINE, "turned_on": True, "started": started, **changes}),
        (955, "ended", {}), (960, "collected", {}), (961, "release", {}),
        (970, "released", {"how": "stopped", "started": started, "stopped": stopped}),
    )  # fmt: skip


BUILD = StepRecord(id="a", status="passed", duration_s=100, activity="build")
BENCH = StepRecord(id="b", status="passed", duration_s=60, activity="bench")


def test_from_its_start_to_its_end_by_the_clouds_clock() -> None:
    cost = machine_cost(cold(), plan(), [BUILD, BENCH])
    assert cost.billed_s == 295
    assert cost.usd_per_hour == 0.72
    assert cost.usd == pytest.approx(295 / 3600 * 0.72, abs=1e-6)
    assert parts(cold(), BUILD, BENCH) == {
        # 297 s passed here from asking for it to its end: two too many, which were not billed yet.
        "boot": 47.0, "sync": 10.0, "build": 100.0, "bench": 60.0, "idle": 38.0, "collect": 20.0, "stop": 20.0,
    }  # fmt: skip


def test_what_it_was_bought_as_and_where() -> None:
    assert machine_cost(cold(spot=True), plan(), []).usd_per_hour == 0.36
    assert machine_cost(cold(zone="mars-1-a"), plan(), []).usd_per_hour == 0.9, "not foreseen: the plan's own"


def test_the_least_that_is_billed() -> None:
    end = {"how": "stopped", "started": 1005.0, "stopped": 1012.0}
    short = cold()[:5] + journal((52, "abandoned", {}), (53, "release", {}), (55, "released", end))
    cost = machine_cost(short, plan(), [])
    assert cost.billed_s == 60
    assert parts(short)["minimum"] == 53


def test_the_rest_of_a_minute_is_the_run_s_with_which_the_machine_went_off() -> None:
    """Two runs on one start of 20 s: 5 s of the one that left the machine on, 12 s of the one that stopped it."""
    first = cold()[:5] + journal((52, "abandoned", {}), (53, "release", {}), (55, "released", {"how": "used"}))
    assert "minimum" not in parts(first)
    end = {"how": "stopped", "started": 1005.0, "stopped": 1025.0}
    last = journal(
        (10, "acquire", {}), (1013, "acquired", {**MACHINE, "turned_on": False, "started": 1005.0}),
        (1014, "abandoned", {}), (1015, "release", {}), (1025, "released", end),
    )  # fmt: skip
    assert parts(last) == {"sync": 1.0, "stop": 11.0, "minimum": 40.0}
    assert [(s.seconds, s.started) for s in record_of(last).sittings] == [(52.0, "1970-01-01T00:16:45.000Z")]


@pytest.mark.parametrize(
    ("preempted", "started", "stopped", "on", "billed"),
    [(1010.0, 1012.0, 1019.0, [5, 7], [60, 60]), (1105.0, 1905.0, 1975.0, [100, 70], [100, 70])],
    ids=["within a minute: a minute each", "later"],
)
def test_preempted_and_woken_again_is_paid_for_twice(
    preempted: float, started: float, stopped: float, on: list[int], billed: list[int]
) -> None:
    entries = woken(preempted, started, stopped)
    assert [s.seconds for s in power_on_periods(entries)] == on
    assert machine_cost(entries, plan(), [BUILD]).billed_s == sum(billed)
    record = record_of(entries)
    assert [s.seconds for s in record.sittings] == billed
    assert record.ended == iso(stopped)


def test_a_second_machine_in_another_place_is_billed_at_its_own_price() -> None:
    """The first one was preempted; the run went on on one that was made of its copy, elsewhere and on spot."""
    entries = woken(1305.0, 2000.0, 2100.0, "create", instance_id="12", spot=True)
    cost = machine_cost(entries, plan(), [])
    assert cost.usd == pytest.approx((300 * 0.72 + 100 * 0.36) / 3600, abs=1e-6)
    assert sum(line.usd for line in cost.breakdown) == pytest.approx(cost.usd, abs=1e-5)
    assert [s.instance_id for s in record_of(entries).sittings] == [MACHINE["instance_id"], "12"]


def test_what_was_fetched_is_paid_for() -> None:
    collected = journal((280, "collected", {"bytes": 2 * 1024**3}))
    entries = [*cold()[:8], *collected, *cold()[9:]]
    assert machine_cost(entries, plan(), []).egress_usd == pytest.approx(0.24)


def test_one_that_was_on_already_is_paid_for_from_when_the_run_took_it() -> None:
    warm = journal(
        (10, "acquire", {}), (11, "acquired", {**MACHINE, "turned_on": False, "started": 500.0}),
        (12, "submitted", {}), (112, "ended", {}), (113, "collected", {}), (113, "release", {}),
        (114, "released", {"how": "kept"}),
    )  # fmt: skip
    assert machine_cost(warm, plan(), []).billed_s == 103
    record = record_of(warm)
    assert (record.released, record.ended) == ("kept", None)


GONE = {"how": "gone", "reason": "the machine does not exist, or no longer exists"}


def test_one_that_was_deleted_unseen_is_paid_for_until_then() -> None:
    """The fcctl that asked for the deletion was killed; the next one came hours later."""
    told = (9000.0, "released", {**GONE, "started": 1005.0, "stopped": 1310.0})
    cost = machine_cost(cold()[:-2] + journal(told), plan(), [BUILD])
    assert (cost.billed_s, cost.upper_bound) == (305, False)
    record = record_of(cold()[:-2] + journal(told))
    assert (record.ended, record.released) == ("1970-01-01T00:21:50.000Z", "gone")
    assert [(s.began, s.seconds) for s in record.sittings] == [("1970-01-01T00:16:45.000Z", 305)]


def test_where_nothing_can_be_known_the_limit_is_the_bound_and_is_called_so() -> None:
    untold = journal((90_000.0, "released", GONE))
    cost = machine_cost(cold(deadline=4605.0)[:-2] + untold, plan(), [BUILD])
    assert (cost.billed_s, cost.upper_bound) == (3600 + 30, True)
    soon = machine_cost(cold(deadline=4605.0)[:-2] + journal((400.0, "released", GONE)), plan(), [BUILD])
    assert (soon.billed_s, soon.upper_bound) == (397, True), "it was asked for no longer ago than that"


def test_one_whose_limit_was_before_its_start_was_not_on() -> None:
    assert PowerOnPeriod(0.0, {"run": 50.0}, started=100.0, deadline=0.0).seconds == 0.0
    assert PowerOnPeriod(0.0, {"run": 50.0}, started=100.0, deadline=100.0).seconds == 30.0


def test_a_machine_that_was_on_already_is_paid_for_no_longer_than_it_was_on() -> None:
    warm = journal(
        (10, "acquire", {}), (11, "acquired", {**MACHINE, "turned_on": False, "started": 1.0, "deadline": 9000.0}),
        (12, "submitted", {}), (90_000, "stopped", {"how": "timer", "at": 500.0}),
    )  # fmt: skip
    assert machine_cost(warm, plan(), []).billed_s == 490


@pytest.mark.parametrize("how", ["off", "gone", "untouched"])
def test_a_machine_that_never_came_costs_nothing(how: str) -> None:
    none = journal((1, "acquire", {}), (2, "cloud", {"action": "create"}), (9, "abandoned", {}),
                   (10, "release", {}), (11, "released", {"how": how}))  # fmt: skip
    assert machine_cost(none, plan(), []).usd == 0
    assert machine_record(none) is None


@given(
    st.lists(st.tuples(st.sampled_from(["acquire", "cloud", "acquired", "submitted", "ended", "collected", "release",
                                        "released", "unreleased", "stopped", "lost", "abandoned"]),
                       st.floats(0, 1e5), st.floats(0, 1e6), st.floats(0, 1e6)), max_size=20),
    st.lists(st.floats(0, 1e4), max_size=4),
)  # fmt: skip
def test_any_journal_adds_up(lines: list[tuple[str, float, float, float]], durations: list[float]) -> None:
    time, entries = 0.0, []
    for kind, gap, started, stopped in lines:
        time += gap
        data = {**MACHINE, "action": "start", "turned_on": True, "started": started, "stopped": stopped, "at": stopped}
        entries.append((time, kind, data if kind != "released" else {**data, "how": "stopped"}))
    steps = [StepRecord(id=str(i), status="passed", duration_s=d) for i, d in enumerate(durations)]
    cost = machine_cost(journal(*entries), plan(), steps)
    assert cost.billed_s >= 0
    assert all(line.seconds > 0 for line in cost.breakdown)
    assert sum(line.seconds for line in cost.breakdown) == pytest.approx(cost.billed_s, abs=0.01, rel=1e-6)


def test_a_machine_that_is_off_costs_nothing_more() -> None:
    on, off = cold()[:-4], cold()
    assert (of_journal(on, plan(), 400.0).usd_per_hour, of_journal(off, plan(), 400.0).usd_per_hour) == (0.72, 0.0)
    for emulated, shown in ((False, [0.5, 0.7, 1.5]), (True, [0.0, 0.0, 0.0])):
        assert list(CostSoFar(0.5, 0.7, 1.5, emulated).as_json().values()) == shown


CAPPED = plan().model_copy(update={"caps": [Cap(name="--budget", usd=1.0)], "egress_usd": 0.012})


def test_what_can_be_fetched_is_what_is_left_of_the_worst_case() -> None:
    entries, now = cold()[:8], 1265.0  # it has ended
    most = affordable_bytes(entries, CAPPED, now)
    assert most is not None
    spent = of_journal(entries, CAPPED, now).usd
    fetching_s = most / SLOWEST_BYTES_S + RESERVE_S
    whole = spent + fetching_s / 3600 * 0.72 + most / 1024**3 * EGRESS_USD_PER_GIB
    assert whole == pytest.approx(CAPPED.worst_case_usd, abs=1e-6)
    assert affordable_bytes(entries, plan(), now) is None, "nothing caps it"


def test_a_start_that_only_fetches_pays_for_itself_and_what_was_planned_is_fetched_in_any_case() -> None:
    stopped = journal(*((e.time, e.kind, e.data) for e in cold()[:7]), (250, "stopped", {"at": 1250.0}))
    again = [*stopped, *journal((9000, "acquire", {}), (9001, "acquired", {**MACHINE, "turned_on": False}))]
    most = affordable_bytes(again, CAPPED, 9001.0)
    assert most is not None
    per_byte = EGRESS_USD_PER_GIB / 1024**3 + 0.72 / 3600 / SLOWEST_BYTES_S
    assert most * per_byte == pytest.approx(CAPPED.wake_usd - RESERVE_S / 3600 * 0.72, abs=1e-6)
    late = affordable_bytes(again, CAPPED, 9001.0 + 86400.0)
    assert late is not None
    assert late * per_byte == pytest.approx(0.012, abs=1e-6)
    unplanned = CAPPED.model_copy(update={"egress_usd": 0.0})
    assert affordable_bytes(again, unplanned, 9001.0 + 86400.0) == LEAST_BYTES
