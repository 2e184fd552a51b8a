"""``flashcore::attention`` without a GPU: an operator as PyTorch wants operators, and its way back to PyTorch."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from flashcore import attention as module
from flashcore import eligible
from flashcore.attention import attention, swapped
from flashcore.errors import Unavailable, Unsupported
from flashcore.extras import LOWER_RIGHT
from tests.support.tiers import sampled

sdpa = F.scaled_dot_product_attention
OPERATOR = torch.ops.flashcore.attention.default


def tensors(*shape: int, dtype: torch.dtype = torch.float32, heads: int | None = None) -> Any:
    B, H, S, D = shape or (2, 3, 7, 64)
    return [torch.randn(B, n, S, D).to(dtype) for n in (H, heads or H, heads or H)]


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (tensors(), {}),
    "half, causal": (tensors(dtype=torch.float16), {"is_causal": True}),
    "grouped": (tensors(1, 8, 5, 64, heads=2), {"enable_gqa": True}),
    "[B,S,H,D]": ([x.transpose(1, 2) for x in tensors(2, 7, 3, 64)], {"scale": 0.3}),
    "mask": ([*tensors(), torch.randn(7, 7)], {}),
    "padding": ([*tensors(), (torch.arange(7) > 2).expand(2, 1, 1, 7)], {}),
    "three dimensions": ([x[0] for x in tensors()], {}),
    "other values": ([*tensors()[:2], torch.randn(2, 3, 7, 32)], {}),
    "odd head dimension": (tensors(1, 2, 9, 40), {}),
}


@pytest.mark.parametrize("case", sampled(CASES, keep=("mask",)))
def test_torchs_own_checks_of_operators(case: str) -> None:
    arguments, options = CASES[case]
    found = torch.library.opcheck(OPERATOR, tuple(arguments), options)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("case", CASES)
def test_a_drop_in_for_pytorchs(case: str) -> None:
    arguments, options = CASES[case]
    out, theirs = attention(*arguments, **options), sdpa(*arguments, **options)
    assert torch.equal(out, theirs)
    promised = torch.empty_like(arguments[0]) if out.shape == arguments[0].shape else out.contiguous()
    assert out.stride() == promised.stride()


@pytest.mark.parametrize("keys", [4, 7, 12])
@pytest.mark.parametrize("mask", ["none", "bool", "float"])
def test_a_diagonal_that_ends_in_the_lower_right_corner(keys: int, mask: str) -> None:
    q, k, v = torch.randn(2, 3, 7, 64), torch.randn(2, 3, keys, 64), torch.randn(2, 3, keys, 64)
    lower = torch.ones(7, keys, dtype=torch.bool).tril(keys - 7)
    given, whole = None, lower
    if mask == "bool":
        given = (torch.arange(keys) > 0).expand(2, 1, 1, keys)
        whole = lower & given
    elif mask == "float":
        given = torch.randn(7, keys)
        whole = given.masked_fill(~lower, -torch.inf)
    assert torch.equal(attention(q, k, v, given, lower_right=True), sdpa(q, k, v, whole))
    options = {"lower_right": True}
    assert set(torch.library.opcheck(OPERATOR, (q, k, v, given), options).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore:Lower right causal bias will produce NaNs")
@pytest.mark.parametrize("keys", [4, 7, 12])
def test_pytorchs_own_names_of_the_corners(keys: int) -> None:
    q, k, v = torch.randn(1, 2, 7, 64), torch.randn(1, 2, keys, 64), torch.randn(1, 2, keys, 64)
    assert torch.equal(attention(q, k, v, causal_lower_right(7, keys)), attention(q, k, v, lower_right=True))
    assert torch.equal(attention(q, k, v, causal_upper_left(7, keys)), attention(q, k, v, is_causal=True))


def test_a_query_that_sees_no_key_gives_zeros() -> None:
    q, k, v = tensors()
    hidden = torch.zeros(2, 1, 1, 7, dtype=torch.bool)
    assert not attention(q, k, v, hidden).any()
    assert not attention(q, k[:, :, :3], v[:, :, :3], lower_right=True)[:, :, :4].any()


def test_what_pytorch_refuses_is_refused() -> None:
    q, k, v = tensors()
    for arguments in ((q, k[:, :2], v[:, :2]), (q, k.double(), v), (q, k[..., :32], v)):
        with pytest.raises(RuntimeError):
            sdpa(*arguments)
        with pytest.raises(RuntimeError):
            attention(*arguments)


def test_a_gradient_is_refused_when_it_is_asked_for_and_not_before() -> None:
    q, k, v = tensors()
    v.requires_grad_()
    out = attention(q, k, v)
    assert torch.equal(out, sdpa(q, k, v))
    with pytest.raises(Unsupported, match="no backward pass"):
        out.sum().backward()
    with torch.no_grad():
        assert not attention(q, k, v).requires_grad
    with torch.inference_mode():
        assert attention(q, k, v).is_inference()


@pytest.mark.filterwarnings("ignore:`torch.jit")  # PyTorch's own use of it for jvp
def test_a_forward_mode_gradient_is_refused_at_once() -> None:
    q, k, v = tensors()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, torch.ones_like(q))
        for call in (attention, OPERATOR):
            with pytest.raises(Unsupported, match="no forward-mode gradient"):
                call(dual, k, v)
        assert torch.equal(attention(q, k, v), sdpa(q, k, v))
    with pytest.raises(Unsupported, match="no forward-mode gradient"):
        torch.func.jvp(lambda x: attention(x, k, v), (q,), (torch.ones_like(q),))


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Keeps the calls that leave PyTorch's dispatcher out."""
    calls: list[Any] = []
    monkeypatch.setattr(module, "_short_way", lambda: lambda *call: (calls.append(call), sdpa(*call[:3]))[1])
    return calls


