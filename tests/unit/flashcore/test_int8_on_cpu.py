"""The int8 kernels' logic without a GPU: what quantisation loses, odd lengths, masks, shared heads, hostile inputs."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcore import quantisation, roundings
from flashcore.reference import attention64, expected
from flashcore.registry import VARIANTS
from tests.support.cuda_on_cpu.build import compile_on_cpu
from tests.support.cuda_on_cpu.launch import check_refusals, run

INT8 = VARIANTS["int8"]
pytestmark = pytest.mark.group("int8")  # one worker, so that it is compiled once


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_on_cpu(INT8, {"TILE_M": 64}, tmp_path_factory.mktemp("int8"))


@pytest.mark.full
def test_right_with_what_is_kept_in_shared_memory_on_an_l4(tmp_path: Path) -> None:
    on_an_l4 = compile_on_cpu(INT8, {"TILE_M": 64}, tmp_path, arch=890)
    for D in (64, 128):
        q, k, v = (x.half() for x in draw(100, 257, D))
        assert judged(run(on_an_l4, q, k, v, causal=True), q, k, v, causal=True).fault is None, D


def draw(S_q: int, S_kv: int, D: int = 64, heads: int = 1, shared: int = 1, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((heads * shared, S_q), (heads, S_kv), (heads, S_kv))
    return [torch.randn(1, H, S, D, generator=generator) for H, S in sizes]


def judged(out: torch.Tensor, *tensors: torch.Tensor, **options: Any) -> roundings.Verdict:
    return roundings.judge(out.double(), expected(*tensors, eight_bits="qk", **options))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("lengths", [(1, 1), (33, 65), (65, 63), (1, 200), (50, 3), (100, 257)], ids=str)
@pytest.mark.parametrize("D", [64, 128])
def test_right_on_awkward_lengths(
    library: ctypes.CDLL, D: int, lengths: tuple[int, int], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):  # copies late, copies at once
        monkeypatch.setenv("CUDA_ON_CPU_SEED", str(seed))
        q, k, v = (x.half() for x in draw(*lengths, D, seed=seed))
        assert judged(run(library, q, k, v, causal=causal), q, k, v, causal=causal).fault is None, lengths


@pytest.mark.parametrize("kind", ["plain", "bias", "outlier channels", "outlier entries", "rising", "tiny", "alike"])
def test_accuracy(library: ctypes.CDLL, kind: str) -> None:
    q, k, v = draw(32, 512)
    if kind == "bias":
        k, v = k + 4 * torch.randn(64), v + 2 * torch.randn(64)
    elif kind == "outlier channels":
        k[..., ::29] += 12
        q[..., ::29] *= 3
    elif kind == "outlier entries":
        for x in (q, k):
            x[torch.rand_like(x) < 0.001] *= 10
    elif kind == "rising":  # each tile's scores are above the one's before, by less and by more than a base may lag
        q[..., 0], k[..., 0] = 8.0, torch.linspace(-40, 40, 512)
    elif kind == "tiny":
        q, k = q * 1e-4, k * 1e-4
    elif kind == "alike":
        q, k = torch.ones_like(q), k[:, :, :1].expand_as(k)
    q, k, v = q.half(), k.half(), v.half()
    verdict = judged(run(library, q, k, v), q, k, v)
    assert verdict.fault is None
    if kind in {"plain", "bias"}:  # a quarter of what E4M3 for P V costs
        assert max(verdict.error.max_err, verdict.error.rel_rms) <= 0.012


@pytest.mark.parametrize("D", [64, 128])
def test_the_simulation_is_right_about_the_kernel(library: ctypes.CDLL, D: int) -> None:
    q, k, v = (x.half() for x in draw(16, 192, D))
    built, coarse = (
        quantisation.attend(q[0], k[0], v[0], replace(quantisation.INT8, qk_scale=scale)) for scale in ("lane", "head")
    )
    out = run(library, q, k, v)[0].double()
    wrong = (out - attention64(q, k, v)[0]).norm()
    assert (out - built).norm() < 0.1 * wrong < 0.1 * (coarse - built).norm()


def test_layouts_shared_heads_and_negative_scales(library: ctypes.CDLL) -> None:
    q, k, v = (x.half() for x in draw(37, 70, heads=2, shared=3))
    outer = torch.full((1, 37, 6, 80), torch.nan, dtype=torch.float16)
    inner = outer[..., 8:-8].transpose(1, 2).copy_(q)
    out = run(library, inner, k, v, scale=-0.3)
    assert judged(out, q, k, v, scale=-0.3).fault is None


def test_a_scale_of_zero_weighs_all_keys_alike(library: ctypes.CDLL) -> None:
    q, k, v = (x.half() for x in draw(37, 70))
    assert judged(run(library, q, k, v, scale=0.0), q, k, v, scale=0.0).fault is None


def test_what_is_not_a_number_is_not_hidden(library: ctypes.CDLL) -> None:
    for at, touched in ((0, (..., 3, slice(None))), (1, ...), (2, (..., slice(None), 5))):
        for value in (torch.nan, torch.inf):
            tensors = [x.half() for x in draw(20, 100)]
            tensors[at][0, 0, 3, 5] = value
            out = run(library, *tensors)
            assert (~out[touched].isfinite()).all(), (at, value)
            if at != 1:
                out[touched] = 0.0
                assert out.isfinite().all(), (at, value)


def test_what_it_does_not_take_is_refused_without_a_launch(library: ctypes.CDLL) -> None:
    check_refusals(library, {"D": 96}, {"dtype": 1}, {"H": 3, "H_kv": 2}, {"S_kv": 0})
