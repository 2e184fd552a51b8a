"""``cost budget``, ``ps`` and ``top`` in dollars: what is spent, reserved and free, and of which day; what runs."""

from __future__ import annotations

import json
import re
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.base.clock import SystemClock, iso, zone
from orchestrator.base.files import user_folder
from orchestrator.emulator.emulator import Emulator
from orchestrator.money import firings
from orchestrator.money.totals import start_of_day, start_of_month
from orchestrator.results.records import CostLine, CostRecord
from orchestrator.results.store.store import FileStore
from tests.support.spending import book_in
from tests.support.stores import completed
from tests.support.virtual_cloud import INSTANCE, CloudWorkspace, machine_by_hand, napping
from tests.support.workspace import Workspace

RATE, HOUR = 0.706832, 3600.0
#: Where it is about noon: no day or month ends during a test.
ZONE = f"Etc/GMT{(datetime.now(UTC).hour - 12 + 12) % 24 - 12:+d}"
CAPS = f'\n[budget]\nper_run_usd = 9\nper_day_usd = 20.0\nper_month_usd = 300.0\ntimezone = "{ZONE}"\n'


@pytest.fixture
def workspace(tmp_path: Path, private_home: Path, cloud: Emulator) -> CloudWorkspace:
    return napping(tmp_path / "w", private_home, cloud, CAPS)


def budget(workspace: CloudWorkspace) -> Any:
    """The document, whose sums agree."""
    found = workspace.type("--json", "cost", "budget", check=0).json
    reserved = sum(one["reserved_usd"] for one in found["reservations"])
    assert found["reserved_usd"] == pytest.approx(reserved)
    for cap in found["caps"][2:]:
        assert cap["reserved_usd"] == pytest.approx(reserved)
        free = None if cap["usd"] is None else pytest.approx(cap["usd"] - cap["spent_usd"] - reserved)
        assert cap["free_usd"] == free
    forecast = found["forecast"]
    parts = ("spent_usd", "reserved_usd", "machines_usd", "standing_usd")
    assert forecast["total_usd"] == pytest.approx(sum(forecast[part] for part in parts))
    return found


def only(found: Any) -> Any:
    (reservation,) = found["reservations"]
    return reservation


def at(stamp: str) -> str:
    return f"{datetime.fromisoformat(stamp).astimezone(UTC):%H:%M} UTC"


def test_a_run_with_its_worst_case_and_what_it_has_cost(workspace: CloudWorkspace, cloud: Emulator) -> None:
    run_id = workspace.type("run", "nap", "--on", "l4", "-d", check=0).out.strip()
    cloud.advance(600)
    one = only(budget(workspace))
    assert (one["owner"], one["owner_id"], one["target"], one["instance"]) == ("run", run_id, "l4", INSTANCE)
    assert one["ends"] == f"run {run_id} (fcctl attach {run_id})"
    assert 0.3 < one["usd"] < 0.6
    assert RATE * 600 / HOUR < one["so_far_usd"] < RATE * 700 / HOUR

    (run,) = workspace.type("--json", "ps", "--offline", check=0).json["runs"]
    assert run["usd"] == pytest.approx(one["so_far_usd"], abs=0.01)
    assert (run["usd_per_hour"], run["worst_case_usd"]) == (RATE, pytest.approx(one["usd"], abs=1e-5))
    said = workspace.type("ps", "--offline", check=0).out
    assert re.search(rf"\${run['usd']:.2f} of \${run['worst_case_usd']:.2f}", said)
    assert f"l4 ({INSTANCE}) is on at $0.71/h" in said
    assert f"to stop it: fcctl cancel {run_id}" in said
    today = re.search(r"today \$([0-9.]+) of \$20.00", said)
    assert today is not None
    assert float(today[1]) == pytest.approx(run["usd"], abs=0.03), "with what goes on"

    workspace.type("cancel", run_id, "--grace", "0", check=0)
    found = budget(workspace)
    assert found["reservations"] == []
    assert found["caps"][2]["spent_usd"] >= RATE * 600 / HOUR
    said = workspace.type("ps", check=0).out
    assert "is on" not in said
    top = workspace.type("--json", "top", "--once", check=0).json
    assert (top["usd_today"], top["machines"], top["usd_per_hour"]) == (
        pytest.approx(found["caps"][2]["spent_usd"], abs=1e-3), [], 0,
    )  # fmt: skip


def test_machines_that_are_kept_on(tmp_path: Path, private_home: Path, cloud: Emulator) -> None:
    workspace = napping(tmp_path / "w", private_home, cloud, CAPS, release="keep", keep_minutes=10)
    workspace.type("run", "noop", "--on", "l4", check=0)
    one = only(budget(workspace))
    assert one["owner"] == "kept"
    assert one["ends"].startswith("kept until ")
    assert one["ends"].endswith(f"{at(one['until'])} (fcctl hosts down l4)"), "with its date, if that is not today's"
    until = datetime.fromisoformat(one["until"]).timestamp()
    assert until == pytest.approx(cloud.clock.now() + 600, abs=30), "its own timer, before the cloud's limit"
    (machine,) = workspace.type("--json", "ps", check=0).json["machines"]
    assert (machine["target"], machine["name"], machine["stop"]) == ("l4", INSTANCE, "fcctl hosts down l4")
    workspace.type("hosts", "down", "l4", check=0)
    assert budget(workspace)["reservations"] == []
    assert workspace.type("--json", "ps", check=0).json["machines"] == []


