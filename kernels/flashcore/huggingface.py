"""The operator as an attention of Hugging Face's transformers, which is asked for and never needed otherwise.

    from flashcore import huggingface

    huggingface.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="flagship", dtype=torch.float16).cuda()

Or, of a model that is there: ``model.set_attn_implementation("flagship")``. For inference. Padding stays one byte per
key, which the kernel reads; a causal mask stays a flag. Masks of other kinds (windows, packed sequences, static caches)
are those that transformers makes for ``sdpa``. What the kernel does not take is PyTorch's (:mod:`flashcore.attention`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flashcore.attention import attention, with_lower_right
from flashcore.errors import Unavailable, Unsupported

#: Without "flash", which transformers takes for one of FlashAttention's packages.
NAME = "flagship"
#: Arguments of an attention that change its scores; transformers' own function for ``sdpa`` takes them or refuses them.
SCORES = ("position_bias", "softcap")


def register() -> None:
    """From now on transformers knows ``attn_implementation="flagship"``.

    Raises:
        Unavailable: there is no transformers here, or one without interfaces for attentions and their masks.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as e:
        raise Unavailable("transformers is missing or too old", cause=str(e), hint="pip install -U transformers") from e
    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, mask)


def forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function that transformers calls, like its ``sdpa``. Returns the output [B, S, H, D], and None
    for the weights. ``attention_mask`` is the result of :func:`mask`, or the caller's own mask.

    Raises:
        Unsupported: the model has attention sinks.
    """
    if others.get("s_aux") is not None:
        raise Unsupported(f"{NAME} has no attention sinks", hint='use attn_implementation="eager"')
    several, lower_right = query.shape[2] > 1, False
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if attention_mask is not None and attention_mask.dim() == 2:
        attention_mask, lower_right = attention_mask[:, None, None], several
    if any(others.get(name) is not None for name in SCORES):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        whole = with_lower_right(attention_mask, query, key) if lower_right else attention_mask
        out, _ = sdpa_attention_forward(module, query, key, value, whole, dropout, scaling, is_causal, **others)
        return out, None
    upper_left = several and causal and attention_mask is None
    if upper_left:  # a static cache that was empty has more keys than there are queries: they are not there yet
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    gqa = key.shape[1] != query.shape[1]
    out = attention(query, key, value, attention_mask, dropout, upper_left, scaling, gqa, lower_right)
    return out.transpose(1, 2).contiguous(), None


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: torch.Tensor | None = None,
    **others: Any,
) -> torch.Tensor | None:
    """The mask of a forward pass: None if there is none, or for a causal one alone; [B, S_kv] for padding and a causal
    one whose last query sees all keys; else what ``sdpa`` has, [B, 1, S_q, S_kv]."""
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    function = mask_function or causal_mask_function
    plain = function is causal_mask_function and others.get("local_size") is None
    # A static cache has a tensor here: its keys go on behind the last query.
    if not plain or isinstance(q_offset, torch.Tensor) or q_offset + q_length != kv_offset + kv_length:
        found: torch.Tensor | None = sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask, **others
        )
        return found
    padding = None if attention_mask is None else attention_mask[:, kv_offset:]
    if q_length in (1, kv_length) and (padding is None or _all(padding)):
        return None
    if padding is None:
        padding = torch.ones(1, kv_length, dtype=torch.bool, device=others.get("device"))
        return padding.expand(batch_size, kv_length)
    return padding


def _all(padding: torch.Tensor) -> bool:
    """Whether no key is padding; not asked where the answer would be kept for other inputs. transformers asks the same
    for ``sdpa``, once a forward pass."""
    kept = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not kept and bool(padding.all())
