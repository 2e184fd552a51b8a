"""The price of a machine by what it is made of, and what an hour of a target is planned to cost with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.base.errors import ConfigError
from orchestrator.machines.cloud import Hardware
from orchestrator.machines.targets import GcpTarget
from orchestrator.money.prices.machine import machine_price
from orchestrator.money.prices.rates import hourly_plan, usd_per_hour
from tests.support.budgets import listed

ZONE = "us-west1-c"
SMALL = Hardware(ZONE, "g2-standard-4", False, (("nvidia-l4", 1),), (("pd-balanced", 100),), address=True)
BIG = replace(SMALL, machine_type="g2-standard-96", accelerators=(("nvidia-l4", 8),))


def target(**changes: Any) -> GcpTarget:
    values = {"name": "l4", "project": "my-project", "instance": "vm", "zones": [ZONE, "europe-west6-b"], **changes}
    return GcpTarget.model_validate(values)


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
