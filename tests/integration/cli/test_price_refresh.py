"""fcctl cost prices --refresh: Google's library for the price catalogue, against a server that answers as it does."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from orchestrator.base.errors import AuthError, CloudError, ConfigError
from orchestrator.base.files import user_folder
from orchestrator.money.prices.rates import usd_per_hour
from orchestrator.providers import registry
from orchestrator.providers.gcp import prices
from orchestrator.providers.gcp.list_prices import LIST_PRICES
from orchestrator.workspace.workspace import find_workspace
from tests.support.command import Fcctl
from tests.unit.money.test_price_catalogue import ROWS

L4 = '[targets.l4]\nkind = "gcp"\nproject = "my-project"\ninstance = "vm"\nzones = ["us-east1-c"]\n'


class Catalogue(ThreadingHTTPServer):
    """Two pages of rows, as the service writes them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        self.refusal: dict[str, Any] | None = None
        self.rows = [_row(text, *row) for text, row in ROWS.items()]
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Catalogue

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        query = parse_qs(urlsplit(self.path).query)
        second = query.get("pageToken") == ["2"]
        rows = self.server.rows[3:] if second else self.server.rows[:3]
        answer: dict[str, Any] = {"skus": rows, "nextPageToken": "" if second else "2"}
        status = 200
        if self.server.refusal is not None:
            answer, status = {"error": self.server.refusal}, int(self.server.refusal["code"])
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def _row(text: str, usage: str, unit: str, usd: float) -> dict[str, Any]:
    rate = {"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": "0", "nanos": round(usd * 1e9)}}
    return {
        "name": "services/6F81-5844-456A/skus/D18E-3563-415F",
        "skuId": "D18E-3563-415F",
        "description": text,
        "category": {"resourceFamily": "Compute", "resourceGroup": "CPU", "usageType": usage},
        "serviceRegions": ["us-east1"],
        "pricingInfo": [
            {
                "effectiveTime": "2026-11-20T08:00:00Z",
                "pricingExpression": {"usageUnit": unit, "displayQuantity": 1, "tieredRates": [rate]},
            }
        ],
    }


@pytest.fixture
def catalogue() -> Iterator[Catalogue]:
    server = Catalogue()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def library() -> None:
    pytest.importorskip("google.cloud.billing_v1", reason="the library for prices is not installed")


@pytest.mark.usefixtures("library")
def test_todays_prices_are_fetched_kept_and_reckoned_with(
    catalogue: Catalogue, fcctl: Fcctl, tmp_path: Path, private_home: Path
) -> None:
    (tmp_path / "fcctl.toml").write_text(L4)
    catalogue.rows[2]["pricingInfo"][0]["pricingExpression"]["tieredRates"][0]["unitPrice"]["nanos"] = 700000000
    table = prices.fetch(LIST_PRICES, catalogue.url)
    assert [urlsplit(path).path for path in catalogue.asked] == ["/v1/services/6F81-5844-456A/skus"] * 2
    assert registry.write_prices(table).is_relative_to(private_home)
    workspace = find_workspace(tmp_path, environ={})
    today = 4 * 0.024988 + 16 * 0.002927 + 0.7
    assert usd_per_hour(workspace.target("l4"), workspace.config.budget) == pytest.approx(today)
    shown = fcctl("cost", "prices", "--region", "us-east1", "--json", cwd=tmp_path).json
    assert shown["date"] == table.date
    assert shown["regions"]["us-east1"]["machines"]["g2-standard-4"]["on_demand"] == pytest.approx(today)
    (user_folder("state") / registry.PRICES).write_text("cut o")
    assert registry.fetched_prices(LIST_PRICES) is None
    assert fcctl("cost", "prices", "--json", cwd=tmp_path).json["date"] == LIST_PRICES.date


@pytest.mark.usefixtures("library")
def test_what_goes_wrong_is_told(catalogue: Catalogue) -> None:
    catalogue.refusal = {"code": 403, "message": "Cloud Billing API has not been used in project 1", "status": "X"}
    with pytest.raises(AuthError) as refused:
        prices.fetch(LIST_PRICES, catalogue.url)
    assert "cloudbilling.googleapis.com" in (refused.value.hint or "")
    catalogue.refusal = {"code": 400, "message": "no", "status": "INVALID_ARGUMENT"}
    with pytest.raises(CloudError, match="refused the request"):
        prices.fetch(LIST_PRICES, catalogue.url)
    catalogue.refusal, catalogue.rows = None, catalogue.rows[:2]
    with pytest.raises(CloudError, match="cannot read the price catalogue") as unknown:
        prices.fetch(LIST_PRICES, catalogue.url)
    assert "2 rows" in (unknown.value.cause or "")
    with pytest.raises(CloudError, match="cannot be reached"):
        prices.fetch(LIST_PRICES, "http://127.0.0.1:1")


@pytest.mark.usefixtures("library")
def test_without_credentials_it_says_how_to_log_in(monkeypatch: pytest.MonkeyPatch, private_home: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(private_home / "none.json"))
    with pytest.raises(AuthError) as refused:
        prices.fetch(LIST_PRICES)
    assert "gcloud auth application-default login" in (refused.value.hint or "")


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.billing_v1", None)
    with pytest.raises(ConfigError) as missing:
        prices.fetch(LIST_PRICES)
    assert "[prices]" in (missing.value.hint or "")
