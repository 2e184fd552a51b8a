from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from fcctl_remote import wire
from orchestrator.money.caps import Budget
from orchestrator.runs.cost.machine_cost import CostSoFar
from orchestrator.runs.cost.outlook import MachineOn, MoneyNow
from orchestrator.views import live_runs
from orchestrator.views.figures import load_bars
from orchestrator.views.live_runs import LiveRun
from orchestrator.views.table import show
from orchestrator.views.top import document, top_screen

NOW = 1795266693.0
GPU = {"gpus": [{"name": "NVIDIA L4", "util_pct": 97, "sm_mhz": 2040, "power_w": 71.5, "temp_c": 64, "throttle": []}]}


def live(**changes: Any) -> LiveRun:
    summary = wire.RunSummary(
        run_id="", job="phase1", status="running", created=0.0, step="bench", step_index=3, step_count=5
    )
    values: dict[str, Any] = {
        "run_id": "20261121t081530z-phase1-l4-3fa9c1", "job": "phase1", "target": "l4", "state": "running",
        "summary": summary, "sample": GPU, "load": (0.0, 50.0, 100.0), "usd_per_hour": 0.75, "worst_case_usd": 0.5,
        "created": NOW - 600,
    }  # fmt: skip
    return LiveRun(**{**values, **changes})


def machine() -> MachineOn:
    return MachineOn("l4", "cudadent42-l4-dev", 0.71, NOW - 1800, NOW - 60, NOW + 1800, "fcctl hosts down l4")


def printed(
    runs: list[LiveRun], width: int, budget: Budget | None = None, encoding: str = "utf-8", *, on: bool = False
) -> str:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding), width=width, highlight=False)
    plain, cap = encoding != "utf-8", budget.per_day_usd if budget is not None else None
    money = MoneyNow(1.25, cap, (machine(),) if on else ())
    for piece in top_screen(runs, NOW, money, budget or Budget(), plain=plain):
        show(console, piece, width=width)
    console.file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [80, 159, 160, 200])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    hostile = live(run_id="x" * 63, state="unreachable", detail="\x1b[31m" + "no route to host " * 20, sample=None)
    text = printed([live(), hostile], width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    for wanted in ("bench 4/5", "10 min 00 s", "GPU 97 %", "▁", "█", "unreachable", "no route to host"):
        assert wanted in text, wanted


def test_money_is_what_was_spent_what_burns_and_how_long_it_lasts() -> None:
    text = printed([live()], 200, Budget(per_run_usd=0.25, per_day_usd=10))
    assert "spending $0.75/h" in text
    assert "today $1.25 of $10.00" in text
    # 600 s at 0.75 $/h is 0.125 $; the cap of 0.25 $ is another 600 s away.
    assert "$0.125 of $0.50" in text
    assert text.rstrip().endswith("10 min 00 s")
    free = printed([live(usd_per_hour=0.0, worst_case_usd=0.0)], 200)
    assert "spending" not in free
    assert "$0.00" not in free.splitlines()[-1]


def test_machines_that_are_on_are_named_with_their_price_and_what_stops_them() -> None:
    text = printed([live(in_cloud=True)], 80, on=True)
    assert "1 active  spending $0.71/h  today $1.25" in text, "the run's own price is the machine's"
    assert "l4 (cudadent42-l4-dev) is on at $0.71/h, $0.35 so far" in text
    assert "until 13:41 UTC; to stop it: fcctl hosts down l4" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_run_costs_what_its_journal_says_and_goes_on_from_there() -> None:
    """Not from its creation on: it may have waited for its machine."""
    cost = CostSoFar(0.10, 0.75, 0.5)
    assert live(cost=cost, costed=NOW - 60).spent_usd(NOW) == pytest.approx(0.10 + 0.75 / 60)
    assert live(cost=CostSoFar(0.10, 0.0, 0.5), costed=NOW - 60).spent_usd(NOW) == pytest.approx(0.10)


def test_a_terminal_without_blocks_gets_ascii() -> None:
    text = printed([live()], 80, encoding="ascii")
    assert "?" not in text.replace("64 ?C", "")
    assert load_bars((0.0, 100.0), 9, ascii_only=True) == "_#"


def test_an_empty_screen_says_what_to_type() -> None:
    assert "start one: fcctl run JOB" in printed([], 80)


def test_a_look_is_one_document() -> None:
    found = json.loads(json.dumps(document([live()], NOW, MoneyNow(1.0, 5.0))))
    assert found["usd_per_hour"] == 0.75
    assert found["runs"][0]["summary"]["step"] == "bench"
    assert found["runs"][0]["usd"] == 0.125


@pytest.mark.parametrize("odd", [None, [], {}, "x", "", True, 1e308, 10**30, [{"name": [], "util_pct": "x"}, 5]])
@pytest.mark.parametrize("key", ["time", "gpus", "cpu_pct", "mem_used_mb"])
def test_the_load_of_a_sample_that_a_step_wrote_is_a_number(key: str, odd: object) -> None:
    found = live_runs._load({"time": 1.0, "cpu_pct": 12.5, key: odd})
    assert isinstance(found, float | int)


def test_the_gpu_column_has_no_cpu_in_it() -> None:
    text = printed([live(sample={"cpu_pct": 37.0, "mem_used_mb": 2048})], 200)
    assert "CPU" not in text
    assert "no GPU found" in text
