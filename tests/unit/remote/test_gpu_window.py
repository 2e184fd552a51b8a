"""Telemetry: what nvidia-smi says, and what is measured without one."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pytest

from fcctl_remote.base.layout import RunLayout
from fcctl_remote.run import state as runs
from fcctl_remote.run import telemetry
from fcctl_remote.run.telemetry import NvidiaSmi, parse_gpu
from tests.support.scripts import script

LINE = "0, NVIDIA L4, 97, 41, 1024, 23034, 2040, 6251, 71.84, 63, 0x0000000000000024"
SECOND = LINE.replace("0, NVIDIA", "1, NVIDIA", 1)
BOTH = f"printf '%s\\n' '{LINE}' '{SECOND}'"


def test_a_line_of_nvidia_smi() -> None:
    gpu = parse_gpu(LINE)
    assert gpu == {
        "index": 0, "name": "NVIDIA L4", "util_pct": 97, "mem_util_pct": 41, "mem_used_mb": 1024,
        "mem_total_mb": 23034, "sm_mhz": 2040, "mem_mhz": 6251, "power_w": 71.84, "temp_c": 63,
        "throttle": ["sw_power_cap", "sw_thermal"],
    }  # fmt: skip


def test_values_a_gpu_does_not_report_are_null() -> None:
    gpu = parse_gpu("1, NVIDIA T4G, [N/A], 0, 1, 2, 3, 4, [Not Supported], 50, [N/A]")
    assert (gpu["util_pct"], gpu["power_w"], gpu["throttle"]) == (None, None, None)


@pytest.mark.parametrize("line", ["", "Failed to initialize NVML", 'Field "x" is not a valid field to query.'])
def test_other_output_is_no_sample(line: str) -> None:
    assert parse_gpu(line) is None


def _samples(tmp_path: Path, body: str, count: int) -> list[dict]:
    """Of an nvidia-smi that is this script."""
    source = NvidiaSmi(str(script(tmp_path / "nvidia-smi", body)))
    found: list[dict] = []
    deadline = time.monotonic() + 60.0
    while len(found) < count and time.monotonic() < deadline:
        sample = source.next(0.1)
        if sample is not None:
            found.append(sample)
    source.close()
    return found


def test_all_gpus_of_a_second_make_one_sample(tmp_path: Path) -> None:
    """Also where the second one is late by more than a look takes, once it is known that there is one."""
    late = f"echo '{LINE}'; sleep 0.4; echo '{SECOND}'; sleep 0.4"
    samples = _samples(tmp_path, f"{BOTH}; sleep 0.8; for i in 1 2; do {late}; done; sleep 9\n", 3)
    assert [[gpu["index"] for gpu in sample["gpus"]] for sample in samples] == [[0, 1]] * 3


def test_a_gpu_that_is_gone_is_not_waited_for(tmp_path: Path) -> None:
    samples = _samples(tmp_path, f"{BOTH}; sleep 0.2; while echo '{LINE}'; do sleep 0.2; done\n", 3)
    assert [[gpu["index"] for gpu in sample["gpus"]] for sample in samples] == [[0, 1], [0], [0]]


def test_samples_that_were_read_at_once_all_count(tmp_path: Path) -> None:
    """The telemetry waited for a processor for some seconds meanwhile; a GPU at work must not look idle."""
    lines = "\n".join([LINE, SECOND, LINE.replace(" 97,", " 0,", 1), LINE, ""])
    samples = _samples(tmp_path, f"printf '%s\\n' '{lines}'; sleep 9", 2)
    shown = [[(gpu["index"], gpu["util_pct"]) for gpu in sample["gpus"]] for sample in samples]
    assert shown == [[(0, 97), (1, 97)], [(0, 0)]]


def test_a_newer_driver_is_asked_in_its_own_words(tmp_path: Path) -> None:
    body = (
        'case "$*" in *throttle_reasons*) echo "Field \\"clocks_throttle_reasons.active\\" is not a valid field to '
        f"query.\"; exit 2;; esac\necho '{LINE}'; sleep 9\n"
    )
    (sample,) = _samples(tmp_path, body, 1)
    assert sample["gpus"][0]["throttle"] == ["sw_power_cap", "sw_thermal"]


def test_an_nvidia_smi_that_fails_leaves_the_machines_own_figures(tmp_path: Path) -> None:
    began = time.time()
    (sample,) = _samples(tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9\n", 1)
    assert "gpus" not in sample
    assert began - 0.01 <= sample["time"] <= time.time() + 0.01  # it is told in thousandths


def test_a_machine_without_gpu_tells_load_and_memory() -> None:
    source = telemetry.Machine()
    first = source.next(1.0)
    time.sleep(0.1)
    second = source.sample()
    assert first is not None
    assert second["load1"] >= 0
    if sys.platform == "linux":
        assert 0 <= second["cpu_pct"] <= 100
        assert 0 < second["mem_used_mb"] < second["mem_total_mb"]
    assert "\x1b" not in telemetry.describe(second)


@pytest.mark.parametrize(("busy", "ticks", "percent"), [(20, 100, 20.0), (22, 21, 100.0), (-2, 100, 0.0)])
def test_idle_time_that_the_kernel_takes_back_is_no_load(
    monkeypatch: pytest.MonkeyPatch, busy: int, ticks: int, percent: float
) -> None:
    """What Linux says of an idle processor is an estimate until that has work."""
    seen = [(10, 30), (10 + busy, 30 + ticks)]
    monkeypatch.setattr(telemetry, "_cpu_times", lambda: seen.pop(0))
    assert telemetry.Machine().sample()["cpu_pct"] == percent


def test_a_gpu_sample_on_one_line_for_people() -> None:
    gpu = parse_gpu(LINE)
    line = telemetry.describe({"time": 0.0, "gpus": [gpu]})
    for part in ("97 %", "2040 MHz", "71.84 W", "63 C", "sw_power_cap,sw_thermal"):
        assert part in line


def test_the_last_sample_ignores_a_half_written_line(tmp_path: Path) -> None:
    run = RunLayout(str(tmp_path), "20261121t081530z-phase1-l4-3fa9c1")
    place = Path(run.telemetry)
    assert runs.last_sample(run) is None
    place.write_text(json.dumps({"time": 1}) + "\n" + json.dumps({"time": 2}) + '\n{"time":')
    assert runs.last_sample(run) == {"time": 2}
    assert os.path.getsize(place) > 0
