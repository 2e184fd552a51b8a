"""What becomes of each time that is due: started, missed, overlapping, refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.schedules import fire
from orchestrator.schedules.due import (
    Firing,
    Past,
    Schedule,
    decide,
    due_between,
    read_past,
    refusal_by_month,
    spent_in_month,
)

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def schedule(**values: object) -> Schedule:
    return Schedule.model_validate({"job": "bench", "cron": "0 * * * *", "timezone": "UTC", **values})


def outcomes(plan: Schedule, past: Past, now: datetime, **more: object) -> list[tuple[str, datetime]]:
    firings = decide(plan, past, now, running=bool(more.get("running")), refusal=more.get("refusal")).firings  # type: ignore[arg-type]
    return [(f.outcome, datetime.fromtimestamp(f.due, UTC)) for f in firings]


def test_a_new_schedule_begins_with_the_next_time() -> None:
    assert outcomes(schedule(), Past(None, None), START + timedelta(minutes=1)) == [
        ("watching", START + timedelta(minutes=1))
    ]


def test_a_changed_line_begins_anew() -> None:
    old = Firing(outcome="started", due=START.timestamp(), at=START.timestamp(), key="0 3 * * * UTC")
    assert read_past(schedule(), [old]).seen is None
    assert [schedule(timezone=zone).key for zone in ("UTC", "Europe/Berlin", None)] == [
        "0 * * * * UTC", "0 * * * * Europe/Berlin", "0 * * * * ",
    ]  # fmt: skip


def test_what_is_due_is_started() -> None:
    past = Past(START.timestamp(), None)
    assert outcomes(schedule(), past, START + timedelta(minutes=60, seconds=20)) == [
        ("started", START + timedelta(hours=1))
    ]


def test_after_a_night_asleep_only_the_newest_is_made_up_for() -> None:
    past = Past(START.timestamp(), None)
    found = outcomes(schedule(), past, START + timedelta(hours=8, minutes=30))
    assert [o for o, _ in found] == ["missed"] * 7 + ["started"]


def test_too_late_is_missed() -> None:
    past = Past(START.timestamp(), None)
    plan = schedule(cron="0 13 * * *", catch_up_minutes=15)
    assert outcomes(plan, past, START + timedelta(hours=2)) == [("missed", START + timedelta(hours=1))]
    never = schedule(cron="0 13 * * *", catch_up_minutes=0)
    assert outcomes(never, past, START + timedelta(hours=1, minutes=1)) == [("started", START + timedelta(hours=1))]
    assert outcomes(never, past, START + timedelta(hours=1, minutes=2)) == [("missed", START + timedelta(hours=1))]


def test_one_at_a_time() -> None:
    past = Past(START.timestamp(), None)
    assert outcomes(schedule(), past, START + timedelta(hours=1), running=True) == [
        ("overlap", START + timedelta(hours=1))
    ]


def test_a_refusal_leaves_a_record() -> None:
    past = Past(START.timestamp(), None)
    firing = decide(schedule(), past, START + timedelta(hours=1), running=False, refusal="the month is spent").firings
    assert [(f.outcome, f.reason) for f in firing] == [("refused", "the month is spent")]


def test_a_clock_set_back_fires_nothing_twice() -> None:
    past = Past((START + timedelta(hours=1)).timestamp(), None)
    assert outcomes(schedule(), past, START + timedelta(minutes=30)) == []
    assert [o for o, _ in outcomes(schedule(), past, START - timedelta(days=3))] == ["watching"]


def test_a_month_counts_what_is_unknown_in_full() -> None:
    plan = schedule(budget_usd=4, per_month_usd=10, timezone="America/New_York")

    def line(outcome: str, due: datetime, usd: float | None = None) -> Firing:
        return Firing(outcome=outcome, due=due.timestamp(), at=due.timestamp(), key=plan.key, usd=usd)

    first = datetime(2026, 10, 31, 23, 30, tzinfo=UTC)  # already November in Berlin
    october = datetime(2026, 10, 31, 22, 30, tzinfo=UTC)
    record = [
        line("started", october),
        line("finished", october, 9.0),
        line("started", first),
        line("finished", first, 1.5),
        line("started", START),
        line("interrupted", START),
    ]
    assert spent_in_month(plan, record, START + timedelta(hours=1), BERLIN) == 1.5 + 4
    assert refusal_by_month(plan, record, START, BERLIN, 4) is None
    assert "$5.50 of this month's $10.00" in (refusal_by_month(plan, record, START, BERLIN, 5) or "")
    assert spent_in_month(schedule(timezone="Europe/Berlin"), record, START, BERLIN) == 1.5, (
        "no budget says what it may cost"
    )


@pytest.mark.parametrize("budget_usd", [4.0, None])
@pytest.mark.parametrize(
    ("answer", "usd"),
    [
        ({"error": {"message": "the host is unreachable", "exit_code": 6}}, 4.0),
        ({"error": {"message": "the link broke", "exit_code": 6}, "cost": {"usd": 1.25}}, 1.25),
        ({"run_id": "r", "status": "passed"}, 4.0),
        ({"run_id": "r", "status": "passed", "cost": {"usd": 0.0}}, 0.0),
    ],
)
def test_a_firing_that_ended_with_an_error_counts_what_it_may_have_cost(
    answer: dict[str, object], usd: float, budget_usd: float | None
) -> None:
    plan = schedule(budget_usd=budget_usd, per_month_usd=7)
    due = START.timestamp()
    started = Firing(outcome="started", due=due, at=due, key=plan.key)
    record = [started, fire._ended(plan, due, answer, due + 60)]
    assert spent_in_month(plan, record, START, UTC, per_run_usd=4.0) == usd
    assert (refusal_by_month(plan, record, START, UTC, 4.0) is None) == (usd < 3)


@settings(max_examples=150, deadline=None)
@given(
    cron=st.sampled_from(["0 * * * *", "*/20 * * * *", "30 2 * * *", "15 */3 * * *"]),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]),
    start=st.datetimes(min_value=datetime(2027, 3, 10), max_value=datetime(2027, 4, 10)),
    sleeps=st.lists(st.integers(min_value=1, max_value=60 * 30), min_size=1, max_size=25),
    busy=st.lists(st.booleans(), min_size=25, max_size=25),
)
def test_however_the_computer_sleeps_each_time_is_dealt_with_once(
    cron: str, zone: str, start: datetime, sleeps: list[int], busy: list[bool]
) -> None:
    plan = schedule(cron=cron, timezone=zone)
    now = start.replace(tzinfo=UTC)
    record: list[Firing] = []
    for minutes, running in zip([0, *sleeps], [False, *busy], strict=False):
        now += timedelta(minutes=minutes)
        record.extend(decide(plan, read_past(plan, record), now, running=running).firings)
    due = [f.due for f in record if f.outcome != "watching"]
    begun = record[0].due
    expected = [t.timestamp() for t in due_between(plan, datetime.fromtimestamp(begun, UTC), now, limit=10**6)]
    assert due == sorted(set(due)), "a time was dealt with twice"
    assert set(due) <= set(expected)
    if len(expected) <= 100:
        assert due == expected, "a time that was due has no record"
