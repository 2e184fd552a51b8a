"""Windows, caps and slopes, packed sequences, pages of a cache: operators without a GPU, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from flashcore import inputs
from flashcore.attention import attention
from flashcore.errors import Unsupported
from flashcore.extras import with_pages
from flashcore.packed import attention_varlen
from flashcore.paged import attention_paged
from tests.support.tiers import sampled

sdpa = F.scaled_dot_product_attention
STARTS = torch.tensor([0, 3, 3, 7], dtype=torch.int32), torch.tensor([0, 0, 4, 9], dtype=torch.int32)
PACKED: Any = (torch.randn(7, 4, 64), torch.randn(9, 2, 64), torch.randn(9, 2, 64), *STARTS, 4, 5)
Q, K, V = torch.randn(2, 4, 7, 64), torch.randn(2, 4, 9, 64), torch.randn(2, 4, 9, 64)


def in_pages(k: torch.Tensor, v: torch.Tensor, keys: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``k`` and ``v`` [B, H, S, D] as caches in FlashAttention's layout, and the table: pages in any order, NaN behind
    the last key."""
    B, H, S, D = k.shape
    n = -(-S // keys)
    order = torch.randperm(B * n + 3)[: B * n]
    caches = []
    for x in (k, v):
        padded = torch.cat((x, x.new_full((B, H, n * keys - S, D), torch.nan)), dim=2)
        cache = x.new_full((B * n + 3, keys, H, D), torch.nan).transpose(1, 2)
        cache[order] = padded.unflatten(2, (n, keys)).transpose(1, 2).flatten(0, 1)
        caches.append(cache)
    return caches[0], caches[1], order.view(B, n).int()


def paged() -> Any:
    caches = in_pages(K, V, 16)
    return torch.randn(2, 8, 1, 64), *caches, torch.tensor([9, 4], dtype=torch.int32)


OPERATORS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "window": (torch.ops.flashcore.attention, (Q, K, V), {"window_left": 3, "softcap": 2.0}),
    "slopes": (torch.ops.flashcore.attention, (Q, K, V, None, 0.0, True, torch.rand(2, 4)), {}),
    "varlen": (torch.ops.flashcore.attention_varlen, (*PACKED, torch.rand(3, 4)), {"causal": True}),
    "paged": (torch.ops.flashcore.attention_paged, paged(), {"window_left": 3}),
}


@pytest.mark.parametrize("name", sampled(OPERATORS, keep=("varlen",)))
def test_torchs_own_checks_of_operators(name: str) -> None:
    operator, arguments, options = OPERATORS[name]
    found = torch.library.opcheck(operator.default, arguments, options)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("causal", [False, True])
def test_windows_and_slopes_are_the_masks_that_they_say(causal: bool) -> None:
    slopes = inputs.slopes(4, "cpu")
    ahead = torch.arange(7)[:, None] + 2 - torch.arange(9)  # the lower right corner
    seen = (ahead <= 3) & (-ahead <= (0 if causal else 1))
    bias = torch.where(seen, -slopes[:, None, None] * ahead.abs(), -torch.inf)
    out = attention(Q, K, V, lower_right=causal, window=(3, 1), alibi_slopes=slopes)
    assert torch.allclose(out, sdpa(Q, K, V, bias), atol=1e-6)
    upper = attention(Q, K, V, is_causal=True, window=(2, 0))
    assert torch.allclose(upper, sdpa(Q, K, V, torch.ones(7, 9).tril().triu(-2).bool()), atol=1e-6)


def test_a_cap_beside_a_mask_and_shared_heads() -> None:
    k, v = K[:, :2], V[:, :2]
    scores = 0.5 * torch.tanh(Q @ k.repeat_interleave(2, 1).mT / 8 / 0.5)
    for mask in (torch.randn(7, 9), torch.rand(2, 1, 1, 9) < 0.5):
        hidden = scores.masked_fill(~mask, -torch.inf) if mask.dtype is torch.bool else scores + mask
        right = torch.softmax(hidden, -1).nan_to_num(0) @ v.repeat_interleave(2, 1)
        assert torch.allclose(attention(Q, k, v, mask, enable_gqa=True, softcap=0.5), right, atol=1e-6)


def test_packed_sequences_are_attended_one_by_one() -> None:
    q, k, v = PACKED[:3]
    out = attention_varlen(*PACKED, causal=True, softcap=3.0)
    assert not out[:3].any()  # queries without keys
    one = (x[s][None].transpose(1, 2) for x, s in ((q, slice(3, 7)), (k, slice(4, 9)), (v, slice(4, 9))))
    right = attention(*one, enable_gqa=True, lower_right=True, softcap=3.0)
    assert torch.allclose(out[3:], right[0].transpose(0, 1), atol=1e-6)


