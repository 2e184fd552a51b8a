"""Readers on what the tools themselves wrote.

The fixtures are real output (nvcc 13.0, ncu 2025.3 on an H100, pytest, GoogleTest, ctest, google-benchmark,
pytest-benchmark), cut down: of ncu's raw pages 208 of 2,238 columns, of pytest-benchmark's CPU flags three. Paths and
the kernel's release were replaced. Written by hand after the tools' formats are nvbench's files, the lines of CUDA 11
and 12, ncu's refusal, and the metrics.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import readers
from fcctl_remote.base.text import kernel_name
from fcctl_remote.readers import ncu, source
from fcctl_remote.readers.source import MAX_BYTES
from tests.support.scripts import script

Written = Callable[[str], str]
FIXTURES = Path(__file__).parents[2] / "fixtures" / "readers"
ENV = {"PATH": os.environ["PATH"]}


def read(reader: str, name: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    document = readers.read(reader, str(FIXTURES / name), ENV if env is None else env)
    json.dumps(document, allow_nan=False)
    assert document["schema_version"] == 1
    return document


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """The path of a file with that text."""

    def write(text: str) -> str:
        (tmp_path / "file").write_text(text)
        return str(tmp_path / "file")

    return write


# ------------------------------------------------------------------------------------------------ ptxas
def test_ptxas_three_architectures() -> None:
    document = read("ptxas", "ptxas/three_archs.log")
    assert document["archs"] == ["sm_80", "sm_89", "sm_90"]
    found = {(k["name"], k["arch"]): k for k in document["kernels"]}
    assert len(found) == 9
    tile = found["fc::attention_tile<64, 64, float>", "sm_89"]
    assert (tile["registers"], tile["smem_bytes"], tile["barriers"], tile["stack_bytes"]) == (42, 16384, 1, 0)
    assert tile["mangled"] == "_ZN2fc14attention_tileILi64ELi64EfEEvPKT1_S3_Pfi"
    assert found["baseline", "sm_90"]["registers"] == 10
    assert document["complete"]
    assert document["totals"]["max_registers"] == 42
    assert document["totals"]["max_spill_store_bytes"] == 0


@pytest.mark.parametrize(
    ("arch", "lacking"), [("90", None), ("90a", None), ("86", None), ("100", "sm_100"), ("75", "sm_75"), ("", None)]
)
def test_ptxas_says_if_no_code_is_for_the_machine_s_gpu(arch: str, lacking: str | None) -> None:
    environment = {"FCCTL_CUDA_ARCH": arch} if arch else {}
    document = readers.read("ptxas", str(FIXTURES / "ptxas/three_archs.log"), environment)
    assert document.get("no_code_for") == lacking


@pytest.mark.parametrize(
    ("by_cuda", "by_gnu"),
    [
        ("fc::tile<(int)64, (bool)1, (unsigned int)4>", "fc::tile<64, true, 4u>"),
        ("k<cute::tuple<cute::C<(int)128>, cute::C<(int)64>>>", "k<cute::tuple<cute::C<128>, cute::C<64> > >"),
        ("<unnamed>::f<(unsigned long)3, (char)97>", "(anonymous namespace)::f<3ul, (char)97>"),
        ("g<(Mode)1, (bool)0, (long)-5>", "g<(Mode)1, false, -5l>"),
        ("axpy", "axpy"),
    ],
)
def test_a_kernel_has_one_name_whichever_program_demangled_it(by_cuda: str, by_gnu: str) -> None:
    assert kernel_name(by_cuda) == kernel_name(by_gnu)
    assert "(int)" not in kernel_name(by_cuda)


def test_ptxas_spills_stack_and_the_spills_of_a_function_that_is_no_kernel() -> None:
    document = read("ptxas", "ptxas/spills_and_stack.log")
    kernels = {k["name"]: k for k in document["kernels"]}
    assert (kernels["spilling"]["spill_store_bytes"], kernels["spilling"]["spill_load_bytes"]) == (1280, 1304)
    assert (kernels["stack_only"]["stack_bytes"], kernels["stack_only"]["spill_store_bytes"]) == (128, 0)
    assert kernels["recursive"]["spill_store_bytes"] == 0
    [function] = document["functions"]
    assert (function["mangled"], function["spill_store_bytes"], function["registers"]) == ("_Z7recursefi", 24, None)
    assert any("spilled" in w for w in document["warnings"])


def test_ptxas_device_link_adds_local_memory() -> None:
    document = read("ptxas", "ptxas/relocatable.log")
    assert len(document["kernels"]) == 3
    assert all(k["lmem_bytes"] == 0 for k in document["kernels"])


def test_ptxas_lines_of_older_toolkits_among_build_output() -> None:
    # Written after the formats of CUDA 11 and 12.
    document = read("ptxas", "ptxas/cuda11_12_lines.log")
    old, newer = document["kernels"]
    assert (old["registers"], old["smem_bytes"], old["lmem_bytes"], old["stack_bytes"]) == (42, 8208, 24, 16)
    assert old["barriers"] is None
    assert (newer["arch"], newer["barriers"], newer["smem_bytes"]) == ("sm_90a", 16, 1024)
    assert newer["cumulative_stack_bytes"] == 8
    assert document["totals"]["max_stack_bytes"] == 16


@pytest.mark.parametrize("keep", range(1, 14))
def test_ptxas_truncated_log_never_invents_registers(keep: int, written: Written) -> None:
    whole = (FIXTURES / "ptxas/three_archs.log").read_text().splitlines()
    log = written("\n".join(whole[:keep]))
    if keep < 2:
        with pytest.raises(readers.ReaderError, match="no resource line"):
            readers.read("ptxas", log)
        return
    document = readers.read("ptxas", log)
    cut = keep in (2, 3, 4, 7, 8, 9, 12, 13)
    assert document["complete"] is not cut
    assert (document["kernels"][-1]["registers"] is None) is cut
    assert (document["totals"]["max_registers"] is None) is cut


def test_ptxas_two_compilers_at_once_leave_registers_unknown(written: Written) -> None:
    lines = [
        "ptxas info    : Compiling entry function 'a' for 'sm_89'",
        "ptxas info    : Compiling entry function 'b' for 'sm_89'",
        "ptxas info    : Function properties for a",
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
        "ptxas info    : Used 200 registers, used 0 barriers",
        "ptxas info    : Used 20 registers, used 0 barriers",
        "ptxas info    : Compiling entry function 'c' for 'sm_89'",
        "ptxas info    : Used 30 registers, used 0 barriers",
    ]
    document = readers.read("ptxas", written("\n".join(lines)))
    assert [k["registers"] for k in document["kernels"]] == [None, None, 30]
    assert not document["complete"]


# ------------------------------------------------------------------------------------------------ ncu
@pytest.mark.parametrize("layout", ["raw", "raw_base"])
def test_ncu_raw_page(layout: str) -> None:
    document = read("ncu", f"ncu/h100_{layout}.csv")
    copy_scale, wmma = document["kernels"]
    assert copy_scale["name"] == "copy_scale"
    assert (wmma["name"], wmma["grid"], wmma["block"]) == ("wmma_tile<64>", [264, 1, 1], [32, 1, 1])
    assert wmma["signature"].startswith("void wmma_tile<64>(")
    assert wmma["metrics"]["tensor_active_pct"] == pytest.approx(11.34, abs=0.005)
    assert wmma["metrics"]["tensor_elapsed_pct"] == pytest.approx(4.95, abs=0.005)
    assert wmma["metrics"]["registers"] == 22
    assert wmma["metrics"]["tensor_instructions"] is None
    assert copy_scale["metrics"]["occupancy_pct"] == pytest.approx(72.09, abs=0.005)
    assert copy_scale["metrics"]["dram_bytes_read"] == 16782848
    assert copy_scale["duration_ns"] == pytest.approx(13536)
    assert copy_scale["stalls"]["long_scoreboard"] == pytest.approx(44.2, abs=0.005)
    assert "selected" not in copy_scale["stalls"]
    assert document["duration_is_benchmark"] is False


def test_ncu_scaled_units_agree_with_base_units() -> None:
    scaled, base = (read("ncu", f"ncu/h100_{layout}.csv")["kernels"] for layout in ("raw", "raw_base"))
    compared = 0
    for one, other in zip(scaled, base, strict=True):
        for name, value in other["raw"].items():
            assert one["raw"][name] == pytest.approx(value, rel=0.01, abs=0.011), name
            compared += value != 0
    assert compared > 100
    assert base[1]["metrics"]["smem_dynamic"] == scaled[1]["metrics"]["smem_dynamic"] == 1024


def test_ncu_names_of_an_l4(written: Written) -> None:
    # An AD104 calls the tensor pipe's metrics _v2; the layout is the real one above.
    text = (FIXTURES / "ncu/h100_raw_base.csv").read_text().replace("hmma_cycles_active.", "hmma_cycles_active_v2.")
    report = written(f"==PROF== Connected to process 1\nmax_err 0.001\n{text}")
    assert readers.read("ncu", report)["kernels"][1]["metrics"]["tensor_active_pct"] == 11.34


def test_ncu_without_permission_is_unavailable() -> None:
    with pytest.raises(readers.ReaderError, match="may not read") as caught:
        read("ncu", "ncu/no_permission.txt")
    assert caught.value.unavailable
    assert "NVreg_RestrictProfilingToAdminUsers=0" in caught.value.hint


def test_ncu_report_without_ncu_is_unavailable(tmp_path: Path, written: Written) -> None:
    with pytest.raises(readers.ReaderError, match="ncu is needed") as caught:
        readers.read("ncu", written("NVR\0report"), {"PATH": str(tmp_path)})
    assert caught.value.unavailable


def test_ncu_report_is_imported_by_ncu(tmp_path: Path, written: Written) -> None:
    """There is no ncu here: a program of that name prints what the real one printed for the same arguments."""
    cat = f'[ "$LC_ALL" = C ] && exec cat "{FIXTURES}/ncu/h100_raw.csv"'
    script(tmp_path / "ncu", f'[ "$1 $3 $4 $5 $#" = "--import --csv --page raw 5" ] || exit 9\n{cat}\n')
    report, env = written("NVR\0report"), {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert len(readers.read("ncu", report, env)["kernels"]) == 2
    script(tmp_path / "ncu", "echo '==ERROR== bad report'; exit 3\n")
    with pytest.raises(readers.ReaderError, match=r"failed \(3\): ==ERROR== bad report"):
        readers.read("ncu", report, env)


def test_ncu_units() -> None:
    for unit, factor in [("Gbyte/second", 1e9), ("Gbyte/s", 1e9), ("cycle/nsecond", 1e9), ("cycle/usecond", 1e6)]:
        assert ncu.factor(unit) == pytest.approx(factor)
    for unit, factor in [("us", 1e3), ("msecond", 1e6), ("Kbyte/block", 1e3), ("%", 1), ("", 1), ("Mhz", 1e6)]:
        assert ncu.factor(unit) == pytest.approx(factor)
    assert ncu.base_value("1,234.5", "us") == 1_234_500
    assert ncu.base_value("n/a", "") is None
    assert ncu.base_value("(1, 2, 3)", "") is None


# ------------------------------------------------------------------------------------------------ junit
def test_junit_of_pytest() -> None:
    document = read("junit", "junit/pytest.xml")
    assert document["summary"] == {
        "total": 9, "passed": 4, "failed": 3, "skipped": 2, "max_err": 0.0036, "mean_err": None,
    }  # fmt: skip
    first, failed = document["cases"][0], document["cases"][2]
    assert first["shape"] == {"B": 1, "H": 8, "S": 512, "D": 64}
    assert (first["passed"], first["max_err"]) == (True, 0.0012)
    assert (failed["status"], failed["passed"]) == ("failed", False)
    assert failed["message"].startswith("AssertionError: max_err 0.116 > 0.06")
    assert {c["status"] for c in document["cases"]} == {"passed", "failed", "error", "skipped"}


def test_junit_of_gtest() -> None:
    document = read("junit", "junit/gtest.xml")
    assert document["summary"]["total"] == 6
    assert (document["summary"]["passed"], document["summary"]["failed"]) == (3, 1)
    by_name = {c["name"]: c for c in document["cases"]}
    assert "0.167" in by_name["LongRow"]["message"]  # the first of its two failures
    assert by_name["DISABLED_Fp8"]["status"] == by_name["NeedsGpu"]["status"] == "skipped"


def test_junit_of_ctest_counts_a_missing_program_as_failed() -> None:
    document = read("junit", "junit/ctest.xml")
    statuses = {c["name"]: c["status"] for c in document["cases"]}
    assert statuses == {
        "passes": "passed", "fails": "failed", "skipped": "skipped", "missing": "failed", "off": "skipped",
    }  # fmt: skip


@pytest.mark.parametrize(("value", "flag"), [("nan", "nan"), ("-nan", "nan"), ("-inf", "inf"), ("Infinity", "inf")])
def test_junit_nan_error_leaves_no_maximum_to_pass_a_gate(written: Written, value: str, flag: str) -> None:
    case = '<testcase name="{0}"><properties><property name="max_err" value="{1}"/></properties></testcase>'
    report = written("<testsuite>" + case.format("a", "0.01") + case.format("b", value) + "</testsuite>")
    document = readers.read("junit", report)
    assert document["summary"]["max_err"] is None
    assert document["cases"][1][flag] == 1


# ------------------------------------------------------------------------------------------------ benchmarks
def test_google_benchmark_repetitions() -> None:
    document = read("google-benchmark", "google_benchmark/repetitions.json")
    found = {b["name"]: b for b in document["benchmarks"]}
    small = found["BM_copy/1024/min_time:0.010/repeats:5"]
    raw = json.loads((FIXTURES / "google_benchmark/repetitions.json").read_text())["benchmarks"][:5]
    ns = sorted(entry["real_time"] for entry in raw)
    assert small["stats"]["n"] == 5
    assert small["stats"]["p50"] == pytest.approx(ns[2] / 1000)
    assert small["stats"]["max"] == pytest.approx(ns[4] / 1000)
    assert small["stats"]["p90"] is None  # five repetitions have no 90th percentile
    assert small["counters"]["bytes_per_second"] > 0
    manual = next(b for n, b in found.items() if n.startswith("BM_real"))
    assert manual["stats"]["p50"] == pytest.approx(25.9)
    once = next(b for n, b in found.items() if n.startswith("BM_once"))
    assert 0 < once["stats"]["p50"] < 1  # reported in ms
    assert found["BM_broken"]["error"] == "no GPU here"
    assert found["BM_broken"]["stats"]["p50"] is None
    assert not any("BigO" in n or "RMS" in n for n in found)


@pytest.mark.parametrize("file", ["repetitions", "aggregates_only"])
def test_a_time_of_zero_is_no_measurement(written: Written, file: str) -> None:
    """As a manual time is whose events a failed launch never recorded: a gate on it must not pass."""
    raw = json.loads((FIXTURES / f"google_benchmark/{file}.json").read_text())
    name = raw["benchmarks"][0]["run_name"]
    for item in raw["benchmarks"]:
        item.update({"real_time": 0.0} if item.get("run_name") == name else {})
    zero, other = readers.read("google-benchmark", written(json.dumps(raw)))["benchmarks"][:2]
    assert (zero["name"], zero["error"], zero["stats"]["p50"]) == (name, "its time is not above 0", None)
    assert "samples" not in zero
    assert other["stats"]["p50"] > 0


def test_google_benchmark_aggregates_only() -> None:
    small, large = read("google-benchmark", "google_benchmark/aggregates_only.json")["benchmarks"]
    assert large["stats"]["p50"] == pytest.approx(1.4231301948863513)
    assert large["stats"]["mean"] == pytest.approx(1.4056214292070977)
    assert large["stats"]["stddev"] == pytest.approx(0.038699517094644769)
    assert (large["stats"]["n"], large["stats"]["p99"], large["stats"]["min"]) == (5, None, None)
    assert "samples" not in small


def test_google_benchmark_python_binding() -> None:
    [only] = read("google-benchmark", "google_benchmark/python_binding.json")["benchmarks"]
    assert only["stats"]["p50"] == pytest.approx(9.6739752817962126)


def test_pytest_benchmark_with_samples() -> None:
    first, second = read("pytest-benchmark", "pytest_benchmark/with_data.json")["benchmarks"]
    raw = json.loads((FIXTURES / "pytest_benchmark/with_data.json").read_text())["benchmarks"][0]["stats"]
    assert first["shape"] == {"B": 1, "H": 8, "S": 100, "D": 64}
    for ours, theirs in (("p50", "median"), ("min", "min"), ("max", "max"), ("mean", "mean"), ("stddev", "stddev")):
        assert first["stats"][ours] == pytest.approx(raw[theirs] * 1e6)
    assert (first["stats"]["n"], len(first["samples"])) == (20, 20)
    assert first["stats"]["p90"] is not None
    assert first["stats"]["p99"] is None
    assert second["params"] == {"n": 1000}


def test_pytest_benchmark_saved_without_samples() -> None:
    first, _ = read("pytest-benchmark", "pytest_benchmark/stats_only.json")["benchmarks"]
    assert (first["stats"]["n"], first["stats"]["p90"]) == (20, None)
    assert first["stats"]["p50"] is not None
    assert "samples" not in first


def test_nvbench_json() -> None:
    # nvbench prints its values as strings.
    cold, batch, skipped = read("nvbench", "nvbench/cold_and_batch.json")["benchmarks"]
    assert (cold["mode"], batch["mode"]) == ("cold", "batch")
    assert cold["shape"] == {"B": 1, "H": 8, "S": 512, "D": 64}
    expected = {"n": 1104, "mean": 25.9, "min": 24.0, "max": 31.0, "stddev": 0.4}
    assert {k: cold["stats"][k] for k in expected} == pytest.approx(expected)
    assert cold["stats"]["p50"] is None
    assert (batch["stats"]["n"], batch["stats"]["mean"]) == (20000, pytest.approx(21.0))
    assert skipped["error"] == "out of memory"


def test_nvbench_on_several_gpus_names_each(written: Written) -> None:
    """Else one GPU's time would be a repetition of the other's."""
    raw = json.loads((FIXTURES / "nvbench/cold_and_batch.json").read_text())
    (bench,) = raw["benchmarks"]
    bench.update(devices=[0, 1], states=[{**bench["states"][0], "device": device} for device in (0, 1)])
    found = readers.read("nvbench", written(json.dumps(raw)))["benchmarks"]
    assert [(one["name"], one["mode"]) for one in found] == [
        (f"attention[B=1,H=8,S=512,D=64,device={device}]", mode) for device in (0, 1) for mode in ("cold", "batch")
    ]


def test_pytest_benchmarks_of_one_name_in_two_files_are_two(written: Written) -> None:
    raw = json.loads((FIXTURES / "pytest_benchmark/stats_only.json").read_text())
    first, other = raw["benchmarks"]
    raw["benchmarks"] = [first, {**first, "fullname": "test_c.py::test_sum[100]"}, other]
    found = readers.read("pytest-benchmark", written(json.dumps(raw)))["benchmarks"]
    assert [one["name"] for one in found] == ["test_b.py::test_sum[100]", "test_c.py::test_sum[100]", "test_sum[1000]"]


def test_statistics_agree_with_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    samples = [math.sin(i * 12.9898) * 43758.5453 % 1 for i in range(257)]
    stats = source.statistics_us(samples)
    for key, quantile in (("p50", 50), ("p90", 90), ("p99", 99)):
        assert stats[key] == pytest.approx(float(numpy.percentile(samples, quantile)))
    assert stats["stddev"] == pytest.approx(float(numpy.std(samples, ddof=1)))
    assert stats["mean"] == pytest.approx(float(numpy.mean(samples)))


# ------------------------------------------------------------------------------------------------ metrics
def test_metrics_are_flattened() -> None:
    assert read("metrics", "metrics/nested.json")["metrics"] == {
        "tokens_per_s": 1234.5, "ok": 1, "latency.p50": 25.9, "latency.p99": 45.09, "losses.0": 0.5, "losses.1": 0.25,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------ times
def timed(path: Path | str) -> dict[str, list[float]]:
    document = readers.read("times", str(path))
    assert document["kind"] == "benchmark"
    return {entry["name"]: entry["samples"] for entry in document["benchmarks"]}


def test_times_that_are_printed() -> None:
    assert timed(FIXTURES / "times" / "printed.txt") == {
        "warm-up done in": [0.8e6],
        "softmax n=1024": [12.5, 13.5],
        "gemm 512x512x512] Average time": [pytest.approx(1_234_500.0)],
        "took": [pytest.approx(0.03e6)],
        "time": [12.0],
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("kernel,n,rep,time_us\nours,64,0,1.5\nours,64,1,2.5\n", {"ours 64": [1.5, 2.5]}),
        ("name;p50 (ms);p90 (ms);GB/s\na;1;2;300\n", {"a/p50": [1000.0], "a/p90": [2000.0]}),
        ("us\n3\n4\n", {"time": [3.0, 4.0]}),
        ('name,"mean_time[ns]",gflops\n"x, y",1500,7.25\nbroken\nzero,0,1\n', {"x, y/mean": [1.5]}),
        ("M\tN\tseconds\n8\t16\t0.5\n", {"8 16": [0.5e6]}),
        ("a, b: 3 us\na, b: 4 us\n", {"a, b": [3.0, 4.0]}),
        (
            "kernel A\nLatency: 3 us\nkernel B\nLatency: (0.004) ms\n",
            {"kernel A Latency": [3.0], "kernel B Latency": [4.0]},
        ),
        (
            "dim 64, a: 0.5\nt: 3 us\nt: 5 us\ndim 128, a: 0.5\nt: 4 us\n",
            {"dim 64, a: 0.5 t": [3.0, 5.0], "dim 128, a: 0.5 t": [4.0]},
        ),
        ("run 1\nt: 3 us\nloss 0.5\nrun 2\n12:30:05 ok\nt: 4 us\nloss 0.4\nt: 5 us\n", {"t": [3.0, 4.0, 5.0]}),
        ("softmax n=8 time_us=66.2\nsoftmax n=8 time_us=67\n", {"softmax n=8": [66.2, 67.0]}),
        ("f32: [0.28, -1e-3], time:0.5ms\nf32: ['0.3 ', '1.2'], time:1ms (+2.5%)\n", {"f32": [500.0, 1000.0]}),
        (
            "[G 2024-01-01 12:00:00 7:7 a.h:6 f] k [1, 2]: 3 us\n2024-01-01T12:00:00,5 k: 4 us\n",
            {"k [1, 2]": [3.0], "k": [4.0]},
        ),
        (
            "sum, Throughput = 243.5932 GB/s, Time = 2 us\nsum, Throughput = 250.1 GB/s, Time = 3 us\n",
            {"sum, Throughput , Time": [2.0, 3.0]},
        ),
        ("f32: 0.12345 , t: 2 us\nf32: -1.23456 , t: 3 us\n", {"f32 , t": [2.0, 3.0]}),
        ("n 8, Time = 0.00001 0.00002 0.00003 s\nn 8, Time = 0.00004 0.00005 0.00006 s\n", {"n 8, Time": [30.0, 60.0]}),
        ("loss 4.3678 | 45.1% MFU | 3 us\nloss 4.1 | 46% MFU | 4 us\n", {"loss | MFU": [3.0], "loss 4.1 | MFU": [4.0]}),
        ("(naive): ['-3.9 ', '2.2'], time:3us, NOOP, TFLOPS: 1.7(+8.2%)\n", {"naive": [3.0]}),
        ("Time (ms): 0.5\ndevice(s): 1\ncopy time (usec) = 3\n", {"Time": [500.0], "copy time": [3.0]}),
        ("Naive kernel time(ms): 1.5\nthread(s): 256\n", {"Naive kernel time": [1500.0]}),
        (
            "[1/2] /usr/bin/nvcc -c k.cu -o k.o\nptxas info    : Compile time = 222.151 ms\nk: 3 us\n",
            {"k": [3.0]},
        ),
        ("x: 3 us\nnan s1, banana us, inf of 3 runs\n", {"x": [3.0]}),  # which only look like no number
        ("Time = 55.05 +- 0.15 ms.\nt: 3.5 ± 0.2 us (1.5 +/- 0.1 s)\n", {"Time": [55050.0], "t": [3.5]}),
        ("loaded 10%\rloaded 20%\rk: 3 us\r\nk: 4 us\r\n", {"k": [3.0, 4.0]}),
        ("costs 0.25 (ms)\nBurning for 10 seconds.\nN = 64 (us)\n", {"costs": [250.0]}),
        (
            "t: 3 us, size: (64)\nt: 5 us, size: (64)\nt: 4 us, size: (128)\nk: 1 us, N=8\n",
            {"size: (64) t": [3.0, 5.0], "size: (128) t": [4.0], "k": [1.0]},
        ),
        ("N = 8\nt: 3 us (n=8)\nN = 16\nt: 4 us (n=16)\n", {"N = 8 t": [3.0], "N = 16 t": [4.0]}),
        ("t: 3 us, errors=0\nt: 4 us, errors=1, n=2.5\n", {"t": [3.0, 4.0]}),
        ('time_us=66.2, 3 ms in all\n"p50_ms": 1.5\nelapsed_s: 2\n', {"time": [66.2, 2e6], "p50": [1500.0]}),
        (  # of a locale with a decimal comma
            "a: 12,5 ms\nb: 0,345 ms\nc: 1,234 us\nd: 1,234,567.5 us\ne: 1.234,5 us\nf: 1,2,3 us\ng: 1'234.5 us\n",
            {"a": [12_500.0], "b": [345.0], "c": [1234.0], "d": [1_234_567.5]},
        ),
        (  # of a locale with spaces or apostrophes between thousands; "1024 128" are two numbers
            "a: 1\u202f234 us\nb: 12\u00a0345,5 us\nc: 1\u2019234\u2019567.5 us\nn 1024\u00a0128 us\n",
            {"a": [1234.0], "b": [12_345.5], "c": [1_234_567.5], "n 1024": [128.0]},
        ),
        # Alone, a comma before three digits is one of thousands; in a file with decimal commas, one of these.
        ("a: 12,345 ms\nb: 950 ms\n", {"a": [12_345e3], "b": [950e3]}),
        ("a: 12,345 ms\nb: 0,345 ms\nc: 1,234ms, 5 us\n", {"a": [12_345.0], "b": [345.0], "c": [1234.0]}),
        ("a: 12,345 ms\nb: 0,345 ms\nc: 1.5 ms\n", {"a": [12_345e3], "b": [345.0], "c": [1500.0]}),
        ("kernel  time (ms)\na  12,5\n", {"a time": [12_500.0]}),
        (
            "a: 1m 23.4s\nb: 2 min 3 s\nc: 1h 2m 3.5 sec\nd: 00:01:23.4 s\nreal\t0m1.2s\n",
            {"a": [83.4e6], "b": [123e6], "c": [3723.5e6]},
        ),
        ("\x1b[32ma\x1b[0m: \x1b[1;31m12.5\x1b[0m ms\n\x1b[2Kb: 3 \x1b[2mus\x1b[m\n", {"a": [12_500.0], "b": [3.0]}),
        ("12.5 ms  naive\n3.5 ms  tiled (4)\n", {"naive time": [12_500.0], "tiled time": [3500.0]}),
        ("3 us  naive\n4 us  naive\n", {"time": [3.0, 4.0]}),
        ("1000 steps at 210.5 ns/day\nk: 3 us / call\n", {"k": [3.0]}),  # what was simulated is no time
        ("10% percentile: 1 s\n99% percentile: 2 s\n", {"10% percentile": [1e6], "99% percentile": [2e6]}),
        ("k (1.07x): 3 us\nk (1.12x): 4 us\nunroll 4x: 5 us\n", {"k": [3.0, 4.0], "unroll 4x": [5.0]}),
        ("mean: 3 us\nstd: 1 us\nstddev_ms: 2\n  IQR:    0.50 us (1 to 2)\n", {"mean": [3.0]}),
        ("name,mean_ms,std_ms\na,1.5,0.1\n", {"a/mean": [1500.0]}),
        ("mean: 12.345 clocks (3.5 ns)\nLDG =64 cycles time: 3 us\n", {"mean": [0.0035], "LDG = time": [3.0]}),
        ("[12.3]GFlop/s  (3.5)ms  a\nk: 4.1 -> [3.5]ms (+1%)\n", {"time": [3500.0], "k": [3500.0]}),
        ("conv 64 -> 128: 3 us\nconv 32 -> 128: 4 us\n", {"conv 64 -> 128": [3.0], "conv 32 -> 128": [4.0]}),
        ("Times in ms:\nsize  diffusion  error\n64    1.5        0.25\n", {"size=64 diffusion": [1500.0]}),
        ("k Time = 1.25 1.5 1.75 s\n", {"k Time": [1.75e6]}),
        ("FPS (over 3 s): 60\nt: 3 us, every 2 s\nWaiting 10 seconds for the GPU to cool\n", {"t": [3.0]}),
        ("name,init_ms,gb_s\na,1.5,3\n", {"a/init": [1500.0]}),
        ('"Kernel";"Zeit (ms)"\n"a";"12,5"\n', {"a/Zeit": [12_500.0]}),
        ("{'kernel': 'gemm', 'time_ms': 1.5}\n", {"kernel': 'gemm": [1500.0]}),
        ("CPU Time = 5ms, GPU Time = 12.5us, Speedup = 400\n", {"CPU Time": [5000.0], "GPU Time": [12.5]}),
        ("GPU: 3 us / CPU: 5 ms\n", {"GPU": [3.0], "CPU": [5000.0]}),
        ("n=64 | cublas: 3 us, 5 TFLOPS | mine: 4 us (max: 5 us)\n", {"n=64 | cublas": [3.0], "n=64 mine": [4.0]}),
        ("  mm 0.5 ms 94.9%\nSingleProcess AUTOTUNE benchmarking takes 2.3 seconds\n", {"mm": [500.0]}),
        ("k: 3 us\nTriton autotuning for function mm finished after 3.4s\n", {"k": [3.0]}),
    ],
)
def test_times_of_tables_and_of_text_that_looks_like_one(
    text: str, found: dict[str, list[float]], written: Written
) -> None:
    assert timed(written(text)) == found


# ------------------------------------------------------------------------------------------------ flashcore
def test_flashcore_has_each_case_with_its_reference() -> None:
    document = read("flashcore", "flashcore/latency.json")
    ours, theirs, other = document["benchmarks"]
    assert (ours["name"], ours["case"], ours["variant"], ours.get("role")) == ("mission", "mission", "flashcore", None)
    assert [ours["stats"][key] for key in ("n", "p50", "p90", "p99", "min")] == [100, 1397.7, 1402.1, 1410.0, 1390.2]
    assert ours["shape"] == theirs["shape"] == {"B": 1, "H": 8, "S": 512, "D": 64}
    assert (theirs["name"], theirs["role"], theirs["stats"]["p50"]) == ("mission/pytorch", "reference", 45.09)
    assert (other["stats"]["p50"], other["shape"]["B"]) == (2790.4, 2)
    assert document["device"] == "NVIDIA L4"


# ------------------------------------------------------------------------------------------------ rates
def test_rates_that_are_printed() -> None:
    document = readers.read("rates", str(FIXTURES / "rates" / "printed.txt"))
    assert document["kind"] == "metrics"
    assert document["metrics"] == {
        "Triad n=1024 GB/s": pytest.approx(78.2),  # the median
        "[axpy] n=64 bandwidth GB/s": 9.0,
        "[axpy] n=128 bandwidth GB/s": 11.0,
        "Effective bandwidth GB/s": 412.0,
        "softmax GB/s": 1073.741824,
        "GB/s": 0.95,
        "dense GFLOP/s": 1200.0,
        "dense sparse GFLOP/s": 2100.0,
        "gemm 4096x4096 GFLOP/s": 391.2,
        "prefill tokens/s": 5123.0,
    }


def test_rates_whose_unit_stands_before_them(written: Written) -> None:
    """As the samples of CUDA, LeetCUDA and llm.c print them; ``20 flops`` and ``FLOPs: 5  flops`` are counts."""
    text = """\
