"""The operator as an attention of Hugging Face's transformers, which is asked for and never needed otherwise.

    from flashcore import huggingface

    huggingface.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="flagship", dtype=torch.float16).cuda()

Or, of a model that is there: ``model.set_attn_implementation("flagship")``. For inference. Padding stays one byte per
key, which the kernel reads; a causal mask and a sliding window stay numbers, and so does a softcap. Masks of other
kinds (packed sequences, static caches) are those that transformers makes for ``sdpa``. What no kernel takes is
PyTorch's or computed by its definition (:mod:`flashcore.attention`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from flashcore.attention import attention
from flashcore.errors import Unavailable, Unsupported
from flashcore.extras import ANY, with_lower_right

#: Without "flash", which transformers takes for one of FlashAttention's packages.
NAME = "flagship"
#: An argument that changes scores; transformers' own function for ``sdpa`` takes it or refuses it.
BIAS = "position_bias"
#: What a mask of padding knows of the window, for models that do not tell their attention.
WIDTH = "flagship_window"


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
    window = _window(attention_mask, others.get("sliding_window")) if causal else ANY
    if attention_mask is not None and attention_mask.dim() == 2:
        attention_mask, lower_right = attention_mask[:, None, None], several
    if others.get(BIAS) is not None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        whole = with_lower_right(attention_mask, query, key) if lower_right else attention_mask
        out, _ = sdpa_attention_forward(module, query, key, value, whole, dropout, scaling, is_causal, **others)
        return out, None
    upper_left = several and causal and attention_mask is None
    if upper_left:  # a static cache that was empty has more keys than there are queries: they are not there yet
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    gqa = key.shape[1] != query.shape[1]
    out = attention(
        query, key, value, attention_mask, dropout, upper_left, scaling, gqa, lower_right, window=window,
        softcap=others.get("softcap") or 0.0,
    )  # fmt: skip
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
    one that ends with the last key, in a window or not; else what ``sdpa`` has, [B, 1, S_q, S_kv]."""
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    function = mask_function or causal_mask_function
    width = others.get("local_size")
    plain = function is causal_mask_function if width is None else _is_window(function)
    # A static cache has a tensor here: its keys go on behind the last query.
    if not plain or isinstance(q_offset, torch.Tensor) or q_offset + q_length != kv_offset + kv_length:
        found: torch.Tensor | None = sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, function, attention_mask, **others
        )
        return found
    padding = None if attention_mask is None else attention_mask[:, kv_offset:]
    narrow = width is not None and width < kv_length
    if not narrow and q_length in (1, kv_length) and (padding is None or _all(padding)):
        return None
    if padding is None:
        padding = torch.ones(1, kv_length, dtype=torch.bool, device=others.get("device"))
        padding = padding.expand(batch_size, kv_length)
    if narrow and not torch.compiler.is_compiling():
        setattr(padding, WIDTH, width)
    return padding


def _window(mask: torch.Tensor | None, width: int | None) -> tuple[int, int]:
    """Of so many keys up to the query's own. A mask of rows has it already."""
    width = width or getattr(mask, WIDTH, None)
    return (width - 1, 0) if width and (mask is None or mask.dim() == 2) else ANY


def _is_window(function: Callable[..., Any]) -> bool:
    """Whether it is transformers' causal mask in a sliding window, and nothing else: the function that joins two."""
    from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

    like = sliding_window_causal_mask_function(1)
    if getattr(function, "__code__", None) is not like.__code__:
        return False
    own, model = (one.__closure__[0].cell_contents for one in (function, like))
    return causal_mask_function in own and [f.__code__ for f in own] == [f.__code__ for f in model]


def _all(padding: torch.Tensor) -> bool:
    """Whether no key is padding; not asked where the answer would be kept for other inputs. transformers asks the same
    for ``sdpa``, once a forward pass."""
    kept = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not kept and bool(padding.all())
