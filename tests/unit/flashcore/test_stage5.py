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
    assert "tuning.json does not exist" in capsys.readouterr().err


def test_profiles_are_kept_with_their_metrics(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/fused-mission.ncu-rep").write_bytes(b"report")
    (tmp_path / "out/stage2-mission.ncu-rep").write_bytes(b"of stage2")
    write(tmp_path / "out/profile-stage2-mission.json", {"label": "stage2", "kernels": [{"name": "flashcore_stage2"}]})
    kernel = {"name": "flashcore_fused", "metrics": {"tensor_active_pct": 40.0}, "top_stalls": []}
    about = {"label": "fused", "variant": "fused", "shape": MISSION}
    write(tmp_path / "out/profile-fused-mission.json", {"kind": "profile", **about, "kernels": [kernel]})
    names = stage5.named({"P1": "stage5:NUM_PRODUCER_WARPS=1", "P2": "stage5:NUM_PRODUCER_WARPS=2"})
    assert sorted(names.values()) == ["baseline", "candidate_stage2", "candidate_ws_p1", "candidate_ws_p2"]
    assert names["stage5:NUM_PRODUCER_WARPS=2"] == "candidate_ws_p2"
    stage5.profiles(tmp_path / "out", tmp_path / "artifacts", names)
    folder = tmp_path / "artifacts/ncu"
    assert (folder / "candidate_best.ncu-rep").read_bytes() == b"report"
    assert (folder / "candidate_stage2.ncu-rep").read_bytes() == b"of stage2"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "profiled"
    assert summary["kernels"][0]["report"] == "candidate_best.ncu-rep"
    assert summary["kernels"][0]["metrics"] == {"tensor_active_pct": 40.0}


def test_where_nothing_could_be_profiled_the_summary_says_so(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    stage5.profiles(tmp_path / "out", tmp_path / "artifacts", {})
    assert json.loads((tmp_path / "artifacts/ncu/summary.json").read_text())["status"] == "unavailable"


def correctness(label: str, failed: int = 0) -> dict[str, Any]:
    summary = {"total": 20, "passed": 20 - failed, "failed": failed, "max_err": 2e-4, "mean_err": 3e-5}
    return {"kind": "correctness", "label": label, "summary": summary}


def candidates(run: Path, monkeypatch: pytest.MonkeyPatch, failed: int = 0) -> Path:
    """Two candidates of a run, by the step's commands; the second has ``failed`` cases."""
    monkeypatch.setenv("FCCTL_RUN_DIR", str(run))
    monkeypatch.setenv("FCCTL_OUT", str(run / "out"))
    monkeypatch.setenv("FCCTL_ARTIFACTS", str(run / "artifacts"))
    for label, name, us, bad in (("stage2", "candidate_stage2", 8.0, 0), ("fused", "candidate_best", 4.0, failed)):
        write(run / f"steps/check/out/correctness-{label}.json", correctness(label, bad))
        results = {"mission": {"flashcore": stats(us), "pytorch": stats(60.0)}}
        write(run / "out/bench_export.json", {"results": results, "speedup": 60.0 / us, "config": MISSION})
        assert stage5.main(["candidate", label, name]) == 0
    write(run / "artifacts/bench/baseline_a.json", {"results": {"mission": {"pytorch": stats(62.0)}}})
    return run / "artifacts/bench"


def test_a_candidate_s_file_says_whether_it_is_correct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = candidates(tmp_path, monkeypatch, failed=1)
    good, bad = (json.loads((folder / f"candidate_{name}.json").read_text()) for name in ("stage2", "best"))
    assert (good["correctness_pass"], good["max_abs_err"], good["mean_abs_err"]) == (True, 2e-4, 3e-5)
    assert bad["correctness_pass"] is False
    assert good["results"]["mission"]["flashcore"]["p50"] == 8.0
    assert stage5.main(["candidate", "wmma", "candidate_x"]) == 69


@pytest.mark.parametrize(
    ("failed", "words", "ratio"),
    [(0, "Target met: fused is 15.50x", 15.5), (1, "Target not met: stage2 is 7.75x", 7.75)],
)
def test_the_best_correct_candidate_is_held_against_baseline_a(
    failed: int, words: str, ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    candidates(tmp_path, monkeypatch, failed)
    assert stage5.main(["target"]) == 0
    assert words in capsys.readouterr().out
    document = json.loads((tmp_path / "out/target.json").read_text())
    assert document["metrics"]["best_over_baseline_a"] == ratio
    assert document["goal"]["met"] is (ratio >= 15)
