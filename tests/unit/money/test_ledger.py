"""The books add up: runs, idle, what does not fit, and whose day it was."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.base.clock import iso
from orchestrator.money import ledger as books
from orchestrator.money import totals as sums
from orchestrator.money.audit import account
from orchestrator.money.ledger import UsageRecord
from orchestrator.money.totals import Spending, spent
from orchestrator.results.records import CostLine, CostRecord, MachineRecord, RunRecord, SittingRecord, SourceRecord

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC).timestamp()
RATE = 0.72


def sighting(started: float = START, stopped: float | None = None, seen: float = 0.0, **values: object) -> UsageRecord:
    base = {
        "project": "p", "zone": "z", "name": "vm", "instance_id": "1", "target": "l4", "usd_per_hour": RATE,
        "started": started, "stopped": stopped, "seen": seen or stopped or started,
    }  # fmt: skip
    return UsageRecord.model_validate({**base, **values})


def run(
    begun: float,
    seconds: dict[str, float],
    *,
    on_machine: bool = True,
    emulated: bool = False,
    started: float | None = None,
) -> RunRecord:
    total = sum(seconds.values())
    lines = [CostLine(activity=a, seconds=s, usd=s / 3600 * RATE) for a, s in seconds.items()]
    sitting = SittingRecord(began=iso(begun) or "", seconds=total, started=iso(started))
    machine = MachineRecord(
        project="p", zone="z", name="vm", instance_id="1", began=iso(begun), sittings=[sitting] if started else []
    )
    return RunRecord(
        run_id=f"r{begun:.0f}", job="bench", target="l4", status="passed", exit_code=0, created=iso(begun) or "",
        started=iso(begun), finished=iso(begun + total) or "", source=SourceRecord(tree_sha256="0" * 64),
        cost=CostRecord(usd=total / 3600 * RATE, billed_s=total, breakdown=lines, emulated=emulated),
        machine=machine if on_machine else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("runs", "words", "lines"),
    [
        (
            [run(START, {"boot": 60, "bench": 240})], [sighting(stopped=START + 900)],
            [("boot", 60), ("bench", 240), ("idle", 600)],
        ),
        ([], [sighting(stopped=START + 5)], [("idle", 60)]),  # the least
        (  # each start's minute ends after the next start
            [run(START + 6 * n, {"bench": 2, "minimum": 58}) for n in range(6)],
            [sighting(START + 6 * n, START + 6 * n + 2) for n in range(6)],
            [("bench", 2), ("minimum", 58)] * 6,
        ),
        (
            [run(START, {"bench": 300}), run(START + 7200, {"bench": 100})],
            [sighting(stopped=START + 300), sighting(started=START + 7200, stopped=START + 7500)],
            [("bench", 300), ("bench", 100), ("idle", 200)],
        ),
        (
            [run(START, {"boot": 90, "stop": 10}, on_machine=False)], [sighting(stopped=START + 100)],
            [("boot", 90), ("stop", 10)],
        ),
        ([run(START, {"bench": 500})], [sighting(seen=START + 10)], [("bench", 500)]),  # it is on: runs know more
        (
            [run(START, {"boot": 0.25, "bench": 0.5}, started=START)], [sighting(stopped=START + 90)],
            [("boot", 0.25), ("bench", 0.5), ("idle", 89.25)],
        ),
    ],
    ids=["idle", "a minute", "short ones", "two starts", "no machine known", "on", "under a second"],
)  # fmt: skip
def test_what_each_second_went_into(
    runs: list[RunRecord], words: list[UsageRecord], lines: list[tuple[str, float]]
) -> None:
    found = books.ledger(runs, words)
    assert [(line.activity, line.seconds) for line in found] == lines
    assert sum(line.usd for line in found) == pytest.approx(sum(seconds for _, seconds in lines) / 3600 * RATE)
    assert not any(line.beyond_s for line in found)


def test_what_a_run_claims_beyond_the_bill_is_not_billed() -> None:
    lines = books.ledger([run(START, {"boot": 140, "bench": 560})], [sighting(stopped=START + 600)])
    assert [(line.activity, round(line.seconds), round(line.beyond_s)) for line in lines] == [
        ("boot", 120, 20), ("bench", 480, 80),
    ]  # fmt: skip
    assert sum(line.usd for line in lines) == pytest.approx(600 / 3600 * RATE)


def test_runs_that_share_a_start_are_billed_its_minute_once() -> None:
    """The first one left the machine on; the last one turned it off after 20 s, and has the rest of the minute."""
    runs = [run(START, {"bench": 5}), run(START + 8, {"bench": 12, "minimum": 40})]
    lines = books.ledger(runs, [sighting(stopped=START + 20)])
    assert sum(line.seconds for line in lines) == pytest.approx(60)
    assert {line.activity for line in lines} == {"bench", "minimum", "idle"}
    (idle,) = (line for line in lines if line.activity == "idle")
    assert (idle.start, idle.seconds) == (START + 5, pytest.approx(3))


def test_a_run_is_billed_to_the_start_that_it_names_whatever_its_clock_said() -> None:
    """This computer's clock was an hour ahead when the run took a machine that was on."""
    late = run(START + 3600, {"bench": 100}, started=START)
    on = [sighting(stopped=START + 300), sighting(START + 3500, START + 3800)]
    lines = books.ledger([late], on)
    assert {line.on_since: line.seconds for line in lines if line.run_id} == {START: 100}
    assert all(START <= line.start < START + 300 for line in lines if line.run_id)
    assert sum(line.seconds for line in lines) == 600