Time: 3.518464 ms
TFLOPS: 39.06
(naive): ['-34.9', '2.25'], time:39.87ms, swizzle: NOOP, TFLOPS: 1.72(+863.21%)
block_size 64 | time 0.0934 ms | tflops 12.5
Effective bandwidth (GB/s) = 412
= 9030.467 single-precision GFLOP/s at 20 flops per interaction
FLOPs: 115992428544  flops
Math: 17218.4 GFLOP/s
"""
    assert readers.read("rates", written(text))["metrics"] == {
        "GFLOP/s": 39060.0,
        "(naive) swizzle: NOOP GFLOP/s": 1720.0,
        "block_size 64 GFLOP/s": 12500.0,
        "Effective bandwidth GB/s": 412.0,
        "Math GFLOP/s": 17218.4,
    }


NCCL = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    45.12    0.02    0.04       0    44.98    0.02    0.05     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 40.7
"""
NVBANDWIDTH = """\
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0
 0     12.67

SUM host_to_device_memcpy_ce 12.67

Running host_device_latency_sm.
memory latency SM CPU(row) <-> GPU(column) (ns)
           0
 0    772.58

SUM host_device_latency_sm 772.58
NOTE: The reported results may not reflect the full capabilities of the platform.
"""
#: BabelStream.
STREAM = """\
Function    MBytes/sec  Min (sec)   Max         Average
Copy        2000000.0   0.00044     0.00046     0.00045
Triad       nan         0.00044     0.00046     0.00045
"""
#: torch.profiler, as it printed on an H200; nsys stats.
TORCH = """\
=== manual ===
/root/run-1/bench.py:29: FutureWarning: The attribute `use_cuda` will be deprecated soon
  with profile(use_cuda=True) as prof:
-----------------------  ------------  ------------  ------------  ------------  ------------
                   Name    Self CPU %      Self CPU     Self CUDA    CUDA total    # of Calls
-----------------------  ------------  ------------  ------------  ------------  ------------
           aten::matmul         0.53%      10.000us       0.000us     700.000us             2
void bmm(float*, int...         4.00%       2.100ms      50.000us      60.000us             1
-----------------------  ------------  ------------  ------------  ------------  ------------
Self CPU time total: 2.110ms
Self CUDA time total: 76.000us

=== ours ===
/root/run-1/bench.py:35: FutureWarning: The attribute `use_cuda` will be deprecated soon
  with profile(use_cuda=True) as prof:
shared memory: 28672 \\n-----------------------  ------------  ------------  ------------
                   Name    Self CPU %      Self CPU     Self CUDA
-----------------------  ------------  ------------  ------------
void bmm(float*, int...         4.00%       2.100ms      40.000us
            aten::zeros         4.00%       2.100ms      20.000us
-----------------------  ------------  ------------  ------------
Self CUDA time total: 60.000us
"""
NSYS = """\
 Time (%)  Total Time (ns)  Instances  Avg (ns)  Name
 --------  ---------------  ---------  --------  --------------------------
     75.3       12,345,678         10   1,234.5  void k<float>(float *, int)
     24.7        2,345,678         10     234.5  sgemm
"""
#: cutlass_profiler --output=FILE.
CUTLASS = """\
Problem,Provider,OperationKind,Operation,Disposition,Status,m,n,k,Flops,Flops/Byte,Runtime,GB/s,GFLOPs
1,CUTLASS,gemm,cutlass_simt_sgemm_128x128_8x2_nn_align1,passed,success,3456,4096,4096,11599242,643,6.73655,24.9,17218.4
"""
#: As they are printed by: nvbench, torch.utils.benchmark's Compare, FlagGems, mixbench, CUDA's sample of bandwidth,
#: flash-attention's benchmark, hyperfine, Google's benchmark, a program that burns a GPU.
NVBENCH = """\
| Elements | T{ct} | Samples |  CPU Time  | Noise |  GPU Time  | GlobalMem BW | BWUtil |
|----------|-------|---------|------------|-------|------------|--------------|--------|
|  2^16    |  I32  |  1024x  |  12.345 us | 3.10% |   5.120 us | 102.400 GB/s | 34.13% |
"""
#: Its second table, of two benchmarks, has the samples of two ways to time them; its CSV has bytes.
NVBENCH_BATCH = "".join(
    f"## {name} (N)\n\n### [0] NVIDIA L4\n\n| N = 2^k | Samples | GPU Time  | Samples | Batch GPU |\n"
    f"|---------|---------|-----------|---------|-----------|\n|   2^1   |  {n}x  | {n}.5 us |  {n}1x  | {n}.25 us |\n"
    for name, n in (("Coalesced", 7), ("Not coalesced", 8))
)
NVBENCH_CSV = """\
Benchmark,Device,N,Samples,GPU Time (sec),Noise,GlobalMem BW (bytes/sec),Samples,Batch GPU (sec)
copy,0,2^1,71,6e-06,0.1,6915000000,96,5e-06
"""
COMPARED = """\
[------------- attention ------------]
               |  eager  |  compiled
1 threads: ---------------------------
      1024     |   12.3  |    8.1
      2048     |         |   28.1

Times are in milliseconds (ms).
"""
GEMS = """\
Status       Torch Latency (ms)    Gems Latency (ms)    Gems Speedup    Size Detail
-----------------------------------------------------------------------------------------------
SUCCESS               0.006            0.007               0.857          [torch.Size([1024, 1024])]
"""
MIXED = """\
------------------------------------------------- CSV data -------------------------------------------------
Experiment ID, Single ops,,,,              Integer operations,,,
Compute iters, Flops/byte, ex.time,  GFLOPS, GB/sec, Iops/byte, ex.time,   GIOPS, GB/sec
            0,      0.250,    0.21,  260.10,1040.40,     0.250,    0.21,   260.0, 1040.1
------------------------------------------------------------------------------------------------------------
"""
BANDWIDTH = """\
 Host to Device Bandwidth, 1 Device(s)
   Transfer Size (Bytes)\tBandwidth(GB/s)
   32000000\t\t\t25.3

 Device to Host Bandwidth, 1 Device(s)
   Transfer Size (Bytes)\tBandwidth(GB/s)
   32000000\t\t\t26.1
"""
BARS = """\
Kernel | Size | Time(ms) | GFLOPS  | BW(GB/s)
-------+------+----------+---------+---------
naive  | 1024 | 1.234    | 1740.1  | 12.5
"""
BOX = """\
┌────────┬──────┬─────────┐
│ kernel │ size │ time_us │
├────────┼──────┼─────────┤
│ naive  │ 1024 │   12.34 │
└────────┴──────┴─────────┘
"""
RICH = """\
┏━━━━━━┳━━━━━━━━━━━┓
┃ size ┃ time (ms) ┃
┡━━━━━━╇━━━━━━━━━━━┩
│ 1024 │ 0.5       │
└──────┴───────────┘
"""
LLAMA = """\
| model | size     | ngl |  test |              t/s |
| ----- | -------: | --: | ----: | ---------------: |
| 7B Q4 | 3.56 GiB |  99 | pp512 |  5765.41 ± 20.55 |
"""
COMMAS = "Read only\nsize, step,   time (ms),   b/w (GB/s)\n  4,    5,    1.5,   94.7\n  4,   64, 2.5,   95.5\n"
SERVED = "Request throughput (req/s):     16.36\nMean TTFT (ms):     45.12\n"
STEPS = "step    1/   74 | loss 4.367631 | 80.5 ms | 50863 tok/s\nstep    2/   74 | loss 4.03 | 79.5 ms | 50865 tok/s\n"
CACHE = "   data set   exec time     Eff. bw       DRAM read\n    8 kB         2ms     12345.6 GB/s         0 GB/s\n"
CAUSAL = "".join(f"### causal={c}, D=64 ###\nfwd: {x} TFLOPs/s\n" for c, x in ((False, 140.5), (True, 110.5)))
RUNS = "Benchmark 1: ./a\n  Time:  12.3 ms\nBenchmark 2: ./b\n  Time:  22.3 ms\n"
GOOGLE = "reduce/1024        1234 ns         2230 ns       100000 bytes_per_second=3.5Gi/s\n"
BURN = "10.0%  proc'd: 123 (12345 Gflop/s)   errors: 0\n100.0%  proc'd: 1234 (12345 Gflop/s)   errors: 0\n"
HEX = "<object at 0x7f2b5c0a1d90>\nt: 3 us\n<object at 0x7f2b5c0a1e90>\nt: 4 us\n"
PYTEST = """\
------------------- benchmark: 2 tests -------------------
Name (time in us)          Min                 Max             Median          OPS (Kops/s)   Rounds
-----------------------------------------------------------------------------------------------
test_fast[64]          66.0800 (1.0)      380.7700 (1.0)      67.4500 (1.0)        14.4604      1476
test_slow[1024]     5,066.0800 (76.67)  9,380.7700 (24.64)  5,267.4500 (>1000.0)    0.1796       147
-----------------------------------------------------------------------------------------------
============================== 2 passed in 4.12s ===============================
"""
TITLE = "Times in ms:\n| size | naive | shared |\n|---|---|---|\n| 128 | 12.5 | 3.25 |\n"
ABOVE = "Time (ms)\nsize  naive  shared\n128   12.5   3.25\n"
REPEATED = "".join(f"BM_A/64{end}  {value} us  {value} us  3\n" for end, value in (("_mean", 4), ("_stddev", 1)))
#: Criterion, of a Rust program: low, middle and high estimate; googletest, ctest, CMake and pytest of how long their
#: own work took; nvbench of what its table has again; a server's benchmark.
CRITERION = """\
unpack_cuda_u8/unpack/3bw
                        time:   [308.60 µs 308.77 µs 308.96 µs]
                        thrpt:  [301.44 GiB/s 301.63 GiB/s 301.79 GiB/s]
                 change:
                        time:   [-2.0430% -1.8218% -1.5659%] (p = 0.00 < 0.05)
                        Performance has improved.
Found 1 outliers among 10 measurements (10.00%)
FoR/u32/1K              time:   [6.2240 µs 6.2360 µs 6.2574 µs]
                        thrpt:  [4.4146 GB/s 4.4173 GB/s 4.4204 GB/s]
"""
TESTED = """\
-- Configuring done (1.2s)
[ RUN      ] Gemm.Small
[       OK ] Gemm.Small (12 ms)
[  FAILED  ] Gemm.Large (3 ms)
[----------] 2 tests from Gemm (15 ms total)
[==========] 2 tests from 1 test suite ran. (16 ms total)
1/2 Test #1: gemm .............................   Passed    0.05 sec
Total Test time (real) =   1.23 sec
    Finished `bench` profile [optimized] target(s) in 12.34s
test result: ok. 5 passed; 0 failed; 0 ignored; finished in 0.12s
Benchmarking FoR/u32/1K: Collecting 100 samples in estimated 5.0012 s (800k iterations)
0.52s call     test_a.py::test_b
Run:  [1/2] histogram [Device=0 Size=2^2]
Pass: Cold: 0.007010ms GPU, 0.026586ms CPU, 0.50s total GPU, 7.62s total wall, 71344x
Run:  [2/2] histogram [Device=0 Size=2^6]
Pass: Cold: 0.009010ms GPU, 0.026586ms CPU, 0.50s total GPU, 7.62s total wall, 71344x
[info] k: 3 us
Finished k in 4 us
"""
SERVER = """\
Throughput: 5.54 requests/s, 2200.12 total tokens/s, 1111.20 output tokens/s
Request throughput (req/s):              16.36
Mean TTFT (ms):                          45.12
Ratio:                                   0.95
"""
UNITS = """\
Bandwidth (GB/s)
  naive: 120.5
Max error: 0.001
Times in ms:
| size | naive | speedup |
|------|-------|---------|
| 128  | 12.5  | 3.25    |
"""
#: A table with units below titles of several words, and spreads; figures that are indented below their heading; a
#: transfer's sizes.
BELOW = """\
Memory Location    Data Size      # Elements            PyTorch      torch.compile        Custom CUDA
                        (MB)                               (ms)               (ms)               (ms)
--------------------------------------------------------------------------------------------------------------
L2 Cache               1.9         500,000         0.048 ± 0.002        0.045 ± 0.002        0.011 ± 0.006
VRAM                  19.1       5,000,000         0.470 ± 0.014        0.101 ± 0.002        0.071 ± 0.002

RELATIVE SPEEDUP
VRAM                  19.1        4.65 ± 0.17x        6.62 ± 0.27x        1.43 ± 0.05x
"""
INDENTED = """\
GPU: L4
NPP 3-Channel Canny...
  Time: 0.28 ms
OpenCV Grayscale...
  Time: 3.2 ms
  Time: 3.4 ms
"""
SIZES = """\
  Transfer size (GB)    Latency (ms)    Num Senders
--------------------  --------------  -------------
         4.945               35.047              4
         1.104                8.222              4
"""
WARNED = """\
Warn: Current measurement timed out (15.00s) while over noise threshold (1.26% > 0.50%)
| N  | Batch GPU  | Batch  |
|----|------------|--------|
| 16 | 261.963 us | 27394x |
"""
#: Headings of several problems, of which a word or two differ.
PROBLEMS = """\
TGV average time: 0.001 ms, 62.940 TFLOPS, speedup: 0.95x
--- deepseek3, q_b_proj, tp=8: M=64, N=3072, has_bias=False ---
TGV average time: 0.003 ms, 122.992 TFLOPS, speedup: 1.01x
--- gpt-oss-120b, qkv_proj, tp=4: M=1, N=1280, has_bias=True ---
TGV average time: 0.006 ms, 1.226 TFLOPS, speedup: 1.30x
"""
#: As pandas wraps a table that is too wide.
WRAPPED = """\
      N  Triton (ms)  \\
0   256     0.100000
1   512     0.200000

   Torch (ms)
0    0.300000
"""
SIZE = "size=1024 count=256 float sum root=-1"
PROBLEM = "1 CUTLASS gemm cutlass_simt_sgemm_128x128_8x2_nn_align1 3456 4096 4096"


