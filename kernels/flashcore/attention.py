"""``flashcore::attention``, a PyTorch operator with the arguments of ``scaled_dot_product_attention``.

    from flashcore.attention import attention, swapped

    out = attention(q, k, v, is_causal=True)  # [B, H, S, D], any strides with a contiguous last dimension
    with swapped():                           # all that calls F.scaled_dot_product_attention meanwhile
        model(tokens)

The flagship, or ``decode`` for a few queries over many keys, computes what it takes: FP16 or bfloat16 on a GPU of
compute capability 8.0 or later, head dimensions 64, 80, 96, 128 and 256, no dropout, fewer heads of keys than of
queries with ``enable_gqa``. A causal mask's diagonal begins in the upper left corner (``is_causal``) or ends in the
lower right one (``lower_right``, which PyTorch's function does not have, or
``torch.nn.attention.bias.causal_lower_right``). ``attn_mask`` is none or, also beside ``lower_right``, boolean and of
the dimensions [B, H, S_q, S_kv], any but the last of them 1; a mask of keys alone is padding, left or right, which the
kernel itself leaves out. (At 256 only the mask to the upper left corner.) Tensors whose rows do not begin at multiples
of 16 bytes are copied first. All else is PyTorch's own. Either way the output has the strides of
``torch.empty_like(query)`` where its shape is that of the query, and is contiguous where it is not.

``extended`` computes windows, softcap and ALiBi (D = 64, 128), ``decode`` a causal window of a few queries; else their
definition. A query that sees no key gives zeros, as PyTorch's math and efficient backends do for a boolean mask.

Forward only: an output that depends on what wants a gradient says so when the gradient is asked for; forward-mode
gradients are refused at once. ``torch.compile`` and ``torch.export`` take the operator; autocast is PyTorch's.

:func:`attention` calls the kernel without PyTorch's dispatcher where nothing could notice: no compiler, no autocast, no
gradient, no tensor subclass, no mode, no trace, no profiler.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad, profiler
from torch.nn.attention.bias import CausalBias, CausalVariant

from flashcore import eligible
from flashcore.errors import Unsupported
from flashcore.extras import ANY, LOWER_RIGHT, Scores, alike, with_lower_right

NAME = "flashcore::attention"
SCHEMA = (
    "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, "
    "bool is_causal=False, Tensor? alibi_slopes=None, *, float? scale=None, bool enable_gqa=False, "
    "bool lower_right=False, int window_left=-1, int window_right=-1, float softcap=0.0) -> Tensor"
)
_library = torch.library.Library("flashcore", "FRAGMENT")
_sdpa = F.scaled_dot_product_attention  # the original, whatever swapped() puts in its place


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    lower_right: bool = False,
    *,
    window: tuple[int, int] = ANY,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """``softmax(scale * query key^T) value`` for [B, H, S, D] tensors; arguments as ``scaled_dot_product_attention``,
    and ``lower_right``: query i sees key j only where j <= i + S_kv - S_q (and ``attn_mask`` lets it).

    ``window``, ``softcap``, ``alibi_slopes`` (float32, [H] or [B, H]) are FlashAttention's: query i, at key
    p = i + S_kv - S_q (p = i with ``is_causal``), sees keys p - left to p + right (-1: all); a score s becomes
    softcap * tanh(s / softcap), less slope * |p - j|.

    Raises:
        Unsupported: when a gradient through the output is asked for; dropout together with one of the last three.
        RuntimeError: what PyTorch raises for arguments that do not fit together.
    """
    if attn_mask is not None and not is_causal and isinstance(attn_mask, CausalBias):
        lower_right = attn_mask.variant == CausalVariant.LOWER_RIGHT
        attn_mask, is_causal = None, not lower_right
    plain = window is ANY and not softcap and alibi_slopes is None
    if query.is_nested and plain and not lower_right:
        return _sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if (
        plain
        and not torch.compiler.is_compiling()
        and dropout_p == 0.0
        and not (lower_right and is_causal)
        and (enable_gqa or key.shape[1:2] == query.shape[1:2])
        and forward_ad._current_level < 0  # noqa: SLF001
        and not profiler._is_profiler_enabled  # noqa: SLF001
    ):
        return _short_way()(query, key, value, LOWER_RIGHT if lower_right else is_causal, scale, None, attn_mask)
    if not torch.compiler.is_compiling():
        _refuse_tangents(NAME, query, key, value)
    return torch.ops.flashcore.attention.default(
        query, key, value, attn_mask, dropout_p, is_causal, alibi_slopes, scale=scale, enable_gqa=enable_gqa,
        lower_right=lower_right, window_left=window[0], window_right=window[1], softcap=softcap,
    )  # fmt: skip


@contextlib.contextmanager
def swapped() -> Iterator[None]:
    """Meanwhile ``torch.nn.functional.scaled_dot_product_attention`` is :func:`attention`, in all threads, for all who
    look it up there when they call it (transformers, torchvision, timm and ``torch.nn.MultiheadAttention`` do)."""
    before = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        F.scaled_dot_product_attention = before


# ------------------------------------------------------------------------------------------------ which way
def _unwatched() -> bool:
    """Whether nothing but this module stands between a call and its kernel: no autocast, mode, transform or trace. A
    Launcher knows a call only in the state of the thread in which it was taught, so that this is asked once a state."""
    return (
        not torch._C._is_any_autocast_enabled()  # noqa: SLF001
        and not torch._C._len_torch_dispatch_stack()  # noqa: SLF001
        and not torch._C._len_torch_function_stack()  # noqa: SLF001
        and torch._C._get_tracing_state() is None  # noqa: SLF001
        and torch._C._functorch.peek_interpreter_stack() is None  # noqa: SLF001
    )


def _operator(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    causal: int,
    scale: float | None,
    _out: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Through the dispatcher, as a :class:`Launcher` sends calls that it does not know; from then on it knows this one,
    if it is the kernel's."""
    gqa = key.shape[1:2] != query.shape[1:2]
    out: torch.Tensor = torch.ops.flashcore.attention.default(
        query, key, value, mask, 0.0, causal == 1, scale=scale, enable_gqa=gqa, lower_right=causal == LOWER_RIGHT
    )
    plain = type(query) is type(key) is type(value) is torch.Tensor and (mask is None or type(mask) is torch.Tensor)
    wanted = query.requires_grad or key.requires_grad or value.requires_grad
    known = plain and not wanted and _unwatched() and eligible.fits(query, key, value, causal, gqa, mask)
    if known and (mask is None or mask.dim() == 4):
        name, library = eligible.chosen(query, key, causal, mask)
        kernel, way = eligible.kernel(name, library), _decode_way() if name == eligible.DECODE else _short_way()
        if kernel is not None and way is not _operator:
            kernel.teach(way, (query, key, value, causal, scale, None, mask), out)
    return out


