"""Which day and month money is of: UTC's or those of [budget] timezone, in every command, whatever TZ is."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.clock import SystemClock, iso, zone
from orchestrator.base.files import user_folder
from orchestrator.money import firings
from orchestrator.money.totals import start_of_day, start_of_month
from orchestrator.results.records import CostLine, CostRecord
from orchestrator.results.store.store import FileStore
from tests.support.spending import book_in
from tests.support.stores import completed
from tests.support.workspace import Workspace

HOURS = 30  # of a run at a dollar an hour, which ends now
#: Its months begin twelve hours after UTC's.
SCHEDULE = '[schedules.nightly]\njob = "hello"\ncron = "@daily"\ntimezone = "Etc/GMT+12"\n'


def in_the_middle_of_a_day() -> str:
    """A zone in which it is between 10 and 11 o'clock."""
    ahead = (datetime.now(UTC).hour - 10 + 12) % 24 - 12
    return f"Etc/GMT{ahead:+d}"


def told(workspace: Workspace, *words: str) -> Any:
    """The answer of a process whose clock shows the time of neither zone of the test."""
    return json.loads(workspace.fcctl("--json", *words, env={"TZ": "XXX-9:17"}).stdout)


@pytest.mark.parametrize("named", [False, True], ids=["UTC", "a zone of its own"])
def test_every_command_counts_the_same_day_and_month(named: bool, tmp_path: Path, private_home: Path) -> None:
    workspace = Workspace(tmp_path / "w", private_home)
    name = in_the_middle_of_a_day() if named else "UTC"
    with (workspace.root / "fcctl.toml").open("a") as stream:
        stream.write(SCHEDULE + (f'[budget]\ntimezone = "{name}"\n' if named else "[budget]\nper_day_usd = 50\n"))
    local, now = zone(name), time.time()
    cost = CostRecord(
        usd=HOURS, billed_s=HOURS * 3600.0, breakdown=[CostLine(activity="bench", seconds=HOURS * 3600.0, usd=HOURS)]
    )
    began = now - HOURS * 3600
    store = FileStore(workspace.root / "results", SystemClock(), note=lambda _: None)
    completed(store, created=iso(began), started=iso(began), finished=iso(now), cost=cost)
    first = start_of_month(now, local) + 1
    book = book_in(user_folder("state"), project="small", results=workspace.root / "results")
    firings.start(book, "nightly", first, 2.0, cap=None, zone=local)

    budget, top = told(workspace, "cost", "budget"), told(workspace, "top", "--once")
    ledger, schedules = told(workspace, "cost", "ledger", "--by", "day"), told(workspace, "schedule", "ls")

    today = (now - start_of_day(now, local)) / 3600
    spent = {cap["cap"]: cap["spent_usd"] for cap in budget["caps"]}
    assert spent["today"] == pytest.approx(today, abs=1e-3)
    assert top["usd_today"] == pytest.approx(today, abs=1e-3)
    by_day = {total["group"]: total["usd"] for total in ledger["totals"]}
    date = datetime.fromtimestamp(now, local).date()
    assert by_day[f"{date}"] == pytest.approx(today, abs=1e-3)
    assert by_day[f"{date - timedelta(days=1)}"] == pytest.approx(min(24, HOURS - today), abs=1e-3)
    assert schedules["schedules"][0]["spent_this_month_usd"] == 2.0
    assert (budget["timezone"], ledger["timezone"]) == (name, name)
