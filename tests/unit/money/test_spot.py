"""What spot would save, beside the on-demand price."""

from __future__ import annotations

import pytest

from orchestrator.machines.targets import GcpTarget
from orchestrator.money.prices.spot import spot_preview
from orchestrator.money.prices.table import PriceTable, Rates

TABLE = PriceTable("a list", "2026-08-20", {"us-west1": Rates(0.02, 0.56, 0.01, 0.24)})


def target(zone: str = "us-west1-c", **more: object) -> GcpTarget:
    values = {"name": "l4", "project": "my-project", "instance": "vm", "zones": [zone, "us-central1-a"], **more}
    return GcpTarget.model_validate(values)


@pytest.mark.parametrize("provisioning", ["on_demand", "spot", "spot_then_on_demand"])
def test_both_prices_are_the_lists_whatever_the_target_pays(provisioning: str) -> None:
    found = spot_preview(target(provisioning=provisioning, usd_per_hour=9.0), TABLE)
    assert found is not None
    assert (found.zone, found.on_demand.usd, found.spot.usd, found.less_pct) == ("us-west1-c", 0.64, 0.28, 56)
    assert found.text.startswith("spot: $0.28/h, 56 % less than on demand ($0.64/h)")
    assert found.as_json()["date"] == "2026-08-20"


def test_a_spot_price_above_the_other_is_told_as_that() -> None:
    dear = PriceTable("a list", "2026-08-20", {"us-west1": Rates(0.02, 0.56, 0.03, 0.6)})
    found = spot_preview(target(), dear)
    assert found is not None
    assert "spot: $0.72/h, 12 % more than on demand ($0.64/h)" in found.text


@pytest.mark.parametrize(
    "other",
    [target("europe-west4-a"), target(machine_type="n1-standard-4"), target(accelerators={"nvidia-tesla-t4": 1})],
)
def test_where_the_list_has_no_price_there_is_no_preview(other: GcpTarget) -> None:
    assert spot_preview(other, TABLE) is None
