"""The fp8 kernels' logic without a GPU: what the quantisation loses, odd lengths, masks, shared heads, hostile values.

Not covered, by nature: sm_89's sums of E4M3 products, which have fewer bits than the emulator's.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcore import quantisation, roundings
from flashcore.reference import attention64, expected
from flashcore.registry import VARIANTS
from tests.support.cuda_on_cpu.build import compile_on_cpu
from tests.support.cuda_on_cpu.launch import check_refusals, run

FP8 = VARIANTS["fp8"]
pytestmark = pytest.mark.group("fp8")  # one worker, so that it is compiled once


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_on_cpu(FP8, {"TILE_M": 32}, tmp_path_factory.mktemp("fp8"))


def draw(S_q: int, S_kv: int, heads: int = 1, shared: int = 1, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((heads * shared, S_q), (heads, S_kv), (heads, S_kv))
    return [torch.randn(1, H, S, 64, generator=generator) for H, S in sizes]


def judged(out: torch.Tensor, *tensors: torch.Tensor, qk: str = "int8", **options: Any) -> roundings.Verdict:
    return roundings.judge(out.double(), expected(*tensors, eight_bits=qk, **options))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("lengths", [(1, 1), (17, 64), (33, 65), (65, 63), (1, 200), (50, 3), (40, 129)], ids=str)
def test_right_on_awkward_lengths(
    library: ctypes.CDLL, lengths: tuple[int, int], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):  # copies late, copies at once
        monkeypatch.setenv("CUDA_ON_CPU_SEED", str(seed))
        q, k, v = (x.half() for x in draw(*lengths, seed=seed))
        assert judged(run(library, q, k, v, causal=causal), q, k, v, causal=causal).fault is None, lengths


@pytest.mark.parametrize("kind", ["plain", "bias", "outliers"])
def test_accuracy_of_a_row_of_the_table(library: ctypes.CDLL, kind: str) -> None:
    q, k, v = draw(32, 512)
    if kind == "bias":
        k, v = k + 4 * torch.randn(64), v + 2 * torch.randn(64)
    if kind == "outliers":
        k[..., ::29] += 12
        q[..., ::29] *= 3
        v[..., ::29] += 8
    q, k, v = q.half(), k.half(), v.half()
    verdict = judged(run(library, q, k, v), q, k, v)
    assert verdict.fault is None
    assert max(verdict.error.max_err, verdict.error.rel_rms) <= 0.06


@pytest.mark.parametrize("kind", ["plain", "outlier entries, V too"])
def test_the_simulation_of_other_schemes_is_right_about_the_one_that_was_built(library: ctypes.CDLL, kind: str) -> None:
    """docs/flagship-notes.md compares schemes by it; a value at the edge of two roundings may fall either way."""
    q, k, v = (x[None] for x in quantisation.draw(kind, 192, 16, 1, seed=1))
    built, e4m3 = (
        quantisation.attend(q[0], k[0], v[0], s) for s in (quantisation.Scheme(), quantisation.Scheme("e4m3"))
    )
    right = attention64(q, k, v)[0]
    wrong = (run(library, q, k, v)[0].double() - right).norm()
    assert (run(library, q, k, v)[0].double() - built).norm() < 0.1 * wrong < 0.1 * (e4m3 - right).norm()


def test_layouts_shared_heads_and_negative_scales(library: ctypes.CDLL) -> None:
    q, k, v = (x.half() for x in draw(37, 70, heads=2, shared=3))
    outer = torch.full((1, 37, 6, 80), torch.nan, dtype=torch.float16)
    inner = outer[..., 8:-8].transpose(1, 2).copy_(q)
    out = run(library, inner, k, v, scale=-0.3)
    assert judged(out, q, k, v, scale=-0.3).fault is None


def test_constant_channels_and_lone_keys_are_exact(library: ctypes.CDLL) -> None:
    q, k, v = (x.half() for x in draw(20, 100))
    v[..., 7] = 3.25
    assert (run(library, q, k, v)[..., 7] == 3.25).all()
    lone = v[:, :, :1].contiguous()
    assert torch.equal(run(library, q, k[:, :, :1].contiguous(), lone), lone.expand(1, 1, 20, 64))


def test_what_is_not_a_number_is_not_hidden(library: ctypes.CDLL) -> None:
    for at, touched in ((0, (..., 3, slice(None))), (1, ...), (2, (..., slice(None), 5))):
        for value in (torch.nan, torch.inf):
            tensors = [x.half() for x in draw(20, 100)]
            tensors[at][0, 0, 3, 5] = value
            out = run(library, *tensors)
            assert out[touched].isnan().all(), (at, value)
            if at != 1:
                out[touched] = 0.0
                assert out.isfinite().all(), (at, value)


def test_what_it_does_not_take_is_refused_without_a_launch(library: ctypes.CDLL) -> None:
    check_refusals(library, {"D": 128}, {"dtype": 1}, {"H": 3, "H_kv": 2}, {"S_kv": 0})


@pytest.mark.full
def test_e4m3_for_queries_and_keys(tmp_path: Path) -> None:
    library = compile_on_cpu(FP8, {"QK_INT8": 0, "STAGES": 2}, tmp_path)
    q, k, v = (x.half() for x in draw(64, 512))
    verdict = judged(run(library, q, k, v), q, k, v, qk="e4m3")
    assert verdict.fault is None
    # What three bits of mantissa on all four operands cost; why it is not the default.
    assert 0.045 <= verdict.error.rel_rms <= 0.065
