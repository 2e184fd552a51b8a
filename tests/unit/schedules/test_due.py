"""When a schedule is due, and what becomes of each time: started, missed, overlapping."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from orchestrator.base.clock import zone
from orchestrator.schedules.due import (
    Firing,
    FiringHistory,
    Schedule,
    decide,
    due_between,
    read_past,
    upcoming,
)


def berlin(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=zone("Europe/Berlin"))  # type: ignore[arg-type,misc]


def schedule(cron: str, timezone: str = "Europe/Berlin", **more: object) -> Schedule:
    return Schedule.model_validate({"job": "bench", "cron": cron, "timezone": timezone, **more})


@pytest.mark.parametrize(
    ("after", "times"),
    [
        (berlin(2027, 3, 27, 12), ["2027-03-28T03:00:00+02:00", "2027-03-29T02:30:00+02:00"]),
        (berlin(2027, 10, 30, 12), ["2027-10-31T02:30:00+02:00", "2027-11-01T02:30:00+01:00"]),
    ],
    ids=["skipped in spring: due when the gap ends", "repeated in autumn: due once"],
)
def test_a_time_that_a_change_of_the_clock_skips_or_repeats_is_due_once(after: datetime, times: list[str]) -> None:
    assert [t.isoformat() for t in upcoming(schedule("30 2 * * *"), after, 2)] == times


def test_every_half_hour_is_every_half_hour_through_the_autumn_change() -> None:
    found = due_between(schedule("*/30 * * * *"), berlin(2027, 10, 31, 0, 59), berlin(2027, 10, 31, 4, 1))
    gaps = {(b - a).total_seconds() for a, b in itertools.pairwise(found)}
    assert gaps == {1800.0}
    assert len(found) == 9  # 01:00 to 04:00 on the wall, with 02:00 to 03:00 twice


def test_the_zone_decides_when_it_is_two_o_clock() -> None:
    after = datetime(2027, 1, 4, 0, 0, tzinfo=UTC)
    there = upcoming(schedule("0 2 * * 1-5", "America/Los_Angeles"), after, 1)[0]
    assert there.astimezone(UTC) == datetime(2027, 1, 4, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"cron": "* * * *"}, "not 4"),
        ({"cron": "0 2 * * 1-5 2027"}, "not 6"),
        ({"cron": "61 * * * *"}, "minute"),
        ({"cron": "0 0 31 2 *"}, "day-of-month"),
        ({"cron": "*/0 * * * *"}, "minute"),
        ({"cron": "5-1 * * * *"}, "minute"),
        ({"cron": "@dally"}, "@daily"),
        ({"cron": "@daily 0"}, "not 2"),
        ({"cron": "noon"}, "not 1"),
        ({"cron": "x * * * *"}, "not a valid cron expression: bad minute"),
        ({"cron": "every day"}, "5 fields"),
        ({"cron": ""}, "5 fields"),
        ({"timezone": "Europe/Berln"}, "Europe/Berlin"),
        *(({"budget_usd": budget}, "budget_usd") for budget in (0, float("nan"), float("inf"))),
    ],
)
def test_what_is_never_due_or_absurd_is_refused(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Schedule.model_validate({"job": "bench", "cron": "@daily", **values})


@pytest.mark.parametrize("line", ["@daily", "0 2 * * MON-FRI", "0 0 29 2 *", "*/15 9-17 * * 1-5"])
def test_lines_people_write(line: str) -> None:
    assert len(upcoming(schedule(line, "UTC"), datetime(2026, 11, 21, tzinfo=UTC), 3)) == 3


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/localtime", "", "Europe"])
def test_a_zone_is_a_zone_and_no_file(name: str) -> None:
    with pytest.raises(ValueError, match="unknown time zone"):
        zone(name)


@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ({"budget_usd": 0.5, "per_month_usd": 0.5, "catch_up_minutes": 0}, True),
        ({"budget_usd": 100_000, "per_month_usd": 1_000_000, "catch_up_minutes": 7 * 24 * 60}, True),
        ({"on": "x" * 255, "cron": "0" + ",0" * 95 + " 0 * * *"}, True),
        ({"budget_usd": 100_001}, False),
        ({"per_month_usd": 0}, False),
        ({"per_month_usd": 1_000_001}, False),
        ({"catch_up_minutes": -0.5}, False),
        ({"on": ""}, False),
        ({"on": "x" * 256}, False),
        ({"cron": "0" + ",0" * 96 + " 0 * * *"}, False),
    ],
)
def test_how_much_may_be_asked_for(values: dict[str, object], allowed: bool) -> None:
    asked = {"cron": "@daily", **values}
    if allowed:
        assert values.items() <= schedule(**asked).model_dump().items()  # type: ignore[arg-type]
    else:
        with pytest.raises(ValidationError):
            schedule(**asked)  # type: ignore[arg-type]


def test_a_clock_that_was_years_off_does_not_take_years() -> None:
    long_ago = datetime(1970, 1, 1, tzinfo=UTC)
    found = due_between(schedule("* * * * *", "UTC"), long_ago, datetime(2026, 11, 21, tzinfo=UTC))
    assert len(found) == 100
    assert found[-1] == datetime(2026, 11, 21, tzinfo=UTC)
    months = due_between(schedule("@monthly", "UTC"), long_ago, datetime(2026, 12, 1, 12, tzinfo=UTC))
    leap = due_between(schedule("@monthly", "UTC"), long_ago, datetime(2026, 12, 2, tzinfo=UTC))
    assert leap[0] == datetime(2026, 1, 1, tzinfo=UTC), "366 days and no more"
    assert months[0] == datetime(2025, 12, 1, tzinfo=UTC), "a year is looked back on, and one that leaps, too"


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/30 * * * *", "0 */3 * * *", "15 1-4 * * *"])
@pytest.mark.parametrize("start", [datetime(2027, 3, 27, 20, tzinfo=UTC), datetime(2027, 10, 30, 20, tzinfo=UTC)])
def test_this_computer_s_own_zone_follows_its_rules(cron: str, start: datetime) -> None:
    here = Schedule(job="bench", cron=cron)
    named = schedule(cron, "Europe/Berlin")
    until = start + timedelta(hours=30)
    assert due_between(here, start, until) == due_between(named, start, until)
    assert [t.isoformat() for t in upcoming(here, start, 9)] == [t.isoformat() for t in upcoming(named, start, 9)]


START = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def hourly(**values: object) -> Schedule:
    return Schedule.model_validate({"job": "bench", "cron": "0 * * * *", "timezone": "UTC", **values})


def outcomes(
    plan: Schedule, past: FiringHistory, now: datetime, *, running: bool = False
) -> list[tuple[str, datetime]]:
    firings = decide(plan, past, now, running=running)
    return [(f.outcome, datetime.fromtimestamp(f.due, UTC)) for f in firings]


def test_a_changed_line_begins_anew() -> None:
    old = Firing(outcome="started", due=START.timestamp(), at=START.timestamp(), key="0 3 * * * UTC")
    for key in (old.key, "", "~"):
        assert read_past(hourly(), [old.model_copy(update={"key": key})]).seen is None
    assert [hourly(timezone=zone).key for zone in ("UTC", "Europe/Berlin", None)] == [
        "0 * * * * UTC", "0 * * * * Europe/Berlin", "0 * * * * ",
    ]  # fmt: skip


def test_after_a_night_asleep_only_the_newest_is_made_up_for() -> None:
    past = FiringHistory(START.timestamp(), None)
    found = outcomes(hourly(), past, START + timedelta(hours=8, minutes=30))
    assert [o for o, _ in found] == ["missed"] * 7 + ["started"]


def test_too_late_is_missed() -> None:
    assert (hourly().catch_up_minutes, hourly().enabled, hourly().on) == (60.0, True, "local")
    past = FiringHistory(START.timestamp(), None)
    plan = hourly(cron="0 13 * * *", catch_up_minutes=15)
    assert outcomes(plan, past, START + timedelta(hours=2)) == [("missed", START + timedelta(hours=1))]
    never = hourly(cron="0 13 * * *", catch_up_minutes=0)
    assert outcomes(never, past, START + timedelta(hours=1, minutes=1)) == [("started", START + timedelta(hours=1))]
    assert outcomes(never, past, START + timedelta(hours=1, minutes=2)) == [("missed", START + timedelta(hours=1))]


def test_a_clock_set_back_fires_nothing_twice() -> None:
    past = FiringHistory((START + timedelta(hours=1)).timestamp(), None)
    assert outcomes(hourly(), past, START + timedelta(minutes=30)) == []
    assert [o for o, _ in outcomes(hourly(), past, START - timedelta(days=3))] == ["watching"]


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
    plan = hourly(cron=cron, timezone=zone)
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


@pytest.mark.parametrize(
    ("late_s", "catch_up", "running", "outcome", "reason"),
    [
        (0, 60, False, "started", None),
        (89, 60, False, "started", None),
        (90, 60, False, "started", "2 minutes late"),
        (3600, 60, False, "started", "60 minutes late"),
        (3601, 60, False, "missed", "noticed 60 minutes late: this computer slept or was off"),
        (90, 0, False, "started", "2 minutes late"),  # a tick may be a minute late
        (91, 0, False, "missed", "noticed 2 minutes late: this computer slept or was off"),
        (3600, 60, True, "overlap", "the previous firing is still active"),
        (3601, 60, True, "missed", "noticed 60 minutes late: this computer slept or was off"),
    ],
)
def test_how_late_one_may_be(late_s: float, catch_up: float, running: bool, outcome: str, reason: str | None) -> None:
    plan = hourly(cron="0 12 * * *", catch_up_minutes=catch_up)
    past = FiringHistory((START - timedelta(hours=1)).timestamp(), None)
    (found,) = decide(plan, past, START + timedelta(seconds=late_s), running=running)
    assert (found.outcome, found.reason, found.due) == (outcome, reason, START.timestamp())
    assert found.at == START.timestamp() + late_s


@pytest.mark.parametrize(("back_s", "outcomes_"), [(86400, []), (86401, ["watching"])])
def test_a_clock_that_is_set_back_by_more_than_a_day_is_the_new_time(back_s: float, outcomes_: list[str]) -> None:
    past = FiringHistory(START.timestamp(), None)
    assert [o for o, _ in outcomes(hourly(), past, START - timedelta(seconds=back_s))] == outcomes_


def test_after_a_clock_that_was_a_week_ahead_the_schedule_continues_from_the_new_time() -> None:
    plan, record, ahead = hourly(), list[Firing](), START + timedelta(days=7)
    for now in (ahead, ahead + timedelta(hours=1), START, START + timedelta(minutes=1), START + timedelta(hours=1)):
        record += decide(plan, read_past(plan, record), now, running=False)
    assert [(f.outcome, f.due - START.timestamp()) for f in record] == [
        ("watching", 7 * 86400.0), ("started", 7 * 86400.0 + 3600), ("watching", 0.0), ("started", 3600.0),
    ]  # fmt: skip


@pytest.mark.parametrize("outcome", ["finished", "interrupted"])
def test_the_end_of_a_firing_of_an_earlier_cron_line_takes_no_time_of_the_new_one(outcome: str) -> None:
    since, now = START.timestamp(), START + timedelta(hours=1)
    end = {"outcome": outcome, "due": since - 60, "at": now.timestamp(), "key": hourly(cron="59 * * * *").key}
    watching = Firing(outcome="watching", due=since, at=since, key=hourly().key)
    past = read_past(hourly(), [watching, Firing.model_validate(end)])
    assert outcomes(hourly(), past, now) == [("started", now)]


def test_of_two_that_nobody_ended_the_later_is_unfinished() -> None:
    def line(outcome: str, hour: int) -> Firing:
        due = START.timestamp() + hour * 3600
        return Firing(outcome=outcome, due=due, at=due, key=hourly().key)  # type: ignore[arg-type]

    record = [line("started", 0), line("started", 1), line("started", 2), line("finished", 2), line("missed", 3)]
    assert read_past(hourly(), record) == FiringHistory(record[-1].due, record[1])
    record += [line("interrupted", 1), line("finished", 0)]
    assert read_past(hourly(), record) == FiringHistory(START.timestamp() + 3 * 3600, None)
    assert read_past(hourly(), []) == FiringHistory(None, None)
