"""List prices have a date: old ones are named, and ones of a year are no ground for a start."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from orchestrator.base.errors import ConfigError
from orchestrator.machines.targets import GcpTarget, LocalTarget, SandboxTarget, Target
from orchestrator.money.caps import Budget
from orchestrator.money.prices.age import age_days, old_prices, price_age, price_date
from orchestrator.money.prices.table import PriceTable
from orchestrator.providers.gcp.list_prices import LIST_PRICES
from tests.support.budgets import listed

L4 = GcpTarget(name="l4", project="my-project", instance="vm", zones=["us-west1-c", "us-east4-a"])
DAY_S = 86400.0
PRICED = datetime(2026, 8, 20, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(("days", "named"), [(-5, False), (0, False), (90, False), (91, True), (365, True)])
def test_after_ninety_days_the_age_is_named(days: int, named: bool) -> None:
    said = old_prices(L4, listed(), PRICED + days * DAY_S, accepted=False)
    assert said == (
        f"the list prices of l4 are of 2026-08-20, {days} days old: fcctl cost prices --refresh fetches today's"
        if named
        else None
    )


def test_after_a_year_nothing_is_planned_with_them_unless_that_is_accepted() -> None:
    now = PRICED + 366 * DAY_S
    with pytest.raises(ConfigError, match="366 days old") as refused:
        old_prices(L4, listed(), now, accepted=False)
    for way_out in ("fcctl cost prices --refresh", "--accept-old-prices", "usd_per_hour of [targets.l4]"):
        assert way_out in (refused.value.hint or "")
    assert "366 days old" in (old_prices(L4, listed(), now, accepted=True) or "")


@pytest.mark.parametrize(
    ("target", "budget"),
    [
        (LocalTarget(name="local"), listed()), (SandboxTarget(name="sandbox"), listed()),
        (L4.model_copy(update={"usd_per_hour": 0.5}), listed()), (L4, listed(usd_per_hour=0.75)),
    ],
)  # fmt: skip
def test_what_nobody_pays_and_what_the_user_says_himself_has_no_date(target: Target, budget: Budget) -> None:
    assert price_age(target, budget, PRICED) is None
    assert old_prices(target, budget, PRICED + 4000 * DAY_S, accepted=False) is None


def test_the_oldest_of_the_prices_counts_where_the_newer_list_lacks_a_region() -> None:
    newer = PriceTable("Google", "2026-11-20", {"us-west1": LIST_PRICES.regions["us-west1"]}, LIST_PRICES)
    both = Budget().with_prices(lambda: newer)
    assert price_date(L4, both) == "2026-08-20"
    assert price_age(L4, both, PRICED + 100 * DAY_S) == {"date": "2026-08-20", "age_days": 100}
    assert price_date(L4.model_copy(update={"zones": ["us-west1-c"]}), both) == "2026-11-20"


def test_what_is_no_date_is_as_old_as_can_be() -> None:
    assert age_days("soon", PRICED) > 20000
    assert age_days("2026-08-20", PRICED + 1.5 * DAY_S) == 1
