"""Every tiling of the flagship, forced, on a real GPU; skipped where there is none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from flashcore import bench, forced, peaks, registry, roundings, separate
from flashcore.build import build
from flashcore.errors import LaunchFailed
from flashcore.launch import Kernel
from flashcore.reference import expected
from flashcore.shapes import Shape

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

FLAGSHIP = registry.VARIANTS["flagship"]
TYPES = [pytest.param(*key, id=f"{key[0]}-{key[1]}") for key in FLAGSHIP.tilings]
TOO_MANY = 2**31
SAMPLED = 300  # rows


@pytest.fixture(scope="module")
def kernel(builds: None) -> Iterator[Kernel]:
    yield Kernel(build(FLAGSHIP))
    separate.end()


def usable(dtype: str, D: int) -> list[forced.Tiling]:
    capability = torch.cuda.get_device_capability()
    return [one for one in forced.of(FLAGSHIP) if (one.dtype, one.D) == (dtype, D) and one.fits(capability)]


def test_every_tiling_is_right_and_none_runs_where_it_is_not_for(kernel: Kernel) -> None:
    entries = forced.run(kernel, seed=torch.seed() % 2**31)
    assert [entry for entry in entries if entry["status"] == "failed"] == []
    assert forced.counted(entries)["total"] == len(forced.of(FLAGSHIP))
    with pytest.raises(LaunchFailed):
        kernel.forced(-1)(*(torch.zeros(1, 1, 16, 64, device="cuda", dtype=torch.float16) for _ in range(3)))


@pytest.mark.parametrize(("dtype", "D"), TYPES)
def test_more_than_2_to_the_31_elements(kernel: Kernel, dtype: str, D: int) -> None:
    wrong_beyond_32_bits(kernel, dtype, D)


def wrong_beyond_32_bits(kernel: Kernel, dtype: str, D: int) -> int:
    """Once with so many heads, once with rows so far apart; keys and values lie beyond, too. How many launches were
    made and found right."""
    B, H, S = 32 * 128 // D + 1, 64, 8192
    memory = torch.empty(B * H * S * D, device="cuda", dtype=getattr(torch, dtype)).normal_()
    out = torch.empty_like(memory)
    assert memory.numel() > TOO_MANY
    by_heads = (B, H, S, D)
    heads = 131072 // D  # in rows of 2^17 elements
    by_rows = (1, memory.numel() // (heads * D), heads, D)
    launches = 0
    for q, target in ((memory.view(by_heads), out.view(by_heads)), *_turned(memory, out, by_rows)):
        step = q.shape[2] // 64
        k, v = q[:, :, ::step], q[:, :, 1::step]
        samples = [(0, 0), (q.shape[0] - 1, q.shape[1] - 1)]
        known = [_expected(q, k, v, *at) for at in samples]
        for one in usable(dtype, D):
            out.fill_(torch.nan)
            kernel.forced(one.number)(q, k, v, out=target)
            for (b, h), right in zip(samples, known, strict=True):
                fault = roundings.judge(target[b : b + 1, h : h + 1, -SAMPLED:].double(), right).fault
                assert fault is None, (one, q.shape, b, h, fault)
            assert not any(bool(part.isnan().any()) for part in target.split(1024, dim=2)), one
            launches += 1
    return launches


def _turned(memory: torch.Tensor, out: torch.Tensor, size: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    used = math.prod(size)
    return [(memory[:used].view(size).transpose(1, 2), out[:used].view(size).transpose(1, 2))]


def _expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: int, h: int) -> Any:
    return expected(q[b : b + 1, h : h + 1, -SAMPLED:], *(x[b : b + 1, h : h + 1] for x in (k, v)))


@pytest.mark.full
@pytest.mark.parametrize("D", FLAGSHIP.head_dims)
def test_every_tiling_passes_the_audit(kernel: Kernel, D: int) -> None:
    ceilings = peaks.run()
    for one in usable("float16", D):
        subject = separate.Runner("cuda").kernel(kernel.built).forced(one.number)
        document, _ = bench.run(subject, {"s": Shape(1, 8, 512, D)}, backends=[], modes=["hot"], ceilings=ceilings)
        assert document["audits"][0]["outputs_checked"] > 0, one
        separate.end()