def test_what_records_calls_sees_them(short: list[Any]) -> None:
    q, k, v = tensors()
    attention(q, k, v)
    assert len(short) == 1
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as recorded:
        attention(q, k, v)
    assert "flashcore::attention" in [event.key for event in recorded.key_averages()]
    with forward_ad.dual_level():
        attention(q, k, v)
    assert len(short) == 1


@pytest.mark.filterwarnings("ignore")  # tracing is deprecated, and warns of what it compares
def test_a_trace_is_no_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_short_way", lambda: module._operator)
    q, k, v = tensors()
    traced = torch.jit.trace(attention, (q, k, v))
    assert torch.equal(traced(-q, k, v), sdpa(-q, k, v))


def test_negatives_held_in_memory_are_read_as_what_they_are() -> None:
    q, k, v = tensors()
    assert torch.equal(attention(torch._neg_view(q), k, v), sdpa(-q, k, v))


def test_fake_tensors_need_no_memory_and_no_gpu() -> None:
    with torch._subclasses.FakeTensorMode():
        q, k, v = (torch.empty(2, 5, 9, 64, device="cuda", dtype=torch.float16).transpose(1, 2) for _ in range(3))
        out = OPERATOR(q, k, v, is_causal=True)
    assert out.shape == q.shape
    assert out.stride() == q.stride()
    assert out.device.type == "cuda"
    meta = [x.to("meta") for x in tensors()]
    assert attention(*meta).device.type == "meta"


def test_compiled_whole_with_lengths_left_open() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v: attention(q + 1, k, v, is_causal=True) * 2, backend="aot_eager", fullgraph=True, dynamic=True
    )
    for S in (5, 9, 17):
        q, k, v = tensors(1, 2, S, 64)
        assert torch.allclose(compiled(q, k, v), sdpa(q + 1, k, v, is_causal=True) * 2)
    exported = torch.export.export(_Module(), tuple(tensors()))
    assert "flashcore.attention.default" in str(exported.graph)


