"""What ``cost budget`` and ``ps`` print fits a terminal of 80 columns, whatever names there are."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from orchestrator.money.caps import Budget
from orchestrator.money.reservations import Reservation
from orchestrator.money.totals import Spending
from orchestrator.runs.cost.machine_cost import CostSoFar
from orchestrator.runs.cost.outlook import CapRow, Forecast, MachineOn, MoneyNow, Outlook
from orchestrator.runs.cost.owners import GONE, OpenReservation
from orchestrator.runs.reopen import ActiveState
from orchestrator.views.tables.money import budget_json, print_budget
from orchestrator.views.top import print_active

NOW = 1795266693.0
RUN = "20261121t081530z-" + "x" * 43 + "-a1"
HOSTILE = "l4\x1b[31m" + "x" * 30


def reserved(ends: str, command: str, so_far: float | None) -> OpenReservation:
    made = Reservation(
        reservation_id=RUN, owner="run", owner_id=RUN, project="p", results="/r", target=HOSTILE, instance="vm",
        at=NOW - 200_000, usd=1234.5,
    )  # fmt: skip
    return OpenReservation(made, 1234.5, so_far, 0.71, ends, command, NOW + 60)


def found(*open_: OpenReservation) -> Outlook:
    caps = (CapRow("per run", 2.0), CapRow("this month", 99999.5, 88888.25, 7777.5, 1234.5))
    forecast = Forecast(NOW + 9 * 86400, 9.1, 88888.25, 1234.5, 1234.56, 0.004)
    return Outlook(NOW, Budget(per_month_usd=99999.5), caps, open_, forecast, (), Spending(1, 2, 3), 0)


def printed(width: int, *open_: OpenReservation) -> str:
    out = io.StringIO()
    print_budget(found(*open_), Console(file=out, width=width, highlight=False))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100])
def test_a_budget_fits_and_its_commands_are_whole(width: int) -> None:
    run, gone = reserved(f"run {RUN}", f"fcctl attach {RUN}", 12.3), reserved(GONE, "fcctl hosts audit", None)
    text = printed(width, run, gone)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    for wanted in (f"\n  run {RUN}\n  fcctl attach {RUN}\n", "$12.30 so far", "? so far", "since 2026-11-"):
        assert wanted in text, wanted
    assert "this month  $99999.50  $88888.25  $7777.50  $1234.50  $9876.75" in text
    assert "over the cap of $99999.50" in text
    assert "reserved\n$" not in printed(width)


def test_the_document_has_the_same() -> None:
    document = budget_json(found(reserved(f"run {RUN}", f"fcctl attach {RUN}", 12.3)))
    assert document["caps"][1] == {
        "cap": "this month", "usd": 99999.5, "spent_usd": 88888.25, "standing_usd": 7777.5, "reserved_usd": 1234.5,
        "free_usd": 9876.75,
    }  # fmt: skip
    assert document["caps"][0]["free_usd"] is None
    (one,) = document["reservations"]
    assert (one["ends"], one["command"]) == (f"run {RUN} (fcctl attach {RUN})", f"fcctl attach {RUN}")
    forecast = document["forecast"]
    assert forecast["machines_usd"] == pytest.approx(9.1 * 1234.56)
    assert forecast["total_usd"] == pytest.approx(88888.25 + 1234.5 + 9.1 * (1234.56 + 0.004))


@pytest.mark.parametrize("width", [80, 200])
def test_the_active_runs_fit(width: int) -> None:
    states = [
        ActiveState(RUN, "job", "l4", "unreachable", None, "\x1b[31m" + "no route " * 30),
        ActiveState("b" + RUN[1:], "job", "sandbox", "running"),
    ]
    costs = {RUN: CostSoFar(0.123, 0.71, 1.5), states[1].run_id: CostSoFar(0.5, 0.71, 1.5, emulated=True)}
    on = MachineOn("l4", "cudadent42-l4-dev", 0.71, NOW - 600, NOW - 60, None, f"fcctl cancel {RUN}")
    unpriced = MachineOn("l4b", "vm", None, NOW - 600, NOW - 60, NOW + 60, "fcctl hosts down l4b")
    out = io.StringIO()
    money = MoneyNow(0.12, 5.0, (on, unpriced))
    print_active(states, Console(file=out, width=width, highlight=False), NOW, costs, money)
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= max(width, 63 + 40), "but for a command, which is not cut"
    assert "\x1b" not in text
    text = " ".join(text.split())
    assert text.count(" of $1.50") == 1, "nobody pays for the sandbox"
    for wanted in (
        "$0.12 of $1.50", "l4 (cudadent42-l4-dev) is on at $0.71/h, $0.12 so far", "without a time limit",
        "l4b (vm) is on, at an unknown price", "today $0.12 of $5.00",
    ):  # fmt: skip
        assert wanted in text, wanted
