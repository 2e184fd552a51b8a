"""The price table, the rate of a target, and what a start can cost at most."""

from __future__ import annotations

import pytest

from orchestrator.base.errors import ConfigError
from orchestrator.machines.targets import GcpTarget, LocalTarget, SandboxTarget
from orchestrator.money import caps as reckoning
from orchestrator.money.prices import rates
from orchestrator.money.prices.table import G2
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
    ],
)
def test_the_list_prices_are_those_of_the_source(machine_type: str, region: str, on_demand: float, spot: float) -> None:
    for model, usd in (("on_demand", on_demand), ("spot", spot)):
        price = LIST_PRICES.machine(machine_type, region, model)  # type: ignore[arg-type]
        assert price is not None
        assert price.usd == pytest.approx(usd, abs=2e-6)
        assert price.date == "2026-08-20"
        assert price.how == ("derived" if machine_type == "g2-standard-48" else "list")


def test_every_region_has_all_sizes_and_spot_is_the_cheaper_one() -> None:
    assert len(LIST_PRICES.regions) == 18
    for region in LIST_PRICES.regions:
        rows = list(LIST_PRICES.machines(region))
        assert [name for name, _, _ in rows] == list(G2)
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