def _beyond(*call: Any) -> Any:
    """Of a call that the flagship's Launcher does not know: that of :data:`DECODE` may."""
    name, _ = eligible.chosen(call[0], call[1], call[3], call[6])
    return (_decode_way() if name == eligible.DECODE else _operator)(*call)


@functools.cache
def _short_way() -> Any:
    """The function that launches the flagship: its Launcher, or :func:`_operator` if no Launcher can be built. Called
    with the values of a :data:`flashcore.launch.Call` whose output is None."""
    return _launcher(eligible.VARIANT.name, _beyond)


@functools.cache
def _decode_way() -> Any:
    """The same for :data:`DECODE`."""
    return _launcher(eligible.DECODE, _operator)


def _launcher(variant: str, slow: Any) -> Any:
    kernel = eligible.kernel(variant) if torch.cuda.is_available() else None
    return (kernel and kernel.launcher(slow)) or _operator


# ------------------------------------------------------------------------------------------------ the operator
def define(schema: str, eager: Any, fake: Any) -> None:
    """An operator of PyTorch, forward only, in whose place ``fake`` stands where tensors have no memory."""
    name = schema.partition("(")[0]

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any, **named: Any) -> Any:
        _refuse_tangents(f"flashcore::{name}", query, key, value)
        return eager(query, key, value, *others, **named)

    _library.define(schema)
    _library.impl(name, forward, "CompositeExplicitAutograd")
    torch.library.register_fake(f"flashcore::{name}", fake, lib=_library)
    torch.library.register_autograd(f"flashcore::{name}", _no_backward, lib=_library)


def _eager(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    alibi_slopes: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    lower_right: bool = False,
    window_left: int = ANY[0],
    window_right: int = ANY[1],
    softcap: float = 0.0,
) -> torch.Tensor:
    query, key, value = (eligible.readable(t.detach() if t.requires_grad else t) for t in (query, key, value))
    causal = LOWER_RIGHT if lower_right else is_causal
    scores = Scores((window_left, window_right), softcap, alibi_slopes)
    if scores.window != ANY or softcap or alibi_slopes is not None:
        return _with_scores(query, key, value, attn_mask, dropout_p, causal, scale, enable_gqa, scores)
    once = dropout_p == 0.0 and not (is_causal and lower_right)
    if once and eligible.fits(query, key, value, causal, enable_gqa, attn_mask):
        kernel = eligible.kernel(*eligible.chosen(query, key, causal, attn_mask))
        if kernel is not None:
            mask = None if attn_mask is None else eligible.four(attn_mask)
            return kernel(query, key, value, causal=causal, scale=scale, mask=mask)
    if lower_right:
        attn_mask = with_lower_right(attn_mask, query, key)
    found = _sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if found is None:  # PyTorch 2.11 on a GPU, where there is nothing to compute
        return _fake(query, key, value, enable_gqa=enable_gqa)
    out = _like(query, found.shape, found.dtype)
    return found if found.stride() == out.stride() else out.copy_(found)


