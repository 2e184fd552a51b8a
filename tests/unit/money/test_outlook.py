"""What may still be planned under a cap."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator.money.caps import Budget
from orchestrator.money.ledger import Line
from orchestrator.money.totals import Spending
from orchestrator.runs.cost import outlook
from orchestrator.runs.cost.outlook import CapRow, MachineOn, Outlook
from orchestrator.runs.cost.owners import OpenReservation
from tests.support.spending import reservation


@pytest.mark.parametrize(
    ("cap", "spent", "reserved", "free"),
    [
        (10.0, 4.0, None, 6.0),
        (10.0, 4.0, 1.5, 4.5),
        (10.0, 9.0, 2.0, 0.0),
        (None, 4.0, None, None),
        (9.0, None, 1.0, None),
    ],
)
def test_what_is_free(cap: float | None, spent: float | None, reserved: float | None, free: float | None) -> None:
    assert CapRow("day", cap, spent, reserved=reserved).free == free


DAY, NOW = 86400.0, datetime(2026, 11, 11, 6, tzinfo=UTC).timestamp()


def made(usd: float, left: float, so_far: float | None, rate: float = 0.0) -> OpenReservation:
    return OpenReservation(reservation("r", usd), left, so_far, rate, "", "")


@pytest.mark.parametrize(
    ("so_far", "beyond"),
    [(1.0, 0.0), (2.0, 0.0), (3.5, 1.5), (9.0, 7.0), (None, 0.0)],
)
def test_what_is_reserved_beyond_what_the_active_has_cost(so_far: float | None, beyond: float) -> None:
    """Of 5 dollars the ledger has 2."""
    one = made(5.0, 3.0, so_far)
    assert one.beyond_usd == beyond
    found = Outlook(NOW, Budget(), (), (one, made(1.0, 1.0, None)), FORECAST, (), Spending(0, 0, 0), 0)
    assert (found.reserved, found.reserved_beyond_now) == (4.0, max(0.0, 3.0 - beyond) + 1.0)


@pytest.mark.parametrize(
    ("rate", "hours", "since"),
    [(0.0, 1, 6.0), (2.0, 1, 2.0), (2.0, 1.5, 3.0), (2.0, 3, 6.0), (2.0, 5, 6.0)],
)
def test_of_what_a_machine_has_cost_only_what_it_cost_since_midnight_is_today_s(
    rate: float, hours: float, since: float
) -> None:
    """It has cost 6 dollars, and is on at ``rate`` since it was started, perhaps before midnight."""
    midnight = datetime(2026, 11, 11, tzinfo=UTC).timestamp()
    open_ = [made(9.0, 9.0, 6.0, rate)]
    found = outlook._until_now(Budget(timezone="UTC"), Spending(1.0, 10.0, 100.0), open_, midnight + hours * 3600)
    assert found == Spending(1.0 + since, 10.0 + 6.0, 106.0)


def stood(end: float, usd: float = 0.5, seconds: float = DAY / 2, **changes: Any) -> Line:
    return Line(end - seconds, seconds, usd, "disk", "l4", **{"what": "disk vm", **changes})


@pytest.mark.parametrize(
    ("line", "per_day"),
    [
        (stood(NOW), 1.0),
        (stood(NOW - 1), 1.0),
        (stood(NOW - 2), 0.0),  # it is gone
        (stood(NOW, emulated=True), 0.0),
        (stood(NOW, seconds=0.0), 0.0),
        (stood(NOW, what=None), 0.0),  # a machine's seconds
        (stood(NOW, machine="vm (7)"), 0.0),  # its address
    ],
)
def test_what_stands_now_stands_until_the_end_of_the_month(line: Line, per_day: float) -> None:
    found = outlook._forecast(Budget(timezone="UTC"), [line], Spending(0, 30.5, 0), Spending(0, 10, 0), 4.0, NOW)
    assert (found.machines_per_day, found.standing_per_day, found.days_left) == (2.0, per_day, 19.75)
    assert found.total == pytest.approx(30.5 + 4.0 + 19.75 * (2.0 + per_day))


@pytest.mark.parametrize(("hours", "per_day"), [(1, 12.0), (24, 12.0), (48, 6.0)])
def test_a_month_that_has_just_begun_is_a_day_old(hours: float, per_day: float) -> None:
    now = datetime(2026, 11, 1, tzinfo=UTC).timestamp() + hours * 3600
    spent, standing = Spending(0, 15, 0), Spending(0, 3, 0)
    assert outlook._forecast(Budget(timezone="UTC"), [], spent, standing, 0.0, now).machines_per_day == per_day
    less = outlook._forecast(Budget(timezone="UTC"), [], standing, spent, 0.0, now)
    assert less.machines_per_day == 0.0, "never less than nothing"


FORECAST = outlook._forecast(Budget(timezone="UTC"), [], Spending(0, 0, 0), Spending(0, 0, 0), 0.0, NOW)


@pytest.mark.parametrize(
    ("rate", "after_s", "usd"), [(2.0, 1800, 1.0), (2.0, -60, 0.0), (0.0, 1800, 0.0), (None, 9, None)]
)
def test_what_a_machine_that_is_on_has_cost(rate: float | None, after_s: float, usd: float | None) -> None:
    assert MachineOn("l4", "vm", rate, NOW, NOW, None, "fcctl hosts down l4").usd(NOW + after_s) == usd
