"""Inputs to check and time kernels on: drawn from a seed, plain or hostile."""

from __future__ import annotations

import secrets

import torch

from flashcore.shapes import Shape

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

#: Kinds of values that break careless kernels, with what each one breaks.
HOSTILE = {
    "large": "scores in the hundreds: overflow without a running maximum",
    "tiny": "scores near zero: every weight the same",
    "hot_row": "one key draws nearly all the weight, late in the sequence: the correction of earlier sums",
    "bias": "a constant offset per channel of K and V, as real models have: cancellation",
    "negative": "all scores far below zero: a maximum that starts at 0 instead of -inf",
}


def fresh_seeds(count: int) -> list[int]:
    """Seeds nobody could have tuned for; they are recorded, so that a failure can be repeated."""
    return [secrets.randbits(31) for _ in range(count)]


def draw(shape: Shape, seed: int, device: str, values: str = "plain") -> Tensors:
    """Q, K, V of ``shape`` in FP16; the same on every device for the same seed.

    ``values`` is ``plain`` (standard normal) or a key of :data:`HOSTILE`.
    """
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(shape.B, shape.H, n, shape.D, generator=generator) for n in (shape.S, shape.keys, shape.keys)
    )
    if values == "large":
        q, k = q * 8, k * 4
    elif values == "tiny":
        q, k = q * 1e-3, k * 1e-3
    elif values == "hot_row":
        k[:, :, -(shape.keys // 8 + 1)] = 3 * q.mean(dim=2) + 4 * q[:, :, 0]
    elif values == "bias":
        k, v = k + 4 * torch.randn(shape.D, generator=generator), v + 2 * torch.randn(shape.D, generator=generator)
    elif values == "negative":
        q, k = q.abs() * 2, -k.abs() * 2
    return q.half().to(device), k.half().to(device), v.half().to(device)
