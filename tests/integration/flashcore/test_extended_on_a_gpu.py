"""Windows, softcap, ALiBi, packed sequences and pages of a cache on a real GPU, by the kernels and nothing else."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from flashcore import extras, inputs, roundings
from flashcore.attention import attention
from flashcore.extras import LOWER_RIGHT, Scores
from flashcore.packed import attention_varlen
from flashcore.paged import attention_paged
from flashcore.reference import expected
from flashcore.shapes import Shape
from tests.unit.flashcore.test_packed_and_paged_operators import in_pages

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
KINDS = [(torch.float16, 64), (torch.bfloat16, 64), (torch.float16, 128), (torch.bfloat16, 128)]


@pytest.fixture(autouse=True)
def by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("computed by the definition")

    monkeypatch.setattr(extras.Scores, "attention", refuse)


def judge(out: torch.Tensor, right: roundings.Expected) -> None:
    assert not out[(right.right == 0).all(-1)].any()
    assert roundings.judge(out.double(), right).used <= 1


@pytest.mark.parametrize(("dtype", "D"), KINDS, ids=str)
def test_windows_caps_and_slopes(dtype: torch.dtype, D: int) -> None:
    slopes = inputs.slopes(8, "cuda")
    for (S, keys), scores in itertools.product(
        [(300, 300), (77, 500), (400, 90), (4, 1500)],  # the last: of decode, if it is a window alone
        [
            Scores((50, 0)),
            Scores((-1, 3), 20.0),
            Scores((64, 64), 5.0, slopes),
            Scores(slopes=torch.stack((slopes, -slopes))),
        ],
    ):
        q, k, v = inputs.draw(Shape(2, 8, S, D, keys, 2), S, "cuda", dtype=dtype)
        for lower in (False, True):
            out = attention(q, k, v, enable_gqa=True, lower_right=lower, window=scores.window, softcap=scores.softcap,
                            alibi_slopes=scores.slopes)  # fmt: skip
            judge(out, expected(q, k, v, causal=LOWER_RIGHT if lower else 0, scores=scores))


@pytest.mark.parametrize(("dtype", "D"), KINDS, ids=str)
def test_packed_sequences_of_the_day(dtype: torch.dtype, D: int) -> None:
    q, k, v = (torch.randn(500, h, D, device="cuda", dtype=dtype) for h in (6, 2, 2))
    days = [torch.tensor(n, device="cuda").cumsum(0).int() for n in ([0, 200, 0, 1, 299], [0, 30, 170, 300, 0])]
    starts = days[0].clone()
    call = (q, k, v, starts, starts, 300, 300)
    attention_varlen(*call, causal=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention_varlen(*call, causal=True)
    for day in days:
        starts.copy_(day)
        graph.replay()
        for one, end in itertools.pairwise(day.tolist()):
            if end > one:
                tensors = [x[one:end].transpose(0, 1)[None] for x in (q, k, v)]
                judge(out[one:end].transpose(0, 1)[None], expected(*tensors, causal=True))


@pytest.mark.parametrize("keys", [16, 256])
@pytest.mark.parametrize(("dtype", "D"), KINDS, ids=str)
def test_pages_and_lengths_of_the_day(dtype: torch.dtype, D: int, keys: int) -> None:
    for (H, S_q, H_kv, S), window in itertools.product(
        ((4, 1, 2, 100), (32, 1, 8, 4000), (8, 3, 1, 700), (2, 16, 2, 333)), ((-1, -1), (70, 0))
    ):
        q, k, v = inputs.draw(Shape(3, H, S_q, D, S, H_kv), S, "cuda", dtype=dtype)
        lengths = torch.tensor([S, 0, S // 2 + 1], dtype=torch.int32, device="cuda")
        call = (q, *(x.cuda() for x in in_pages(k.cpu(), v.cpu(), keys)), lengths)
        attention_paged(*call, window=window)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = attention_paged(*call, window=window)
        for _ in range(2):
            graph.replay()
            for b, n in enumerate(lengths.tolist()):
                if n:
                    of_b = q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n]
                    judge(out[b : b + 1], expected(*of_b, causal=LOWER_RIGHT, scores=Scores(window)))
                else:
                    assert not out[b].any()
            lengths.copy_(lengths.flip(0))
