"""Models of Hugging Face's transformers with ``attn_implementation="flagship"``: as with ``sdpa``, on a processor."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from flashcore import huggingface
from flashcore.errors import Unavailable, Unsupported

LENGTH, VOCABULARY = 9, 50
#: Older ones know no other name for it.
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def transformers() -> Any:
    found = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    huggingface.register()
    return found


def llama(transformers: Any, **options: Any) -> Any:
    """A small one with random weights, fewer heads of keys than of queries."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, **options,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def tokens(side: str) -> dict[str, torch.Tensor]:
    """Three texts, two of them shorter, with their padding on one side."""
    torch.manual_seed(1)
    place = torch.arange(LENGTH)
    lengths = torch.tensor([LENGTH, 4, 1])[:, None]
    kept = {"none": place >= 0 * lengths, "right": place < lengths, "left": place >= LENGTH - lengths}[side]
    return {"input_ids": torch.randint(1, VOCABULARY, kept.shape) * kept, "attention_mask": kept.long()}


def both(model: Any, **inputs: Any) -> list[Any]:
    """What the model gives with either attention, and with its own cache each."""
    found = []
    for name in ("sdpa", huggingface.NAME):
        model.set_attn_implementation(name)
        with torch.no_grad():
            found.append(model(**{k: v() if callable(v) else v for k, v in inputs.items()}))
    return found


def same(theirs: torch.Tensor, ours: torch.Tensor, kept: torch.Tensor) -> None:
    kept = kept.bool()
    assert torch.isfinite(ours[kept]).all()
    assert torch.allclose(theirs[kept], ours[kept], atol=1e-5)


@pytest.mark.parametrize("cache", ["none", "dynamic", "static"])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_a_prompt_and_the_next_token(transformers: Any, side: str, cache: str) -> None:
    model, given = llama(transformers), tokens(side)

    def made() -> Any:
        if cache == "static":
            return transformers.StaticCache(model.config, max_cache_len=LENGTH + 5)
        return transformers.DynamicCache(config=model.config) if cache == "dynamic" else None

    theirs, ours = both(model, **given, past_key_values=made, use_cache=cache != "none")
    same(theirs.logits, ours.logits, given["attention_mask"])
    if cache == "none":
        return
    seen = torch.cat((given["attention_mask"], torch.ones(3, 1, dtype=torch.long)), dim=1)
    token = torch.tensor([[3], [4], [5]])
    for name, before in (("sdpa", theirs), (huggingface.NAME, ours)):
        model.set_attn_implementation(name)
        with torch.no_grad():
            after = model(input_ids=token, attention_mask=seen, past_key_values=before.past_key_values)
        before.logits = after.logits
    same(theirs.logits, ours.logits, torch.ones(3, 1))


@pytest.mark.parametrize("side", ["none", "left"])
def test_several_tokens_behind_a_cache_end_in_the_lower_right_corner(transformers: Any, side: str) -> None:
    model, given = llama(transformers), tokens(side)
    logits = []
    for name in ("sdpa", huggingface.NAME):
        model.set_attn_implementation(name)
        cache = transformers.DynamicCache(config=model.config)
        with torch.no_grad():
            for part in (slice(0, 4), slice(4, LENGTH)):
                seen = given["attention_mask"][:, : part.stop] if side == "left" else None
                out = model(input_ids=given["input_ids"][:, part], attention_mask=seen, past_key_values=cache)
        logits.append(out.logits)
    same(*logits, given["attention_mask"][:, 4:])


def test_the_same_text_is_generated(transformers: Any) -> None:
    model, given = llama(transformers), tokens("left")
    texts = []
    for name in ("sdpa", huggingface.NAME):
        model.set_attn_implementation(name)
        texts.append(model.generate(**given, max_new_tokens=6, do_sample=False))
    assert torch.equal(*texts)


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_windows_stay_numbers_and_softcaps_are_the_kernels(
    transformers: Any, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Gemma 2: layers with a window and without one, scores capped; a prompt and the tokens behind it."""
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, sliding_window=3, attn_logit_softcapping=0.5, pad_token_id=0,
    )  # fmt: skip
    model = transformers.Gemma2ForCausalLM(config).eval()
    calls: list[Any] = []
    real = huggingface.attention
    monkeypatch.setattr(huggingface, "attention", lambda *a, **n: (calls.append((a[3], n)), real(*a, **n))[1])
    given, logits = tokens(side), []
    for name in ("eager", huggingface.NAME):
        model.set_attn_implementation(name)
        cache = transformers.DynamicCache(config=model.config)
        for part in (slice(0, 6), slice(6, 8), slice(8, LENGTH)):
            with torch.no_grad():
                out = model(
                    input_ids=given["input_ids"][:, part], attention_mask=given["attention_mask"][:, : part.stop],
                    past_key_values=cache,
                )  # fmt: skip
            logits.append(out.logits)
    for theirs, ours, part in zip(logits[:3], logits[3:], (slice(0, 6), slice(6, 8), slice(8, LENGTH)), strict=True):
        same(theirs, ours, given["attention_mask"][:, part])
    assert {n["window"] for _, n in calls} == {(2, 0), (-1, -1)}
    assert {n["softcap"] for _, n in calls} == {0.5}
    assert all(mask is None or mask.shape[1:3] == (1, 1) for mask, _ in calls)  # no mask of rows


def test_windows_encoders_and_masks_of_the_callers_own(transformers: Any) -> None:
    given, small = tokens("right"), {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96}
    heads = {"num_hidden_layers": 1, "num_attention_heads": 4}
    torch.manual_seed(0)
    window = transformers.MistralForCausalLM(
        transformers.MistralConfig(**small, **heads, num_key_value_heads=2, sliding_window=3)
    ).eval()
    theirs, ours = both(window, **given)
    same(theirs.logits, ours.logits, given["attention_mask"])
    encoder = transformers.BertModel(transformers.BertConfig(**small, **heads)).eval()
    theirs, ours = both(encoder, **given)
    same(theirs.last_hidden_state, ours.last_hidden_state, given["attention_mask"])
    model = llama(transformers)
    added = torch.randn(3, 1, LENGTH, LENGTH)
    theirs, ours = both(model, input_ids=given["input_ids"], attention_mask=added)
    same(theirs.logits, ours.logits, torch.ones(3, LENGTH))


def test_padding_is_one_byte_for_each_key_and_a_full_batch_has_no_mask(transformers: Any) -> None:
    del transformers
    kept = tokens("left")["attention_mask"].bool()
    whole = torch.ones_like(kept)
    assert torch.equal(huggingface.mask(3, LENGTH, LENGTH, attention_mask=kept), kept)
    assert huggingface.mask(3, LENGTH, LENGTH, attention_mask=whole) is None
    assert huggingface.mask(3, 1, LENGTH, LENGTH - 1, attention_mask=whole) is None
    assert huggingface.mask(3, 2, LENGTH, LENGTH - 2, attention_mask=whole).shape == kept.shape
    empty_cache = huggingface.mask(3, 2, LENGTH, torch.tensor(1), attention_mask=whole, device="cpu")
    assert empty_cache.shape == (3, 1, 2, LENGTH)


def test_sinks_are_refused_and_so_is_a_process_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.zeros(1, 2, 3, 64)
    with pytest.raises(Unsupported, match="no attention sinks"):
        huggingface.forward(torch.nn.Identity(), q, q, q, None, s_aux=torch.zeros(2))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(Unavailable, match="missing or too old"):
        huggingface.register()
