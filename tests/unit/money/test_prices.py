"""Prices: the list and its age, machines by what they are made of, spot beside on demand."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

from orchestrator.base.errors import ConfigError
from orchestrator.machines.cloud import Hardware
from orchestrator.machines.targets import GcpTarget, LocalTarget, SandboxTarget, Target
from orchestrator.money import caps as reckoning
from orchestrator.money.caps import Budget
from orchestrator.money.prices import rates
from orchestrator.money.prices.machine import machine_price, spot_preview
from orchestrator.money.prices.rates import hourly_plan, old_prices, price_age, usd_per_hour
from orchestrator.money.prices.table import E2, G2, PriceTable, Rates
from orchestrator.providers.gcp.list_prices import LIST_PRICES
from tests.support.budgets import listed


def gcp(**values: object) -> GcpTarget:
    given = {"name": "l4", "project": "my-project", "instance": "vm", "zones": ["us-central1-a"], **values}
    return GcpTarget.model_validate(given)


@pytest.mark.parametrize(
    ("machine_type", "region", "on_demand", "spot"),
    [  # as the source lists them, and as the arithmetic of the family has it for four GPUs
        ("g2-standard-4", "us-central1", 0.706832, 0.423956),
        ("g2-standard-32", "us-central1", 1.734376, 1.040348),
        ("g2-standard-48", "us-central1", 4.001665, 2.400272),
        ("g2-standard-4", "europe-west1", 0.778293, 0.433556),
        ("g2-standard-4", "us-east4", 0.704518, 0.34166),
        ("e2-standard-4", "us-central1", 0.13402284, 0.080424),
        ("e2-standard-8", "us-west4", 0.30188328, 0.03808),
    ],
)
def test_the_list_prices_are_those_of_the_source(machine_type: str, region: str, on_demand: float, spot: float) -> None:
    for model, usd in (("on_demand", on_demand), ("spot", spot)):
        price = LIST_PRICES.machine(machine_type, region, model)  # type: ignore[arg-type]
        assert price.usd == pytest.approx(usd, abs=2e-6)
        assert price.date == "2026-08-20"
        assert price.how == ("derived" if machine_type in ("g2-standard-48", "e2-standard-8") else "list")


def test_every_region_has_all_sizes_and_spot_is_the_cheaper_one() -> None:
    assert len(LIST_PRICES.regions) == 18
    for region in LIST_PRICES.regions:
        rows = list(LIST_PRICES.machines(region))
        assert [name for name, _, _ in rows] == [*G2, *E2]
        assert all(0 < spot.usd < on_demand.usd for _, on_demand, spot in rows)
        assert LIST_PRICES.disk("pd-balanced", region) is not None
        assert LIST_PRICES.disk("hyperdisk-balanced", region) is None  # its parts are priced apart


def test_what_the_table_does_not_know_is_refused_with_a_way_out() -> None:
    for target in (gcp(machine_type="e2-medium"), gcp(zones=["mars-north1-a"]), gcp(accelerators={"nvidia-l4": 2})):
        with pytest.raises(ConfigError, match="no price is known") as refused:
            rates.usd_per_hour(target, listed())
        assert "usd_per_hour" in (refused.value.hint or "")
    assert rates.usd_per_hour(gcp(machine_type="e2-medium", usd_per_hour=0.04), listed()) == 0.04
    assert rates.usd_per_hour(gcp(machine_type="e2-medium"), listed(usd_per_hour=0.75)) == 0.75


def test_the_rate_is_that_of_the_first_zone_and_the_worst_that_of_the_dearest() -> None:
    target = gcp(zones=["us-west1-c", "europe-west6-b"], provisioning="spot_then_on_demand")
    assert rates.usd_per_hour(target, listed()) == pytest.approx(0.423956)
    made = rates.hourly_plan(target, listed())
    assert made.worst_usd_per_hour == pytest.approx(4 * 0.048076948 + 0.7834403, abs=1e-6)
    assert made.rest_usd_per_hour == pytest.approx(13.0 / 730 + 0.005), (
        "its disk and its address, where they are dearest"
    )
    assert rates.hourly_plan(target, listed(usd_per_hour=0.75)).worst_usd_per_hour == 0.75


def test_the_sandbox_is_reckoned_as_the_machine_it_plays_and_local_is_free() -> None:
    assert rates.usd_per_hour(SandboxTarget(name="sandbox"), listed()) == 0.706832
    assert rates.usd_per_hour(SandboxTarget(name="sandbox", usd_per_hour=0), listed()) == 0
    assert rates.usd_per_hour(LocalTarget(name="local"), listed(usd_per_hour=0.75)) == 0


def test_fence_1_leaves_room_for_boot_and_transfers_and_stays_within_the_targets_own() -> None:
    target = gcp(wake_timeout_s=600, max_run_minutes=60)
    assert reckoning.fence_s(20, target) == 600 + 20 * 60 + 900
    assert reckoning.fence_s(50, target) == 3600
    with pytest.raises(ConfigError, match="61 min"):
        reckoning.fence_s(61, target)


def test_the_worst_case_holds_the_clouds_lateness_and_its_least_bill() -> None:
    assert reckoning.fenced_worst_case_usd(3600, 0.72) == pytest.approx(0.72 + 90 / 3600 * 0.72)


L4 = gcp(zones=["us-west1-c", "us-east4-a"])
DAY_S = 86400.0
PRICED = datetime(2026, 8, 20, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(("days", "named"), [(-5, False), (0, False), (90, False), (91, True), (365, True)])
def test_after_ninety_days_the_age_is_named(days: int, named: bool) -> None:
    said = old_prices(L4, listed(), PRICED + days * DAY_S, accepted=False)
    assert said == (
        f"the list prices of l4 are from 2026-08-20, {days} days old: get today's prices: fcctl cost prices --refresh"
        if named
        else None
    )


def test_after_a_year_nothing_is_planned_with_them_unless_that_is_accepted() -> None:
    now = PRICED + 366 * DAY_S
    with pytest.raises(ConfigError, match="366 days old") as refused:
        old_prices(L4, listed(), now, accepted=False)
    for way_out in ("fcctl cost prices --refresh", "--accept-old-prices", "usd_per_hour in [targets.l4]"):
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
    assert price_age(L4, both, PRICED + 100 * DAY_S) == ("2026-08-20", 100)
    newest = price_age(L4.model_copy(update={"zones": ["us-west1-c"]}), both, PRICED)
    assert newest == ("2026-11-20", 0), "a date to come is of today"


@pytest.mark.parametrize(("date", "days"), [("soon", 20000), ("2026-08-20", 1)])
def test_what_is_no_date_is_as_old_as_can_be(date: str, days: int) -> None:
    table = PriceTable("Google", date, LIST_PRICES.regions)
    age = price_age(L4, Budget().with_prices(lambda: table), PRICED + 1.5 * DAY_S)
    assert min(age.days, 20000) == days


ZONE = "us-west1-c"
SMALL = Hardware(ZONE, "g2-standard-4", False, (("nvidia-l4", 1),), (("pd-balanced", 100),), address=True)
BIG = replace(SMALL, machine_type="g2-standard-96", accelerators=(("nvidia-l4", 8),))
target = partial(gcp, zones=[ZONE, "europe-west6-b"])


def test_each_part_has_its_price() -> None:
    price = machine_price(SMALL, listed())
    assert price.usd == pytest.approx(0.706832)
    assert (price.disks_usd, price.address_usd) == (pytest.approx(100 * 0.1 / 730), 0.005)
    assert machine_price(replace(SMALL, address=False, disks=()), listed()).rest_usd == 0
    assert machine_price(replace(SMALL, spot=True), listed()).usd == pytest.approx(0.423956)
    own = target(disk_usd_per_gib_month=0.05, address_usd_per_hour=0.5)
    assert machine_price(SMALL, listed(), own).rest_usd == pytest.approx(100 * 0.05 / 730 + 0.5)


@pytest.mark.parametrize(
    ("kind", "of", "usd_per_gib", "guessed"),
    [
        ("pd-ssd", "pd-standard", 0.17, ()),
        ("", "pd-standard", 0.04, ()),  # the cloud did not say it, and the target does
        ("hyperdisk-balanced", "pd-standard", 0.17, ("hyperdisk-balanced",)),
        ("", "hyperdisk-balanced", 0.17, ("hyperdisk-balanced",)),
        ("local-ssd", "pd-standard", 0.17, ("local-ssd",)),
    ],
)
def test_a_disk_without_a_price_counts_as_the_dearest_and_is_named(
    kind: str, of: str, usd_per_gib: float, guessed: tuple[str, ...]
) -> None:
    price = machine_price(replace(SMALL, disks=((kind, 375),)), listed(), target(disk_type=of))
    assert price.disks_usd == pytest.approx(375 * usd_per_gib / 730)
    assert price.guessed == guessed


def test_no_price_of_another_machine_stands_in() -> None:
    unknown = (
        replace(SMALL, machine_type=""), replace(SMALL, zone="mars-north1-a"), replace(SMALL, machine_type="a3-high"),
        replace(SMALL, accelerators=(("nvidia-l4", 2),)), replace(SMALL, accelerators=(("nvidia-l4-vws", 1),)),
    )  # fmt: skip
    for one in unknown:
        with pytest.raises(ConfigError, match="no price is known") as refused:
            machine_price(one, listed(), target())
        assert "usd_per_hour = ... in [targets.l4]" in (refused.value.hint or "")
        assert machine_price(one, listed(usd_per_hour=0.75)).usd == 0.75
        assert machine_price(one, listed(usd_per_hour=0.75), target(usd_per_hour=9.0)).usd == 9.0


def test_what_the_cloud_shows_is_what_is_planned() -> None:
    assert hourly_plan(target(), listed()).worst_usd_per_hour == pytest.approx(0.97575, abs=1e-5)
    seen = listed().with_seen(target(), [BIG])
    made = hourly_plan(target(), seen)
    assert usd_per_hour(target(), seen) == made.usd_per_hour == made.worst_usd_per_hour
    assert made.usd_by_place == {f"{ZONE}/on_demand": pytest.approx(96 * 0.036698004 + 8 * 0.560040239, abs=1e-5)}
    assert made.worst_rate == made.worst_machine_rate + made.rest_rate
    assert hourly_plan(target(instance="other"), seen).worst_usd_per_hour == pytest.approx(0.97575, abs=1e-5)
    cheap = listed().with_seen(target(), [replace(SMALL, spot=True)])
    assert hourly_plan(target(), cheap).worst_usd_per_hour == pytest.approx(0.423956)
    copied = hourly_plan(target(on_stockout="rebuild"), cheap)
    assert set(copied.usd_by_place) == {f"{ZONE}/spot", f"{ZONE}/on_demand", "europe-west6-b/on_demand"}
    assert copied.worst_usd_per_hour == pytest.approx(0.97575, abs=1e-5), "a copy of it may be made elsewhere"


def test_the_rest_is_that_of_the_dearest_all_together() -> None:
    """A cheap machine with much disk, and a dear one without any: neither half alone is the worst case."""
    disky = replace(SMALL, spot=True, disks=(("pd-ssd", 3000),))
    plain = replace(SMALL, disks=(), address=False)
    made = hourly_plan(target(), listed().with_seen(target(), [disky, plain]))
    assert made.worst_usd_per_hour == pytest.approx(0.706832)
    assert made.worst_rate == pytest.approx(0.423956 + 3000 * 0.17 / 730 + 0.005)


TABLE = PriceTable("a list", "2026-08-20", {"us-west1": Rates(0.02, 0.56, 0.01, 0.24)})
described = partial(gcp, zones=[ZONE, "us-central1-a"])


@pytest.mark.parametrize("provisioning", ["on_demand", "spot", "spot_then_on_demand"])
def test_both_prices_are_the_lists_whatever_the_target_pays(provisioning: str) -> None:
    found = spot_preview(described(provisioning=provisioning, usd_per_hour=9.0), TABLE)
    assert (found.zone, found.on_demand.usd, found.spot.usd, found.less_pct) == ("us-west1-c", 0.64, 0.28, 56)
    assert found.text.startswith("spot: $0.28/h, 56 % less than on demand ($0.64/h)")
    assert found.as_json()["date"] == "2026-08-20"


def test_a_spot_price_above_the_other_is_told_as_that() -> None:
    dear = PriceTable("a list", "2026-08-20", {"us-west1": Rates(0.02, 0.56, 0.03, 0.6)})
    found = spot_preview(described(), dear)
    assert "spot: $0.72/h, 12 % more than on demand ($0.64/h)" in found.text


@pytest.mark.parametrize(
    "other",
    [
        described(zones=["europe-west4-a", "us-central1-a"]),
        described(machine_type="n1-standard-4"),
        described(accelerators={"nvidia-tesla-t4": 1}),
    ],
)
def test_where_the_list_has_no_price_there_is_no_preview(other: GcpTarget) -> None:
    assert spot_preview(other, TABLE) is None
