"""The accuracy rows of docs/flagship-notes.md of the kernels of 8 bits, on a real GPU, with inputs drawn anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashcore import registry
from flashcore.build import build
from flashcore.launch import Kernel
from flashcore.reference import attention64

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.fixture(scope="module", params=[("fp8", 64), ("int8", 64), ("int8", 128)], ids=str)
def kernel(request: pytest.FixtureRequest, builds: None) -> Any:
    name, D = request.param
    return Kernel(build(registry.VARIANTS[name])), D


def draw(S: int, D: int, kind: str) -> list[torch.Tensor]:
    torch.manual_seed(S + D)
    q, k, v = (torch.randn(1, 4, S, D, device="cuda") for _ in range(3))
    if kind == "bias":
        k, v = k + 4 * torch.randn(D, device="cuda"), v + 2 * torch.randn(D, device="cuda")
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
def test_accuracy(kernel: tuple[Kernel, int], S: int, kind: str) -> None:
    run, D = kernel
    q, k, v = draw(S, D, kind)
    right = attention64(q, k, v)
    wrong = run(q, k, v).double() - right
    if run.variant.name == "fp8":
        most, rms, part = 0.06, 0.06, 0.12  # one row of V, nearly, is the largest output; V has three bits of mantissa
    else:
        most, rms, part = 0.02, 0.04 if kind == "entries" else 0.03, 0.12  # with outliers a score errs by more
    assert float(wrong.norm() / right.norm()) <= rms
    if kind in {"plain", "bias"}:
        assert float(wrong.abs().max()) <= most
    else:
        assert float(wrong.abs().max()) <= part * float(right.abs().max())


def test_streams_and_graphs_have_memory_of_their_own(kernel: tuple[Kernel, int]) -> None:
    run, D = kernel
    cases = [draw(300 + 100 * n, D, "plain") for n in range(3)]
    right = [run(*case) for case in cases]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in cases]
    for _ in range(20):
        outs = []
        for stream, case in zip(streams, cases, strict=True):
            with torch.cuda.stream(stream):
                outs.append(run(*case))
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip(outs, right, strict=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [run(*case) for case in cases]
    for out in captured:
        out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(captured, right, strict=True))
