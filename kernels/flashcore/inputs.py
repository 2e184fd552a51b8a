"""Inputs to check and time kernels on: drawn from a seed, plain or hostile."""

from __future__ import annotations

import torch

from flashcore.cases import HOSTILE, fresh_seeds, shaped  # noqa: F401
from flashcore.shapes import Shape

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def draw(shape: Shape, seed: int, device: str, values: str = "plain") -> Tensors:
    """Q, K, V of ``shape`` in FP16; the same on every device for the same seed.

    ``values`` is ``plain`` (standard normal) or a key of :data:`HOSTILE`.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(shape.B, shape.H, n, shape.D, generator=generator) for n in (shape.S, shape.keys, shape.keys)
    )
    q, k, v = shaped(values, q, k, v, lambda n: torch.randn(n, generator=generator))
    return q.half().to(device), k.half().to(device), v.half().to(device)
