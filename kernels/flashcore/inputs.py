"""Inputs to check and time kernels on: drawn from a seed, plain or hostile."""

from __future__ import annotations

from typing import Any

import torch

from flashcore.cases import HOSTILE, fresh_seeds, shaped  # noqa: F401
from flashcore.extras import LOWER_RIGHT, Scores
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


def options(shape: Shape) -> dict[str, Any]:
    """Arguments of a call that a shape asks for: those of its window, for which a kernel must take scores."""
    return {} if shape.window is None else {"causal": LOWER_RIGHT, "scores": Scores((shape.window, 0))}


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
