"""Google's price catalogue (the Cloud Billing API), read with Google's own library, which need not be installed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from orchestrator.base.errors import AuthError, CloudError, ConfigError, FcctlError
from orchestrator.money.prices.table import PriceTable
from orchestrator.providers.gcp.price_catalogue import SERVICE, Sku, table_of

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
            "Google's client for prices is not installed",
            hint="pip install google-cloud-billing  (in the environment that fcctl runs in)",
        ) from None
    try:
        skus = list(_skus(billing, api_endpoint))
    except Exception as error:  # classified in one place
        raise _understood(error) from error
    try:
        return table_of(skus, datetime.now(UTC).date().isoformat(), older)
    except ValueError as error:
        raise CloudError(
            "the price catalogue is not what this version of fcctl knows",
            cause=f"{len(skus)} rows, and {error}",
            hint="the prices stay as they were; a target's own usd_per_hour always counts",
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
            yield Sku(
                str(raw.description)[:200],
                str(raw.category.usage_type),
                tuple(str(region) for region in raw.service_regions),
                str(expression.usage_unit),
                _usd(expression.tiered_rates),
            )


def _usd(tiers: Any) -> float:
    """The dearest tier: the first may be free."""
    return max((int(tier.unit_price.units) + int(tier.unit_price.nanos) / 1e9 for tier in tiers), default=0.0)


def _understood(error: Exception) -> FcctlError:
    from google.api_core import exceptions as api
    from google.auth import exceptions as auth

    hint = "the prices stay as they were; try again later"
    if isinstance(error, auth.GoogleAuthError):
        return AuthError(
            "there are no Google Cloud credentials that the price catalogue takes",
            cause=_short(error),
            hint="gcloud auth application-default login",
        )
    if isinstance(error, api.Forbidden | api.Unauthorized):
        return AuthError(
            "the price catalogue does not answer these credentials",
            cause=_short(error),
            hint="gcloud services enable cloudbilling.googleapis.com --project PROJECT",
        )
    if isinstance(error, api.GoogleAPICallError):
        return CloudError("the price catalogue refuses", cause=_short(error), hint=hint)
    return CloudError("the price catalogue cannot be reached", cause=_short(error), hint=hint)


def _short(error: Exception) -> str:
    text = str(getattr(error, "message", None) or error) or type(error).__name__
    return "".join(c if c.isprintable() else " " for c in text)[:400]
