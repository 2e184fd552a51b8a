"""Inputs to check and time kernels on: drawn from a seed, plain or hostile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flashcore.cases import HOSTILE, fresh_seeds, shaped  # noqa: F401
from flashcore.extras import LOWER_RIGHT, Packed, Scores
from flashcore.shapes import Shape

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def draw(
    shape: Shape,
    seed: int,
    device: str,
    values: str = "plain",
    *,
    dtype: torch.dtype = torch.float16,
    heads: int = 0,
) -> Tensors:
    """Q, K, V of ``shape``, K and V with so many ``heads`` (0: the shape's); the same on each device for a seed.

    ``values`` is ``plain`` (standard normal) or a key of :data:`HOSTILE`.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = ((shape.H, shape.S), *((heads or shape.kv_heads, shape.keys),) * 2)
    q, k, v = (torch.randn(shape.B, H, S, shape.D, generator=generator) for H, S in sizes)
    q, k, v = shaped(values, q, k, v, lambda n: torch.randn(n, generator=generator))
    q, k, v = (x.to(dtype).to(device) for x in (q, k, v))
    return q, k, v


def options(shape: Shape, device: str) -> dict[str, Any]:
    """Arguments of a call that a shape asks for, as :func:`flashcore.extras.asked` takes them."""
    if shape.window is not None:
        return {"causal": LOWER_RIGHT, "scores": Scores((shape.window, 0))}
    if shape.sequences:
        starts = torch.tensor([0, *(end for _, end in shape.spans)], dtype=torch.int32, device=device)
        longest = max(end - start for start, end in shape.spans)
        return {"packed": Packed(starts, starts, longest, longest)}
    dense = visible(shape, device)
    return {} if dense is None else {"mask": dense}


def seen(shape: Shape, device: str) -> Callable[..., torch.Tensor] | None:
    """Whether (batch, head, query, key), tensors that go together, is seen; None where all are."""
    if shape.window is not None:
        last, width = shape.keys - shape.S, shape.window
        return lambda _b, _h, i, j: (j <= i + last) & (j >= i + last - width)
    if shape.sequences:
        ends = torch.tensor([end for _, end in shape.spans], device=device)
        number = torch.searchsorted(ends, torch.arange(shape.S, device=device), right=True)
        return lambda _b, _h, i, j: number[i] == number[j]
    if shape.mask == "rows":
        return lambda _b, _h, i, j: (i + j) % 10 < 7
    lengths = torch.tensor(shape.lengths, device=device)
    keys = shape.keys
    each = {"left": lambda b, _h, _i, j: j >= keys - lengths[b], "right": lambda b, _h, _i, j: j < lengths[b]}
    return each[shape.mask] if shape.mask else None


def visible(shape: Shape, device: str) -> torch.Tensor | None:
    """:func:`seen` as a mask, [B or 1, 1, S_q or 1, S_kv]; None where all are."""
    which = seen(shape, device)
    if which is None:
        return None
    batch, row, key = (torch.arange(n, device=device) for n in (shape.B, shape.S, shape.keys))
    if shape.mask in ("left", "right"):
        return which(batch[:, None, None, None], 0, 0, key)
    found = which(0, 0, row[:, None], key)[None, None]
    return found.repeat(shape.B, 1, 1, 1) if shape.mask else found


#: Of :func:`mask`: padding behind the keys and before them, the former given to each row, too; any keys, those of
#: a row, those of a head's row; padding before the keys and a causal mask to the lower right corner, as models do.
MASKS = ("right", "left", "expanded", "holes", "rows", "heads", "triangle")
#: Keys that are no padding, of one batch after the other; and all.
LENGTHS = (0, 1, 63, 64, 65, 130)


def mask(kind: str, shape: Shape, seed: int, device: str) -> torch.Tensor:
    """A boolean mask for ``shape``, one of :data:`MASKS`: [B or 1, H or 1, S_q or 1, S_kv]."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([*(n for n in LENGTHS if n < shape.keys), shape.keys]).repeat(shape.B)[: shape.B, None]
    place = torch.arange(shape.keys)
    padding = (place >= shape.keys - lengths if kind in ("left", "triangle") else place < lengths)[:, None, None]
    sizes = {"holes": (shape.B, 1, 1), "rows": (shape.B, 1, shape.S), "heads": (1, shape.H, shape.S)}
    if kind in sizes:
        return (torch.rand(*sizes[kind], shape.keys, generator=generator) < 0.6).to(device)
    padding = padding.to(device)
    if kind == "triangle":
        triangle = torch.ones(shape.S, shape.keys, dtype=torch.bool, device=device).tril(shape.keys - shape.S)
        return padding & triangle
    return padding.expand(shape.B, 1, shape.S, shape.keys) if kind == "expanded" else padding


def slopes(heads: int, device: str) -> torch.Tensor:
    """Of ALiBi, as its paper has them for so many heads: 2^(-8 / heads), its square, ..; [H] in float32."""
    return (2.0 ** (-8 * torch.arange(1, heads + 1) / heads)).to(device)
