"""The files of the job stage5 from the documents of its steps, and which kernels it calls the fastest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flashcore import stage5
from flashcore.errors import Unavailable

MISSION = {"B": 1, "H": 8, "S": 512, "D": 64}


def stats(p50: float) -> dict[str, float]:
    return {"n": 100, "p50": p50, "p90": p50 * 1.1, "p99": p50 * 1.2, "min": p50 * 0.9, "max": p50 * 2}


def benchmark(label: str, p50: float, **rivals: float) -> dict[str, Any]:
    row = {"shape": MISSION, "mode": "hot", "unit": "us"}
    rows = [{**row, "name": "mission", "variant": label, "stats": stats(p50)}]
    rows += [
        {**row, "name": f"mission/sdpa-{name}", "variant": f"sdpa-{name}", "stats": stats(us)}
        for name, us in rivals.items()
    ]
    rows.append({**row, "name": "mission/cold", "variant": label, "mode": "cold", "stats": stats(2 * p50)})
    about = {
        "kind": "benchmark",
        "variant": label.partition(":")[0],
        "label": label,
        "device": "cuda",
        "config": MISSION,
    }
    return {**about, "benchmarks": rows}


def tuning(*final: dict[str, Any]) -> dict[str, Any]:
    trials = [
        {"number": 0, "params": {"TILE_M": 32}}, {"number": 4, "params": {"TILE_M": 64}},
        {"number": 9, "params": {"TILE_M": 16}},
    ]  # fmt: skip
    return {
        "metric": {"cases": ["mission"]}, "trials": trials, "final": list(final),
        "final_run": {"default": {"mission": {"us": 6.0}}},
    }  # fmt: skip


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def test_each_baseline_is_a_file_that_the_users_queries_find_their_way_in(tmp_path: Path) -> None:
    write(tmp_path / "out/benchmark-baseline.json", benchmark("baseline", 170.0, flash=10.0, math=60.0, cudnn=9.0))
    written = stage5.baselines(tmp_path / "out", tmp_path / "artifacts")
    assert [path.name for path in written] == ["baseline_a.json", "baseline_b.json"]
    for path, theirs in zip(written, (60.0, 10.0), strict=True):
        found = json.loads(path.read_text())
        mission = found["results"]["mission"]
        assert (mission["flashcore"]["p50"], mission["pytorch"]["p50"]) == (170.0, theirs)
        assert found["config"] == MISSION
        assert found["speedup"] == pytest.approx(theirs / 170.0, abs=1e-4)


def test_a_backend_that_was_not_timed_is_told(tmp_path: Path) -> None:
    write(tmp_path / "benchmark-baseline.json", benchmark("baseline", 170.0, flash=10.0))
    with pytest.raises(Unavailable, match="sdpa-math"):
        stage5.baselines(tmp_path, tmp_path / "artifacts")


def test_the_fastest_are_of_candidates_and_of_what_the_search_found(tmp_path: Path) -> None:
    for label, us in (("stage2", 8.0), ("stage5:NUM_PRODUCER_WARPS=1", 7.0), ("baseline", 1.0)):
        write(tmp_path / f"steps/bench/out/benchmark-{label[:6]}.json", benchmark(label, us))
    faster = {"trial": 4, "verdict": "faster", "per_case": {"mission": {"us": 5.0}}}
    wrong = {"trial": 9, "verdict": "failed", "state": "wrong", "per_case": {}}
    write(tmp_path / "steps/search/out/tuning.json", tuning(faster, wrong))
    assert stage5.best(tmp_path, "fused") == ["fused:TILE_M=64", "fused", "stage5:NUM_PRODUCER_WARPS=1", "stage2"]


def test_without_a_search_there_is_no_best(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                           monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setenv("FCCTL_RUN_DIR", str(tmp_path))
    assert stage5.main(["best", "3"]) == 69
    assert "tuning.json is not there" in capsys.readouterr().err


def test_profiles_are_kept_with_their_metrics(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/fused-mission.ncu-rep").write_bytes(b"report")
    kernel = {"name": "flashcore_fused", "metrics": {"tensor_active_pct": 40.0}, "top_stalls": []}
    about = {"label": "fused", "variant": "fused", "shape": MISSION}
    write(tmp_path / "out/profile-fused-mission.json", {"kind": "profile", **about, "kernels": [kernel]})
    stage5.profiles(tmp_path / "out", tmp_path / "artifacts")
    folder = tmp_path / "artifacts/ncu"
    assert (folder / "fused-mission.ncu-rep").read_bytes() == b"report"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "profiled"
    assert summary["kernels"][0]["report"] == "fused-mission.ncu-rep"
    assert summary["kernels"][0]["metrics"] == {"tensor_active_pct": 40.0}


def test_where_nothing_could_be_profiled_the_summary_says_so(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    stage5.profiles(tmp_path / "out", tmp_path / "artifacts")
    assert json.loads((tmp_path / "artifacts/ncu/summary.json").read_text())["status"] == "unavailable"