def test_a_run_on_a_start_that_the_cloud_never_told_of_keeps_its_account() -> None:
    runs = [run(START, {"bench": 300}, started=START), run(START + 9000, {"bench": 200}, started=START + 9000)]
    lines = books.ledger(runs, [sighting(stopped=START + 300)])
    assert [(line.activity, line.seconds, line.on_since) for line in lines] == [
        ("bench", 300, START), ("bench", 200, None),
    ]  # fmt: skip


@pytest.mark.parametrize("first_s", [0.5, 300.0])
def test_a_run_on_two_machines_is_billed_to_each(first_s: float) -> None:
    record = run(START, {"bench": first_s + 200})
    assert record.machine is not None
    sittings = [
        SittingRecord(began=iso(at) or "", seconds=s, started=iso(at), name="vm", instance_id=number)
        for at, s, number in ((START, first_s, "7"), (START + 5000, 200.0, "1"))
    ]
    record = record.model_copy(update={"machine": record.machine.model_copy(update={"sittings": sittings})})
    on = [sighting(START, START + 300, instance_id="7"), sighting(START + 5000, START + 5200)]
    lines = books.ledger([record], on)
    assert [(line.activity, line.seconds, line.machine) for line in lines if line.run_id] == [
        ("bench", first_s, "vm (7)"), ("bench", 200, "vm (1)"),
    ]  # fmt: skip
    unseen = [line.usd for line in books.ledger([record], [])]
    assert unseen == [pytest.approx(s / 3600 * RATE) for s in (first_s, 200)]


def test_an_address_costs_while_its_machine_is_on() -> None:
    """Beside the machine's seconds, which are not more for it; and not the rest of the minute."""
    on = [sighting(START, START + 7200, address_usd_per_hour=0.005), sighting(START + 9000, START + 9030)]
    lines = books.ledger([run(START, {"bench": 3600})], on)
    assert [(line.what, line.seconds, line.usd) for line in lines if line.what] == [
        (books.ADDRESS, 7200, pytest.approx(0.01)),
    ]  # fmt: skip
    assert sum(line.seconds for line in lines if line.what is None) == 7260


