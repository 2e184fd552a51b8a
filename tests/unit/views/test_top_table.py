from __future__ import annotations

import io
import json
from datetime import UTC, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from rich.console import Console

from fcctl_remote import wire
from orchestrator.money.caps import Budget
from orchestrator.results.records import RunRow
from orchestrator.views.live.overview import LiveRun
from orchestrator.views.live.top import document, sparkline, spent_today, top_screen
from orchestrator.views.tables.cells import print_trimmed
from tests.support.stores import make_id

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


def printed(runs: list[LiveRun], width: int, budget: Budget | None = None, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding), width=width, highlight=False)
    plain = encoding != "utf-8"
    for piece in top_screen(runs, NOW, 1.25, budget or Budget(), width, plain=plain):
        print_trimmed(console, piece, width)
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
    assert "burning $0.75/h" in text
    assert "today $1.25 of $10.00" in text
    # 600 s at 0.75 $/h is 0.125 $; the cap of 0.25 $ is another 600 s away.
    assert "$0.125 of $0.50" in text
    assert text.rstrip().endswith("10 min 00 s")
    free = printed([live(usd_per_hour=0.0, worst_case_usd=0.0)], 200)
    assert "burning" not in free
    assert "$0.00" not in free.splitlines()[-1]


@pytest.mark.parametrize(
    ("zone", "spent"), [(UTC, 0.5 + 1.0 + 0.125), (ZoneInfo("Asia/Kolkata"), 0.5 + 4.0 + 7.0 + 0.125)]
)
def test_today_is_the_part_since_midnight_of_what_is_complete_and_of_what_is_active(zone: tzinfo, spent: float) -> None:
    """A minute before midnight of UTC the day has begun in Delhi."""
    found = [
        _row("2026-11-21T00:10:00Z", "2026-11-21T00:20:00Z", 0.5),
        _row("2026-11-20T21:00:00Z", "2026-11-21T01:00:00Z", 4.0),
        _row("2026-11-20T23:00:00Z", "2026-11-20T23:59:00Z", 7.0),
    ]
    assert spent_today(found, [live()], NOW, zone) == pytest.approx(spent)


def test_of_an_active_run_the_part_since_midnight_is_today_s() -> None:
    assert spent_today([], [live(created=NOW - 7 * 86400)], NOW, UTC) == pytest.approx(0.75 * (NOW % 86400) / 3600)


def _row(created: str, finished: str, usd: float) -> RunRow:
    return RunRow(
        run_id=make_id(), job="j", target="t", status="passed", exit_code=0, created=created, finished=finished,
        duration_s=1.0, usd=usd,
    )  # fmt: skip


def test_a_terminal_without_blocks_gets_ascii() -> None:
    text = printed([live()], 80, encoding="ascii")
    assert "?" not in text.replace("64 ?C", "")
    assert sparkline((0.0, 100.0), "_@") == "_@"


def test_an_empty_screen_says_what_to_type() -> None:
    assert "start one: fcctl run JOB" in printed([], 80)


def test_a_look_is_one_document() -> None:
    found = json.loads(json.dumps(document([live()], NOW, 1.0)))
    assert found["usd_per_hour"] == 0.75
    assert found["runs"][0]["summary"]["step"] == "bench"
    assert found["runs"][0]["usd"] == 0.125