@pytest.mark.parametrize("text", [" " * 100_000 + "-", "-" * 100_000 + "x", "--- " * 25_000 + "x", "a | " * 25_000])
def test_long_lines_take_no_long_time(text: str, written: Written) -> None:
    before = time.process_time()
    with pytest.raises(readers.ReaderError, match="no rate"):
        readers.read("rates", written("a  b (GB/s)\n" + f"{text}\n" * 3))
    assert time.process_time() - before < 5


def test_a_long_line_of_blanks_takes_ptxas_no_long_time(written: Written) -> None:
    used = "ptxas info    : Used 43 registers\n"
    compiling = "ptxas info    : Compiling entry function 'f' for 'sm_89'\n"
    before = time.process_time()
    readers.read("ptxas", written(f"{compiling}0 bytes stack frame, 0 bytes spill stor{' ' * 60_000}es\n{used}"))
    assert time.process_time() - before < 5


@pytest.mark.parametrize(
    ("text", "rates", "times"),
    [
        (
            NCCL,
            {f"{SIZE} {what} GB/s": v for what, v in
             {"algbw": 0.02, "busbw": 0.04, "algbw 2": 0.02, "busbw 2": 0.05}.items()},
            {f"{SIZE} time": [45.12], f"{SIZE} time 2": [44.98]},
        ),
        (NVBANDWIDTH, {"SUM host_to_device_memcpy_ce GB/s": 12.67}, {"SUM host_device_latency_sm": [0.77258]}),
        (STREAM.replace("nan", "1e6"), {"Copy GB/s": 2000.0, "Triad GB/s": 1000.0},
         {"Copy Min": [440.0], "Triad Min": [440.0]}),
        (
            TORCH, None,
            {"aten::matmul CUDA total": [700.0], "void bmm(float*, int... CUDA total": [60.0],
             "manual void bmm(float*, int... Self CUDA": [50.0], "Self CPU time total": [2110.0],
             "ours void bmm(float*, int... Self CUDA": [40.0], "aten::zeros Self CUDA": [20.0],
             "manual Self CUDA time total": [76.0], "ours Self CUDA time total": [60.0]},
        ),
        (
            NSYS, None,
            {"void k<float>(float *, int) Total Time": [12345.678], "void k<float>(float *, int) Avg": [1.2345],
             "sgemm Total Time": [2345.678], "sgemm Avg": [0.2345]},
        ),
        (CUTLASS, {f"{PROBLEM} GB/s": 24.9, f"{PROBLEM} GFLOP/s": 17218.4}, None),
        (NVBENCH, {"2^16 I32 GlobalMem BW GB/s": 102.4}, {"2^16 I32 CPU Time": [12.345], "2^16 I32 GPU Time": [5.12]}),
        (NVBENCH_BATCH, None, {f"{name} (N) 2^1 {way}": [time] for name, way, time in (
            ("Coalesced", "GPU Time", 7.5), ("Coalesced", "Batch GPU", 7.25),
            ("Not coalesced", "GPU Time", 8.5), ("Not coalesced", "Batch GPU", 8.25))}),
        (NVBENCH_CSV, {"copy 0 2^1 GlobalMem BW GB/s": 6.915}, {"copy 0 2^1": [6.0], "copy 0 2^1/Batch GPU": [5.0]}),
        ("a: 3 Gbytes/s\nb: 5 MBytes/sec, 2e6 bytes/s\n", {"a GB/s": 3.0, "b GB/s": 0.005, "b 2 GB/s": 0.002}, None),
        (COMPARED, None, {f"attention 1 threads {name}": [time] for name, time in
                          {"1024 eager": 12300.0, "1024 compiled": 8100.0, "2048 compiled": 28100.0}.items()}),
        (GEMS, None, {f"torch.Size([1024, 1024])] {what} Latency": [time] for what, time in
                      {"Torch": 6.0, "Gems": 7.0}.items()}),
        (MIXED, {f"Compute iters=0 {what}": rate for what, rate in
                 {"GFLOP/s": 260.1, "GB/s": 1040.4, "2 GB/s": 1040.1}.items()}, None),
        (BANDWIDTH, {f"{way} Bandwidth, 1 Device(s) Transfer Size (Bytes)=32000000 Bandwidth GB/s": rate
                     for way, rate in {"Host to Device": 25.3, "Device to Host": 26.1}.items()}, None),
        (CAUSAL, {f"causal={c}, D=64 fwd GFLOP/s": x for c, x in ((False, 140500.0), (True, 110500.0))}, None),
        (BARS, {"naive Size=1024 GFLOP/s": 1740.1, "naive Size=1024 BW GB/s": 12.5},
         {"naive Size=1024 Time": [1234.0]}),
        (BOX, None, {"naive size=1024 time": [12.34]}),
        (RICH, None, {"size=1024 time": [500.0]}),
        (LLAMA, {"7B Q4 3.56 GiB ngl=99 pp512 t/s": 5765.41}, None),
        (COMMAS, {"size=4 step=5 b/w GB/s": 94.7, "size=4 step=64 b/w GB/s": 95.5},
         {"size=4 step=5 time": [1500.0], "size=4 step=64 time": [2500.0]}),
        (SERVED, {"Request throughput req/s": 16.36}, {"Mean TTFT": [45120.0]}),
        (STEPS, {"| loss tok/s": 50863.0, "| loss 4.03 tok/s": 50865.0}, {"loss": [80500.0], "loss 4.03": [79500.0]}),
        (CACHE, {"8 kB GB/s": 12345.6, "8 kB 2 GB/s": 0.0}, {"8 kB": [2000.0]}),
        ("iter 0: 3 us\n[rep 1 of 2] k: 4 us\nrep 2 of 2: k: 5 us\nsteps=100: 6 us\n", None,
         {"time": [3.0], "k": [4.0, 5.0], "steps=100": [6.0]}),
        ("==> ./a <==\nWarm-up\nGPU time: 3 us\n==> ./b <==\nGPU time: 4 us\nsum: 1 us\n", None,
         {"./a GPU time": [3.0], "./b GPU time": [4.0], "sum": [1.0]}),
        (RUNS, None, {"Benchmark 1: ./a Time": [12300.0], "Benchmark 2: ./b Time": [22300.0]}),
        (PYTEST, None, {"test_fast[64]": [67.45], "test_slow[1024]": [5267.45]}),
        (TITLE, None, {"size=128 naive": [12500.0], "size=128 shared": [3250.0]}),
        (ABOVE, None, {"size=128 naive": [12500.0], "size=128 shared": [3250.0]}),
        ("dim  my_gflops\n64   812.3\n", {"dim=64 my GFLOP/s": 812.3}, None),
        (REPEATED, None, {"BM_A/64_mean": [4.0]}),
        (GOOGLE, {"reduce/1024 GB/s": 3.758096384}, {"reduce/1024": [1.234]}),
        (BURN, {"proc'd GFLOP/s": 12345.0}, None),
        (HEX, None, {"t": [3.0, 4.0]}),
        (CRITERION, {"unpack_cuda_u8/unpack/3bw thrpt GB/s": 323.872746373, "FoR/u32/1K thrpt GB/s": 4.4173},
         {"unpack_cuda_u8/unpack/3bw time": [308.77], "FoR/u32/1K time": [6.236]}),
        (TESTED, None, {"info] k": [3.0], "Finished k in": [4.0]}),
        (SERVER, {"Throughput requests/s": 5.54, "Request throughput req/s": 16.36}, {"Mean TTFT": [45_120.0]}),
        (BELOW, None, {
            f"{place} {n} {what}": [time] for place, n, times in (
                ("L2 Cache Data Size=1.9", "500,000", (48.0, 45.0, 11.0)),
                ("VRAM Data Size=19.1", "5,000,000", (470.0, 101.0, 71.0))
            ) for what, time in zip(("PyTorch", "torch.compile", "Custom CUDA"), times, strict=True)
        }),
        (INDENTED, None,
         {"NPP 3-Channel Canny... Time": [280.0], "OpenCV Grayscale... Time": [3200.0, 3400.0]}),
        (SIZES, None, {f"Transfer size (GB)={size} Num Senders=4 Latency": [time] for size, time in
                       ((4.945, 35_047.0), (1.104, 8222.0))}),
        (WARNED, None, {"N=16 Batch GPU": [261.963]}),
        ("in the 1980s, Lisp\n1980 s, 2 s\n", None, {"time": [1.98e9]}),
        ("==7== profiling process 7: a\nt: 3 us\n==8== profiling process 8: a\nt: 4 us\n", None, {"t": [3.0, 4.0]}),
        (PROBLEMS,
         {"TGV GFLOP/s": 62_940.0, "deepseek3, q_b_proj, tp=8: M=64, N=3072, has_bias=False TGV GFLOP/s": 122_992.0,
          "gpt-oss-120b, qkv_proj, tp=4: M=1, N=1280, has_bias=True TGV GFLOP/s": 1226.0}, None),
        (re.sub("^\\[-+ (.*) -+\\]", r"[ \1 (bias=<class 'x'>) ]", COMPARED), None,
         {f"attention (bias=<class 'x'>) 1 threads {name}": [time] for name, time in
          {"1024 eager": 12300.0, "1024 compiled": 8100.0, "2048 compiled": 28100.0}.items()}),
        ("[ 1, 2 ]\nk: 3 us\n[ a ]\nj: 4 us\n", None, {"k": [3.0], "j": [4.0]}),
        (WRAPPED, None, {"N=256 Triton": [100.0], "N=512 Triton": [200.0]}),
        ("N CPU(ms) GPU(ms) Speedup\n64 1.5 0.25 6.0\n", None, {"N=64 CPU": [1500.0], "N=64 GPU": [250.0]}),
        ("Runtime (us)     : 12.5\n64 128  3.5\n", None, {"Runtime": [12.5]}),
        ("kernel | time (us)\na  | 3.5 ± 0.1\nn=64  12.5±0.3us\n", None, {"n=64": [12.5]}),
        ("a: 1.5x10^9 interactions/s\nb 2^9 items/s, 3 GFLOP/call, 2 TFLOP/s/GPU\n[4.5]GB/s\n",
         {"a interactions/s": 1.5e9, "b 2^9 items/s, 3 GFLOP/call GFLOP/s": 2000.0, "GB/s": 4.5}, None),
        ("tokens/sec: 123.4\ntotal images/sec: 456.70\nit/s = 12.5\n",
         {"tokens/s": 123.4, "total images/s": 456.7, "it/s": 12.5}, None),
        (UNITS, {"naive GB/s": 120.5}, {"size=128 naive": [12_500.0]}),
        ("triad: 1,234 GB/s\ncopy: 512,5 GB/s\n", {"triad GB/s": 1.234, "copy GB/s": 512.5}, None),
        ("412.5 GB/s triad\n400.5 GB/s copy\n412,5 GB/s\n",
         {"triad GB/s": 412.5, "copy GB/s": 400.5, "GB/s": 412.5}, None),
        ("Device: L4\nOffset, Bandwidth (GB/s):\n0, 200.5\n1, 150.5\n\nStride, Bandwidth (GB/s):\n1, 201.5\n",
         {"Offset=0 Bandwidth GB/s": 200.5, "Offset=1 Bandwidth GB/s": 150.5, "Stride=1 Bandwidth GB/s": 201.5}, None),
        ("L4, 58 SMs\nkernel,n,time_us\nnaive,64,3\ntiled,64,2\nsum, all: 5 ms\n", None,
         {"naive n=64 time": [3.0], "tiled n=64 time": [2.0], "sum, all": [5000.0]}),
        (" 50%|#| 1/2 [00:01<00:00, 1.20s/it]\r100%|##| 2/2 [00:01<00:00, 9.5it/s]\nk: 3 us, 5 it/s\n",
         {"k it/s": 5.0}, {"k": [3.0]}),
        ("9.5 GFLOPS/sec for 64x64x8\nours: 7.5 GFLOPS\n8.5 GFLOPS/sec for 128x64x8\nBW= 245.5 (GB/sec)\n",
         {"64x64x8 GFLOP/s": 9.5, "128x64x8 GFLOP/s": 8.5, "ours GFLOP/s": 7.5, "BW GB/s": 245.5}, None),
        ("All\nLatency (us)\n  one  2.5\n  two: 3.5\n  three 4\nAll\n  8.5\n", None, {"one": [2.5], "two": [3.5]}),
    ],
)  # fmt: skip
def test_figures_of_tables(
    text: str, rates: dict[str, float] | None, times: dict[str, list[float]] | None, written: Written
) -> None:
    file = written(text)
    if rates is not None:
        assert readers.read("rates", file)["metrics"] == pytest.approx(rates)
    if times is not None:
        found = timed(file)
        assert {name: pytest.approx(samples) for name, samples in times.items()} == found