def test_pages_hold_what_a_whole_cache_holds() -> None:
    q, k, v = torch.randn(3, 8, 2, 64), torch.randn(3, 4, 75, 64), torch.randn(3, 4, 75, 64)
    lengths = torch.tensor([75, 33, 0], dtype=torch.int32)
    for window in ((-1, -1), (9, 0)):
        out = attention_paged(q, *in_pages(k, v, 32), lengths, window=window)
        for b, n in enumerate(lengths.tolist()):
            whole = (q[b : b + 1], k[b : b + 1, :, :n], v[b : b + 1, :, :n])
            right = attention(*whole, enable_gqa=True, lower_right=True, window=window) if n else 0 * whole[0]
            assert torch.allclose(out[b : b + 1], right, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: attention(Q, K, V, window=(-2, 0)), "window"),
        (lambda: attention(Q, K, V, alibi_slopes=torch.rand(3)), "alibi_slopes is torch.float32"),
        (lambda: attention(Q, K[:, :2], V[:, :2], softcap=1.0), "enable_gqa=True"),
        (lambda: attention(Q[0, 0], K[0, 0], V[0, 0], softcap=1.0), r"tensors \[.., H, S, D\]"),
        (lambda: attention(Q, K[:, :3], V[:, :3], enable_gqa=True, softcap=1.0), "which must divide them"),
        (lambda: attention(Q, K[:, :0], V[:, :0], enable_gqa=True, softcap=1.0), "which must divide them"),
        (lambda: attention(Q, K.half(), V, softcap=1.0), "must have one type"),
        (lambda: attention(Q, K, V, torch.ones(7, 9, dtype=torch.int64), softcap=1.0), "attn_mask is torch.int64"),
        (lambda: attention(Q, K, V, softcap=float("nan")), "softcap nan"),
        (lambda: attention(Q, K, V, softcap=float("inf")), "softcap inf"),
        (lambda: attention_varlen(PACKED[0][0, 0], *PACKED[1:]), "where H_kv divides H"),
        (lambda: attention_varlen(PACKED[0], PACKED[1].half(), *PACKED[2:]), "must have one type"),
        (lambda: attention_paged(paged()[0], paged()[1].half(), *paged()[2:]), "must have one type"),
        (lambda: attention_varlen(*PACKED[:3], STARTS[0].long(), *PACKED[4:]), "cu_seqlens_q is torch.int64"),
        (lambda: attention_varlen(PACKED[0][:, :3], *PACKED[1:]), "where H_kv divides H"),
        (lambda: attention_paged(*paged()[:3], paged()[3].long(), paged()[4]), "block_table is torch.int64"),
        (lambda: attention_paged(Q[..., :32], *paged()[1:]), "where H_kv divides H"),
    ],
)
def test_what_does_not_fit_together_is_refused(call: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        call()


def test_no_dropout_and_no_gradient() -> None:
    with pytest.raises(Unsupported, match="no dropout"):
        attention(Q, K, V, dropout_p=0.5, softcap=1.0)
    q = PACKED[0].clone().requires_grad_()
    for out in (attention_varlen(q, *PACKED[1:]), attention(Q.clone().requires_grad_(), K, V, window=(1, 1))):
        with pytest.raises(Unsupported, match="no backward pass"):
            out.sum().backward()


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize("name", OPERATORS)
def test_a_forward_mode_gradient_is_refused_at_once(name: str) -> None:
    operator, (query, *others), options = OPERATORS[name]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(query, torch.ones_like(query))
        with pytest.raises(Unsupported, match="no forward-mode gradient"):
            operator(dual, *others, **options)


def test_what_a_table_holds_behind_the_last_key_is_never_read() -> None:
    """Nor keys beyond `max_seqlen_k`, or where a length is negative."""
    q, k_cache, v_cache, table, lengths = paged()
    table = torch.cat((table, torch.tensor([[-1], [10**9]], dtype=torch.int32)), dim=1)
    right = attention_paged(q, k_cache, v_cache, table[:, :1], lengths)
    assert torch.equal(attention_paged(q, k_cache, v_cache, table, lengths), right)
    shorter = attention_paged(q, k_cache, v_cache, table, lengths + 40, max_seqlen_k=4)
    assert torch.equal(shorter[1], right[1])
    assert not attention_paged(q, k_cache, v_cache, table - 10**9, torch.full_like(lengths, -3)).any()
    assert not attention_paged(q, k_cache, v_cache, table[:, :0], lengths).any()


def test_an_empty_head_dimension_gives_an_empty_output() -> None:
    assert attention(Q[..., :0], K[..., :0], V[..., :0], window=(1, 1)).shape == (2, 4, 7, 0)


def test_slopes_stay_float32_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(Q, K, V, alibi_slopes=torch.rand(4))
    assert out.dtype is torch.bfloat16


def test_keys_of_another_form_are_left_to_the_check_of_all_inputs() -> None:
    assert with_pages((), K[0], V[0]) == ()
    with pytest.raises(Unsupported, match="cannot be read as pages"):
        with_pages((), K, V.transpose(1, 2).contiguous().transpose(1, 2))
