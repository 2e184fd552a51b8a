"""A price table made from its price catalogue."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.base.errors import AuthError, CloudError, ConfigError, FcctlError
from orchestrator.base.installation import to_install
from orchestrator.base.sanitize import clean
from orchestrator.money.prices.table import SANE_USD, PriceTable, Rates

#: Compute Engine, among the services of the catalogue.
SERVICE = "services/6F81-5844-456A"
_GIB_PER_VCPU = 4


@dataclass(frozen=True)
class Sku:
    """The fields of a row that are used."""

    description: str
    usage_type: str  # OnDemand, Preemptible, Commit1Yr, ...
    regions: tuple[str, ...]
    unit: str  # h, GiBy.h, GiBy.mo
    usd: float  # for one unit, beyond the free tier


#: The rows of a price: (beginning of the description, usage type, unit).
_ROWS: dict[str, tuple[re.Pattern[str], str, str]] = {
    "core": (re.compile(r"G2 Instance Core running in "), "OnDemand", "h"),
    "ram": (re.compile(r"G2 Instance Ram running in "), "OnDemand", "GiBy.h"),
    "l4": (re.compile(r"Nvidia L4 GPU running in "), "OnDemand", "h"),
    "spot_core": (re.compile(r"Spot Preemptible G2 Instance Core running in "), "Preemptible", "h"),
    "spot_ram": (re.compile(r"Spot Preemptible G2 Instance Ram running in "), "Preemptible", "GiBy.h"),
    "spot_l4": (re.compile(r"Nvidia L4 GPU attached to Spot Preemptible VMs running in "), "Preemptible", "h"),
    "e2_core": (re.compile(r"E2 Instance Core running in "), "OnDemand", "h"),
    "e2_ram": (re.compile(r"E2 Instance Ram running in "), "OnDemand", "GiBy.h"),
    "spot_e2_core": (re.compile(r"Spot Preemptible E2 Instance Core running in "), "Preemptible", "h"),
    "spot_e2_ram": (re.compile(r"Spot Preemptible E2 Instance Ram running in "), "Preemptible", "GiBy.h"),
    "pd_balanced": (re.compile(r"Balanced PD Capacity( in |$)"), "OnDemand", "GiBy.mo"),
    "pd_ssd": (re.compile(r"SSD backed PD Capacity( in |$)"), "OnDemand", "GiBy.mo"),
    "pd_standard": (re.compile(r"Storage PD Capacity( in |$)"), "OnDemand", "GiBy.mo"),
    "snapshot": (re.compile(r"Storage PD Snapshot( in |$)"), "OnDemand", "GiBy.mo"),
    "address_unused": (re.compile(r"Static Ip Charge( in |$)"), "OnDemand", "h"),
}
_MACHINE = ("core", "ram", "l4", "spot_core", "spot_ram", "spot_l4")


def table_of(skus: Iterable[Sku], date: str, older: PriceTable) -> PriceTable:
    """The prices of every region whose G2 machines the catalogue prices whole; ``older`` stands in for the rest.

    Args:
        date: of the catalogue, ISO 8601.

    Raises ValueError: it has no such region: then its descriptions are not those that this version knows.
    """
    by_region: dict[str, dict[str, float]] = {}
    for sku in skus:
        what = _what(sku)
        if what is not None:
            for region in sku.regions:
                row = by_region.setdefault(region, {})
                row[what] = max(sku.usd, row.get(what, 0.0))
    regions = {name: _rates(row) for name, row in sorted(by_region.items()) if all(part in row for part in _MACHINE)}
    if not regions:
        raise ValueError("no region in it has prices for all parts of a g2 machine")
    return PriceTable("Google's price catalogue (Cloud Billing)", date, regions, older)


def _what(sku: Sku) -> str | None:
    low, high = SANE_USD
    for name, (pattern, usage_type, unit) in _ROWS.items():
        if pattern.match(sku.description) and (sku.usage_type, sku.unit) == (usage_type, unit) and low < sku.usd < high:
            return name
    return None


def _rates(row: Mapping[str, float]) -> Rates:
    said = {name: row.get(name) for name in ("pd_balanced", "pd_ssd", "pd_standard", "snapshot", "address_unused")}
    vcpu, spot_vcpu = _vcpu(row, "") or 0.0, _vcpu(row, "spot_") or 0.0
    e2 = {"e2_vcpu": _vcpu(row, "e2_"), "spot_e2_vcpu": _vcpu(row, "spot_e2_")}
    return Rates(vcpu, row["l4"], spot_vcpu, row["spot_l4"], **said, **e2)


def _vcpu(row: Mapping[str, float], family: str) -> float | None:
    """One vCPU with its memory; None without a price."""
    core, ram = row.get(f"{family}core"), row.get(f"{family}ram")
    return None if core is None or ram is None else round(core + _GIB_PER_VCPU * ram, 9)


_PAGE = 5000  # the most the service gives; Compute Engine has some ten pages
_TIMEOUT_S = 60.0


def fetch(older: PriceTable, api_endpoint: str | None = None) -> PriceTable:
    """The list prices of today.

    Args:
        older: for what the catalogue does not say.
        api_endpoint: another server's than Google's, on loopback, which gets no credentials.

    Raises ConfigError: google-cloud-billing is not installed; AuthError: no credentials, or they may not ask;
    CloudError: no answer, or none that makes sense.
    """
    try:
        billing = importlib.import_module("google.cloud.billing_v1")
    except ImportError:
        raise ConfigError(
            "the package google-cloud-billing, which reads Google's prices, is not installed", hint=to_install("prices")
        ) from None
    try:
        skus = list(_skus(billing, api_endpoint))
    except Exception as error:  # classified in one place
        raise _understood(error) from error
    try:
        return table_of(skus, datetime.now(UTC).date().isoformat(), older)
    except ValueError as error:
        raise CloudError(
            "this version of fcctl cannot read the price catalogue",
            cause=f"it has {len(skus)} rows; {error}",
            hint="fcctl keeps the old prices; or set usd_per_hour in the target, which takes precedence",
        ) from None


def _skus(billing: Any, api_endpoint: str | None) -> Iterator[Sku]:
    given: dict[str, Any] = {"transport": "rest"}
    if api_endpoint is not None:
        from google.auth.credentials import AnonymousCredentials

        given |= {
            "credentials": AnonymousCredentials(),  # type: ignore[no-untyped-call]  # half typed
            "client_options": {"api_endpoint": api_endpoint},
        }
    client = billing.CloudCatalogClient(**given)
    request = {"parent": SERVICE, "currency_code": "USD", "page_size": _PAGE}
    for raw in client.list_skus(request=request, timeout=_TIMEOUT_S):
        if raw.pricing_info:
            expression = raw.pricing_info[-1].pricing_expression
            tiers = (int(t.unit_price.units) + int(t.unit_price.nanos) / 1e9 for t in expression.tiered_rates)
            yield Sku(
                str(raw.description)[:200],
                str(raw.category.usage_type),
                tuple(str(region) for region in raw.service_regions),
                str(expression.usage_unit),
                max(tiers, default=0.0),  # the first may be free
            )


def _understood(error: Exception) -> FcctlError:
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    hint = "fcctl keeps the old prices; run the command again later"
    if isinstance(error, auth.GoogleAuthError):
        return AuthError(
            "this computer has no Google Cloud credentials for the price catalogue",
            cause=_short(error),
            hint="gcloud auth application-default login",
        )
    if isinstance(error, api.Forbidden | api.Unauthorized):
        return AuthError(
            "the price catalogue refused these credentials",
            cause=_short(error),
            hint="gcloud services enable cloudbilling.googleapis.com --project PROJECT",
        )
    if isinstance(error, api.GoogleAPICallError):
        return CloudError("the price catalogue refused the request", cause=_short(error), hint=hint)
    return CloudError("the price catalogue cannot be reached", cause=_short(error), hint=hint)


def _short(error: Exception) -> str:
    return clean(getattr(error, "message", None) or error, 400) or type(error).__name__