def test_long_names_stay_apart(written: Written) -> None:
    heads = [f"{c * 100}" for c in "abcd"]
    text = "".join(f"{head} {n}\n" for n, head in enumerate(heads))
    found = timed(written("".join(f"{text}size {n}\nnaive: {n} us\ntiled: {n} us\n" for n in (3, 4))))
    assert len(found) == 4
    wide = "".join(f"{'x' * 190} {'y' * 50} {name} {'z' * 100}: 3 us\n" for name in ("one", "two"))
    assert [len(name) for name in timed(written(wide))] == [192, 192]


def test_a_table_with_a_figure_that_is_no_number(written: Written) -> None:
    with pytest.raises(readers.ReaderError, match="contains no rate"):
        readers.read("rates", written(STREAM.replace("2000000.0", "failed")))
    with pytest.raises(readers.ReaderError, match="the measured value is not a number"):
        readers.read("rates", written("a: 3 GB/s\nb   nan GB/s\n"))


def test_a_line_that_leads_nowhere_costs_no_time(written: Written) -> None:
    """Quadratic in the length of a line, this would take minutes."""
    lines = ["time" + " " * 60_000 + "x", "1" * 60_000, "1 " * 30_000, "a1," * 20_000, "time:" * 12_000]
    lines += ["tflops" + " " * 60_000, "(ms)" * 15_000, "1.5% " * 12_000, "GB/s = " * 9_000]
    lines += ["(us) " * 12_000, "a  " * 20_000 + "(us)", "(us)\na" + " b" * 30_000]
    lines += [("[1.5" + " " * 400) * 150, "[1.5,2]," * 8_000, "[1:00:0" * 9_000, "(" + "9" * 60_000, "[" * 60_000]
    file = written("".join(f"{line} 3 GB/s\n" for line in lines))
    began = time.process_time()
    readers.read("rates", file)
    assert time.process_time() - began < 10


