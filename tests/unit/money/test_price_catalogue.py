"""Rows of Google's price catalogue become a price table, whatever else the catalogue has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.money.prices.table import PriceTable, from_json, to_json
from orchestrator.providers import registry
from orchestrator.providers.gcp.list_prices import LIST_PRICES
from orchestrator.providers.gcp.prices import Sku, table_of

#: us-east1 as it was read from the catalogue in September 2026 by somebody else than the source of our own list.
ROWS = {
    "G2 Instance Core running in Americas": ("OnDemand", "h", 0.024988),
    "G2 Instance Ram running in Americas": ("OnDemand", "GiBy.h", 0.002927),
    "Nvidia L4 GPU running in Americas": ("OnDemand", "h", 0.560040),
    "Spot Preemptible G2 Instance Core running in Americas": ("Preemptible", "h", 0.014990),
    "Spot Preemptible G2 Instance Ram running in Americas": ("Preemptible", "GiBy.h", 0.001756),
    "Nvidia L4 GPU attached to Spot Preemptible VMs running in Americas": ("Preemptible", "h", 0.335900),
    "E2 Instance Core running in Americas": ("OnDemand", "h", 0.02181159),
    "E2 Instance Ram running in Americas": ("OnDemand", "GiBy.h", 0.00292353),
    "Balanced PD Capacity": ("OnDemand", "GiBy.mo", 0.10),
}
#: What must not be taken for one of them.
OTHERS = {
    "Commitment v1: G2 Instance Core running in Americas for 1 Year": ("Commit1Yr", "h", 0.016),
    "Nvidia L4 GPU attached to DWS Defined Duration VMs running in Americas": ("OnDemand", "h", 0.40),
    "G2 Sole Tenancy Instance Core running in Americas": ("OnDemand", "h", 0.9),
    "Regional Balanced PD Capacity": ("OnDemand", "GiBy.mo", 0.2),
    "Balanced PD Capacity in Tokyo": ("OnDemand", "GiBy.h", 9.0),
    "Nvidia L4 GPU running in nowhere": ("OnDemand", "h", 0.0),
}


def skus(rows: dict[str, tuple[str, str, float]], *regions: str) -> list[Sku]:
    return [Sku(text, usage, regions, unit, usd) for text, (usage, unit, usd) in rows.items()]


def table(*more: Sku) -> PriceTable:
    return table_of([*skus(OTHERS, "us-east1"), *skus(ROWS, "us-east1"), *more], "2026-11-21", LIST_PRICES)


def test_two_independent_readings_of_the_catalogue_agree() -> None:
    for model in ("on_demand", "spot"):
        fetched, listed = (one.machine("g2-standard-8", "us-east1", model) for one in (table(), LIST_PRICES))
        assert fetched.usd == pytest.approx(listed.usd, rel=1e-4)
        assert (fetched.date, listed.date) == ("2026-11-21", "2026-08-20")


def test_what_it_does_not_say_is_taken_from_the_older_table_with_its_date() -> None:
    made = table()
    for kind, usd, date in (("pd-balanced", 0.10, "2026-11-21"), ("pd-ssd", 0.17, "2026-08-20")):
        price = made.disk(kind, "us-east1")
        assert (price.usd, price.date) == (usd, date)
    e2, spot_e2 = (made.machine("e2-standard-4", "us-east1", model) for model in ("on_demand", "spot"))
    assert (e2.usd, e2.date) == (pytest.approx(0.13402284, abs=1e-6), "2026-11-21")
    assert (spot_e2.usd, spot_e2.date) == (0.080424, "2026-08-20")
    elsewhere = made.machine("g2-standard-4", "europe-west4")
    assert elsewhere.date == "2026-08-20"
    assert made.region_names() == sorted(LIST_PRICES.regions)


def test_the_dearer_of_two_rows_counts_and_a_region_without_all_parts_does_not() -> None:
    dearer = Sku("Nvidia L4 GPU running in Columbus", "OnDemand", ("us-east1",), "h", 0.7)
    part = Sku("Nvidia L4 GPU running in Mars", "OnDemand", ("mars-north1",), "h", 0.7)
    made = table(dearer, part)
    assert made.regions["us-east1"].l4 == 0.7
    assert "mars-north1" not in made.regions


def test_a_catalogue_of_other_words_is_refused() -> None:
    with pytest.raises(ValueError, match="no region"):
        table_of(skus(OTHERS, "us-east1"), "2026-11-21", LIST_PRICES)


def test_the_newer_of_the_fetched_and_this_version_s_own_prices_counts(
    private_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry.fetched_prices(LIST_PRICES) is None
    path = registry.write_prices(table())
    for own, found in (("2026-11-20", True), ("2026-11-21", False), ("2026-11-22", False)):
        older = replace(LIST_PRICES, date=own)
        assert registry.fetched_prices(older) == (replace(table(), older=older) if found else None)
    size = path.stat().st_size
    for limit, found in ((size, True), (size - 1, False)):
        monkeypatch.setattr(registry, "_MAX_BYTES", limit)
        assert (registry.fetched_prices(LIST_PRICES) is not None) == found
    path.write_text("cut o")
    assert registry.fetched_prices(LIST_PRICES) is None


def test_it_is_kept_as_it_was_and_nonsense_is_not_read() -> None:
    made = table()
    again = from_json(to_json(made), LIST_PRICES)
    assert again == made
    good = json.loads(to_json(made))
    rates = good["regions"]["us-east1"]
    bad = [
        None, [], {}, {**good, "schema_version": 2}, {**good, "regions": {"us-east1": {**rates, "l4": "0.5"}}},
        {**good, "regions": {"us-east1": {**rates, "l4": -1}}},
        {**good, "regions": {"us-east1": {**rates, "l4": None}}},
        {**good, "regions": {"us-east1": {"l4": 1}}},
        {**good, "regions": {"us-east1": {**rates, "l4": float("nan")}}},
    ]  # fmt: skip
    for value in bad:
        with pytest.raises(ValueError, match=r"."):
            from_json(json.dumps(value), LIST_PRICES)
