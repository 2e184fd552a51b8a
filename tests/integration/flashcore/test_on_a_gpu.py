"""The CUDA kernels on a real GPU; skipped where there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from flashcore import bench, check, registry, shapes
from flashcore.build import build
from flashcore.launch import Kernel

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

CUDA = [v.name for v in registry.VARIANTS.values() if v.device == "cuda"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("name", CUDA)
def test_the_kernel_is_right(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHCORE_CACHE", str(cache))
    document = check.run(Kernel(build(registry.VARIANTS[name])), shapes.SHAPES)
    assert document["summary"]["passed"] == document["summary"]["total"] == 20, document["cases"]


def test_hot_cold_and_eager_times_are_of_the_same_kernel(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHCORE_CACHE", str(cache))
    kernel = Kernel(build(registry.VARIANTS["baseline"]))
    document, _ = bench.run(kernel, {"mission": shapes.SHAPES["mission"]}, backends=["sdpa"])
    p50 = {row["name"]: row["stats"]["p50"] for row in document["benchmarks"]}
    assert p50["mission"] <= 1.05 * p50["mission/cold"]
    assert p50["mission"] <= 1.05 * p50["mission/eager"]
    assert all(0.9 < c["ratio"] < 1.1 for c in document["comparisons"] if c["null"] and c["mode"] != "eager")


OTHER_STREAM = """
struct Elsewhere {
  cudaStream_t stream;
  Elsewhere() { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
};
FLASHCORE_API int flashcore_forward(const flashcore_args *args) {
  static Elsewhere elsewhere;
  flashcore_args moved = *args;
  moved.stream = elsewhere.stream;
  return real_forward(&moved);
}
"""


def test_work_on_another_stream_is_noticed(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHCORE_CACHE", str(cache))
    baseline = registry.VARIANTS["baseline"]
    text = baseline.source.read_text().replace("FLASHCORE_API int flashcore_forward", "static int real_forward")
    source = tmp_path / "elsewhere.cu"
    source.write_text(text + OTHER_STREAM)
    kernel = Kernel(build(replace(baseline, name="elsewhere", source=source)))
    with pytest.raises(bench.AuditFailed):
        bench.run(kernel, {"long": shapes.Shape(1, 8, 2048, 64)}, backends=["sdpa"])
