"""What becomes of each time that is due: started, missed, overlapping."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.schedules.due import Firing, FiringHistory, Schedule, decide, due_between, read_past

START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def schedule(**values: object) -> Schedule:
    return Schedule.model_validate({"job": "bench", "cron": "0 * * * *", "timezone": "UTC", **values})


def outcomes(
    plan: Schedule, past: FiringHistory, now: datetime, *, running: bool = False
) -> list[tuple[str, datetime]]:
    firings = decide(plan, past, now, running=running)
    return [(f.outcome, datetime.fromtimestamp(f.due, UTC)) for f in firings]


def test_a_new_schedule_begins_with_the_next_time() -> None:
    assert outcomes(schedule(), FiringHistory(None, None), START + timedelta(minutes=1)) == [
        ("watching", START + timedelta(minutes=1))
    ]


def test_a_changed_line_begins_anew() -> None:
    old = Firing(outcome="started", due=START.timestamp(), at=START.timestamp(), key="0 3 * * * UTC")
    assert read_past(schedule(), [old]).seen is None
    assert [schedule(timezone=zone).key for zone in ("UTC", "Europe/Berlin", None)] == [
        "0 * * * * UTC", "0 * * * * Europe/Berlin", "0 * * * * ",
    ]  # fmt: skip


def test_what_is_due_is_started() -> None:
    past = FiringHistory(START.timestamp(), None)
    assert outcomes(schedule(), past, START + timedelta(minutes=60, seconds=20)) == [
        ("started", START + timedelta(hours=1))
    ]


def test_after_a_night_asleep_only_the_newest_is_made_up_for() -> None:
    past = FiringHistory(START.timestamp(), None)
    found = outcomes(schedule(), past, START + timedelta(hours=8, minutes=30))
    assert [o for o, _ in found] == ["missed"] * 7 + ["started"]


def test_too_late_is_missed() -> None:
    past = FiringHistory(START.timestamp(), None)
    plan = schedule(cron="0 13 * * *", catch_up_minutes=15)
    assert outcomes(plan, past, START + timedelta(hours=2)) == [("missed", START + timedelta(hours=1))]
    never = schedule(cron="0 13 * * *", catch_up_minutes=0)
    assert outcomes(never, past, START + timedelta(hours=1, minutes=1)) == [("started", START + timedelta(hours=1))]
    assert outcomes(never, past, START + timedelta(hours=1, minutes=2)) == [("missed", START + timedelta(hours=1))]


def test_one_at_a_time() -> None:
    past = FiringHistory(START.timestamp(), None)
    assert outcomes(schedule(), past, START + timedelta(hours=1), running=True) == [
        ("overlap", START + timedelta(hours=1))
    ]


def test_a_clock_set_back_fires_nothing_twice() -> None:
    past = FiringHistory((START + timedelta(hours=1)).timestamp(), None)
    assert outcomes(schedule(), past, START + timedelta(minutes=30)) == []
    assert [o for o, _ in outcomes(schedule(), past, START - timedelta(days=3))] == ["watching"]


@settings(max_examples=150)
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
        record.extend(decide(plan, read_past(plan, record), now, running=running))
    due = [f.due for f in record if f.outcome != "watching"]
    begun = record[0].due
    expected = [t.timestamp() for t in due_between(plan, datetime.fromtimestamp(begun, UTC), now, limit=10**6)]
    assert due == sorted(set(due)), "a time was dealt with twice"
    assert set(due) <= set(expected)
    if len(expected) <= 100:
        assert due == expected, "a time that was due has no record"
