"""Repositories of strangers, each as its owner has it: made a workspace by `fcctl init`, and run over SSH.

Their jobs are written from docs/jobs.md and docs/gates.md alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.sshd import LoopbackSshd
from tests.support.workspace import Workspace

NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("tmux") is None or shutil.which("git") is None, reason="needs tmux and git"),
]
#: Files go to the machine that ~/.ssh/config calls box in another way than to one that is this computer.
TARGETS = pytest.mark.parametrize("on", ["local", "gpu"])


class Stranger(Workspace):
    """A folder that knows nothing of fcctl yet."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.root = self.folder = folder
        self.home = home
        folder.mkdir()

    def write(self, files: dict[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def git(self, *argv: str, cwd: Path | None = None) -> None:
        settings = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
        subprocess.run(["git", *settings, *argv], cwd=cwd or self.root, env=self.env(), check=True, capture_output=True)

    def commit(self) -> None:
        self.git("init", "-q")
        self.git("add", "-A")
        self.git("commit", "-qm", "as it is")

    def run(self, job: str, *more: str, on: str = "gpu", check: int = 0) -> dict[str, Any]:
        record: dict[str, Any] = self.json("run", job, "--on", on, *more, check=check)
        return record


@pytest.fixture
def stranger(tmp_path: Path, private_home: Path, sshd: LoopbackSshd) -> Stranger:
    (private_home / ".ssh").mkdir(mode=0o700)
    shutil.copy(sshd.ssh_config, private_home / ".ssh/config")
    return Stranger(tmp_path / "their kernels", private_home)


def statuses(record: dict[str, Any]) -> dict[str, str]:
    return {step["id"]: step["status"] for step in record["steps"]}


def first_job_works(stranger: Stranger, steps: list[str], on: str = "gpu") -> None:
    """What `fcctl init` writes is valid, and runs."""
    stranger.fcctl("init", "--host", "box")
    stranger.fcctl("jobs", "validate")
    assert statuses(stranger.run("first", on=on)) == dict.fromkeys(steps, "passed")


# ------------------------------------------------------------------------------------------------ make and nvcc
SAXPY = """\
__global__ void saxpy(float a, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
__global__ void twice(float *x) { x[threadIdx.x] *= 2; }
"""
CUDA_JOB = """\
job: resources
steps:
  - id: build
    run: make clean all 2>&1 | tee build.log
    needs: {tools: [nvcc]}
    collect: [{reader: ptxas, file: build.log}]
    gates:
      - len(build.kernels) == 2
      - max(build.kernels[*].registers) <= 40
      - all(build.kernels[*].arch == "sm_89")
      - sum(build.kernels[*].spill_store_bytes) == 0
      - 'build.kernels[name="saxpy"].registers >= 4'
  - id: tight
    optional: true
    run: "true"
    gates:
      - expr: max(build.kernels[*].registers) < 2
        hint: no kernel is that small
"""
MISSPELT_JOB = """\
job: misspelt
uses: [resources]
steps:
  - {id: misspelt, run: "true", gates: ['build.kernels[name="sacspy"].registers < 40']}
"""


@pytest.mark.skipif(NVCC is None or shutil.which("make") is None, reason="needs nvcc and make")
def test_make_and_nvcc(stranger: Stranger) -> None:
    makefile = "all: saxpy.o\nsaxpy.o: saxpy.cu\n\tnvcc -arch=sm_89 -Xptxas=-v -c -o $@ $<\nclean:\n\trm -f *.o\n"
    stranger.write({"Makefile": makefile, "saxpy.cu": SAXPY})
    stranger.commit()
    first_job_works(stranger, ["build"])
    stranger.write({"jobs/resources.yaml": CUDA_JOB})
    record = stranger.run("resources")
    build, tight = record["steps"]
    assert [gate["verdict"] for gate in build["gates"]] == ["pass"] * 5
    assert (tight["status"], tight["hint"]) == ("failed", "no kernel is that small")
    assert record["status"] == "passed"
    stranger.write({"jobs/misspelt.yaml": MISSPELT_JOB})
    last = stranger.run("misspelt", check=104)["steps"][-1]
    assert "no element matches; name is" in last["hint"]
    assert "saxpy" in last["hint"]


# ------------------------------------------------------------------------------------------------ CMake and C++
CMAKE = """\
cmake_minimum_required(VERSION 3.16)
project(their LANGUAGES CXX)
enable_testing()
add_executable(check check.cpp)
add_executable(bench bench.cpp)
add_test(NAME check COMMAND check)
"""
CHECK = """\
#include <cstdio>
int main(int argc, char **argv) {
  if (argc < 2) return 0;
  FILE *f = std::fopen(argv[1], "w");
  std::fputs("<testsuites><testsuite name='k' tests='3' failures='0' skipped='1'>"
             "<testcase classname='k' name='small' time='0.1'/><testcase classname='k' name='large' time='0.2'/>"
             "<testcase classname='k' name='huge'><skipped/></testcase></testsuite></testsuites>", f);
  return std::fclose(f);
}
"""
#: google-benchmark's --benchmark_out of three repetitions.
BENCH = """\
#include <cstdio>
const char *row = R"(%s{"name": "softmax/512", "run_name": "softmax/512", "run_type": "iteration", "repetitions": 3,
  "repetition_index": %d, "threads": 1, "iterations": 1000, "real_time": %d, "cpu_time": 1, "time_unit": "ns"})";
int main(int, char **argv) {
  FILE *f = std::fopen(argv[1], "w");
  std::fputs(R"({"context": {"library_build_type": "release"}, "benchmarks": [)", f);
  for (int i = 0; i < 3; i++) std::fprintf(f, row, i ? "," : "", i, 41000 + 1000 * i);
  std::fputs("]}", f);
  return std::fclose(f);
}
"""
CMAKE_JOB = """\
job: measure
title: Build, check, time
steps:
  - id: build
    run: |
      cmake -S . -B build
      cmake --build build
  - id: check
    run: build/check "$FCCTL_OUT/junit.xml"
    collect: [{reader: junit, file: $FCCTL_OUT/junit.xml}]
    gates: [correctness.summary.passed == 2, correctness.summary.failed == 0]
  - id: bench
    run: build/bench bench.json
    collect: [{reader: google-benchmark, file: bench.json}]
    gates:
      - benchmark.benchmarks[name="softmax/512"].stats.p50 == 42
      - expr: benchmark.benchmarks[name="softmax/512"].stats.p50 < 10
        when: host.gpu.present
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_cmake_junit_and_google_benchmark(stranger: Stranger) -> None:
    stranger.write({"CMakeLists.txt": CMAKE, "check.cpp": CHECK, "bench.cpp": BENCH, ".gitignore": "build/\n"})
    stranger.commit()
    first_job_works(stranger, ["build", "test"])
    stranger.write({"jobs/measure.yaml": CMAKE_JOB})
    record = stranger.run("measure")
    assert statuses(record) == {"build": "passed", "check": "passed", "bench": "passed"}
    verdicts = [gate["verdict"] for gate in record["steps"][2]["gates"]]
    assert verdicts[0] == "pass"
    assert verdicts[1] in ("not_applicable", "fail")
    shown = stranger.fcctl("results", "show").stdout
    assert "softmax/512" in shown
    assert "42" in shown


# ------------------------------------------------------------------------------------------------ a Python package
TEST_PY = """\
import json, os, pathlib
from theirs import answer

def test_answer():
    assert answer() == 42

def test_timing():
    stats = {"min": 1e-5, "max": 3e-5, "mean": 2e-5, "stddev": 1e-6, "rounds": 3, "median": 2e-5, "iterations": 1,
             "data": [1e-5, 2e-5, 3e-5]}
    report = {"benchmarks": [{"name": "test_timing", "fullname": "t::test_timing", "group": None, "params": None,
                              "extra_info": {}, "options": {}, "stats": stats}], "version": "5.1.0",
              "machine_info": {}, "commit_info": {}, "datetime": "2026-01-01T00:00:00"}
    pathlib.Path("bench.json").write_text(json.dumps(report))
"""
PYTHON_JOB = """\
job: check
env: {PYTHON: python3}
steps:
  - id: test
    run: |
      "$PYTHON" -m pytest -q -p no:cacheprovider --rootdir . --junitxml report.xml tests
    collect:
      - {reader: junit, file: report.xml}
      - {reader: pytest-benchmark, file: bench.json}
    gates:
      - correctness.summary.total == 2
      - steps.test.benchmark.benchmarks[0].stats.p50 <= 20
      - all(correctness.cases[*].passed)
"""


def test_a_python_package(stranger: Stranger) -> None:
    stranger.write(
        {
            "setup.py": "from setuptools import setup\nsetup()\n",
            "theirs/__init__.py": "def answer():\n    return 42\n",
            "tests/conftest.py": "import pathlib, sys\nsys.path.insert(0, str(pathlib.Path(__file__).parents[1]))\n",
            "tests/test_it.py": TEST_PY,
            "jobs/check.yaml": PYTHON_JOB,
        }
    )
    stranger.commit()
    stranger.fcctl("init", "--host", "box")
    stranger.fcctl("jobs", "validate")
    record = stranger.run("check", "--set", f"PYTHON={sys.executable}")
    assert [gate["verdict"] for gate in record["steps"][0]["gates"]] == ["pass"] * 3
    stranger.write({"theirs/__init__.py": "def answer():\n    return 41\n"})
    record = stranger.run("check", "--set", f"PYTHON={sys.executable}", check=100)
    assert "exit code 1" in record["steps"][0]["message"]


# ------------------------------------------------------------------------------------------------ odd files
ODD_JOB = r"""
job: look
steps:
  - id: look
    run: |
      test -x tool.sh && ./tool.sh
      test ! -x data.bin
      test -f sub/inner/deep.h
      test "$(readlink include/alias.h)" = ../src/real.h && grep -q REAL include/alias.h
      test "$(cat 'naïve file ☃.cu')" = "// snow"
      test "$(wc -c < asset.bin)" = 31457280
      test -e empty && test ! -s empty
      od -c dos.txt | grep -q '\\r'
      test ! -e build
      test ! -e gone.cu
      test -f untracked.cu
      test -f ' lead' && test -f "quote'd \"name\"" && test -f -- -dash && test -f 'dollar$HOME'
      grep -q original edited.cu
      test "$(head -c 4 asset.bin)" = head
      echo changed > edited.cu
      echo XXXX | dd of=asset.bin conv=notrunc status=none
      echo broken > tool.sh
      rm dos.txt
      mkdir build
      git status > /dev/null 2>&1 && echo "git is here" || true
"""


@TARGETS
def test_odd_files_reach_every_run_as_they_are(stranger: Stranger, on: str, tmp_path: Path) -> None:
    module = tmp_path / "module"
    module.mkdir()
    (module / "inner").mkdir()
    (module / "inner/deep.h").write_text("#define DEEP\n")
    for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "m"]):
        stranger.git(*argv, cwd=module)
    names = dict.fromkeys((" lead", 'quote\'d "name"', "-dash", "dollar$HOME"), "// odd\n")
    stranger.write(
        {
            **names,
            "src/real.h": "#define REAL\n",
            "naïve file ☃.cu": "// snow\n",
            "tool.sh": "#!/bin/sh\necho tool\n",
            "dos.txt": "a\r\nb\r\n",
            "empty": "",
            "asset.bin": b"head" + bytes(30 * 1024 * 1024 - 4),
            "data.bin": b"\0\1",
            ".gitignore": "build/\nresults/\n",
            "build/old.o": "x",
            "gone.cu": "x",
            "edited.cu": "original\n",
            "jobs/look.yaml": ODD_JOB.lstrip(),
        }
    )
    (stranger.root / "tool.sh").chmod(0o755)
    (stranger.root / "include").mkdir()
    (stranger.root / "include/alias.h").symlink_to("../src/real.h")
    stranger.git("init", "-q")
    stranger.git("submodule", "add", "-q", str(module), "sub")
    stranger.git("add", "-A")
    stranger.git("commit", "-qm", "all")
    (stranger.root / "gone.cu").unlink()
    stranger.write({"untracked.cu": "x"})
    stranger.fcctl("init", "--host", "box")
    stranger.fcctl("jobs", "validate")
    first, second, third = (stranger.run("look", on=on) for _ in range(3))
    assert first["status"] == second["status"] == third["status"] == "passed"
    assert first["source"]["tree_sha256"] == second["source"]["tree_sha256"]
    assert first["source"]["dirty"] is True
    assert (stranger.root / "edited.cu").read_text() == "original\n"
    assert statuses(stranger.run("first", on=on)) == {"hello": "passed"}


# ------------------------------------------------------------------------------------------------ no git at all
@TARGETS
def test_a_folder_that_is_no_repository(stranger: Stranger, on: str) -> None:
    stranger.write({"Makefile": "all:\n\techo built > out.txt\ncheck: all\n\tgrep built out.txt\n", "notes.txt": "x"})
    first_job_works(stranger, ["build", "test"], on)
    record = next(iter(stranger.runs().values()))
    assert (record["source"]["git_commit"], record["source"]["dirty"]) == (None, False)
    assert not (stranger.root / "out.txt").exists()
    os.utime(stranger.root / "notes.txt")
    stranger.run("first", on=on)
    assert len(stranger.runs()) == 2
    assert len({run["source"]["tree_sha256"] for run in stranger.runs().values()}) == 1  # results are not source


# ------------------------------------------------------------------------------------------------ steps that may fail
FLAKY_JOB = """\
job: flaky
env: {LIMIT: 1}
steps:
  - id: flaky
    retries: 2
    run: |
      echo x >> "$FCCTL_ARTIFACTS/attempts"
      test "$(wc -l < "$FCCTL_ARTIFACTS/attempts")" -ge 3
      echo '{"p50_us": 12.5, "nested": {"tflops": 3}}' > numbers.json
    collect: [{reader: metrics, file: numbers.json}]
    gates:
      - metrics.metrics.p50_us < 50
      - has(metrics.metrics.p99_us) or env.LIMIT == "1"
  - id: counters
    optional: unavailable
    needs: {tools: [no-such-profiler]}
    run: no-such-profiler
  - id: licence
    optional: unavailable
    exit_codes: {"69": unavailable, "3": warned}
    run: exit 69
  - id: grumbles
    exit_codes: {"3": warned}
    run: exit 3
  - id: slow
    optional: true
    timeout: 1s
    run: sleep 60
  - id: end
    run: "true"
    gates: [steps.flaky.attempts == 3, steps.slow.status == "timed_out", 'steps.flaky.metrics.metrics.p50_us == 12.5']
"""


def test_retries_unavailable_and_timeouts(stranger: Stranger) -> None:
    stranger.write({"readme": "x", "jobs/flaky.yaml": FLAKY_JOB})
    stranger.commit()
    first_job_works(stranger, ["hello"])
    record = stranger.run("flaky")
    assert statuses(record) == {
        "flaky": "passed",
        "counters": "unavailable",
        "licence": "unavailable",
        "grumbles": "warned",
        "slow": "timed_out",
        "end": "passed",
    }
    assert record["steps"][0]["attempts"] == 3
