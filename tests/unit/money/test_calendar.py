"""Days and months of a zone."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.money.caps import Budget
from orchestrator.money.ledger import Line
from orchestrator.money.totals import Spending, cut_by_day, days, end_of_month, spent, start_of_day, start_of_month

ZONES = ["UTC", "Europe/Berlin", "America/Sao_Paulo", "America/Havana", "Australia/Lord_Howe", "Asia/Kolkata"]


@given(zone=st.sampled_from(ZONES), start=st.floats(0, 4e9), seconds=st.floats(0.01, 40 * 86400))
def test_the_pieces_of_a_time_lie_in_one_day_each_and_are_the_whole(zone: str, start: float, seconds: float) -> None:
    local, end = ZoneInfo(zone), start + seconds
    pieces = list(days(start, end, local))
    assert pieces[0][0] == start
    assert pieces[-1][1] == pytest.approx(end, abs=0.01)
    assert sum(until - since for since, until in pieces) == pytest.approx(seconds, abs=0.1)
    for since, until in pieces:
        dates = {datetime.fromtimestamp(moment, local).date() for moment in (since, (since + until) / 2)}
        assert len(dates) == 1


@given(zone=st.sampled_from(ZONES), moment=st.floats(0, 4e9))
def test_a_day_and_a_month_begin_before_every_moment_of_them(zone: str, moment: float) -> None:
    local = ZoneInfo(zone)
    day, month = start_of_day(moment, local), start_of_month(moment, local)
    assert month <= day <= moment
    assert moment - day <= 25 * 3600
    assert moment - month <= 31 * 86400 + 3600


def test_the_days_of_a_budget_are_utc_s_or_those_of_the_zone_that_it_names() -> None:
    assert Budget().zone is UTC
    late = datetime(2026, 11, 30, 23, 30, tzinfo=UTC).timestamp()
    delhi = Budget(timezone="Asia/Kolkata").zone
    assert datetime.fromtimestamp(start_of_month(late, delhi), UTC) == datetime(2026, 11, 30, 18, 30, tzinfo=UTC)
    with pytest.raises(ValueError, match="unknown time zone 'Europe/Berln', did you mean 'Europe/Berlin'"):
        Budget(timezone="Europe/Berln")


def test_what_begins_with_a_day_or_a_month_is_of_it() -> None:
    for zone in (UTC, ZoneInfo("Europe/Berlin")):
        day, month = (datetime(2026, 11, date, tzinfo=zone).timestamp() for date in (20, 1))
        at = [month - 1, month, day - 1, day, day + 3600]
        lines = [Line(start, 1.0, 10.0**power, "x", "l4") for power, start in enumerate(at)]
        assert spent(lines, day + 7200, zone) == Spending(11000.0, 11110.0, 11111.0)
        assert spent(lines, day + 86400, zone) == Spending(0.0, 11110.0, 11111.0)
        assert spent(lines, end_of_month(day, zone), zone) == Spending(0.0, 0.0, 11111.0)
        assert [line.seconds for line in cut_by_day([Line(day - 10, 40.0, 4.0, "x", "l4")], zone)] == [10.0, 30.0]


@pytest.mark.parametrize("month", range(1, 13))
def test_a_month_ends_where_the_next_one_begins(month: int) -> None:
    following = datetime(2026 + month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp()
    for moment in (datetime(2026, month, 1, tzinfo=UTC).timestamp(), following - 1):
        assert end_of_month(moment, UTC) == following


def test_a_damaged_time_has_no_days_beyond_the_last_one() -> None:
    assert list(days(1e300, 1e301, UTC)) == []
    assert list(days(float("nan"), -1.0, UTC)) == []
    pieces = list(days(4_102_444_800.0 - 3600, 1e300, UTC))
    assert pieces == [(4_102_444_800.0 - 3600, 4_102_444_800.0)]