def test_fetching_results_is_billed_to_their_run() -> None:
    record = run(START, {"bench": 3600})
    record = record.model_copy(update={"cost": record.cost.model_copy(update={"egress_usd": 0.03})})
    queued = record.model_copy(update={"created": iso(START - 86400)})
    assert [line.start for line in books.ledger([queued], []) if line.what] == [START], "of the day on which it ran"
    lines = books.ledger([record], [sighting(stopped=START + 3600)])
    assert [(line.activity, line.run_id, line.usd) for line in lines if line.what] == [("egress", record.run_id, 0.03)]
    assert spent(lines, START + 3600, UTC).project == pytest.approx(RATE + 0.03)


@pytest.mark.parametrize(
    ("billed_s", "lines"),
    [(300.9, [("bench", 300.9)]), (301.0, [("bench", 300.0), ("idle", 1.0)]), (299.0, [("bench", 299.0)])],
)
def test_a_second_that_no_run_used_is_idle(billed_s: float, lines: list[tuple[str, float]]) -> None:
    found = books.ledger([run(START, {"bench": 300})], [sighting(stopped=START + billed_s)])
    assert [(line.activity, line.seconds) for line in found] == [(name, pytest.approx(s)) for name, s in lines]


def test_of_two_words_on_a_start_the_later_counts_and_a_known_end_before_a_bound() -> None:
    words = [sighting(stopped=START + 100 * n, seen=START + 900, user=str(n)) for n in (1, 2)]
    bound = sighting(stopped=START + 500, seen=START + 1000, bound=True)
    for order in ([*words, bound], [bound, *words]):
        assert [one.user for one in books.latest(order)] == ["2"]
    assert [one.user for one in books.latest(reversed(words))] == ["1"]


def test_idle_seconds_are_where_no_run_was() -> None:
    runs = [run(START + 100, {"bench": 200}), run(START + 500, {"bench": 100})]
    idle = [
        (line.start - START, line.seconds)
        for line in books.ledger(runs, [sighting(stopped=START + 700)])
        if line.run_id is None
    ]
    assert idle == [(0, 100), (300, 200), (600, 100)]


def test_a_second_between_two_runs_is_idle_and_less_is_none() -> None:
    for gap, idle in ((1.0, [(200.0, 1.0), (301.0, 99.0)]), (0.5, [(300.5, 99.5)])):
        runs = [run(START, {"bench": 200}), run(START + 200 + gap, {"bench": 100})]
        lines = books.ledger(runs, [sighting(stopped=START + 400)])
        found = [(line.start - START, line.seconds) for line in lines if line.run_id is None]
        assert [start for start, _ in found] == [pytest.approx(start) for start, _ in idle]
        assert sum(seconds for _, seconds in found) == pytest.approx(100.0)


def test_a_machine_is_billed_at_the_price_that_the_cloud_showed() -> None:
    lines = books.ledger([run(START, {"bench": 300})], [sighting(stopped=START + 300, usd_per_hour=7.2)])
    assert sum(line.usd for line in lines) == pytest.approx(0.6)
    unpriced = books.ledger([run(START, {"bench": 300})], [sighting(stopped=START + 300, usd_per_hour=None)])
    assert sum(line.usd for line in unpriced) == pytest.approx(0.06)


def test_the_latest_word_on_a_start_counts() -> None:
    seen = [sighting(seen=START + 100), sighting(stopped=START + 300), sighting(seen=START + 200)]
    (span,) = books.spans(seen)
    assert (span.is_on, span.billed_s) == (False, 300)


def test_a_machine_started_anew_was_off_in_between() -> None:
    first, second = books.spans([sighting(seen=START + 5000), sighting(started=START + 3600, seen=START + 3700)])
    assert (first.is_on, first.billed_s) == (False, 3600)
    assert (second.is_on, second.billed_s) == (True, 100)


def test_a_restart_in_the_middle_of_a_run_is_billed_twice_and_used_once() -> None:
    seen = [sighting(stopped=START + 100), sighting(started=START + 200, stopped=START + 700)]
    lines = books.ledger([run(START, {"bench": 700})], seen)
    assert [(line.activity, line.on_since, line.seconds) for line in lines] == [
        ("bench", START, 100), ("bench", START + 200, 500),
    ]  # fmt: skip


