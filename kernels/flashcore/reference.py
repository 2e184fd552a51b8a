"""What the right answer is: attention in float64, and PyTorch's own attention to be compared with."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from flashcore import inputs, roundings
from flashcore.extras import LOWER_RIGHT, Scores
from flashcore.roundings import Expected, Spread

if TYPE_CHECKING:
    from flashcore.shapes import Shape
    from flashcore.variant import Variant

Attention = Callable[..., torch.Tensor]
#: Scores of a head up to which one thread is as fast as several: PyTorch's threads spin while they wait for each other.
FEW_SCORES = 2**20

FLEX = "torch-flex"
#: PyTorch's implementations by the names used in results; ``sdpa`` is whichever PyTorch picks by itself;
#: FlexAttention is compiled for what a shape hides.
BACKENDS = {
    "sdpa": None,
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-math": SDPBackend.MATH,
    FLEX: None,
}


@contextlib.contextmanager
def one_thread(scores: int = 0) -> Iterator[None]:
    """Meanwhile PyTorch has no other threads here, unless a head has more ``scores`` than ``FEW_SCORES``."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if scores <= FEW_SCORES else threads)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def attention64(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: int = False,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    scores: Scores | None = None,
) -> torch.Tensor:
    """Attention in float64 by the definition, one batch and head at a time to bound memory; [B, H, S_q, D]. ``causal``,
    ``mask`` and ``scores`` are those of :class:`flashcore.launch.Kernel`; a row that sees no key is 0."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    for at, head in _heads(q, k, v, causal, scale, mask, scores):
        out[at] = head.out
    return out


def _heads(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: int,
    scale: float | None,
    mask: torch.Tensor | None,
    changed: Scores | None,
) -> Iterator[tuple[tuple[int, int], roundings.Head]]:
    """Each batch and head; K and V have as many heads as Q, or fewer."""
    share, factor = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5 if scale is None else scale
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        one, keys, values = (x.double() for x in (q[b, h], k[b, h // share], v[b, h // share]))
        scores = (changed or Scores()).of(b, h).applied((one @ keys.T) * factor, causal)
        if mask is not None:
            scores.masked_fill_(~mask.expand(*q.shape[:3], len(keys))[b, h], float("-inf"))
        most = scores.amax(1, keepdim=True)
        blind = most == float("-inf")
        weights = torch.exp(scores - most.masked_fill(blind, 0))
        out = (weights @ values) / weights.sum(1, keepdim=True).masked_fill(blind, 1)
        yield (b, h), roundings.Head(one, keys, values, weights, out, factor)


def expected(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: int = False,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    scores: Scores | None = None,
    eight_bits: str = "",
) -> Expected:
    """:func:`attention64` of ``q``, and of ``k`` and ``v`` with as many heads or fewer, and how near a right kernel
    comes to it; ``eight_bits``: as :func:`roundings.of_head` has it."""
    rounded = roundings.BF16 if q.dtype == torch.bfloat16 else roundings.FP16
    empty = functools.partial(torch.empty, dtype=torch.float64, device=q.device)
    with one_thread(q.shape[2] * k.shape[2]):
        heads = _heads(q, k, v, causal, scale, mask, scores)
        right, spread = roundings.of_heads(heads, empty, q.shape, rounded, eight_bits)
    return Expected(right, spread, roundings.drift(k.shape[2]), by_row=not eight_bits)


def expected_of(
    variant: Variant, tensors: Sequence[torch.Tensor], configuration: Mapping[str, int] | None = None, **options: Any
) -> Expected:
    """:func:`expected` of a variant, in any of its configurations if none is given; with PyTorch's error."""
    eight_bits = variant.eight_bits
    if eight_bits == "all":
        eight_bits = "int8" if (configuration or {}).get("QK_INT8") else "e4m3"
    packed = options.pop("packed", None)
    if packed is not None:
        starts = packed.starts_q.tolist()
        places = map(slice, starts, starts[1:])
        return _joined([expected(*(x[:, :, at] for x in tensors), eight_bits=eight_bits, **options) for at in places])
    found = expected(*tensors, eight_bits=eight_bits, **options)
    if "scores" in options:  # PyTorch's has no such thing
        return found
    q, k, v = tensors
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    theirs = roundings.measure(flash(q, k, v, **options).double(), found.right)
    return replace(found, theirs=theirs.max_err)


