"""Is a kernel right? 5 shapes x 3 fresh seeds, and 5 summary cases that each gather one way of being wrong.

========  =========================================================================================================
edges     lengths around and between tile sizes, one row, one key, 4095, queries and keys of different length
causal    the causal mask, square and not (a variant without it must refuse, not ignore the flag)
values    hostile values, and scales other than D ** -0.5
layout    [B,S,H,D] and sliced inputs and outputs without copies, nothing written outside the output, inputs untouched
repeat    the same bits for the same inputs, again and again; new results when the same memory holds new inputs;
          another stream; behind work that is still queued on its stream
========  =========================================================================================================

A variant with several configurations for its shapes runs each shape with the one that shape has, and the summary cases
with every one; one with several head dimensions runs those with each, unless its tilings are forced one by one. Every
output starts as NaN between guard zones, and no launch may change its inputs. The reference is float64, the tolerances
are :mod:`flashcore.roundings`'; the brief's own, far looser one is reported beside them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from flashcore import documents, forced, inputs, roundings, trials
from flashcore.cases import SEEDS, SUMMARY, Cases, Trial, case, only, summary
from flashcore.errors import FlashcoreError, Unsupported
from flashcore.guarded import Guarded, judge
from flashcore.launch import Kernel
from flashcore.reference import expected_of
from flashcore.roundings import Error, Expected, Tolerance
from flashcore.shapes import Shape
from flashcore.tuned import Tuned

#: How long the stream waits before a launch that must wait with it, in clocks (some 20 ms); 1 in the rehearsal, which
#: loads what the device has not run yet, since loading waits for the device.
WAIT_CLOCKS, REHEARSAL_CLOCKS = 40_000_000, 1


Report = Callable[[dict[str, Any]], None]
Trials = Callable[[Any, int], Iterator[Trial]]


def run(
    kernel: Kernel | Tuned,
    shapes: Mapping[str, Shape],
    seeds: Sequence[int] | None = None,
    report: Report | None = None,
    chosen: Sequence[str] | None = None,
    report_tiling: Report | None = None,
) -> dict[str, Any]:
    """Run the ``chosen`` cases (None: all); and, unless some summary case is left out, every tiling of a library that
    chooses one. Returns the ``correctness`` document. Calls ``report`` after each case, ``report_tiling`` after each
    tiling."""
    seeds = list(seeds) if seeds else inputs.fresh_seeds(SEEDS)
    cases: list[dict[str, Any]] = []
    for name, seed, launches in only(chosen, _cases(kernel, shapes, seeds)):
        cases.append(case(name, seed, launches))
        if report:
            report(cases[-1])
    alone = chosen is not None and not set(chosen) & set(SUMMARY)
    each = kernel.kernels()
    used = [kernel.for_shape(shape) for shape in shapes.values()] if alone else each
    whole = (chosen is None or set(SUMMARY) <= set(chosen)) and forced.chosen_from(each[0])
    tilings = forced.run(each[0], seeds[0], report_tiling) if whole else []
    return documents.document(
        "correctness",
        variant=kernel.variant.name,
        label=kernel.label,
        configuration=kernel.for_shape(next(iter(shapes.values()))).built.configuration,
        configurations=[one.built.configuration for one in dict.fromkeys(used)],
        device=_device_name(kernel),
        seeds=seeds,
        cases=cases,
        summary=summary(cases) | ({"tilings": forced.counted(tilings)} if tilings else {}),
        **({"tilings": tilings} if tilings else {}),
    )


def _cases(kernel: Kernel | Tuned, shapes: Mapping[str, Shape], seeds: Sequence[int]) -> Cases:
    for name, shape in shapes.items():
        for number, seed in enumerate(seeds, start=1):
            yield f"{name}/{number}", seed, iter([_plain(kernel, shape, seed)])
    each = kernel.kernels()
    for name, launches in zip(SUMMARY, (trials.edges, _causal, _values, trials.layout, _repeat)):  # noqa: B905 (Python 3.9)
        yield name, seeds[0], itertools.chain.from_iterable(_named(one, launches, seeds[0], len(each)) for one in each)


def _plain(kernel: Kernel | Tuned, shape: Shape, seed: int) -> Trial:
    return trials.plain(
        _Tensors(kernel.for_shape(shape), shape.D), shape, seed, **inputs.options(shape, kernel.variant.device)
    )


def _named(kernel: Kernel, launches: Trials, seed: int, among: int) -> Iterator[Trial]:
    """The trials of one of ``among`` configurations, which they name if there are several."""
    which = " ".join(f"{name}={value}" for name, value in kernel.built.configuration.items())
    dims = kernel.variant.head_dims[:1] if kernel.variant.tilings else kernel.variant.head_dims
    for trial in itertools.chain.from_iterable(launches(_Tensors(kernel, D), seed) for D in dims):
        yield replace(trial, label=f"{trial.label} ({which})") if among > 1 else trial


# ------------------------------------------------------------------------------------------------ PyTorch's side
class _Tensors:
    """:class:`flashcore.trials.Arrays` of a kernel, for one of its head dimensions."""

    def __init__(self, kernel: Kernel, D: int) -> None:
        self.kernel, self.D, self._device = kernel, D, kernel.variant.device

    def draw(self, shape: Shape, seed: int, values: str = "plain") -> inputs.Tensors:
        return inputs.draw(shape, seed, self._device, values)

    def target(self, shape: Shape, heads_last: bool = False) -> Guarded:
        return Guarded(shape, self._device, heads_last)

    def judge(self, label: str, shape: Shape, *arrays: Any, **options: Any) -> Trial:
        return judge(self.kernel, label, shape, *arrays, **options)

    def expected(self, arrays: inputs.Tensors) -> Expected:
        return expected_of(self.kernel.variant, arrays, self.kernel.built.configuration)


def _causal(side: _Tensors, seed: int) -> Iterator[Trial]:
    if side.kernel.variant.causal:
        return trials.causal(side, seed)
    return iter([_refused(side.kernel, Shape(1, 2, 64, side.D), seed)])


def _refused(kernel: Kernel, shape: Shape, seed: int) -> Trial:
    try:
        kernel(*inputs.draw(shape, seed, kernel.variant.device), causal=True)
    except Unsupported:
        exact = Error(0.0, 0.0, 0.0, 0, 0)
        return Trial("causal mask refused, as declared", shape, exact, Tolerance(1.0, 1.0), used=0.0)
    return Trial("causal", shape, fault="declared without a causal mask, but did not refuse one")


def _values(side: _Tensors, seed: int) -> Iterator[Trial]:
    # With operands of 8 bits, rounding alone moves scores in the hundreds by more than 1.
    return trials.values(side, seed, without=("large",) if side.kernel.variant.eight_bits else ())


def _repeat(side: _Tensors, seed: int) -> Iterator[Trial]:
    kernel = side.kernel
    right = yield from trials.repeat(side, seed)
    if not right or kernel.variant.device != "cuda" or kernel.variant.head_dims[0] != side.D:
        return
    if isinstance(kernel, Kernel):
        yield from streams(kernel, seed + 2)
    else:
        yield from (
            Trial(label, Shape(*sizes), fault=fault, used=0.0) for label, sizes, fault in kernel.streams(seed + 2)
        )


def streams(kernel: Kernel, seed: int) -> Iterator[Trial]:
    """On another stream than PyTorch's first, and behind work that is still queued; in the kernel's process."""
    shape, device = Shape(1, 8, 192, kernel.variant.head_dims[0]), kernel.variant.device
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        yield judge(kernel, "another stream", shape, inputs.draw(shape, seed, device), Guarded(shape, device))
    yield _queued(kernel, Shape(1, 8, 512, kernel.variant.head_dims[0]), seed)


def _queued(kernel: Kernel, shape: Shape, seed: int) -> Trial:
    """One launch behind work that still waits: the inputs get their values, and the output its poison, in stream order.

    Only that stream is waited for. A launch on another stream reads inputs that are NaN, is overwritten by the poison
    or is not done in time.
    """
    label = "after queued work"
    device = kernel.variant.device
    values = inputs.draw(shape, seed, device)
    try:
        for clocks in (REHEARSAL_CLOCKS, WAIT_CLOCKS):
            seen = _behind(kernel, shape, values, clocks)
        verdict = roundings.judge(seen.double(), expected_of(kernel.variant, values, kernel.built.configuration))
    except (FlashcoreError, RuntimeError) as e:
        return Trial(label, shape, fault=str(e).strip().splitlines()[0])
    if verdict.fault is not None:
        why = verdict.fault + "; the kernel must run on the caller's stream, after the work that is queued there"
        verdict = replace(verdict, fault=why)
    return Trial.of(label, shape, verdict)


def _behind(kernel: Kernel, shape: Shape, values: inputs.Tensors, clocks: int) -> torch.Tensor:
    """What is in the output when the caller's stream, kept waiting for ``clocks`` first, is done."""
    holders = [torch.full_like(t, math.nan) for t in values]
    out = Guarded(shape, kernel.variant.device).out
    seen = torch.full_like(out, math.nan)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(clocks)  # noqa: SLF001 (PyTorch's own tests wait with it)
        for holder, value in zip(holders, values):  # noqa: B905 (Python 3.9)
            holder.copy_(value, non_blocking=True)
        out.fill_(math.nan)
        kernel(*holders, out=out)
        seen.copy_(out, non_blocking=True)
        stream.synchronize()
    torch.cuda.synchronize()  # a stray launch must be over before its buffers go to others
    return seen


def _device_name(kernel: Kernel | Tuned) -> str:
    return torch.cuda.get_device_name() if kernel.variant.device == "cuda" else "cpu"