def _with_scores(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    causal: int,
    scale: float | None,
    enable_gqa: bool,
    scores: Scores,
) -> torch.Tensor:
    if dropout_p:
        raise Unsupported(f"{NAME} has no dropout with a window, softcap or ALiBi", hint="use dropout_p=0.0")
    scores.check(query)
    _check(query, key, value, mask, enable_gqa)
    fits = query.shape[-1] in eligible.EXTENDED.head_dims and eligible.fits(query, key, value, causal, enable_gqa, mask)
    few = scores.needs(causal) == "window" and fits and eligible.chosen(query, key, causal, mask)[0] == eligible.DECODE
    kernel = eligible.kernel(eligible.DECODE if few else eligible.EXTENDED.name) if fits else None
    if kernel is not None:
        four = None if mask is None else eligible.four(mask)
        return kernel.extended((scores,), query, key, value, causal=causal, scale=scale, mask=four)
    found = scores.attention(query, key, value, mask, causal, scale)
    return _like(query, found.shape, found.dtype).copy_(found)


def _check(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, enable_gqa: bool
) -> None:
    """Raises RuntimeError: arguments that do not fit together, of a call that PyTorch does not check."""
    alike(query, key, value)
    if min(query.dim(), key.dim(), value.dim()) < 3:
        raise RuntimeError("a window, softcap or ALiBi needs tensors [.., H, S, D]")
    heads, few = query.shape[-3], key.shape[-3]
    if heads != few and not enable_gqa:
        raise RuntimeError(f"query has {heads} heads and key {few}: pass enable_gqa=True")
    if not few or heads % few:
        raise RuntimeError(f"query has {heads} heads and key {few}, which must divide them")
    if mask is not None and (mask.device != query.device or not (mask.dtype is torch.bool or mask.is_floating_point())):
        raise RuntimeError(
            f"attn_mask is {mask.dtype} on {mask.device}; it must be boolean or floating-point on {query.device}"
        )


def _fake(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    enable_gqa: bool = False,
    **__: Any,
) -> torch.Tensor:
    lead = query.shape[:-2]
    if not (enable_gqa or query.dim() == key.dim() == value.dim() == 4):
        lead = torch.broadcast_shapes(lead, key.shape[:-2], value.shape[:-2])
    return _like(query, torch.Size((*lead, query.shape[-2], value.shape[-1])), query.dtype)


def _like(query: torch.Tensor, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """An output of ``shape`` in the layout that this operator promises."""
    return torch.empty_like(query, dtype=dtype) if shape == query.shape else query.new_empty(shape, dtype=dtype)


def _refuse_tangents(name: str, *tensors: torch.Tensor) -> None:
    """Raises Unsupported: a tensor carries a forward-mode gradient, which the output of ``name`` would lose."""
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in tensors):  # noqa: SLF001
        raise Unsupported(
            f"{name} has no forward-mode gradient",
            cause="an input is a dual tensor of torch.autograd.forward_ad or torch.func.jvp",
            hint="use scaled_dot_product_attention with SDPBackend.MATH",
        )


def _no_backward(_context: Any, *_gradients: Any) -> None:
    raise Unsupported(
        f"{NAME} has no backward pass",
        cause="the caller requested a gradient through its output",
        hint="for inference, call the model under torch.no_grad(); for training, use scaled_dot_product_attention",
    )


def _autocast(device: str) -> Any:
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"))  # noqa: SLF001

    def cast(query: Any, key: Any, value: Any, attn_mask: Any = None, *others: Any, **named: Any) -> torch.Tensor:
        dtype = torch.get_autocast_dtype(device)

        def lowered(x: Any) -> Any:
            eligible = isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype is not torch.float64
            return x.to(dtype) if eligible and x.device.type == device else x

        with torch._C._ExcludeDispatchKeyGuard(keys):  # noqa: SLF001
            tensors = map(lowered, (query, key, value, attn_mask))
            return torch.ops.flashcore.attention.default(*tensors, *others, **named)

    return cast


define(SCHEMA, _eager, _fake)
for _device in ("cpu", "cuda"):
    _library.impl("attention", _autocast(_device), f"Autocast{_device.upper()}")
