"""``flashcore::attention`` and the launch path on a real GPU: hostile layouts, streams, threads, graphs, compilers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from flashcore import attention as module
from flashcore import eligible, inputs, roundings
from flashcore.attention import attention, swapped
from flashcore.extras import LOWER_RIGHT
from flashcore.reference import attention64, expected
from flashcore.shapes import Shape

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

sdpa = F.scaled_dot_product_attention


def tensors(*shape: int, dtype: torch.dtype = torch.float16, keys: int | None = None, heads: int | None = None) -> Any:
    B, H, S, D = shape
    q = torch.randn(B, H, S, D, device="cuda", dtype=dtype)
    k, v = (torch.randn(B, heads or H, keys or S, D, device="cuda", dtype=dtype) for _ in range(2))
    return q, k, v


def excess(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> float:
    """The largest error against float64, in that of PyTorch's flash attention (or one rounding of the output)."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    right = attention64(q, k, v, causal=options.get("is_causal", False), scale=options.get("scale"))
    theirs = (sdpa(q, k, v, **options).double() - right).abs().max()
    rounding = torch.finfo(q.dtype).eps / 2 * right.abs().max()
    return float((out.double() - right).abs().max() / torch.maximum(theirs, rounding))


@pytest.fixture
def by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fallback to PyTorch fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("fell back to PyTorch")

    monkeypatch.setattr(module, "_sdpa", refuse)


@pytest.mark.usefixtures("by_the_kernel")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("D", eligible.HEAD_DIMS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_right_at_any_length(dtype: torch.dtype, D: int, is_causal: bool) -> None:
    torch.manual_seed(0)
    for S, keys in [(1, 1), (1, 700), (2, 3), (63, 65), (129, 127), (512, 512), (1000, 77), (77, 1000), (2049, 2049)]:
        q, k, v = tensors(1, 3, S, D, dtype=dtype, keys=keys)
        out = attention(q, k, v, is_causal=is_causal)
        assert excess(out, q, k, v, is_causal=is_causal) <= 2, (S, keys)


@pytest.mark.usefixtures("by_the_kernel")
def test_layouts_without_copies_grouped_heads_and_scales() -> None:
    torch.manual_seed(0)
    packed = torch.randn(2, 130, 3, 8, 64, device="cuda", dtype=torch.float16)
    q, k, v = packed.permute(2, 0, 3, 1, 4)  # slices of one [B, S, 3, H, D] tensor
    out = attention(q, k, v, scale=0.3)
    assert excess(out, q, k, v, scale=0.3) <= 2
    negative = attention(q, k, v, scale=-0.3)  # PyTorch's flash attention gives NaN for that
    assert torch.equal(negative, attention(-q, k, v, scale=0.3))
    assert out.stride() == torch.empty_like(q).stride()
    q, k, v = tensors(2, 8, 100, 128, heads=2, dtype=torch.bfloat16)
    assert excess(attention(q, k, v, is_causal=True, enable_gqa=True), q, k, v, is_causal=True) <= 2
    q, k, v = tensors(3, 4, 64, 64, heads=1)
    shared = k.expand(3, 4, 64, 64)  # strides of 0
    assert excess(attention(q, shared, shared), q, shared, shared) <= 2


@pytest.mark.usefixtures("by_the_kernel")
@pytest.mark.parametrize("S", [1, 50])
def test_rows_at_odd_places_are_copied(S: int) -> None:
    """PyTorch 2.11's own attention was wrong for these on an H200."""
    aligned = tensors(2, 4, S, 64, keys=1100)
    right = attention(*aligned)
    shifted = [torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)[1:].view_as(x).copy_(x) for x in aligned]
    odd = [torch.empty(*x.shape[:3], 67, device="cuda", dtype=x.dtype)[..., :64].copy_(x) for x in aligned]
    spread = [torch.empty(*x.shape[:3], 128, device="cuda", dtype=x.dtype)[..., ::2].copy_(x) for x in aligned]
    for moved in (shifted, odd, spread):
        assert torch.equal(attention(*moved), right)


