"""Profiling, with a program in ncu's place: what it is asked for, and what is made of its answers."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from flashcore import profile
from flashcore.errors import FlashcoreError, Unavailable

CSV = Path(__file__).resolve().parents[2] / "fixtures/readers/ncu/h100_raw.csv"
ABOUT = {"variant": "fused", "label": "fused", "shape": {"name": "mission"}}


def fake(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ncu in CUDA_HOME only, as a toolkit that nobody put on PATH has it."""
    program = folder / "cuda" / "bin" / "ncu"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$*" >> {folder}/calls\n{script}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CUDA_HOME", str(folder / "cuda"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def test_the_report_is_kept_and_read_into_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, f'[ "$1" = --import ] && exec cat {CSV}\n: > "$3"', monkeypatch)
    path = profile.run("fused-mission", ["fused", "--shape", "1,8,512,64"], tmp_path, ABOUT)
    assert path == tmp_path / "profile-fused-mission.json"
    assert (tmp_path / "fused-mission.ncu-rep").exists()
    document = json.loads(path.read_text())
    assert (document["kind"], document["schema_version"], document["label"]) == ("profile", 1, "fused")
    kernel = document["kernels"][0]
    assert kernel["metrics"]["sm_throughput_pct"] > 0
    stalls = kernel["top_stalls"]
    assert [s["warps"] for s in stalls] == sorted((s["warps"] for s in stalls), reverse=True)
    assert stalls[0]["warps"] == round(max(kernel["stalls"].values()), 3)
    asked = (tmp_path / "calls").read_text().splitlines()[0]
    for part in ("--target-processes all", "-k regex:flashcore_", "--launch-skip 10 --launch-count 1",
                 "--clock-control none --set full", "profile fused --shape 1,8,512,64 --loop"):  # fmt: skip
        assert part in asked


NO_PERMISSION = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"


@pytest.mark.parametrize(
    ("script", "error", "code", "said"),
    [
        (f'echo "{NO_PERMISSION}"; exit 1', Unavailable, 69, "NVreg_RestrictProfilingToAdminUsers=0"),
        ('echo "==ERROR== Failed to initialize the profiler"; exit 1', Unavailable, 69, "without profiling support"),
        ("echo segfault; exit 139", FlashcoreError, 1, "segfault"),
    ],
    ids=["no permission", "no support", "any other failure"],
)
def test_a_machine_that_may_not_profile_is_unavailable_with_the_fix_and_any_other_failure_is_one(
    script: str, error: type[FlashcoreError], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, script, monkeypatch)
    with pytest.raises(error) as raised:
        profile.run("fused", ["fused"], tmp_path, ABOUT)
    assert raised.value.exit_code == code
    assert said in str(raised.value)
    assert ("ncu failed" in str(raised.value)) == (code == 1)
    assert list(tmp_path.glob("*.json")) == []


def test_no_ncu_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="not found"):
        profile.run("fused", ["fused"], tmp_path, ABOUT)


def test_stalls_of_nothing_are_left_out() -> None:
    found = profile.top_stalls({"barrier": 0.0, "wait": 1.5, "long_scoreboard": 4.25, "math": 0.1, "mio": 0.2, "lg": 2})
    assert [s["reason"] for s in found] == ["long_scoreboard", "lg", "wait", "mio", "math"]