def test_without_a_price_a_run_on_two_starts_is_divided_by_its_time() -> None:
    seen = [sighting(stopped=START + 100, usd_per_hour=None),
            sighting(started=START + 200, stopped=START + 500, usd_per_hour=None)]  # fmt: skip
    record = run(START, {"bench": 500})
    parts = [line for line in books.ledger([record], seen) if line.run_id]
    assert [(line.on_since, line.seconds) for line in parts] == [(START, 100), (START + 200, 300)]
    assert [line.usd for line in parts] == [pytest.approx(record.cost.usd * share) for share in (100 / 500, 300 / 500)]


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
def test_which_machine_a_run_without_one_had_turned_on(spans: list[UsageRecord], machine: str | None) -> None:
    lines = books.ledger([run(START, {"boot": 90, "stop": 10}, on_machine=False)], spans)
    of_run = {line.machine for line in lines if line.run_id is not None}
    assert of_run == {None if machine is None else f"vm ({machine})"}


def test_days_and_weeks_are_those_of_the_zone() -> None:
    late = datetime(2026, 12, 31, 23, 30, tzinfo=UTC).timestamp()
    lines = books.ledger([run(late, {"bench": 3600}, on_machine=False)], [])
    berlin = ZoneInfo("Europe/Berlin")
    assert [t.group for t in sums.totals(lines, "day", berlin)] == ["2027-01-01"]
    assert [t.group for t in sums.totals(lines, "week", berlin)] == ["2026-W53"]
    assert spent(lines, late + 3600, berlin).day == pytest.approx(RATE)


def test_what_a_run_cost_past_midnight_is_the_next_days() -> None:
    late = datetime(2026, 12, 31, 23, 30, tzinfo=UTC).timestamp()
    lines = books.ledger([run(late, {"bench": 3600}, on_machine=False)], [])
    months = sums.totals(lines, "month", UTC)
    assert [(t.group, t.seconds, t.runs) for t in months] == [("2026-12", 1800.0, 1), ("2027-01", 1800.0, 1)]
    assert [t.usd for t in months] == [pytest.approx(RATE / 2)] * 2
    half = pytest.approx(RATE / 2)
    assert spent(lines, late + 1800, UTC) == Spending(half, half, pytest.approx(RATE))


def test_a_clock_that_was_set_back_gives_no_money_again() -> None:
    lines = books.ledger([run(START, {"bench": 3600}, on_machine=False)], [])
    for back in (86400 * 1.5, 86400 * 40, 86400 * 4000):
        assert spent(lines, START - back, UTC) == Spending(*(pytest.approx(RATE),) * 3)
    assert spent(lines, START + 86400, UTC).day == 0


def test_what_the_sandbox_would_have_cost_is_no_money() -> None:
    lines = books.ledger([run(START, {"bench": 3600}, on_machine=False, emulated=True)], [])
    assert len(lines) == 1
    assert sums.totals(lines, "job", UTC) == []
    assert spent(lines, START, UTC).project == 0


Starts = list[tuple[float, float, bool]]
Claims = list[tuple[float, list[tuple[str, float]], int | None]]