# ------------------------------------------------------------------------------------------------ files
PYTEST_XML = (FIXTURES / "junit/pytest.xml").read_text()
NCU_CSV = (FIXTURES / "ncu/h100_raw.csv").read_text()
DEEP = '{"a":' * 200_000 + "1" + "}" * 200_000
REFUSED = [
    ("ptxas", "ptxas error   : Entry function 'k' uses too much shared data (0x1 bytes)\n", "too much shared data"),
    ("ncu", NCU_CSV.replace('"72.090402"', '"65,77"'), "not a number in the C locale"),
    ("ncu", NCU_CSV.replace('"72.090402"', '"1.234.567"'), "not a number in the C locale"),
    ("junit", '<!DOCTYPE t [<!ENTITY a "aaaa"><!ENTITY b "&a;">]><testsuite>&b;</testsuite>', "document type"),
    ("junit", '<!DOCTYPE t SYSTEM "file:///etc/passwd"><testsuite/>', "document type"),
    ("junit", PYTEST_XML[:1500], "not XML"),
    ("junit", "<html/>", "not a JUnit report but <html>"),
    ("junit", "<testsuites/>", "no test case"),
    ("ncu", '"ID","Kernel Name","Metric Name","Metric Value"\n"0","k","a","1"\n', "the row of units after the header"),
    ("nvbench", "Benchmark,Device,Skipped,GPU Time (sec)\nb,0,No,1e-6\n", "not JSON"),
    *((tool, json.dumps({key: {}, "benchmarks": 1}), "benchmarks: expected a list, found int")
      for tool, key in (("google-benchmark", "context"), ("pytest-benchmark", "machine_info"), ("nvbench", "devices"))),
    ("pytest-benchmark", '{"machine_info": {}, "benchmarks": [{"stats": {"data": 1}}]}', "stats.data: expected a list"),
    ("nvbench", '{"devices": [], "benchmarks": [{"states": 1}]}', "states: expected a list"),
    ("metrics", '{"a": {"b": "12"}}', "'a.b' is text"),
    ("metrics", '{"a": null}', "'a' is null"),
    ("metrics", '{"a": NaN}', "NaN"),
    ("metrics", '{"a": 1e999}', "too large"),
    ("metrics", '{"a": ' + "9" * 400 + "}", "400 digits"),
    ("metrics", "[1]", "expected an object"),
    ("metrics", "{}", "no metric"),
    ("metrics", '{"a.b": 1, "a": {"b": 2}}', "two values for 'a.b'"),
    ("metrics", "{", "not JSON"),
    ("metrics", "[" * 100_000, "nested too deep"),
    ("metrics", DEEP, ""),
    *(("times", text, "no time with a unit")
      for text in ("", "12.5\n", "350 GB/s, 12 usable\n", "a,gb_s\na,3\n", "-3 us\n", "n_s=4 gb_s=3\n")),
    *(("rates", text, "contains no rate")
      for text in ("", "12.5 us\n", "0.5 seconds\n", "1e999 GB/s\n", "9.81 m/s^2\n", "bandwidth_gb_s 3\n")),
    *(("times", text, "the measured value is not a number")
      for text in ("a: 12 us\na: nan us\n", "a: -inf ms", "a Infinity s, 3 us\n", "time_us=nan\n")),
    *(("rates", text, "the measured value is not a number")
      for text in ("a: inf GB/s\n", "a: 3 GB/s\nb: NaN TFLOPS\n", "TFLOPS: nan\n")),
]  # fmt: skip


