"""``python -m flashcore`` as a job's step runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flashcore.__main__ import main

pytestmark = [pytest.mark.usefixtures("kernel_processes"), pytest.mark.group("kernel processes")]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def run(out: Path, cache: Path, *arguments: str, path: str = "kernels") -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "FCCTL_OUT": str(out),
        "FLASHCORE_CACHE": str(cache),
        "CUDA_VISIBLE_DEVICES": "",
    }
    argv = [sys.executable, "-m", "flashcore", *arguments]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def command(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, judging: None) -> Callable[..., int]:
    """The same in this process: the exit code."""
    for name, value in (("FCCTL_OUT", tmp_path), ("FLASHCORE_CACHE", cache), ("CUDA_VISIBLE_DEVICES", "")):
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(ROOT)
    return lambda *arguments: main(arguments)


def document(out: Path, kind: str) -> dict[str, object]:
    found = [d for d in (json.loads(p.read_text()) for p in out.glob("*.json")) if d.get("kind") == kind]
    assert len(found) == 1
    assert found[0]["schema_version"] == 1
    return dict(found[0])


@pytest.mark.full
def test_build_and_bench_of_the_cpu_kernel(tmp_path: Path, command: Callable[..., int]) -> None:
    """Its 20 cases are checked in tests/e2e/test_demo.py, in processes of their own."""
    assert command("build", "cpu") == 0
    assert document(tmp_path, "build")["variant"] == "cpu"

    assert command("bench", "cpu", "--shape", "s64") == 0
    benchmark = document(tmp_path, "benchmark")
    rows = {row["name"]: row for row in benchmark["benchmarks"]}
    assert set(rows) == {"s64", "s64/sdpa"}
    for row in rows.values():
        assert row["stats"]["n"] == len(row["samples"]) == 112
        assert 0 < row["stats"]["min"] <= row["stats"]["p50"] <= row["stats"]["p90"] <= row["stats"]["p99"]
    null, against = benchmark["comparisons"]
    assert (null["benchmark"], null["against"], null["null"]) == ("s64", "s64", True)
    assert against["ci_low"] <= against["ratio"] <= against["ci_high"]
    assert against["floor"] > 0
    assert against["ci_high"] / against["ratio"] >= 1 + against["floor"] - 1e-3
    export = json.loads((tmp_path / "bench_export.json").read_text())
    assert export["results"]["s64"]["pytorch"]["p50"] == rows["s64/sdpa"]["stats"]["p50"]
    assert "kind" not in export


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["check", "stage9"], 2, "no kernel variant 'stage9'"),
        (["check", "cpu:ROWS=7"], 2, "legal values"),
        (["check", "cpu:ROWS"], 2, "is not NAME=NUMBER"),
        (["bench", "cpu", "--modes", "hot"], 2, "is not a timing mode on cpu"),
        (["bench", "cpu", "--peaks", "nothing.json"], 2, "is not a document of `peaks`"),
        (["bench", "baseline"], 69, "torch finds none"),
        (["peaks"], 69, "no GPU to measure"),
        (["bench", "cpuu"], 2, "did you mean cpu"),
        (["build", "cpu", "--set", "ROW=64"], 2, "did you mean ROWS"),
        (["build", "cpu", "--set", "ROWS"], 2, "is not NAME=NUMBER"),
        (["check", "cpu", "--shape", "mision"], 2, "did you mean mission"),
        (["check", "cpu", "--case", "mission/4"], 2, "did you mean mission/"),
        (["bench", "cpu", "--against", "spda"], 2, "did you mean sdpa"),
        (["build", "cpu", "--device", "cuda"], 69, "no cuda code to compile"),
        (["profile", "cpu"], 69, "Nsight Compute cannot profile it"),
    ],
)
def test_errors_say_what_to_do(
    arguments: list[str],
    code: int,
    said: str,
    tmp_path: Path,
    command: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(*arguments) == code
    assert said in capsys.readouterr().err
    assert list(tmp_path.glob("*.json")) == []


def test_an_error_is_the_exit_code(tmp_path: Path, cache: Path) -> None:
    done = run(tmp_path, cache, "bench", "baseline")
    assert done.returncode == 69
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.full
def test_a_variant_with_settings_is_one_name_everywhere(tmp_path: Path, command: Callable[..., int]) -> None:
    label = "cpu:ROWS=64+KEYS=64"
    assert command("check", label, "--shape", "s64", "--seeds", "1,2,3", "--sanitize") == 0
    correctness = document(tmp_path, "correctness")
    assert correctness["seeds"] == [1, 2, 3]
    assert correctness["label"] == label
    assert correctness["configuration"] == {"ROWS": 64, "KEYS": 64}
    assert (tmp_path / "correctness-cpu-ROWS64-KEYS64.json").exists()
    assert [(p["tool"], p["status"]) for p in correctness["sanitizer"]] == [
        ("memcheck", "unavailable"), ("racecheck", "unavailable")
    ]  # fmt: skip
    summary = correctness["summary"]
    assert summary["brief_passed"] == summary["total"] == 8
    assert 0 < summary["max_rel_rms"] <= 1e-3
    assert 0 < summary["of_sdpa"] <= 2

    assert command("bench", "cpu", "--shape", "s64", "--against", label) == 0
    benchmark = document(tmp_path, "benchmark")
    assert benchmark["method_version"] >= 3
    assert [row["name"] for row in benchmark["benchmarks"]] == ["s64", f"s64/{label}"]
    assert benchmark["audits"][0]["outputs_checked"] >= 1


@pytest.mark.full
def test_the_null_is_repeated_and_counted(tmp_path: Path, command: Callable[..., int]) -> None:
    assert command("bench", "cpu", "--shape", "1,1,16,64", "--null", "2") == 0
    metrics = document(tmp_path, "metrics")["metrics"]
    assert metrics["1,1,16,64.wall.repeats"] == 2
    assert 0 <= metrics["1,1,16,64.wall.both"] <= metrics["1,1,16,64.wall.covering_1"] <= 2
    assert metrics["1,1,16,64.wall.widest"] > 0


def test_the_list_is_one_json_object(tmp_path: Path, cache: Path) -> None:
    listed = json.loads(run(tmp_path, cache, "list", "--json").stdout)
    assert listed["shapes"]["mission"] == {"B": 1, "H": 8, "S": 512, "D": 64}
    cpu = next(v for v in listed["variants"] if v["name"] == "cpu")
    assert cpu["configurations"] == 16
    assert cpu["parameters"][0]["default"] in cpu["parameters"][0]["values"]


def test_a_python_without_torch_is_told_how_to_get_it(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    done = run(tmp_path, cache, "check", "cpu", path=f"{tmp_path}:kernels")
    assert done.returncode == 69
    assert "this Python has no module torch" in done.stderr
    assert "pip install torch numpy" in done.stderr


def test_the_list_names_variants_parameters_and_shapes(tmp_path: Path, cache: Path) -> None:
    listed = run(tmp_path, cache, "list").stdout
    for word in ("baseline", "cpu", "KEYS: 32 [64]", "mission 1,8,512,64"):
        assert word in listed
