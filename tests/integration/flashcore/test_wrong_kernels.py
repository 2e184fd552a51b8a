"""The check and the bench must notice each of these kernels; the same source without a bug must pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashcore import bench, check, timing
from flashcore.build import build
from flashcore.launch import Kernel
from flashcore.registry import Variant
from flashcore.shapes import Shape
from tests.support.tiers import sampled

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
    "half_sums": {"small/1", "edges", "values"},
    "no_maximum": {"values"},
    "refuses": {"small/1", "edges", "causal", "values", "layout", "repeat"},
}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    variant = Variant(name="wrong", device="cpu", source=Path(__file__).with_name("wrong.cpp"), summary="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHCORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return Kernel(build(variant))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LONGEST", 257)
    monkeypatch.setattr(timing, "CPU_LEAD_IN_S", 0.0)


@pytest.mark.parametrize("bug", sampled(BUGS, list(BUGS)[::4]))
def test_the_check_names_the_cases_a_bug_breaks(bug: str, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUG", str(list(BUGS).index(bug)))
    document = check.run(kernel, {"small": Shape(1, 2, 64, 64)})
    failed = {case["name"] for case in document["cases"] if not case["passed"]}
    assert failed >= BUGS[bug], document["cases"]
    assert bool(failed) == (bug != "none"), document["cases"]
    assert document["summary"]["failed"] == len(failed)
    assert document["summary"]["passed"] == 8 - len(failed)


@pytest.mark.parametrize("bug", ["partial", "pointer_cache", "nan"])
def test_the_bench_refuses_to_time_what_is_not_attention(
    bug: str, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUG", str(list(BUGS).index(bug)))
    with pytest.raises(bench.AuditFailed, match="wrong results"):
        bench.run(kernel, {"small": Shape(1, 1, 16, 64)})


def test_the_bench_times_a_kernel_without_a_bug(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUG", "0")
    document, _ = bench.run(kernel, {"small": Shape(1, 1, 16, 64)})
    assert [row["name"] for row in document["benchmarks"]] == ["small", "small/sdpa"]
