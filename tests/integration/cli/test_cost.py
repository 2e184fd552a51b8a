"""fcctl cost plan and prices, as commands."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from tests.support.command import Fcctl
from tests.support.prices import write_prices

JOB = "job: hello\nbudget: {minutes: 5}\nsteps:\n  - {id: build, run: 'true', timeout: 2m}\n"
CONFIG = """\
[targets.l4]
kind = "gcp"
project = "my-project"
instance = "vm"
zones = ["us-west1-c", "us-central1-a"]
provisioning = "spot_then_on_demand"
[budget]
per_run_usd = {cap}
"""


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/hello.yaml").write_text(JOB)
    (tmp_path / "fcctl.toml").write_text(CONFIG.format(cap=2))
    write_prices(private_home, days_old=1)
    return tmp_path


def test_a_plan_says_what_it_costs_where_and_when_it_would_be_refused(fcctl: Fcctl, workspace: Path) -> None:
    done = fcctl("cost", "plan", "hello", "--on", "l4", "--zones", cwd=workspace)
    assert (done.code, done.err) == (0, "")
    for said in ("$0.4240 an hour", "us-central1-a", "on demand", "$0.7068", "$10.00 a month", "unknown"):
        assert said in done.out
    assert "Of that, $0.0089 is for its disks and its address" in done.out
    assert "The price is for the machine as [targets.l4] describes it" in done.out
    assert "REFUSED" not in done.out
    (workspace / "fcctl.toml").write_text(CONFIG.format(cap=0.1))
    assert "REFUSED" in fcctl("cost", "plan", "hello", "--on", "l4", cwd=workspace).out
    before = datetime.now(UTC).date()
    found = fcctl("cost", "plan", "hello", "--on", "l4", "--json", cwd=workspace).json
    assert found["refused_by"] == ["per_run_usd of [budget]"]
    rest = 100 * 0.1 / 730 + 0.005  # its disk and its address
    assert found["worst_usd"] == pytest.approx((600 + 120 + 900 + 90) / 3600 * (0.706832 + rest), abs=1e-5)
    assert len(found["choices"]) == 4
    written = date.fromisoformat(found["prices"]["date"])
    assert found["prices"]["age_days"] in {(day - written).days for day in (before, datetime.now(UTC).date())}
    assert (before - written).days in (1, 2), "two if UTC's day has ended since the fixture wrote it"
    assert found["priced_as_seen"] is False


def test_what_earlier_runs_left_is_fetched_in_the_worst_case_too(fcctl: Fcctl, workspace: Path) -> None:
    plan = ("cost", "plan", "hello", "--on", "l4", "--json")
    assert fcctl(*plan, cwd=workspace).json["egress_usd"] == 0
    job = (
        "job: hello\nsteps:\n  - id: build\n    timeout: 2m\n    run: head -c 50000000 /dev/urandom > $FCCTL_OUT/big\n"
    )
    (workspace / "jobs/hello.yaml").write_text(job)
    before = fcctl(*plan, cwd=workspace).json
    assert fcctl("run", "hello", "--on", "local", cwd=workspace).code == 0
    after = fcctl(*plan, cwd=workspace).json
    assert after["egress_usd"] == pytest.approx(50e6 / 1024**3 * 0.12, rel=0.01)
    assert after["worst_usd"] - before["worst_usd"] == pytest.approx(after["egress_usd"], abs=1e-6)


@pytest.mark.full
def test_the_plan_of_a_run_and_its_cost_say_what_spot_would_save(fcctl: Fcctl, workspace: Path) -> None:
    """List prices of us-west1: $0.706832 on demand, $0.424 as spot."""
    config = (workspace / "fcctl.toml").read_text().replace("spot_then_on_demand", "on_demand")
    (workspace / "fcctl.toml").write_text(config)
    line = "spot: $0.42/h, 40 % less than on demand ($0.71/h)"
    assert f"In us-west1-c: {line}" in fcctl("cost", "plan", "hello", "--on", "l4", cwd=workspace).out
    assert line in fcctl("run", "hello", "--on", "l4", "--dry-run", cwd=workspace).out
    spot = fcctl("cost", "plan", "hello", "--on", "l4", "--json", cwd=workspace).json["spot"]
    assert (spot["spot_usd_per_hour"], spot["on_demand_usd_per_hour"]) == (0.423956, 0.706832)
    assert fcctl("run", "hello", "--on", "l4", "--dry-run", "--json", cwd=workspace).json["spot"] == spot
    assert fcctl("run", "hello", "--on", "local", "--dry-run", "--json", cwd=workspace).json["spot"] is None


def test_the_price_table_is_dated_and_sourced(fcctl: Fcctl, tmp_path: Path, private_home: Path) -> None:
    found = fcctl("cost", "prices", "--json", cwd=tmp_path).json
    assert (found["currency"], found["date"]) == ("USD", "2026-08-20")
    assert found["regions"]["us-central1"]["machines"]["g2-standard-4"]["on_demand"] == 0.706832
    assert found["regions"]["us-central1"]["disks_gib_month"]["pd-ssd"] == 0.17
    shown = fcctl("cost", "prices", "--region", "us-central1", cwd=tmp_path)
    assert "$0.7068" in shown.out
    assert "2026-08-20" in shown.out
