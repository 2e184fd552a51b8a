"""``flashcore::attention_varlen``: sequences of different lengths, packed one behind the other.

    from flashcore.packed import attention_varlen

    out = attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=True)

Arguments are those of FlashAttention's ``flash_attn_varlen_func``. The kernel (csrc/extended.cu) reads the lengths on
the GPU: nothing waits for it, and each replay of a CUDA graph reads them anew, up to the longest that it was captured
with. Where no kernel takes the tensors (as :mod:`flashcore.attention` says), attention is computed by its definition,
one sequence at a time.
"""

from __future__ import annotations

import torch

from flashcore import eligible
from flashcore.attention import define
from flashcore.extras import ANY, LOWER_RIGHT, Packed, Scores, alike

SCHEMA = (
    "attention_varlen(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens_q, Tensor cu_seqlens_k, "
    "int max_seqlen_q, int max_seqlen_k, Tensor? alibi_slopes=None, *, bool causal=False, float? scale=None, "
    "int window_left=-1, int window_right=-1, float softcap=0.0) -> Tensor"
)


def attention_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] = ANY,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of ``query`` [total_q, H, D] over ``key`` and ``value`` [total_k, H_kv, D], H_kv a divisor of H.

    Sequence b is rows ``cu_seqlens[b]`` to ``cu_seqlens[b + 1]``, int32; ``max_seqlen_q`` and ``max_seqlen_k`` are at
    least the longest lengths. Rows of no sequence are not computed. A causal mask and a window end in each sequence's
    lower right corner; a query that sees no key gives 0. ``window``, ``softcap`` and ``alibi_slopes``: as of
    :func:`flashcore.attention.attention`.

    Raises:
        RuntimeError: arguments that do not fit together.
        Unsupported: when a gradient through the output is asked for.
    """
    return torch.ops.flashcore.attention_varlen.default(
        query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, alibi_slopes, causal=causal,
        scale=scale, window_left=window[0], window_right=window[1], softcap=softcap,
    )  # fmt: skip


def _eager(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    alibi_slopes: torch.Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_left: int = ANY[0],
    window_right: int = ANY[1],
    softcap: float = 0.0,
) -> torch.Tensor:
    packed = Packed(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    scores = Scores((window_left, window_right), softcap, alibi_slopes)
    _check(query, key, value, packed, scores)
    mode = LOWER_RIGHT if causal else 0
    q, k, v = (eligible.readable(x.detach()).transpose(0, 1)[None] for x in (query, key, value))
    fits = query.shape[-1] in eligible.EXTENDED.head_dims and eligible.fits(q[:, :, :max_seqlen_q], k, v, mode, True)
    kernel = eligible.kernel(eligible.EXTENDED.name) if fits and max_seqlen_q and max_seqlen_k else None
    out = torch.empty_like(query)
    if kernel is not None:
        whole = out.transpose(0, 1)[None]
        for at in range(0, packed.count, eligible.MAX_GRID):
            extras = scores.batches(at, eligible.MAX_GRID), packed.sequences(at, eligible.MAX_GRID)
            kernel.extended(extras, q, k, v, causal=mode, scale=scale, out=whole)
        return out
    starts_q, starts_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for b in range(len(starts_q) - 1):
        of_q, of_k = (slice(starts[b], starts[b + 1]) for starts in (starts_q, starts_k))
        found = scores.of(b).attention(q[0, :, of_q], k[0, :, of_k], v[0, :, of_k], causal=mode, scale=scale)
        out[of_q] = found.transpose(0, 1)
    return out


def _check(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, packed: Packed, scores: Scores) -> None:
    """Raises RuntimeError: arguments that do not fit together."""
    shapes = f"query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
    three = query.dim() == key.dim() == 3 and key.shape == value.shape and key.shape[2] == query.shape[2]
    if not three or not key.shape[1] or query.shape[1] % key.shape[1]:
        raise RuntimeError(f"{shapes}: they must be [total_q, H, D] and [total_k, H_kv, D], where H_kv divides H")
    alike(query, key, value)
    for name, starts in (("cu_seqlens_q", packed.starts_q), ("cu_seqlens_k", packed.starts_k)):
        right = starts.dim() == 1 and starts.dtype is torch.int32 and starts.is_contiguous() and len(starts) > 1
        if not right or starts.device != query.device or len(starts) != len(packed.starts_q):
            raise RuntimeError(
                f"{name} is {starts.dtype} {list(starts.shape)} on {starts.device}; both must be int32 [B + 1] on "
                f"{query.device}, contiguous"
            )
    if packed.longest_q < 0 or packed.longest_k < 0:
        raise RuntimeError(f"max_seqlen_q {packed.longest_q} and max_seqlen_k {packed.longest_k} must be 0 or more")
    scores.check(query.new_empty((packed.count, query.shape[1], 0)))


define(SCHEMA, _eager, lambda query, *_, **__: torch.empty_like(query))
