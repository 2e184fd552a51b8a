"""The kernels of eight bits without a GPU: what quantisation loses, odd lengths, masks, shared heads, hostile inputs.

Not covered, by nature: sm_89's sums of E4M3 products, which have fewer bits than the emulator's.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashcore import quantisation, roundings
from flashcore.reference import attention64, expected
from flashcore.registry import VARIANTS
from tests.support.cuda_on_cpu.build import compile_on_cpu
from tests.support.cuda_on_cpu.launch import check_refusals, run

TILES = {"fp8": {"TILE_M": 32}, "int8": {"TILE_M": 64}}
HEAD_DIMS = {"fp8": (64,), "int8": (64, 128)}


def of(name: str, *more: Any) -> Any:
    """Parameters of a test of one kernel, all in one worker, so that it is compiled once."""
    return pytest.param(name, *more, marks=pytest.mark.group(name), id="-".join(map(str, (name, *more))))


@dataclass(frozen=True)
class Kernel:
    name: str
    library: ctypes.CDLL

    def verdict(self, tensors: list[torch.Tensor], **options: Any) -> roundings.Verdict:
        out = run(self.library, *tensors, **options)
        return judged(out, tensors, "qk" if self.name == "int8" else "int8", **options)


@pytest.fixture(scope="module", params=[of(name) for name in TILES])
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    name = request.param
    return Kernel(name, compile_on_cpu(VARIANTS[name], TILES[name], tmp_path_factory.mktemp(name)))


def judged(out: torch.Tensor, tensors: list[torch.Tensor], eight_bits: str, **options: Any) -> roundings.Verdict:
    return roundings.judge(out.double(), expected(*tensors, eight_bits=eight_bits, **options))


def draw(S_q: int, S_kv: int, D: int = 64, heads: int = 1, shared: int = 1, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    sizes = ((heads * shared, S_q), (heads, S_kv), (heads, S_kv))
    return [torch.randn(1, H, S, D, generator=generator) for H, S in sizes]


def halves(*sizes: int, **more: int) -> list[torch.Tensor]:
    return [x.half() for x in draw(*sizes, **more)]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(
    "lengths", [(1, 1), (17, 64), (33, 65), (65, 63), (1, 200), (50, 3), (40, 129), (100, 257)], ids=str
)
def test_right_on_awkward_lengths(
    kernel: Kernel, lengths: tuple[int, int], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (1, 2):  # copies late, copies at once
        monkeypatch.setenv("CUDA_ON_CPU_SEED", str(seed))
        for D in HEAD_DIMS[kernel.name]:
            assert kernel.verdict(halves(*lengths, D, seed=seed), causal=causal).fault is None, (lengths, D)


def distorted(kind: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if kind == "bias":
        k, v = k + 4 * torch.randn(64), v + 2 * torch.randn(64)
    elif kind.startswith("outlier channels"):
        k[..., ::29] += 12
        q[..., ::29] *= 3
        v[..., ::29] += 8 * (kind == "outlier channels, V too")
    elif kind == "outlier entries":
        for x in (q, k):
            x[torch.rand_like(x) < 0.001] *= 10
    elif kind == "rising":  # each tile's scores are above the one's before, by less and by more than a base may lag
        q[..., 0], k[..., 0] = 8.0, torch.linspace(-40, 40, 512)
    elif kind == "tiny":
        q, k = q * 1e-4, k * 1e-4
    elif kind == "alike":
        q, k = torch.ones_like(q), k[:, :, :1].expand_as(k)
    return q, k, v


@pytest.mark.parametrize(
    ("kernel", "kind", "most"),
    [
        *(of("fp8", kind, 0.06) for kind in ("plain", "bias", "outlier channels, V too")),
        *(of("int8", kind, 0.012) for kind in ("plain", "bias")),  # a quarter of what E4M3 for P V costs
        *(of("int8", kind, None) for kind in ("outlier channels", "outlier entries", "rising", "tiny", "alike")),
    ],
    indirect=["kernel"],
)
def test_accuracy(kernel: Kernel, kind: str, most: float | None) -> None:
    verdict = kernel.verdict([x.half() for x in distorted(kind, *draw(32, 512))])
    assert verdict.fault is None
    assert most is None or max(verdict.error.max_err, verdict.error.rel_rms) <= most


@pytest.mark.parametrize(
    ("kernel", "kind"), [of("fp8", "plain"), of("fp8", "outlier entries, V too")], indirect=["kernel"]
)
def test_the_simulation_of_other_schemes_is_right_about_the_one_that_was_built(kernel: Kernel, kind: str) -> None:
    """docs/flagship-notes.md compares schemes by it; a value at the edge of two roundings may fall either way."""
    q, k, v = (x[None] for x in quantisation.draw(kind, 192, 16, 1, seed=1))
    built, e4m3 = (
        quantisation.attend(q[0], k[0], v[0], s) for s in (quantisation.Scheme(), quantisation.Scheme("e4m3"))
    )
    out, right = run(kernel.library, q, k, v)[0].double(), attention64(q, k, v)[0]
    assert (out - built).norm() < 0.1 * (out - right).norm() < 0.1 * (e4m3 - right).norm()


@pytest.mark.parametrize(("kernel", "D"), [of("int8", 64), of("int8", 128)], indirect=["kernel"])
def test_the_simulation_is_right_about_the_scales_of_int8(kernel: Kernel, D: int) -> None:
    q, k, v = halves(16, 192, D)
    built, coarse = (
        quantisation.attend(q[0], k[0], v[0], replace(quantisation.INT8, qk_scale=scale)) for scale in ("lane", "head")
    )
    out = run(kernel.library, q, k, v)[0].double()
    wrong = (out - attention64(q, k, v)[0]).norm()
    assert (out - built).norm() < 0.1 * wrong < 0.1 * (coarse - built).norm()


def test_layouts_shared_heads_and_negative_scales(kernel: Kernel) -> None:
    q, k, v = halves(37, 70, heads=2, shared=3)
    outer = torch.full((1, 37, 6, 80), torch.nan, dtype=torch.float16)
    assert kernel.verdict([outer[..., 8:-8].transpose(1, 2).copy_(q), k, v], scale=-0.3).fault is None


def test_a_scale_of_zero_weighs_all_keys_alike(kernel: Kernel) -> None:
    assert kernel.verdict(halves(37, 70), scale=0.0).fault is None


@pytest.mark.parametrize("kernel", [of("fp8")], indirect=True)
def test_constant_channels_and_lone_keys_are_exact(kernel: Kernel) -> None:
    q, k, v = halves(20, 100)
    v[..., 7] = 3.25
    assert (run(kernel.library, q, k, v)[..., 7] == 3.25).all()
    lone = v[:, :, :1].contiguous()
    assert torch.equal(run(kernel.library, q, k[:, :, :1].contiguous(), lone), lone.expand(1, 1, 20, 64))


def test_what_is_not_a_number_is_not_hidden(kernel: Kernel) -> None:
    for at, touched in ((0, (..., 3, slice(None))), (1, ...), (2, (..., slice(None), 5))):
        for value in (torch.nan, torch.inf):
            tensors = halves(20, 100)
            tensors[at][0, 0, 3, 5] = value
            out = run(kernel.library, *tensors)
            hidden = out[touched].isfinite() if kernel.name == "int8" else ~out[touched].isnan()
            assert not hidden.any(), (at, value)
            if at != 1:
                out[touched] = 0.0
                assert out.isfinite().all(), (at, value)


def test_what_it_does_not_take_is_refused_without_a_launch(kernel: Kernel) -> None:
    D = {"fp8": 128, "int8": 96}[kernel.name]
    check_refusals(kernel.library, {"D": D}, {"dtype": 1}, {"H": 3, "H_kv": 2}, {"S_kv": 0})


@pytest.mark.full
def test_int8_is_right_with_what_is_kept_in_shared_memory_on_an_l4(tmp_path: Path) -> None:
    on_an_l4 = Kernel("int8", compile_on_cpu(VARIANTS["int8"], TILES["int8"], tmp_path, arch=890))
    for D in (64, 128):
        assert on_an_l4.verdict(halves(100, 257, D), causal=True).fault is None, D


@pytest.mark.full
def test_e4m3_for_queries_and_keys(tmp_path: Path) -> None:
    library = compile_on_cpu(VARIANTS["fp8"], {"QK_INT8": 0, "STAGES": 2}, tmp_path)
    tensors = halves(64, 512)
    verdict = judged(run(library, *tensors), tensors, "e4m3")
    assert verdict.fault is None
    # What three bits of mantissa on all four operands cost; why it is not the default.
    assert 0.045 <= verdict.error.rel_rms <= 0.065