def _joined(parts: Sequence[Expected]) -> Expected:
    """Of sequences one behind the other."""
    spreads = [part.spread for part in parts]
    variance, gains = (torch.cat([getattr(one, name) for one in spreads], dim=2) for name in ("variance", "gains"))
    gain, count = (sum(getattr(one, name) for one in spreads) for name in ("gain", "count"))
    right = torch.cat([part.right for part in parts], dim=2)
    return Expected(right, Spread(variance, gains, gain, count), max(p.drift for p in parts), by_row=parts[0].by_row)


def sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: int = False,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    if causal == LOWER_RIGHT:
        shape = (q.shape[2], k.shape[2])
        lower = torch.ones(shape, dtype=torch.bool, device=q.device).tril(shape[1] - shape[0])
        causal, mask = False, lower if mask is None else mask & lower
    gqa = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=bool(causal), scale=scale, enable_gqa=gqa)


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> torch.Tensor:
    """:func:`sdpa` by FlashAttention, the peer whose error is the measure; PyTorch's choice where that does not apply
    (on a CPU; strides that it does not take)."""
    if q.is_cuda:
        with contextlib.suppress(RuntimeError), warnings.catch_warnings(), backend("sdpa-flash"):
            warnings.simplefilter("ignore")
            return sdpa(q, k, v, **options)
    return sdpa(q, k, v, **options)


def backend(name: str) -> contextlib.AbstractContextManager[object]:
    """A context in which :func:`sdpa` uses the backend called ``name`` in :data:`BACKENDS`."""
    chosen = BACKENDS[name]
    return contextlib.nullcontext() if chosen is None else sdpa_kernel(chosen)


def names(device: str, shape: Shape | None = None) -> list[str]:
    """The backends worth asking for: on a CPU PyTorch's own choice; else FlexAttention, too, where the ``shape`` hides
    keys."""
    if device == "cpu":
        return ["sdpa"]
    hides = shape is not None and inputs.seen(shape, "cpu") is not None
    return [name for name in BACKENDS if hides or name != FLEX]


def rival(name: str, shape: Shape, device: str) -> Attention:
    """PyTorch's attention of a ``shape`` as :func:`flashcore.inputs.options` has it: by its backend ``name``, in whose
    context it is called, with a mask; of packed sequences FlashAttention as it takes them; FlexAttention compiled."""
    if name == FLEX:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        seen = inputs.seen(shape, device)
        assert seen is not None  # noqa: S101 (names() has it for those shapes only)
        blocks = create_block_mask(seen, shape.B, None, shape.S, shape.keys, device=device)
        compiled = torch.compile(flex_attention, dynamic=False)
        return functools.partial(compiled, block_mask=blocks, enable_gqa=shape.kv_heads != shape.H)
    packed = inputs.options(shape, device).get("packed")
    if packed is None or name != "sdpa-flash":
        return functools.partial(sdpa, mask=inputs.visible(shape, device))

    def varlen(*tensors: torch.Tensor) -> torch.Tensor:
        q, k, v = (x[0].transpose(0, 1) for x in tensors)
        ends = packed.starts_q, packed.starts_k, packed.longest_q, packed.longest_k
        out: torch.Tensor = torch.ops.aten._flash_attention_forward(q, k, v, *ends, 0.0, False, False)[0]  # noqa: SLF001
        return out.transpose(0, 1)[None]

    return varlen


def available_backends(shape: Shape, device: str, wanted: Sequence[str]) -> list[str]:
    """Which of the backends ``wanted`` take such inputs here; of FlexAttention that is not known before it is timed."""
    found = [FLEX] if FLEX in wanted else []
    tensors = inputs.draw(shape, 0, device)
    for name in wanted:
        with contextlib.suppress(RuntimeError), warnings.catch_warnings(), backend(name):
            warnings.simplefilter("ignore")  # PyTorch warns about each reason why a backend does not apply
            if name != FLEX:
                rival(name, shape, device)(*tensors)
                if device == "cuda":
                    torch.cuda.synchronize()
                found.append(name)
    return found
