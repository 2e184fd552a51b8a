"""What the right answer is: attention in float64, and PyTorch's own attention to be compared with."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

Attention = Callable[..., torch.Tensor]

#: PyTorch's implementations by the names used in results; ``sdpa`` is whichever PyTorch picks by itself.
BACKENDS = {
    "sdpa": None,
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-math": SDPBackend.MATH,
}


def attention64(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """Attention in float64 by the definition, one batch and head at a time to bound memory; [B, H, S_q, D]."""
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    hidden = None
    if causal:
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu_(1)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = (q[b, h].double() @ k[b, h].double().T) * factor
            if hidden is not None:
                scores.masked_fill_(hidden, float("-inf"))
            out[b, h] = torch.softmax(scores, dim=-1) @ v[b, h].double()
    return out


def sdpa(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)


def flash(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, scale: float | None = None
) -> torch.Tensor:
    """:func:`sdpa` by FlashAttention, the peer whose error is the measure; PyTorch's choice where that does not apply
    (on a CPU; strides that it does not take)."""
    if q.is_cuda:
        with contextlib.suppress(RuntimeError), warnings.catch_warnings(), backend("sdpa-flash"):
            warnings.simplefilter("ignore")
            return sdpa(q, k, v, causal=causal, scale=scale)
    return sdpa(q, k, v, causal=causal, scale=scale)


def backend(name: str) -> contextlib.AbstractContextManager[object]:
    """A context in which :func:`sdpa` uses the backend called ``name`` in :data:`BACKENDS`."""
    chosen = BACKENDS[name]
    return contextlib.nullcontext() if chosen is None else sdpa_kernel(chosen)


def names(device: str) -> list[str]:
    """The backends worth asking for; on a CPU only PyTorch's own choice is of interest."""
    return ["sdpa"] if device == "cpu" else list(BACKENDS)


def available_backends(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wanted: Sequence[str]) -> list[str]:
    """Which of the backends ``wanted`` take these inputs here."""
    found = []
    for name in wanted:
        with contextlib.suppress(RuntimeError), warnings.catch_warnings(), backend(name):
            warnings.simplefilter("ignore")  # PyTorch warns about each reason why a backend does not apply
            sdpa(q, k, v)
            if q.is_cuda:
                torch.cuda.synchronize()
            found.append(name)
    return found
