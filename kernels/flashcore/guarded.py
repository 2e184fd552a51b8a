"""One launch into an output between guard zones, compared with float64."""

from __future__ import annotations

from typing import Any

import torch

from flashcore import inputs, roundings, trials
from flashcore.cases import Trial
from flashcore.errors import FlashcoreError
from flashcore.extras import asked
from flashcore.launch import Kernel
from flashcore.reference import expected_of, one_thread
from flashcore.roundings import Expected
from flashcore.shapes import Shape


class Guarded(trials.Guarded):
    """An output on ``device``."""

    def __init__(self, shape: Shape, device: str, heads_last: bool = False, dtype: torch.dtype = torch.float16) -> None:
        super().__init__(torch.empty(self.size(shape), dtype=torch.int16, device=device), shape, dtype, heads_last)


def judge(
    kernel: Kernel,
    label: str,
    shape: Shape,
    tensors: inputs.Tensors,
    target: Guarded,
    known: Expected | None = None,
    **options: Any,
) -> Trial:
    """Launch once and compare with float64, or with what is ``known`` of it. ``options`` are causal, scale, mask and
    scores."""
    label = ", ".join([label, *(f"{k} {v:g}" if k == "scale" else k for k, v in options.items())])
    before = [t.clone() for t in tensors]
    try:
        asked(kernel, options)(*tensors, out=target.out)
        synchronize(kernel)
        out = target.out.clone()
        untouched = all(map(torch.equal, tensors, before))
        with one_thread(shape.S * shape.keys):
            wanted = known or expected_of(kernel.variant, tensors, kernel.built.configuration, **options)
            verdict = roundings.judge(out.double(), wanted)
    except (FlashcoreError, RuntimeError) as e:  # torch reports a failed kernel as a RuntimeError at the next sync
        return Trial(label, shape, fault=str(e).strip().splitlines()[0])
    fault = None if target.intact() else "wrote outside its output"
    return Trial.of(label, shape, verdict, fault or (None if untouched else "changed its inputs"))


def synchronize(kernel: Kernel) -> None:
    if kernel.variant.device == "cuda":
        torch.cuda.synchronize()