class _Module(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(q, k, v)


def test_autocast_lowers_as_pytorch_does() -> None:
    q, k, v = tensors()
    mask = torch.randn(7, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for arguments in ((q, k, v), (q, k, v, mask), (q.double(), k.double(), v.double())):
            out, theirs = attention(*arguments), sdpa(*arguments)
            assert out.dtype == theirs.dtype
            assert torch.equal(out, theirs)
    assert attention(q, k, v).dtype == torch.float32


def test_vmap_gives_what_a_loop_gives() -> None:
    q, k, v = (torch.randn(3, 2, 4, 5, 64) for _ in range(3))
    looped = torch.stack([attention(*x) for x in zip(q, k, v, strict=True)])
    assert torch.allclose(torch.vmap(attention)(q, k, v), looped, atol=1e-6)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_pytorchs() -> None:
    parts = [torch.randn(4, n, 16) for n in (5, 3)]
    nested = torch.nested.nested_tensor([x.transpose(0, 1) for x in parts], layout=torch.jagged).transpose(1, 2)
    for out in (attention(nested, nested, nested), attention(*(torch.nested.nested_tensor(parts),) * 3)):
        for one, x in zip(out.unbind(), parts, strict=True):
            assert torch.allclose(one, sdpa(x, x, x), atol=1e-6)


def test_swapped_while_it_lasts_even_through_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = module._sdpa
    monkeypatch.setattr(module, "_sdpa", lambda *a, **n: (seen.append(1), real(*a, **n))[1])
    layer = torch.nn.TransformerEncoderLayer(128, 2, 64, batch_first=True).eval()
    x = torch.randn(1, 5, 128)
    monkeypatch.setattr(torch.backends.mha, "get_fastpath_enabled", lambda: False)
    with torch.no_grad():
        before = layer(x)
        assert seen == []
        with swapped():
            assert torch.allclose(layer(x), before, atol=1e-6)
        assert seen == [1]
    with pytest.raises(ZeroDivisionError), swapped():
        raise ZeroDivisionError
    assert sdpa is F.scaled_dot_product_attention


def test_many_threads_at_once() -> None:
    cases = [tensors(1, 2, 5 + n, 64) for n in range(4)]
    right = [sdpa(*case) for case in cases]
    wrong: list[int] = []

    def work(number: int) -> None:
        wrong.extend(number for _ in range(20) if not torch.equal(attention(*cases[number]), right[number]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_where_the_kernel_cannot_be_built_pytorch_works_after_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise Unavailable("nvcc not found", hint="install the CUDA toolkit")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _number: (8, 9))
    monkeypatch.setattr(eligible.build, "build", fails)
    eligible._built.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="calls PyTorch instead: nvcc not found"):
            assert eligible.kernel(eligible.VARIANT.name) is None
        assert eligible.kernel(eligible.VARIANT.name) is None  # warnings are errors here
    finally:
        eligible._built.cache_clear()


def test_what_the_flagship_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On make-believe tensors of a GPU: shapes, types and strides decide."""
    monkeypatch.setattr(eligible, "_recent", lambda _device: True)
    monkeypatch.setattr(eligible, "aligned", lambda _tensor: True)
    with torch._subclasses.FakeTensorMode():

        def fits(q: tuple[int, ...], k: tuple[int, ...], gqa: bool = False, causal: int = False, **how: Any) -> bool:
            dtype = how.get("dtype", torch.float16)
            a, b, c = (torch.empty(x, dtype=dtype, device="cuda") for x in (q, k, how.get("v", k)))
            return eligible.fits(a, b, c, causal, gqa, how.get("mask"))

        def mask(*shape: int, dtype: torch.dtype = torch.bool, device: str = "cuda") -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        assert fits((1, 8, 5, 64), (1, 8, 9, 64))
        assert fits((1, 8, 5, 128), (1, 2, 9, 128), gqa=True, dtype=torch.bfloat16)
        assert not fits((1, 8, 5, 64), (1, 2, 9, 64))
        assert not fits((1, 8, 5, 64), (1, 3, 9, 64), gqa=True)
        assert not fits((1, 8, 5, 64), (1, 8, 9, 64), dtype=torch.float32)
        assert not fits((1, 8, 5, 112), (1, 8, 9, 112))
        for D in eligible.HEAD_DIMS:
            assert fits((1, 8, 5, D), (1, 8, 9, D), causal=True)
            assert fits((1, 8, 5, D), (1, 8, 9, D), mask=mask(5, 9)) == (D != 256)
            assert fits((1, 8, 5, D), (1, 8, 9, D), causal=LOWER_RIGHT) == (D != 256)
        assert not fits((1, 8, 5, 64), (1, 8, 9, 64), v=(1, 8, 9, 32))
        assert not fits((2, 8, 5, 64), (1, 8, 9, 64))
        assert not fits((1, 8, 0, 64), (1, 8, 9, 64))
        assert not fits((1, 70000, 1, 64), (1, 70000, 1, 64))
        assert not fits((1, 1, 2_000_000, 64), (1, 1, 1, 64), causal=True)
        assert not fits((8, 5, 64), (8, 9, 64))
        shapes = (2, 8, 5, 64), (2, 8, 9, 64)
        for size in ((2, 1, 1, 9), (1, 8, 5, 9), (5, 9), (9,)):
            assert fits(*shapes, causal=LOWER_RIGHT, mask=mask(*size)), size
            assert not fits(*shapes, causal=True, mask=mask(*size)), size
        for size in ((2, 1, 1, 1), (3, 1, 1, 9), (2, 1, 4, 9), (1, 2, 8, 5, 9)):
            assert not fits(*shapes, mask=mask(*size)), size
        assert not fits(*shapes, mask=mask(5, 9, dtype=torch.float16))
        assert not fits(*shapes, mask=mask(5, 9, device="cpu"))
        assert not fits(*shapes, mask=mask(9, 5).T)
        assert not fits((1, 1, 2_000_000, 64), (1, 1, 1, 64), causal=LOWER_RIGHT)
    assert not eligible.fits(*tensors(dtype=torch.float16), False, False)  # a CPU's


def test_few_queries_that_read_the_same_keys_have_a_kernel_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = torch.ones(1, 1, 1, 1024, dtype=torch.bool)

    def chosen(H: int, S_q: int, H_kv: int, mask: torch.Tensor | None = None, keys: int = 1024, causal: int = 0) -> str:
        return eligible.chosen(torch.empty(2, H, S_q, 64), torch.empty(2, H_kv, keys, 64), causal, mask)[0]

    assert [chosen(*one) for one in ((32, 1, 8), (16, 1, 1), (8, 16, 8), (8, 4, 2))] == ["decode"] * 4
    assert [chosen(*one) for one in ((17, 1, 1), (8, 17, 8), (32, 5, 8))] == ["flagship"] * 3
    assert chosen(8, 1, 8, mask) == chosen(8, 1, 8, keys=1023) == "flagship"
    # What the flagship's Launcher does not know goes to the other one, which asks the operator.
    way: list[str] = []
    monkeypatch.setattr(module, "_decode_way", lambda: lambda *_: way.append("decode"))
    monkeypatch.setattr(module, "_operator", lambda *_: way.append("operator"))
    for S_q in (1, 40):
        module._beyond(torch.empty(2, 8, S_q, 64), torch.empty(2, 8, 1024, 64), None, False, None, None, None)
    assert way == ["decode", "operator"]


@pytest.mark.parametrize("S_q", [1, 40])
@pytest.mark.parametrize(
    "how",
    [
        {"window": (9, 0)},
        {"window": (9, -1), "lower_right": True},
        {"window": (9, 5)},
        {"window": (9, 0), "softcap": 2.0},
        {"window": (9, 0), "is_causal": True},
    ],
)
def test_a_causal_window_of_few_queries_is_decodes(how: Any, S_q: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    class Known:
        def extended(self, _extras: Any, q: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            return q.clone()

    monkeypatch.setattr(eligible, "fits", lambda *_: True)
    monkeypatch.setattr(eligible, "kernel", lambda name: (used.append(name), Known())[1])
    attention(torch.randn(1, 2, S_q, 64), *torch.randn(2, 1, 2, 1030, 64), **how)
    plain = "softcap" not in how and not how.get("is_causal") and how["window"] != (9, 5)
    assert used == ["decode" if plain and S_q == 1 else "extended"]


def test_a_call_is_taught_to_the_launcher_that_gets_it_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Known:
        def __init__(self) -> None:
            self.taught: list[Any] = []

        def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_: Any) -> torch.Tensor:
            return sdpa(q, k, v)

        def launcher(self, slow: Any) -> Any:
            return lambda *call: slow(*call) if call[0].shape not in self.taught else "in C"

        def teach(self, launcher: Any, call: Any, _out: torch.Tensor) -> None:
            assert launcher in (module._short_way(), module._decode_way())
            self.taught.append(call[0].shape)

    kernels = {"flagship": Known(), "decode": Known()}
    monkeypatch.setattr(eligible, "fits", lambda *_: True)
    monkeypatch.setattr(eligible, "kernel", lambda name, _library=0: kernels[name])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    ways = (module._short_way, module._decode_way)
    try:
        for way in ways:
            way.cache_clear()
        for S_q, kernel in ((1, "decode"), (40, "flagship")):
            q, k = torch.randn(1, 2, S_q, 64), torch.randn(1, 2, 1030, 64)
            assert torch.equal(attention(q, k, k), sdpa(q, k, k))
            assert kernels[kernel].taught == [q.shape]
            assert attention(q, k, k) == "in C"
    finally:
        for way in ways:
            way.cache_clear()


def test_rows_that_do_not_begin_at_16_bytes_are_copied() -> None:
    x = torch.randn(2, 3, 4, 72).half()
    for wrong in (
        x[..., 4:68],
        x[..., 1:65],
        x[..., :64].flatten().repeat(2)[1 : x[..., :64].numel() + 1].view(2, 3, 4, 64),
    ):
        copy = eligible.readable(wrong)
        assert eligible.aligned(copy)
        assert torch.equal(copy, wrong)
        assert torch.allclose(attention(wrong, wrong, wrong), sdpa(copy, copy, copy))
    for same in (x[..., :64], x[..., :60], x[..., 4:68].float()):  # taken; no whole pieces; no kernel's type
        assert eligible.readable(same) is same


def test_where_pytorch_gives_nothing_the_output_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """As PyTorch 2.11 does on an H200 without batches or heads."""
    monkeypatch.setattr(module, "_sdpa", lambda *_, **__: None)
    x = torch.empty(0, 4, 8, 64)
    assert attention(x, x, x).shape == x.shape


def test_rows_that_are_not_whole_pieces_of_16_bytes_are_not_taken() -> None:
    x = torch.zeros(2, 3, 4, 72, dtype=torch.float16)
    assert eligible.aligned(x[..., :64])
    assert eligible.aligned(x[..., 8:])
    assert not eligible.aligned(x[..., 4:68])
    assert not eligible.aligned(x.flatten()[: 2 * 3 * 4 * 65].view(2, 3, 4, 65)[..., :64])
    assert not eligible.aligned(x.transpose(2, 3))
    assert eligible.aligned(
        x[:1, :, :1, :64].as_strided((1, 3, 1, 64), (3, 288, 5, 1))
    )  # where n is 1, strides are free