@given(
    #: Seconds off before a start, seconds on, and whether its end was seen.
    starts=st.lists(st.tuples(st.floats(0.1, 3e5), st.floats(0, 2e5), st.booleans()), min_size=1, max_size=6),
    #: When a run began, what its seconds went into, and which start it names.
    claims=st.lists(
        st.tuples(
            st.floats(-1e5, 1e6),
            st.lists(st.tuples(st.sampled_from(["boot", "bench", "minimum"]), st.floats(0.001, 2e5)), max_size=3),
            st.none() | st.integers(0, 5),
        ),
        max_size=6,
    ),
)
def test_whatever_runs_claim_the_lines_of_a_machine_are_its_bill(starts: Starts, claims: Claims) -> None:
    words, at = [], START
    for off, on, ended in starts:
        words.append(sighting(at + off, at + off + on if ended else None, seen=at + off + on))
        at += off + on
    runs = [
        run(START + began, dict(seconds), started=None if start is None else words[start % len(words)].started)
        for began, seconds, start in claims
    ]
    lines = books.ledger(runs, words)
    assert all(line.seconds > 0 and line.usd >= 0 and line.beyond_s >= 0 for line in lines)
    bill = 0.0
    for span in books.spans(words):
        of_start = [line for line in lines if line.on_since == span.started]
        claimed = sum(line.seconds for line in of_start if line.run_id)
        seconds = max(span.billed_s, claimed) if span.is_on else span.billed_s
        assert sum(line.seconds for line in of_start) == pytest.approx(seconds, rel=1e-9, abs=1e-5)
        assert all(line.start >= span.started for line in of_start)
        bill += span.usd(seconds)
    for by in get_args(sums.Grouping):
        assert sum(total.usd for total in sums.totals(lines, by, UTC)) == pytest.approx(bill, abs=1e-6)
    assert spent(lines, at + 1e7, UTC).project == pytest.approx(bill, abs=1e-6)
    found = account(words[0], True, books.spans(words), lines, lines)
    if words[-1].stopped is not None:
        assert (found.cloud_usd, found.ledger_usd) == (pytest.approx(bill, abs=1e-6), pytest.approx(bill, abs=1e-6))
        assert sum(time.used_s for time in found.times) + sum(
            line.seconds for line in lines if not line.run_id
        ) == pytest.approx(found.cloud_s)


def test_a_machine_seen_by_a_wrong_clock_is_on_until_its_limit_at_most() -> None:
    month_ahead = sighting(fence=START + 3600, seen=START + 30 * 86400)
    assert sum(line.seconds for line in books.ledger([], [month_ahead])) == 3630


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("job", [("(idle)", 4.0), ("bench", 2.0), ("(disk)", 1.0)]),
        ("run", [("(idle)", 4.0), ("r1", 2.0), ("(disk)", 1.0)]),
        ("machine", [("vm (1)", 6.0), ("disk vm", 1.0)]),
        ("target", [("l4", 7.0)]),
        ("activity", [("idle", 4.0), ("test", 2.0), ("disk", 1.0)]),
    ],
)
def test_what_a_line_without_a_run_is_called(by: sums.Grouping, groups: list[tuple[str, float]]) -> None:
    on = {"target": "l4", "machine": "vm (1)"}
    lines = [
        books.Line(START, 60, 2.0, "test", run_id="r1", job="bench", **on),
        books.Line(START + 60, 60, 4.0, books.IDLE, **on),
        books.Line(START, 60, 1.0, "disk", "l4", what="disk vm"),
    ]
    found = sums.totals(lines, by, UTC)
    assert [(total.group, total.usd) for total in found] == groups
    sides = [sum(getattr(total, name) for total in found) for name in ("seconds", "idle_usd", "standing_usd")]
    assert sides == [120, 4.0, 1.0]


def test_what_is_not_certain_is_said_once_with_its_sum() -> None:
    def line(usd: float, sure: books.Sure, **values: Any) -> books.Line:
        return books.Line(START, 60, usd, "x", "l4", sure=sure, why="w", **values)

    lines = [
        line(1.0, "estimated", what="disk a", run_id="r1"), line(2.0, "estimated", what="disk a"),
        line(5.0, "upper_bound", run_id="r1", machine="vm (1)"), line(4.0, "upper_bound", machine="vm (1)"),
        line(0.0, "unpriced"), line(9.0, "known", run_id="r2"), line(9.0, "estimated", what="disk b", emulated=True),
    ]  # fmt: skip
    assert [(note.sure, note.what, note.usd) for note in sums.remarks(lines)] == [
        ("unpriced", "l4", 0.0), ("upper_bound", "r1", 5.0), ("upper_bound", "vm (1)", 4.0),
        ("estimated", "disk a", 3.0),
    ]  # fmt: skip
