"""The check and the bench must notice each of these kernels; the same source without a bug must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flashcore import bench, cases, check, plain, roofline, separate
from flashcore.build import build
from flashcore.launch import Kernel
from flashcore.shapes import Shape
from flashcore.variant import Variant
from tests.support.tiers import sampled

pytestmark = [pytest.mark.usefixtures("kernel_processes"), pytest.mark.group("kernel processes")]
#: Bug -> the cases that must fail by it (others may, too).
BUGS = {
    "none": set(),
    "partial": {"small/1", "edges", "causal", "values", "layout", "repeat"},
    "no_scale": {"values"},
    "odd_keys": {"edges", "causal"},
    "nan": {"small/1", "small/2", "small/3", "edges", "causal", "values", "layout", "repeat"},
    "pointer_cache": {"repeat"},
    "outside": {"small/1", "edges", "layout", "repeat"},
    "no_mask": {"causal"},
    "spoils_input": {"layout"},
    "no_strides": {"layout"},
    "unsteady": {"repeat"},
    "half_sums": {"small/1", "small/2", "small/3", "edges", "causal", "values", "layout", "repeat"},
    "gain": {"small/1", "small/2", "small/3", "edges", "causal", "values", "layout", "repeat"},
    "no_maximum": {"values"},
    "refuses": {"small/1", "edges", "causal", "values", "layout", "repeat"},
}


@pytest.fixture(scope="module")
def kernel(builds: None) -> Kernel:
    return Kernel(build(Variant("wrong", "cpu", Path(__file__).with_name("wrong.cpp"), "")))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "LONGEST", 257)
    monkeypatch.setattr(bench, "REPLICATES", 2)


@pytest.fixture
def judged(kernel: Kernel) -> Iterator[Callable[[], separate.Kernel]]:
    yield lambda: separate.Runner("cpu").kernel(kernel.built)
    separate.end()


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("bug", sampled(BUGS, ("none", "no_mask")))
def test_the_check_names_the_cases_a_bug_breaks(
    bug: str, library: str, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUG", str(list(BUGS).index(bug)))
    shapes = {"small": Shape(1, 2, 64, 64)}
    document = check.run(kernel, shapes) if library == "torch" else plain.check(plain.Kernel(kernel.built), shapes)
    failed = {case["name"] for case in document["cases"] if not case["passed"]}
    assert failed >= BUGS[bug], document["cases"]
    assert bool(failed) == (bug != "none"), document["cases"]
    assert document["summary"]["failed"] == len(failed)
    assert document["summary"]["passed"] == 8 - len(failed)


REFUSED = [("partial", False), ("pointer_cache", True), ("nan", False)]


@pytest.mark.parametrize(("bug", "too_fast"), sampled(REFUSED, [("pointer_cache", True)]))
def test_the_bench_refuses_to_time_what_is_not_attention(
    bug: str, too_fast: bool, judged: Callable[[], separate.Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "impossible", lambda *_: too_fast)  # some are; their wrong results are told first
    monkeypatch.setenv("BUG", str(list(BUGS).index(bug)))
    with pytest.raises(bench.AuditFailed, match="wrong results"):
        bench.run(judged(), {"small": Shape(1, 1, 16, 64)})


def test_the_check_is_the_same_from_another_process(
    judged: Callable[[], separate.Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUG", str(list(BUGS).index("outside")))  # seen beside the output only
    document = check.run(judged(), {"small": Shape(1, 2, 64, 64)})
    assert BUGS["outside"] <= {case["name"] for case in document["cases"] if not case["passed"]}


def test_the_bench_refuses_right_results_that_came_too_soon(
    judged: Callable[[], separate.Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roofline, "impossible", lambda *_: True)
    monkeypatch.setenv("BUG", "0")
    with pytest.raises(bench.AuditFailed, match="less than this machine needs for the arithmetic"):
        bench.run(judged(), {"small": Shape(1, 1, 16, 64)})


def test_the_bench_times_a_kernel_without_a_bug(
    judged: Callable[[], separate.Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUG", "0")
    document, _ = bench.run(judged(), {"small": Shape(1, 1, 16, 64)})
    assert [row["name"] for row in document["benchmarks"]] == ["small", "small/sdpa"]


def test_without_torch_the_bench_times_numpy_beside_the_kernel(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUG", "0")
    document = plain.bench(plain.Kernel(kernel.built), {"small": Shape(1, 1, 16, 64)})
    assert [row["name"] for row in document["benchmarks"]] == ["small", "small/numpy"]
    assert [c["against"] for c in document["comparisons"]] == ["small", "small/numpy"]
    assert all(row["stats"]["n"] >= 100 and row["stats"]["p99"] > 0 for row in document["benchmarks"])
    assert document["torch"] is None
    for bug in ("partial", "nan"):
        monkeypatch.setenv("BUG", str(list(BUGS).index(bug)))
        with pytest.raises(bench.AuditFailed, match="wrong results"):
            plain.bench(plain.Kernel(kernel.built), {"small": Shape(1, 1, 16, 64)})
