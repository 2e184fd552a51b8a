"""The live view's lines, from what a host may send."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from fcctl_remote import wire
from orchestrator.runs.reopen import ActiveState
from orchestrator.views.figures import duration
from orchestrator.views.live_run import Live, PlainObserver, gpu_text, step_line, telemetry_text, upload_text
from orchestrator.views.live_runs import _standing
from orchestrator.views.top import row

GPU = {"util_pct": 98, "sm_mhz": 1980, "power_w": 328.85, "temp_c": 41, "throttle": []}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.04, "0.0 s"), (9.949, "9.9 s"), (9.96, "10 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (3720, "1 h 02 min"),
     (float("nan"), "?"), (float("inf"), "?"), (1e300, "?")],
)  # fmt: skip
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("sample", "shown"),
    [
        ({"cpu_pct": 12.4, "mem_used_mb": 2048, "gpus": []}, "CPU 12 %  memory 2.0 GiB"),
        ({"gpus": [GPU]}, "GPU 98 %  1980 MHz  329 W  41 °C"),
        ({"gpus": [{**GPU, "throttle": ["gpu_idle"]}]}, "GPU 98 %  1980 MHz  329 W  41 °C"),
        (
            {"gpus": [{**GPU, "throttle": ["gpu_idle", "sw_power_cap"]}]},
            "GPU 98 %  1980 MHz  329 W  41 °C  throttled: sw_power_cap",
        ),
        ({"gpus": [GPU, GPU]}, "GPU 98 %  1980 MHz  329 W  41 °C   GPU 98 %  1980 MHz  329 W  41 °C"),
        (None, ""),
        ({"gpus": [{"throttle": ["\x1b]0;owned\x07slow\n"], "util_pct": None}]}, "throttled: slow"),
    ],
)
def test_the_gauge(sample: Any, shown: str) -> None:
    assert telemetry_text(sample) == shown


@pytest.mark.parametrize("odd", [None, True, "x", [], {}, 10**400, float("nan"), float("inf"), -1])
def test_whatever_a_host_sends_as_figures_is_no_crash(odd: Any) -> None:
    for sample in (
        {"cpu_pct": odd, "mem_used_mb": odd},
        {"gpus": odd},
        {"gpus": [odd]},
        {"gpus": [dict.fromkeys(GPU, odd)]},
    ):
        shown = telemetry_text(sample)
        assert shown == "" or (odd == -1 and "-1 %" in shown)
    event = wire.Event(seq=1, time=0.0, type="step_finished", data={"step": odd, "status": odd, "duration_s": odd})
    sign, colour, line = step_line(event)
    assert (sign, colour) == ("?", "red")
    assert line.endswith("-1.0 s" if odd == -1 else "0.0 s")


def summary(**more: Any) -> wire.RunSummary:
    return wire.RunSummary(
        **{"run_id": "20261121t081530z-phase0-local-3fa9c1", "job": "phase0", "status": "running", "created": 1000.0,
           "step": "bench", "step_index": 3, "step_count": 4, "step_started": 1002.0, "step_timeout_s": 600.0,
           "heartbeat": 1010.0, **more}
    )  # fmt: skip


def reply(**more: Any) -> wire.WatchReply:
    return wire.WatchReply([], 0, summary=summary(**more), telemetry={"gpus": [GPU]})


def test_a_clock_that_differs_from_the_hosts_does_not_show() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, legacy_windows=False)
    live = Live(console, clock=lambda: 5010.0)  # this clock is 4000 s ahead
    live.progress(reply(), b"first\n\x1b[31msecond\x1b[0m\n")
    live.close()
    with console.capture() as captured:
        console.print(live._render())
    shown = captured.get()
    assert "[4/4] bench  8.0 s of at most 10 min 00 s" in shown
    assert "second" in shown
    assert "GPU 98 %" in shown


@pytest.mark.parametrize(("behind", "shown"), [(None, "submit"), ("another-run", "queued behind another-run")])
def test_a_run_that_is_about_to_begin_waits_for_no_other(behind: str | None, shown: str) -> None:
    """Between its submission and its first event, a run is queued behind nobody."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True, legacy_windows=False)
    live = Live(console)
    live.phase("submit")
    waits = summary(status="queued", step=None, step_started=None, behind=behind)
    live.progress(wire.WatchReply([], 0, summary=waits), b"")
    live.close()
    with console.capture() as captured:
        console.print(live._render())
    assert shown in captured.get()
    assert ("one exclusive job" in captured.get()) == (behind is not None)
    state = ActiveState(waits.run_id, waits.job, "local", "queued", waits)
    assert row(state, 1000.0)[-1] == (f"behind {behind}" if behind else "starting")
    assert _standing(waits) == (("queued", f"behind {behind}") if behind else ("starting", "starting"))


def test_plain_lines_for_a_pipe() -> None:
    out = io.StringIO()
    plain = PlainObserver(out, verbose=True)
    plain.phase("sync", "3 files")
    plain.phase("sync", "3 files")
    plain.event(wire.Event(seq=1, time=0.0, type="step_started", data={"step": "bench"}))
    plain.progress(wire.WatchReply([], 0, summary=summary(), log_step="bench", log_offset=0), b"one\n")
    plain.progress(wire.WatchReply([], 0, summary=summary(), log_step="bench", log_offset=0), b"one\ntwo\n")
    plain.event(
        wire.Event(seq=2, time=0.0, type="gate", data={"verdict": "fail", "expr": "a < 1", "value": 2, "hint": "h"})
    )
    plain.event(
        wire.Event(
            seq=3, time=0.0, type="step_finished", data={"step": "bench", "status": "timed_out", "duration_s": 61}
        )
    )
    assert out.getvalue().splitlines() == [
        "sync: 3 files",
        "step bench",
        "  | one",
        "  | two",
        "  gate fail: a < 1 (value: 2)",
        "    hint: h",
        "✗ bench  timed out  1 min 01 s",
    ]


def test_an_upload_says_bytes_rate_and_time_left() -> None:
    assert upload_text(12_000_000, 40_000_000, 4.0) == "12.0 of 40.0 MB sent, 3.0 MB/s, 9.3 s left"
    assert upload_text(41_000_000, 40_000_000, 4.0) == "41.0 of 41.0 MB sent, 10.2 MB/s"
    assert upload_text(0, 40_000_000, 0.0) == "0.0 of 40.0 MB sent, 0.0 MB/s"


def test_a_kept_output_gets_a_line_at_twice_the_time_of_the_last() -> None:
    out = io.StringIO()
    plain = PlainObserver(out)
    for second in range(1, 10):
        plain.upload(second * 10**6, 10**7, float(second))
    assert [line.split(":")[1].split()[0] for line in out.getvalue().splitlines()] == ["1.0", "2.0", "4.0", "8.0"]


def test_what_a_cpu_does_is_never_told_as_a_gpus() -> None:
    sample = {"cpu_pct": 37.0, "mem_used_mb": 2048}
    assert gpu_text(sample) == ""
    assert "CPU 37 %" in telemetry_text(sample)
    assert gpu_text({"gpus": "no list"}) == ""
