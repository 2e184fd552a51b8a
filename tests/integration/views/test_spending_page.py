"""The dashboard's spending page has the numbers of ``cost budget``, and the first page those of ``ps``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.dashboard import dashboard
from tests.support.waiting import wait_for
from tests.support.workspace import Workspace


@pytest.mark.full
def test_what_is_reserved_free_and_to_be_expected(tmp_path: Path, private_home: Path) -> None:
    workspace = Workspace(tmp_path / "w", private_home)
    text = (workspace.root / "fcctl.toml").read_text().replace('kind = "local"', 'kind = "local"\nusd_per_hour = 3.6')
    (workspace.root / "fcctl.toml").write_text(text + "\n[budget]\nper_month_usd = 90\nper_day_usd = 80\n")
    workspace.job("nap", "steps:\n  - {id: nap, run: sleep 600, timeout: 1h}\n")
    run_id = workspace.fcctl("run", "nap", "--on", "here", "-d").stdout.strip()
    with dashboard(workspace) as site:
        site.enter()
        page = site.ask("/spending").text
        shown = [re.sub(r"<[^>]+>", "", row) for row in re.findall(r"<tr>.*?</tr>", page, re.S)]
        found = workspace.json("cost", "budget")
        (one,) = found["reservations"]
        assert one["reserved_usd"] == 3.6
        assert any(row.startswith("here$3.60$") and f"run {run_id}fcctl attach {run_id}" in row for row in shown), shown
        assert "this month$90.00$0.00-$3.60$86.40" in " ".join(shown)
        assert "reserved$3.60" in shown
        assert "with the cloud&#39;s records: fcctl hosts audit" in page
        assert f"total${found['forecast']['total_usd']:.2f}of $90.00" in shown
        wait_for(lambda: re.search(r"<strong>\$0\.[0-9]+</strong> today of \$80", site.ask("/").text))
    workspace.fcctl("cancel", run_id, "--grace", "0")
