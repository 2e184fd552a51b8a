"""Caps over several runs, through the real command."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import run_fcctl

JOB = "job: hello\nbudget: {minutes: 1}\nsteps:\n  - {id: greet, run: sleep 1, activity: bench}\n"
#: A minute is 36 dollars, so that a second can be seen.
CONFIG = """[project]
name = "ws"
[targets.local]
kind = "local"
usd_per_hour = 2160.0
[budget]
per_day_usd = %s
timezone = "%s"
"""


@pytest.fixture
def fcctl(tmp_path: Path, private_home: Path) -> Callable[..., Any]:
    # Where no day ends for an hour at least: two runs of a test are of the same one.
    zone = "UTC" if 1 <= datetime.now(UTC).hour < 23 else "Etc/GMT+12"
    (tmp_path / "ws" / "jobs").mkdir(parents=True)
    (tmp_path / "ws" / "jobs" / "hello.yaml").write_text(JOB)
    (tmp_path / "ws" / "jobs" / "long.yaml").write_text(JOB.replace("hello", "long").replace("sleep 1", "sleep 300"))

    def call(*arguments: str, cap: float = 36.4, code: int = 0) -> Any:
        (tmp_path / "ws" / "fcctl.toml").write_text(CONFIG % (cap, zone))
        done = run_fcctl("--json", *arguments, cwd=tmp_path / "ws")
        assert done.code == code, done
        return json.loads((done.out if code == 0 else done.err).splitlines()[-1])

    return call


def test_the_day_s_cap_counts_what_was_spent(fcctl: Any, tmp_path: Path) -> None:
    first = fcctl("run", "hello", "--on", "local")
    assert first["cost"]["usd"] > 0.5
    error = fcctl("run", "hello", "--on", "local", code=5)["error"]
    assert "of the day's cap of $36.40 are left" in error["message"]
    assert "cost ledger" in error["cause"]
    assert fcctl("run", "hello", "--on", "local", cap=80)["status"] == "passed"

    books = fcctl("cost", "ledger", "--by", "activity", "--lines")
    assert {t["group"] for t in books["totals"]} >= {"bench"}
    assert sum(t["usd"] for t in books["totals"]) == pytest.approx(sum(line["usd"] for line in books["lines"]))
    assert {line["run_id"] for line in books["lines"]} == {row["run_id"] for row in fcctl("results", "ls")["runs"]}
    caps = {row["cap"]: row for row in fcctl("cost", "budget", cap=80)["caps"]}
    assert caps["today"]["spent_usd"] == pytest.approx(sum(t["usd"] for t in books["totals"]))

    rows = list(csv.DictReader(io.StringIO(run_fcctl("cost", "ledger", "--csv", cwd=tmp_path / "ws").out)))
    assert sum(float(row["usd"]) for row in rows) == pytest.approx(caps["today"]["spent_usd"], abs=1e-4)
