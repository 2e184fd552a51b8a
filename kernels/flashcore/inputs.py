"""Inputs to check and time kernels on: drawn from a seed, plain or hostile."""

from __future__ import annotations

import torch

from flashcore.cases import HOSTILE, fresh_seeds, shaped  # noqa: F401
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
