"""What a reader who doubts the kernels would try: lengths, strides, streams and values that nobody tunes for.

Every variant with every configuration of its table, on a GPU where there is one; the processor's kernel anywhere.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from flashcore import registry, roundings
from flashcore.errors import Unsupported
from flashcore.reference import expected
from flashcore.tuned import Tuned

NO_GPU = not torch.cuda.is_available()
VARIANTS = [
    pytest.param(v, id=v.name, marks=[pytest.mark.gpu, pytest.mark.skipif(NO_GPU, reason="needs an NVIDIA GPU")])
    if v.device == "cuda"
    else pytest.param(v, id=v.name)
    for v in registry.VARIANTS.values()
    if not v.eight_bits  # as exact as FP16 allows
]


@pytest.fixture(scope="module", params=VARIANTS)
def kernels(request: pytest.FixtureRequest) -> list[Any]:
    return list(Tuned(request.param).kernels())


def draw(kernel: Any, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).half().to(kernel.variant.device)


def assert_right(kernel: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> None:
    out = kernel(q, k, v, **options)
    refusal = roundings.judge(out.double(), expected(q, k, v, **options)).fault
    assert refusal is None, f"{kernel.built.configuration}: {refusal}"


@pytest.mark.parametrize(
    ("B", "H", "S_q", "S_kv"), [(3, 5, 7, 7), (1, 1, 1, 1), (7, 1, 129, 33), (2, 3, 33, 1023), (1, 300, 3, 5)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_odd_sizes(kernels: list[Any], B: int, H: int, S_q: int, S_kv: int, causal: bool) -> None:
    if causal and not kernels[0].variant.causal:
        pytest.skip("it has no causal mask")
    for kernel in kernels:
        tensors = [draw(kernel, B, H, S, 64, seed=n) for n, S in enumerate((S_q, S_kv, S_kv))]
        assert_right(kernel, *tensors, causal=causal)


def test_very_many_keys(kernels: list[Any]) -> None:
    """Sums of 150,001 weights, most of them small beside the largest."""
    for kernel in kernels:
        q, k, v = draw(kernel, 1, 1, 5, 64), draw(kernel, 1, 1, 150_001, 64, seed=1), draw(kernel, 1, 1, 150_001, 64)
        assert_right(kernel, q, k, v)
        k[:, :, 77_777] *= 6  # one key that outweighs all before it
        assert_right(kernel, q, k, v)


def test_strides_nobody_tunes_for(kernels: list[Any]) -> None:
    for kernel in kernels:
        wide = draw(kernel, 2, 100, 3, 4, 128)  # [B, S, 3, H, 128]: q, k, v in one tensor, rows longer than they are
        q, k, v = (wide[:, :, n, :, 32:96].transpose(1, 2) for n in range(3))
        assert_right(kernel, q, k, v)
        assert_right(kernel, q, k[:, :1].expand(2, 4, 100, 64), v[:, :1].expand(2, 4, 100, 64))
        if not kernel.variant.pages:  # of keys with others between them no page is whole
            assert_right(kernel, q.flip(2), k[:, :, ::3], v[:, :, ::3])


def test_not_a_number_stays_in_its_row_and_its_column(kernels: list[Any]) -> None:
    for kernel in kernels:
        q, k, v = (draw(kernel, 1, 2, 150, 64, seed=n) for n in range(3))
        clean = kernel(q, k, v)
        q[0, 1, 70, 3] = torch.nan
        v[0, 0, 149, 5] = torch.nan
        out = kernel(q, k, v)
        spoilt = torch.zeros_like(out, dtype=torch.bool)
        spoilt[0, 1, 70] = True
        spoilt[0, 0, :, 5] = True
        assert torch.equal(torch.isnan(out), spoilt), kernel.built.configuration
        assert torch.equal(out[~spoilt], clean[~spoilt]), kernel.built.configuration


def test_infinite_inputs_give_what_the_definition_gives(kernels: list[Any]) -> None:
    """A key that no query may want (its score is minus infinity) has no weight; one of plus infinity has no answer."""
    for kernel in kernels:
        q, k, v = (draw(kernel, 1, 1, 130, 64, seed=n) for n in range(3))
        q[..., 0] = 1.0
        k[0, 0, 0, 0] = -torch.inf  # the very first key of the very first tile
        k[0, 0, 64:96, 0] = -torch.inf
        assert_right(kernel, q, k, v)
        k[0, 0, 100, 0] = torch.inf
        assert bool(torch.isnan(kernel(q, k, v)).all()), kernel.built.configuration


def test_future_keys_are_not_looked_at(kernels: list[Any]) -> None:
    for kernel in (k for k in kernels if k.variant.causal):
        q, k, v = (draw(kernel, 1, 2, 200, 64, seed=n) for n in range(3))
        clean = kernel(q, k, v, causal=True)
        k[:, :, 97:] = torch.nan
        out = kernel(q, k, v, causal=True)
        assert torch.equal(out[:, :, :97], clean[:, :, :97]), kernel.built.configuration
        assert bool(torch.isnan(out[:, :, 97:]).all())


def test_what_cannot_be_done_is_refused_before_anything_runs(kernels: list[Any]) -> None:
    kernel = kernels[0]
    q, k, v = (draw(kernel, 1, 2, 70, 64, seed=n) for n in range(3))
    alignment = kernel.variant.alignment
    buffer = draw(kernel, 1, 2, 70, 65)
    other = "cpu" if kernel.variant.device == "cuda" else "meta"
    refused = [
        (q.transpose(2, 3).contiguous().transpose(2, 3), k, v),
        (q[:, :, :0], k, v),
        (q, k[:, :, :0], v[:, :, :0]),
        (q.float(), k.float(), v.float()),
        (q[0], k[0], v[0]),
        (q[..., :32].contiguous(), k[..., :32].contiguous(), v[..., :32].contiguous()),
        (q, k, v[:, :, :-1]),
        (q.to(other), k, v),
        (q, k.to(other), v),
    ]
    if alignment > 2:
        refused.append((buffer.view(-1)[1 : 1 + q.numel()].view(q.shape), k, v))
        refused.append((buffer[..., :64], k, v))
    for tensors in refused:  # in which words: test_build_and_launch.py
        with pytest.raises(Unsupported):
            kernel(*tensors)
    with pytest.raises(Unsupported):
        kernel(q, k, v, out=q[:, :, :1].expand(1, 2, 70, 64))
    assert_right(kernel, q, k, v)  # and it still works


def test_threads_on_streams_of_their_own(kernels: list[Any]) -> None:
    for kernel in kernels:
        wanted = {n: [draw(kernel, 1, 4, 100 + 30 * n, 64, seed=3 * n + m) for m in range(3)] for n in range(4)}
        alone = {n: kernel(*tensors) for n, tensors in wanted.items()}
        faults: list[str] = []

        def work(n: int, kernel: Any = kernel, wanted: Any = wanted, alone: Any = alone, faults: Any = faults) -> None:
            stream = torch.cuda.Stream() if kernel.variant.device == "cuda" else None
            for _ in range(20):
                with torch.cuda.stream(stream) if stream else torch.no_grad():
                    out = kernel(*wanted[n])
                    if stream:
                        stream.synchronize()
                if not torch.equal(out, alone[n]):
                    faults.append(f"{kernel.built.configuration}, thread {n}")

        if kernel.variant.device == "cuda":
            torch.cuda.synchronize()
        with ThreadPoolExecutor(len(wanted)) as pool:
            list(pool.map(work, wanted))
        assert not faults