def test_by_hand_and_a_session(workspace: CloudWorkspace, cloud: Emulator) -> None:
    workspace.type("hosts", "up", "l4", "--minutes", "30", check=0)
    cloud.advance(900)
    one = only(budget(workspace))
    assert one["ends"].startswith("on until ")
    assert one["ends"].endswith(f"{at(one['until'])} (fcctl hosts down l4)"), "with its date, if that is not today's"
    assert one["so_far_usd"] == pytest.approx(RATE / 4, abs=0.01)
    workspace.type("hosts", "down", "l4", check=0)
    session = workspace.type("session", "start", "--on", "l4", "--budget", "1", check=0).out.strip()
    cloud.advance(600)
    one = only(budget(workspace))
    assert one["ends"] == f"session {session} (fcctl session stop)"
    assert one["so_far_usd"] == pytest.approx(RATE / 6, abs=0.01)
    said = workspace.type("ps", check=0).out
    assert "to stop it: fcctl session stop" in said


def test_another_workspace_and_a_record_that_is_gone(
    workspace: CloudWorkspace, tmp_path: Path, private_home: Path, cloud: Emulator
) -> None:
    other = napping(tmp_path / "other", private_home, cloud, CAPS, name="other")
    run_id = other.type("run", "nap", "--on", "l4", "-d", check=0).out.strip()
    one = only(budget(workspace))
    assert one["ends"] == f"run {run_id} (fcctl -C {other.root} attach {run_id})"
    (machine,) = workspace.type("--json", "ps", check=0).json["machines"]
    assert machine["stop"] == f"fcctl -C {other.root} cancel {run_id}"
    shutil.rmtree(other.root / "results/active" / run_id)
    one = only(budget(workspace))
    assert one["ends"] == "its record no longer exists: fcctl hosts audit"
    assert one["so_far_usd"] is None
    assert "? so far" in workspace.type("cost", "budget", check=0).out


def test_the_month_s_end(workspace: CloudWorkspace, cloud: Emulator) -> None:
    machine_by_hand(cloud, "stopped")
    workspace.type("hosts", "audit", check=0)
    workspace.type("hosts", "up", "l4", "--minutes", "60", check=0)
    cloud.advance(HOUR)
    workspace.type("hosts", "down", "l4", check=0)
    found = budget(workspace)
    forecast = found["forecast"]
    now = datetime.fromtimestamp(cloud.clock.now(), zone(ZONE))
    first = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=zone(ZONE))
    assert datetime.fromisoformat(forecast["until"]) == first
    left = (first - now).total_seconds() / 86400
    assert forecast["days_left"] == pytest.approx(left, abs=0.01)
    over = max(1.0, now.day - 1 + (now.hour + now.minute / 60) / 24)
    month = found["caps"][3]
    per_day = (month["spent_usd"] - month["standing_usd"]) / over
    assert per_day * over == pytest.approx(RATE, abs=0.05)
    assert forecast["machines_usd_per_day"] == pytest.approx(per_day, rel=0.02)
    assert forecast["machines_usd"] == pytest.approx(per_day * left, rel=0.02)
    # 100 GiB of pd-standard at 0.04 dollars a GiB and month of 730 hours.
    assert forecast["standing_usd_per_day"] == pytest.approx(4.0 / 730 * 24, rel=1e-6)
    assert forecast["standing_usd"] == pytest.approx(4.0 / 730 * 24 * left, rel=0.01)


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


def shown(folder: Path, home: Path, zone_name: str | None) -> tuple[float, Any, Any, Any, Any]:
    """The end of a run of :data:`HOURS`, and the documents of ``cost budget``, ``top``, ``cost ledger`` and
    ``schedule ls`` about it. ``zone_name``: that of [budget]; None: it has none."""
    shutil.rmtree(user_folder("state"), ignore_errors=True)  # the book of a call before
    workspace, local, now = Workspace(folder, home), zone(zone_name or "UTC"), time.time()
    with (workspace.root / "fcctl.toml").open("a") as stream:
        stream.write(
            SCHEDULE + (f'[budget]\ntimezone = "{zone_name}"\n' if zone_name else "[budget]\nper_day_usd = 50\n")
        )
    cost = CostRecord(
        usd=HOURS, billed_s=HOURS * 3600.0, breakdown=[CostLine(activity="bench", seconds=HOURS * 3600.0, usd=HOURS)]
    )
    began = now - HOURS * 3600
    store = FileStore(workspace.root / "results", SystemClock(), note=lambda _: None)
    completed(store, created=iso(began), started=iso(began), finished=iso(now), cost=cost)
    book = book_in(user_folder("state"), project="small", results=workspace.root / "results")
    firings.start(book, "nightly", start_of_month(now, local) + 1, 2.0, cap=None, zone=local)
    commands = (("cost", "budget"), ("top", "--once"), ("cost", "ledger", "--by", "day"), ("schedule", "ls"))
    budget, top, ledger, schedules = (told(workspace, *words) for words in commands)
    return now, budget, top, ledger, schedules


@pytest.mark.parametrize("named", [False, True], ids=["UTC", "a zone of its own"])
def test_every_command_counts_the_same_day_and_month(named: bool, tmp_path: Path, private_home: Path) -> None:
    name = in_the_middle_of_a_day() if named else "UTC"
    local = zone(name)
    now, budget, top, ledger, schedules = shown(tmp_path / "w", private_home, name if named else None)
    if start_of_day(time.time(), local) != start_of_day(now, local):  # it ended between the commands: on the new day
        now, budget, top, ledger, schedules = shown(tmp_path / "again", private_home, name if named else None)

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
