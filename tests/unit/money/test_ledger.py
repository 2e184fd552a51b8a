"""The books add up: runs, idle, what does not fit, and whose day it was."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import iso
from orchestrator.money import ledger as books
from orchestrator.money.ledger import Sighting
from orchestrator.results.records import CostLine, CostRecord, MachineRecord, RunRecord, SourceRecord

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC).timestamp()
RATE = 0.72


def sighting(started: float = START, stopped: float | None = None, seen: float = 0.0, **values: object) -> Sighting:
    base = {
        "project": "p", "zone": "z", "name": "vm", "instance_id": "1", "target": "l4", "usd_per_hour": RATE,
        "started": started, "stopped": stopped, "seen": seen or stopped or started,
    }  # fmt: skip
    return Sighting.model_validate({**base, **values})


def run(begun: float, seconds: dict[str, float], *, on_machine: bool = True, emulated: bool = False) -> RunRecord:
    total = sum(seconds.values())
    lines = [CostLine(activity=a, seconds=s, usd=s / 3600 * RATE) for a, s in seconds.items()]
    machine = MachineRecord(project="p", zone="z", name="vm", instance_id="1", began=iso(begun))
    return RunRecord(
        run_id=f"r{begun:.0f}", job="bench", target="l4", status="passed", exit_code=0, created=iso(begun) or "",
        started=iso(begun), finished=iso(begun + total) or "", source=SourceRecord(tree_sha256="0" * 64),
        cost=CostRecord(usd=total / 3600 * RATE, billed_s=total, breakdown=lines, emulated=emulated),
        machine=machine if on_machine else None,
    )  # fmt: skip


def test_what_no_run_used_is_idle() -> None:
    lines = books.ledger([run(START, {"boot": 60, "bench": 240})], [sighting(stopped=START + 900)])
    assert [(line.activity, line.seconds) for line in lines] == [("boot", 60), ("bench", 240), ("idle", 600)]
    assert sum(line.usd for line in lines) == pytest.approx(900 / 3600 * RATE)


def test_a_minute_is_the_least() -> None:
    lines = books.ledger([], [sighting(stopped=START + 5)])
    assert [(line.activity, line.seconds) for line in lines] == [("idle", 60)]


def test_what_does_not_fit_is_shown() -> None:
    lines = books.ledger([run(START, {"bench": 700})], [sighting(stopped=START + 600)])
    assert [(line.activity, line.seconds) for line in lines if line.run_id is None] == [("unexplained", -100)]
    assert sum(line.seconds for line in lines) == 600


def test_what_does_not_fit_is_put_at_the_end_of_the_last_time_on() -> None:
    on = [sighting(stopped=START + 600), sighting(START + 9000, START + 9600)]
    (line,) = [
        x for x in books.ledger([run(START, {"bench": 700}), run(START + 9000, {"bench": 600})], on) if not x.run_id
    ]
    assert (line.activity, line.seconds, line.start) == ("unexplained", -100, START + 9600)


def test_the_latest_word_on_a_start_counts() -> None:
    seen = [sighting(seen=START + 100), sighting(stopped=START + 300), sighting(seen=START + 200)]
    (span,) = books.spans(seen)
    assert (span.on, span.billed_s) == (False, 300)


def test_a_machine_started_anew_was_off_in_between() -> None:
    first, second = books.spans([sighting(seen=START + 5000), sighting(started=START + 3600, seen=START + 3700)])
    assert (first.on, first.billed_s) == (False, 3600)
    assert (second.on, second.billed_s) == (True, 100)


def test_two_spans_of_one_machine_do_not_share_runs() -> None:
    runs = [run(START, {"bench": 300}), run(START + 7200, {"bench": 100})]
    seen = [sighting(stopped=START + 300), sighting(started=START + 7200, stopped=START + 7500)]
    assert [(line.activity, line.seconds) for line in books.ledger(runs, seen)] == [
        ("bench", 300), ("bench", 100), ("idle", 200),
    ]  # fmt: skip


def test_a_restart_in_the_middle_of_a_run_is_billed_twice_and_used_once() -> None:
    seen = [sighting(stopped=START + 100), sighting(started=START + 200, stopped=START + 700)]
    lines = books.ledger([run(START, {"bench": 700})], seen)
    assert sum(line.seconds for line in lines) == pytest.approx(600)
    assert {line.activity: line.seconds for line in lines} == {"bench": 700, "unexplained": -100}


def test_runs_side_by_side_do_not_double_the_bill() -> None:
    runs = [run(START, {"bench": 300}), run(START + 1, {"test": 300})]
    lines = books.ledger(runs, [sighting(stopped=START + 400)])
    assert sum(line.seconds for line in lines) == pytest.approx(400)


def test_a_run_that_never_had_its_machine_still_explains_it() -> None:
    lines = books.ledger([run(START, {"boot": 90, "stop": 10}, on_machine=False)], [sighting(stopped=START + 100)])
    assert [line.activity for line in lines] == ["boot", "stop"]


@pytest.mark.parametrize(
    ("spans", "machine"),
    [
        ([sighting(START - 9000, START - 900)], "1"),  # it went off a quarter of an hour before
        ([sighting(START - 9000, START - 901)], None),
        (
            [sighting(START + 1000, START + 2000)],
            "1",
        ),  # it came on a quarter of an hour after the run's hundred seconds
        ([sighting(START + 1001, START + 2000)], None),
        ([sighting(START - 9000, seen=START - 8000)], "1"),  # it is on
        ([sighting(START - 9000, START + 9000, target="other")], None),
        (
            [
                sighting(START - 9000, START - 500),
                sighting(START - 9000, START - 400, instance_id="2"),
                sighting(START - 9000, START - 600, instance_id="3"),
            ],
            "2",
        ),
        ([], None),
    ],
)
def test_which_machine_a_run_without_one_had_turned_on(spans: list[Sighting], machine: str | None) -> None:
    lines = books.ledger([run(START, {"boot": 90, "stop": 10}, on_machine=False)], spans)
    of_run = {line.machine for line in lines if line.run_id is not None}
    assert of_run == {None if machine is None else f"vm ({machine})"}


def test_of_a_machine_that_is_on_its_runs_know_more_than_the_last_look() -> None:
    lines = books.ledger([run(START, {"bench": 500})], [sighting(seen=START + 10)])
    assert [(line.activity, line.seconds) for line in lines] == [("bench", 500)]


def test_days_and_weeks_are_those_of_the_zone() -> None:
    late = datetime(2026, 12, 31, 23, 30, tzinfo=UTC).timestamp()
    lines = books.ledger([run(late, {"bench": 3600}, on_machine=False)], [])
    berlin = ZoneInfo("Europe/Berlin")
    assert [t.group for t in books.totals(lines, "day", berlin)] == ["2027-01-01"]
    assert [t.group for t in books.totals(lines, "week", berlin)] == ["2026-W53"]
    assert books.spent(lines, late + 3600, berlin).day == pytest.approx(RATE)


def test_what_a_run_cost_past_midnight_is_the_next_days() -> None:
    late = datetime(2026, 12, 31, 23, 30, tzinfo=UTC).timestamp()
    lines = books.ledger([run(late, {"bench": 3600}, on_machine=False)], [])
    months = books.totals(lines, "month", UTC)
    assert [(t.group, t.seconds, t.runs) for t in months] == [("2026-12", 1800.0, 1), ("2027-01", 1800.0, 1)]
    assert [t.usd for t in months] == [pytest.approx(RATE / 2)] * 2
    half = pytest.approx(RATE / 2)
    assert books.spent(lines, late + 1800, UTC) == books.Spent(half, half, pytest.approx(RATE))


def test_a_clock_that_was_set_back_gives_no_money_again() -> None:
    lines = books.ledger([run(START, {"bench": 3600}, on_machine=False)], [])
    for back in (86400 * 1.5, 86400 * 40, 86400 * 4000):
        assert books.spent(lines, START - back, UTC) == books.Spent(*(pytest.approx(RATE),) * 3)
    assert books.spent(lines, START + 86400, UTC).day == 0


def test_what_the_sandbox_would_have_cost_is_no_money() -> None:
    lines = books.ledger([run(START, {"bench": 3600}, on_machine=False, emulated=True)], [])
    assert len(lines) == 1
    assert books.totals(lines, "job", UTC) == []
    assert books.spent(lines, START, UTC).project == 0


@given(
    uses=st.lists(st.tuples(st.integers(0, 50), st.integers(1, 600)), max_size=8),
    length=st.integers(60, 20_000),
)
def test_every_second_of_a_machine_is_in_the_books_once(uses: list[tuple[int, int]], length: int) -> None:
    runs, at = [], START
    for gap, seconds in uses:
        at += gap
        if at + seconds > START + length:
            break
        runs.append(run(at, {"bench": seconds}))
        at += seconds + 1
    lines = books.ledger(runs, [sighting(stopped=START + length)])
    assert sum(line.seconds for line in lines) == pytest.approx(length, abs=1.0)
    for by in ("day", "week", "month", "job", "target", "activity", "run", "machine"):
        totals = books.totals(lines, by, UTC)  # type: ignore[arg-type]
        assert sum(t.usd for t in totals) == pytest.approx(sum(line.usd for line in lines))
