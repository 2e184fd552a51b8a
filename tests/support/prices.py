"""The list prices of this version with another date: what a user fetched, on a day of the test's choice."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest import mock

from orchestrator.providers import registry
from orchestrator.providers.gcp.list_prices import LIST_PRICES


def write_prices(home: Path, days_old: int = 0) -> str:
    """Keep them in ``home``; their date. The tests' plans are those of a user whose prices are fresh, in every year."""
    date = (datetime.now(UTC) - timedelta(days=days_old)).date().isoformat()
    with mock.patch.dict(os.environ, HOME=str(home)):
        registry.write_prices(replace(LIST_PRICES, date=date, source="tests"))
    return date
