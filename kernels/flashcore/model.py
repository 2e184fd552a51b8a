"""``python -m flashcore.model``: whole models that nobody here wrote, with their attention swapped for the operator's.

A model is built from its library's own code with random weights (nothing is downloaded), in FP16, and run on random
tokens: once with PyTorch's ``scaled_dot_product_attention`` and once with :func:`flashcore.attention.swapped`. Written
is a ``metrics`` document: how far the outputs lie apart, and the time of a forward pass either way, eager and as a CUDA
graph, in turns (A B B A), with the paired ratio and its interval.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from flashcore import documents, stats
from flashcore.attention import swapped
from flashcore.errors import FlashcoreError, Unavailable

Forward = Callable[[], torch.Tensor]
REPLICATES, BLOCKS = 10, 3
ORDER = (0, 1, 1, 0)
#: The largest difference of two FP16 results of one model, in units of the output's root mean square.
TOLERANCE = 0.02


def bert(batch: int, length: int) -> Forward:
    """The encoder of BERT base (12 layers, 12 heads of 64), as transformers has it: [batch, length] tokens."""
    import transformers

    return _of_tokens(transformers.BertModel(transformers.BertConfig(attn_implementation="sdpa")), batch, length)


def gpt2(batch: int, length: int) -> Forward:
    """GPT-2 small (12 layers, 12 heads of 64, causal), as transformers has it."""
    import transformers

    config = transformers.GPT2Config(attn_implementation="sdpa", use_cache=False)
    return _of_tokens(transformers.GPT2Model(config), batch, length)


def _of_tokens(model: Any, batch: int, length: int) -> Forward:
    model = model.half().cuda().eval()
    tokens = torch.randint(0, model.config.vocab_size, (batch, length), device="cuda")
    return lambda: model(tokens).last_hidden_state


def vit(batch: int, _length: int) -> Forward:
    """ViT-B/16 (12 layers, 12 heads of 64; 197 tokens, always), as torchvision has it."""
    import torchvision

    torch.backends.mha.set_fastpath_enabled(False)  # the fast path has an attention of its own
    model = torchvision.models.vit_b_16()
    model.heads = torch.nn.Identity()  # its untrained head is all zeros
    model = model.half().cuda().eval()
    images = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.float16)
    return lambda: model(images)


def encoder(batch: int, length: int) -> Forward:
    """torch.nn.TransformerEncoder in the size of BERT base: 12 layers, 12 heads of 64, [batch, length, 768]."""
    torch.backends.mha.set_fastpath_enabled(False)
    layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False).half().cuda().eval()
    states = torch.randn(batch, length, 768, device="cuda", dtype=torch.float16)
    return lambda: model(states)


MODELS: dict[str, Callable[[int, int], Forward]] = {"bert": bert, "gpt2": gpt2, "vit": vit, "encoder": encoder}


def measure(name: str, batch: int, length: int) -> dict[str, float]:
    """Metrics of one model: ``difference`` (largest, in root mean squares of the output) and, for each way to run it,
    microseconds with PyTorch's attention and with ours, their ratio and its 95 % interval.

    Raises:
        Unavailable: the model's library is missing.
        FlashcoreError: the outputs lie further apart than :data:`TOLERANCE`.
    """
    torch.manual_seed(0)
    try:
        forward = MODELS[name](batch, length)
    except ImportError as e:
        raise Unavailable(f"{name} needs {e.name}", hint=f"pip install {e.name}") from e
    with torch.inference_mode():
        before = forward().double()
        with swapped():
            after = forward().double()
        difference = float((before - after).abs().max() / before.square().mean().sqrt())
        if not difference <= TOLERANCE:
            raise FlashcoreError(f"{name}: outputs differ by {difference:.4f} of their root mean square")
        found = {"difference": difference}
        for way, make in (("eager", lambda: forward), ("graph", lambda: _graph(forward))):
            plain = make()
            with swapped():
                ours = make()
            found.update({f"{way}_{key}": value for key, value in _paired(ours, plain, eager=way == "eager").items()})
    return found


def _graph(forward: Forward) -> Callable[[], Any]:
    for _ in range(3):
        forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    return graph.replay


def _paired(ours: Callable[[], Any], plain: Callable[[], Any], eager: bool) -> dict[str, float]:
    """Times of both, [replicates, blocks, samples], by CUDA events; ``eager``: ours runs with the attention swapped."""
    times = np.zeros((2, REPLICATES, BLOCKS, 2))
    for replicate in range(REPLICATES):
        for block in range(BLOCKS):
            taken = [0, 0]
            for side in ORDER if (replicate + block) % 2 == 0 else ORDER[::-1]:
                with swapped() if eager and side == 0 else contextlib.nullcontext():
                    times[side, replicate, block, taken[side]] = _time((ours, plain)[side])
                taken[side] += 1
    ratio = stats.paired_ratio(times[0], times[1])
    return {
        "flashcore_us": float(np.median(times[0])),
        "pytorch_us": float(np.median(times[1])),
        **{key: ratio[key] for key in ("ratio", "ci_low", "ci_high")},
    }


def _time(run: Callable[[], Any]) -> float:
    run()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) * 1000


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flashcore.model", description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=512, help="tokens")
    parser.add_argument("--out", help="folder for the document")
    options = parser.parse_args(argv)
    unknown = [name for name in options.models if name not in MODELS]
    if unknown:
        parser.error(f"unknown model {unknown[0]!r}; known: {', '.join(MODELS)}")
    if not torch.cuda.is_available():
        raise Unavailable("whole models need a GPU, and torch finds none", cause=f"torch {torch.__version__}")
    metrics: dict[str, float] = {}
    skipped = {}
    for name in options.models:
        try:
            found = measure(name, options.batch, options.length)
        except Unavailable as e:
            skipped[name] = str(e)
            print(f"  {name:<8} unavailable: {e.message}", flush=True)
            continue
        metrics.update({f"{name}.{key}": value for key, value in found.items()})
        for way in ("eager", "graph"):
            ours, plain, ratio, low, high = (
                found[f"{way}_{key}"] for key in ("flashcore_us", "pytorch_us", "ratio", "ci_low", "ci_high")
            )
            print(f"  {name:<8} {way}  {ours:>9.1f} us, PyTorch {plain:>9.1f} us  {ratio:.3f} [{low:.3f}, {high:.3f}]")
        print(f"  {name:<8} largest difference {found['difference']:.5f} of the output's rms", flush=True)
    document = documents.document(
        "metrics", metrics=metrics, skipped=skipped, gpu=torch.cuda.get_device_name(), torch=torch.__version__,
        batch=options.batch, length=options.length,
    )  # fmt: skip
    print(documents.write_json(documents.folder(options.out) / "models.json", document))
    return 0 if metrics else Unavailable.exit_code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FlashcoreError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