@pytest.mark.parametrize(("reader", "text", "says"), REFUSED)
def test_what_a_reader_cannot_read_is_refused_by_name(reader: str, text: str, says: str, written: Written) -> None:
    file = written(text)
    with pytest.raises(readers.ReaderError) as caught:
        readers.read(reader, file)
    assert says in caught.value.message
    assert file in caught.value.message
    if says.startswith("no ") and reader in ("times", "rates"):
        assert {"times": "12.5 us", "rates": "GB/s"}[reader] in str(caught.value.hint)


def test_unknown_reader_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(readers.ReaderError, match="unknown reader 'nsys'"):
        readers.read("nsys", "x")
    with pytest.raises(readers.ReaderError, match="No such file"):
        readers.read("junit", str(tmp_path / "absent.xml"))


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for reader in ("ptxas", "junit", "metrics", "ncu", "nvbench"):
        with pytest.raises(readers.ReaderError, match="not a regular file"):
            readers.read(reader, str(tmp_path / "pipe"))
        with pytest.raises(readers.ReaderError, match="not a regular file"):
            readers.read(reader, str(tmp_path))


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    for reader in ("ptxas", "junit", "metrics", "ncu", "nvbench", "google-benchmark", "pytest-benchmark"):
        with pytest.raises(readers.ReaderError, match="at most"):
            readers.read(reader, str(path))


def test_names_carry_no_control_characters(written: Written) -> None:
    hostile = json.loads((FIXTURES / "google_benchmark/python_binding.json").read_text())
    hostile["benchmarks"][0]["run_name"] = "a\x1b]0;pwned\x07\u2028b\ud800" + "x" * 5000
    [entry] = readers.read("google-benchmark", written(json.dumps(hostile)))["benchmarks"]
    assert entry["name"].startswith("a?]0;pwned??b?xxx")
    assert len(entry["name"]) <= 500