def test_an_output_of_nothing_is_empty() -> None:
    for empty in (tensors(0, 4, 8, 64), tensors(2, 0, 8, 64), tensors(2, 4, 0, 64, keys=5)):
        assert attention(*empty).shape == empty[0].shape


@pytest.mark.usefixtures("by_the_kernel")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("D", [64, 128])
def test_few_queries_of_a_cache_of_keys(dtype: torch.dtype, D: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the kernel for them, which merges in memory that each call has for itself: calls made in C, on two streams
    at once, and by a graph."""
    monkeypatch.setattr(eligible, "LEAST_KEYS", 1)
    torch.manual_seed(0)
    called: list[str] = []
    real = eligible.kernel
    monkeypatch.setattr(eligible, "kernel", lambda *how: (called.append(how[0]), real(*how))[1])
    streams = [torch.cuda.Stream() for _ in range(2)]
    for B, H, S_q, H_kv, S_kv in [
        (1, 32, 1, 8, 4096),
        (3, 16, 1, 1, 999),
        (2, 8, 2, 8, 5000),
        (5, 12, 3, 3, 77),
        (1, 1, 1, 1, 1),
    ]:
        q = torch.randn(B, S_q, H, D, device="cuda", dtype=dtype).transpose(1, 2)
        cache = torch.randn(2, B, S_kv + 100, H_kv, D, device="cuda", dtype=dtype)
        k, v = cache[:, :, 7 : 7 + S_kv].transpose(2, 3)
        for is_causal in (False, True):
            options = {"is_causal": is_causal, "enable_gqa": True}
            right = attention(q, k, v, **options)
            assert excess(right, q, k, v, is_causal=is_causal) <= 2, (B, H, S_q, H_kv, S_kv)
            torch.cuda.synchronize()
            graph, outs = torch.cuda.CUDAGraph(), []
            with torch.cuda.graph(graph):
                replayed = attention(q, k, v, **options)
            for _ in range(3):
                for stream in streams:
                    with torch.cuda.stream(stream):
                        outs.append(attention(q, k, v, **options))
                graph.replay()
            torch.cuda.synchronize()
            assert all(torch.equal(out, right) for out in (replayed, *outs)), (B, H, S_q, H_kv, S_kv)
    assert "decode" in called


@pytest.mark.usefixtures("by_the_kernel")
@pytest.mark.parametrize("lower_right", [False, True])
@pytest.mark.parametrize("kind", inputs.MASKS)
def test_boolean_masks(kind: str, lower_right: bool) -> None:
    torch.manual_seed(0)
    for D, dtype, S_kv in ((64, torch.float16, 320), (128, torch.bfloat16, 333)):
        q, k, v = tensors(7, 4, 130, D, dtype=dtype, keys=S_kv, heads=2)
        for seed in (1, 2):  # other values in the same layout
            mask = inputs.mask(kind, Shape(7, 4, 130, D, S_kv), seed, "cuda")
            out = attention(q, k, v, mask, enable_gqa=True, lower_right=lower_right)
            right = expected(q, k, v, causal=LOWER_RIGHT if lower_right else 0, mask=mask)
            assert roundings.judge(out.double(), right).used <= 1, (D, seed)


def test_a_graph_reads_the_mask_of_each_replay() -> None:
    q, k, v = tensors(2, 4, 100, 64)
    mask = torch.ones(2, 1, 1, 100, dtype=torch.bool, device="cuda")
    attention(q, k, v, mask)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, k, v, mask)
    mask[:, :, :, 40:] = False
    graph.replay()
    assert torch.equal(out, attention(q, k, v, mask))
    assert torch.allclose(out, sdpa(q, k[:, :, :40], v[:, :, :40]), atol=2e-3)


def test_what_the_kernel_does_not_take_is_pytorchs() -> None:
    torch.manual_seed(0)
    q, k, v = tensors(2, 4, 50, 64)
    mask = torch.randn(50, 50, device="cuda", dtype=torch.float16)
    for arguments, options in [
        ((q, k, v), {"attn_mask": mask}),
        ((q[..., :40], k[..., :40], v[..., :40]), {}),
        ((q[0], k[0], v[0]), {}),
        ((q.float(), k.float(), v.float()), {}),
        ((q, k, v[..., :32]), {}),
    ]:
        assert torch.allclose(attention(*arguments, **options), sdpa(*arguments, **options), atol=2e-3)
    with pytest.raises(RuntimeError):
        attention(q, k[:, :3], v[:, :3])
    with pytest.raises(RuntimeError):
        attention(q, k.cpu(), v)
    with pytest.raises(RuntimeError):
        attention(q, k.bfloat16(), v)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_a_number_stays_where_it_belongs(value: float) -> None:
    q, k, v = tensors(1, 2, 300, 64)
    clean = attention(q, k, v)
    q[0, 0, 17, 3] = value
    v[0, 1, 250, 5] = value
    out = attention(q, k, v)
    assert not out[0, 0, 17].isfinite().any()
    assert not out[0, 1, :, 5].isfinite().any()
    touched = ~out.isfinite()
    assert torch.equal(out[~touched], clean[~touched])
    assert int(touched.sum()) == 64 + 300


def test_other_streams_threads_and_graphs() -> None:
    torch.manual_seed(0)
    cases = [tensors(1, 4, 100 + 37 * n, 64) for n in range(6)]
    right = [attention(*case) for case in cases]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(40):
                out = attention(*cases[number])
                stream.synchronize()
                wrong.extend([number] if not torch.equal(out, right[number]) else [])

    with ThreadPoolExecutor(len(cases)) as pool:
        list(pool.map(work, range(len(cases))))
    assert wrong == []
    q, k, v = (x.clone() for x in cases[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(q, k, v)
    q.copy_(torch.randn_like(q))
    out.fill_(torch.nan)
    graph.replay()
    assert torch.equal(out, attention(q, k, v))


def test_a_call_waits_for_what_its_stream_has_queued() -> None:
    q, k, v = tensors(1, 8, 512, 64)
    right = attention(q, k, v)
    late = torch.full_like(q, torch.nan)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(q)
        out = attention(late, k, v)
    stream.synchronize()
    assert torch.equal(out, right)


def test_torchs_own_checks_of_operators() -> None:
    for arguments, options in [
        (tensors(2, 3, 70, 64), {"is_causal": True}),
        (tensors(1, 8, 33, 128, heads=2, dtype=torch.bfloat16), {"enable_gqa": True}),
        (tuple(x.transpose(1, 2) for x in tensors(2, 70, 3, 64)), {"scale": 0.3}),
        (tensors(2, 3, 70, 40), {}),
        (tensors(2, 8, 1, 64, heads=2, keys=1900), {"enable_gqa": True}),
        ((*tensors(2, 3, 70, 64), torch.rand(2, 1, 1, 70, device="cuda") < 0.5), {"lower_right": True}),
    ]:
        found = torch.library.opcheck(torch.ops.flashcore.attention.default, arguments, options)
        assert set(found.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is:DeprecationWarning")  # by torch's own compiler
def test_compiled_whole_and_under_autocast() -> None:
    torch.manual_seed(0)
    q, k, v = tensors(2, 4, 200, 64)

    def f(x: torch.Tensor) -> torch.Tensor:
        return attention(x * 2, k, v, is_causal=True) + 1

    compiled = torch.compile(f, fullgraph=True)
    assert torch.allclose(compiled(q), f(q), atol=2e-3)
    wide = [x.float() for x in (q, k, v)]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = attention(*wide)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, attention(*(x.bfloat16() for x in wide)))


def test_a_gradient_that_is_asked_for_is_refused() -> None:
    q, k, v = tensors(1, 2, 20, 64)
    q.requires_grad_()
    out = attention(q, k, v)
    assert out.requires_grad
    with pytest.raises(Exception, match="no backward pass"):
        out.sum().backward()
    with torch.no_grad():
        assert not attention(q, k, v).requires_grad


def test_a_real_models_outputs_stay_the_same() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).half().cuda().eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        x = torch.randn(2, 333, 256, device="cuda", dtype=torch.float16)
        with torch.inference_mode():
            plain = model(x)
            with swapped():
                ours = model(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert sdpa is F.scaled_dot_product_attention
    assert not torch.equal(plain, ours)  # it was swapped
    assert float((plain - ours).abs().max()) < 0.02
