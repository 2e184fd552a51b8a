from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.results import documents
from orchestrator.results.compare.compare import busy
from orchestrator.results.compare.rows import GpuActivity
from orchestrator.results.records import StepRecord
from orchestrator.views.report.machine_charts import telemetry as chart
from orchestrator.views.report.model import RunPart
from tests.support import sample_run
from tests.support.reference_run import H200


def write(folder: Path, *samples: Any) -> Path:
    lines = [s if isinstance(s, bytes) else json.dumps(s).encode() for s in samples]
    (folder / documents.FILE).write_bytes(b"\n".join(lines) + b"\n")
    return folder


def gpu(util: float, **more: Any) -> dict[str, Any]:
    return {"name": "NVIDIA L4", "util_pct": util, "sm_mhz": 2040, "throttle": [], **more}


def test_a_real_runs_telemetry() -> None:
    series = documents.load_telemetry(H200)
    assert series.gpu == "NVIDIA H200"
    assert len(series.samples) == 285
    assert series.samples[0].values["power_w"] == 124.5
    assert not series.samples[2].throttled, "an idle GPU is not throttled"
    assert sum(bool(s.throttled) for s in series.samples) == 15


def test_a_long_run_is_thinned_evenly(tmp_path: Path) -> None:
    write(tmp_path, *({"time": float(t), "cpu_pct": 1.0} for t in range(5000)))
    series = documents.load_telemetry(tmp_path, points=100)
    times = [s.time for s in series.samples]
    assert 100 <= len(times) < 200
    steps = {b - a for a, b in itertools.pairwise(times)}
    assert len(steps) == 1
    assert times[-1] > 4900


def test_of_several_gpus_the_one_that_worked(tmp_path: Path) -> None:
    write(tmp_path, *({"time": t, "gpus": [gpu(1), gpu(90), gpu(5)]} for t in range(3)))
    series = documents.load_telemetry(tmp_path)
    assert series.gpus == 3
    assert [s.values["util_pct"] for s in series.samples] == [90, 90, 90]


@pytest.mark.parametrize(("throttle", "known"), [([], True), (["gpu_idle"], True), (None, False)])
def test_a_gpu_that_reports_no_throttling_is_not_said_to_have_kept_its_clock(
    tmp_path: Path, throttle: list[str] | None, *, known: bool
) -> None:
    """A virtual GPU has ``[N/A]`` there."""
    write(tmp_path, *({"time": t, "gpus": [gpu(90, throttle=throttle)]} for t in range(12, 15)))
    series = documents.load_telemetry(tmp_path)
    started, finished = (datetime.fromtimestamp(at, UTC).isoformat() for at in (10, 20))
    step = StepRecord(id="a", status="passed", started=started, finished=finished)
    assert busy(series, step) == GpuActivity(2040.0, throttled=False if known else None)
    made = chart(RunPart(sample_run.record(steps=[step]), (), "NVIDIA L4", series, {}, ()))
    assert made is not None
    assert ("never throttled" in made.caption) is known


def test_nonsense_lines_are_passed_over(tmp_path: Path) -> None:
    deep = b"[" * 30_000
    typed = {"time": 1, "gpus": "x", "cpu_pct": "y"}
    good = {"time": 2, "cpu_pct": 5, "gpus": [3]}
    write(tmp_path, b"\xff\xfe", b"[1]", b"{", {"time": "x"}, typed, deep, b"7" * 80_000, good)
    samples = documents.load_telemetry(tmp_path).samples
    assert [(s.time, s.values) for s in samples] == [(1.0, {}), (2.0, {"cpu_pct": 5.0})]


def test_no_file_a_link_or_a_folder_is_no_telemetry(tmp_path: Path) -> None:
    assert documents.load_telemetry(tmp_path).samples == ()
    (tmp_path / "secret").write_text('{"time": 1}\n')
    (tmp_path / documents.FILE).symlink_to(tmp_path / "secret")
    assert documents.load_telemetry(tmp_path).samples == ()
    (tmp_path / documents.FILE).unlink()
    (tmp_path / documents.FILE).mkdir()
    assert documents.load_telemetry(tmp_path).samples == ()


def seen(*moments: tuple[float, float, float, bool]) -> documents.Series:
    """Of time, share of work in %, clock in MHz, and whether it was throttled."""
    return documents.Series(
        tuple(
            documents.Sample(time, {"util_pct": util, "sm_mhz": mhz}, ("hw_thermal_slowdown",) if slowed else ())
            for time, util, mhz, slowed in moments
        )
    )


@pytest.mark.parametrize(
    ("moments", "activity"),
    [
        ([(9, 99, 500, False), (10, 99, 2000, False), (20, 99, 2100, False), (21, 99, 500, False)],
         GpuActivity(2050.0, throttled=False)),
        ([(11, 50, 2000, False), (12, 49.9, 500, True)], GpuActivity(2000.0, throttled=False)),
        ([(15, 90, 1500, True)] + [(15, 90, 2000, False)] * 9, GpuActivity(2000.0, throttled=True)),
        ([(15, 90, 1500, True)] + [(15, 90, 2000, False)] * 10, GpuActivity(2000.0, throttled=False)),
        ([(9, 99, 500, True), (12, 10, 500, True)], GpuActivity()),
        ([], GpuActivity()),
    ],
    ids=["from start to end", "at work", "a tenth throttled", "less than a tenth", "never at work", "none"],
)  # fmt: skip
def test_the_clock_of_a_step_is_that_of_its_work(
    moments: list[tuple[float, float, float, bool]], activity: GpuActivity
) -> None:
    started, finished = (datetime.fromtimestamp(at, UTC).isoformat() for at in (10, 20))
    assert busy(seen(*moments), StepRecord(id="a", status="passed", started=started, finished=finished)) == activity
    none = StepRecord(id="a", status="passed")
    for step in (None, none, *(none.model_copy(update=one) for one in ({"started": started}, {"finished": finished}))):
        assert busy(seen(*moments), step) == GpuActivity()
