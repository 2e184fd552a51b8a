"""``flashcore::attention_paged``: a few queries over a cache of keys and values in pages.

    from flashcore.paged import attention_paged

    out = attention_paged(q, key_cache, value_cache, block_table, seqlens_k)

For a decoding step. The kernel (csrc/decode.cu, compiled for pages) reads table and lengths on the GPU: nothing waits
for it, and each replay of a CUDA graph reads them anew. Where no kernel takes the tensors, attention is computed by its
definition, one batch at a time.
"""

from __future__ import annotations

import torch

from flashcore import eligible, registry
from flashcore.attention import define
from flashcore.extras import ANY, LOWER_RIGHT, Pages, Scores, alike

SCHEMA = (
    "attention_paged(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor seqlens_k, *, "
    "bool causal=True, float? scale=None, int? max_seqlen_k=None, int window_left=-1, int window_right=-1) -> Tensor"
)
VARIANT = registry.VARIANTS["paged"]
#: Keys of a page.
PAGES = (16, 32, 64, 128, 256)


def attention_paged(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqlens_k: torch.Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    max_seqlen_k: int | None = None,
    window: tuple[int, int] = ANY,
) -> torch.Tensor:
    """Attention of ``query`` [B, H, S_q, D] over ``seqlens_k[b]`` keys of batch b, int32.

    Caches are [pages, H_kv, keys of a page, D] with any strides but a contiguous last dimension: FlashAttention's
    [pages, keys of a page, H_kv, D] is ``cache.transpose(1, 2)``. H_kv divides H; a page has 16, 32, .. 256 keys. Key
    n of batch b is in page ``block_table[b, n // keys of a page]``, int32. ``causal``: query i sees keys up to
    i + seqlens_k[b] - S_q; ``window``: as of :func:`flashcore.attention.attention`. ``max_seqlen_k``, at least the
    longest length, helps to divide the work where the table has room for far more. A query that sees no key gives 0.

    Raises:
        RuntimeError: arguments that do not fit together.
        Unsupported: when a gradient through the output is asked for.
    """
    return torch.ops.flashcore.attention_paged.default(
        query, key_cache, value_cache, block_table, seqlens_k, causal=causal, scale=scale, max_seqlen_k=max_seqlen_k,
        window_left=window[0], window_right=window[1],
    )  # fmt: skip


def _eager(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqlens_k: torch.Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
    max_seqlen_k: int | None = None,
    window_left: int = ANY[0],
    window_right: int = ANY[1],
) -> torch.Tensor:
    scores = Scores((window_left, window_right))
    _check(query, key_cache, value_cache, block_table, seqlens_k)
    page = key_cache.shape[2]
    most = page * block_table.shape[1] if max_seqlen_k is None else min(page * block_table.shape[1], max_seqlen_k)
    scores.check(query)
    query, key_cache, value_cache = (x.detach() for x in (query, key_cache, value_cache))
    mode = LOWER_RIGHT if causal else 0
    fits = scores.window == ANY or scores.needs(mode) == "window"
    fits = fits and most > 0 and _fits(query, key_cache, value_cache, mode)
    kernel = eligible.kernel(VARIANT.name) if fits else None
    if kernel is not None:
        extras = Pages(block_table, seqlens_k, max_seqlen_k), *(() if scores.window == ANY else (scores,))
        return kernel.extended(extras, query, key_cache, value_cache, causal=mode, scale=scale)
    out = torch.empty_like(query)
    for b, length in enumerate(seqlens_k.tolist()):
        keys = max(0, min(length, most))
        pages = block_table[b, : -(-keys // page)].long()  # others may be anything
        k, v = (cache[pages].transpose(0, 1).flatten(1, 2)[:, :keys] for cache in (key_cache, value_cache))
        out[b] = scores.attention(query[b], k, v, causal=mode, scale=scale)
    return out


def _fits(query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, causal: int) -> bool:
    """Whether the kernel takes these, as if each batch had a page."""
    if key_cache.shape[2] not in PAGES or query.shape[-1] not in VARIANT.head_dims or not len(key_cache):
        return False
    k, v = (cache[:1].expand(len(query), *cache.shape[1:]) for cache in (key_cache, value_cache))
    aligned = all(eligible.aligned(cache) for cache in (key_cache, value_cache))
    return aligned and eligible.fits(query, k, v, causal, enable_gqa=True)


def _check(
    query: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> None:
    """Raises RuntimeError: arguments that do not fit together."""
    four = query.dim() == key_cache.dim() == 4 and key_cache.shape == value_cache.shape
    if (
        not four
        or key_cache.shape[3] != query.shape[3]
        or not key_cache.shape[1]
        or not key_cache.shape[2]
        or query.shape[1] % key_cache.shape[1]
    ):
        raise RuntimeError(
            f"query is {list(query.shape)}, key_cache {list(key_cache.shape)}, value_cache {list(value_cache.shape)}; "
            "they must be [B, H, S_q, D] and twice [pages, H_kv, keys of a page, D], where H_kv divides H"
        )
    alike(query, key_cache, value_cache)
    B = len(query)
    right = table.dim() == 2 and len(table) == B and table.stride(1) == 1 and lengths.shape == (B,)
    if not right or not lengths.is_contiguous() or {table.dtype, lengths.dtype} != {torch.int32}:
        raise RuntimeError(
            f"block_table is {table.dtype} {list(table.shape)}, seqlens_k {lengths.dtype} {list(lengths.shape)}; they "
            f"must be int32, [{B}, pages of a batch] and [{B}], contiguous"
        )
    if {x.device for x in (table, lengths)} != {query.device}:
        raise RuntimeError(f"block_table and seqlens_k must be on {query.device}, as query is")


define(SCHEMA, _eager, lambda query, *_, **__: torch.empty_like(query))
