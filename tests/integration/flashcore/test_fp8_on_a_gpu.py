"""The accuracy rows of docs/flagship-notes.md, on a real GPU, with inputs drawn anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashcore import registry
from flashcore.build import build
from flashcore.launch import Kernel
from flashcore.reference import attention64

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLASHCORE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Kernel(build(registry.VARIANTS["fp8"]))


def draw(S: int, kind: str) -> list[torch.Tensor]:
    q, k, v = (torch.randn(1, 4, S, 64, device="cuda") for _ in range(3))
    if kind == "bias":
        k, v = k + 4 * torch.randn(64, device="cuda"), v + 2 * torch.randn(64, device="cuda")
    elif kind == "channels":
        k[..., ::29] += 12
        q[..., ::29] *= 3
        v[..., ::29] += 8
    elif kind == "entries":
        for x in (q, k):
            x[torch.rand_like(x) < 0.001] *= 10
    return [x.half() for x in (q, k, v)]


@pytest.mark.parametrize("S", [512, 2048, 8192])
@pytest.mark.parametrize("kind", ["plain", "bias", "channels", "entries"])
def test_accuracy(kernel: Kernel, S: int, kind: str) -> None:
    q, k, v = draw(S, kind)
    right = attention64(q, k, v)
    wrong = kernel(q, k, v).double() - right
    assert float(wrong.norm() / right.norm()) <= 0.06
    if kind in {"plain", "bias"}:
        assert float(wrong.abs().max()) <= 0.06
    else:  # of the largest output: it is one row of V, nearly, and V has three bits of mantissa
        assert float(wrong.abs().max()) <= 0.12 * float(right.abs().max())


def test_streams_and_graphs_have_memory_of_their_own(kernel: Kernel) -> None:
    cases = [draw(300 + 100 * n, "plain") for n in range(3)]
    right = [kernel(*case) for case in cases]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in cases]
    for _ in range(20):
        outs = []
        for stream, case in zip(streams, cases, strict=True):
            with torch.cuda.stream(stream):
                outs.append(kernel(*case))
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(outs, right, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [kernel(*case) for case in cases]
    for out in captured:
        out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, right, strict=True))
