"""Check and time a CPU kernel where this Python has no torch: the cases of :mod:`flashcore.check`, in NumPy.

NumPy's own attention in float32 takes the place of PyTorch's: as the peer whose error is the measure, and as what is
timed beside the kernel. Both are timed on one thread: NumPy's threads spin while they wait for each other.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flashcore import cases, documents, roundings, stats, trials
from flashcore.build import Built
from flashcore.cases import Trial
from flashcore.errors import AuditFailed, FlashcoreError, LaunchFailed
from flashcore.library import Args, Strides, load
from flashcore.shapes import Shape
from flashcore.trials import Guarded

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
Report = Callable[..., None]
#: Of a comparison: replicates, blocks A B B A or B A A B in each, and samples in a row. Together 112 a side.
REPLICATES, BLOCKS, RUN = 14, 2, 2
#: NumPy is not timed on more scores.
MAX_SCORES = 2**21


class Kernel:
    """A built CPU kernel. ``kernel(q, k, v, out)``: FP16, [B, H, S, D], the last dimension contiguous.

    ``threads``: 0 for one per processor.
    """

    threads = 0

    def __init__(self, built: Built) -> None:
        self.built, self.variant, self.label = built, built.variant, built.label
        self._library = load(built, ctypes.CDLL)
        self._library.flashcore_forward.argtypes = [ctypes.POINTER(Args)]

    def __call__(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray, causal: bool = False, scale: float = 0.0
    ) -> None:
        """Raises LaunchFailed: the library returned an error code."""
        B, H, S_q, D = q.shape
        args = Args(B=B, H=H, S_q=S_q, S_kv=k.shape[2], D=D, H_kv=H, causal=int(causal), scale=scale or D**-0.5)
        args.threads = self.threads
        for name, array in (("q", q), ("k", k), ("v", v), ("o", out)):
            setattr(args, name, array.ctypes.data)
            setattr(args, name + "_stride", Strides(*(size // array.itemsize for size in array.strides[:3])))
        code = self._library.flashcore_forward(args)
        if code:
            name = self._library.flashcore_error(code).decode()
            raise LaunchFailed(f"{self.label} failed to launch: {name} ({code})")


def draw(shape: Shape, seed: int, values: str = "plain") -> Arrays:
    """Q, K, V of ``shape`` in FP16, from ``seed``; other ones than PyTorch draws from it."""
    normal = np.random.default_rng(seed).standard_normal
    sizes = [(shape.B, shape.H, n, shape.D) for n in (shape.S, shape.keys, shape.keys)]
    q, k, v = (array.astype(np.float16) for array in cases.shaped(values, *map(normal, sizes), normal))
    return q, k, v


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, dtype: Any, causal: bool = False, scale: float = 0.0
) -> np.ndarray:
    """Attention by the definition, computed in ``dtype``, one batch and head at a time to bound memory."""
    out = np.empty(q.shape, dtype)
    for at, head in _heads(q, k, v, dtype, causal, scale):
        out[at] = head.out
    return out


def _heads(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, dtype: Any, causal: bool, scale: float
) -> Iterator[tuple[tuple[int, ...], roundings.Head]]:
    factor = scale or q.shape[-1] ** -0.5
    for at in np.ndindex(q.shape[:2]):
        one, keys, values = (x[at].astype(dtype) for x in (q, k, v))
        scores = one @ keys.T
        scores *= factor
        if causal:
            scores[np.triu(np.ones(scores.shape, bool), 1)] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        out = (scores @ values) / scores.sum(axis=1, keepdims=True)
        yield at, roundings.Head(one, keys, values, scores, out, factor)


def expected(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool = False, scale: float = 0.0
) -> roundings.Expected:
    """The right output of :func:`attention` in float64, the error allowed, and NumPy's own error in FP32."""
    heads = _heads(q, k, v, np.float64, causal, scale)
    right, spread = roundings.of_heads(heads, np.empty, q.shape, roundings.FP16)
    theirs = attention(q, k, v, np.float32, causal, scale).astype(np.float16).astype(np.float64)
    return roundings.Expected(right, spread, roundings.drift(k.shape[2]), roundings.measure(theirs, right).max_err)


# ------------------------------------------------------------------------------------------------ check
def check(
    kernel: Kernel,
    shapes: Mapping[str, Shape],
    seeds: Sequence[int] | None = None,
    report: Report | None = None,
    chosen: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Run the ``chosen`` cases (None: all); returns the ``correctness`` document. Calls ``report`` after each case."""
    seeds = list(seeds) if seeds else cases.fresh_seeds(cases.SEEDS)
    done: list[dict[str, Any]] = []
    for name, seed, launches in cases.only(chosen, _cases(kernel, shapes, seeds)):
        done.append(cases.case(name, seed, launches))
        if report:
            report(done[-1])
    configuration = kernel.built.configuration
    return documents.document(
        "correctness", variant=kernel.variant.name, label=kernel.label, configuration=configuration,
        configurations=[configuration], device="cpu", peer="numpy", seeds=seeds, cases=done,
        summary=cases.summary(done),
    )  # fmt: skip


def _cases(kernel: Kernel, shapes: Mapping[str, Shape], seeds: Sequence[int]) -> cases.Cases:
    side = _Arrays(kernel)
    for (name, shape), (number, seed) in itertools.product(shapes.items(), enumerate(seeds, start=1)):
        yield f"{name}/{number}", seed, iter([trials.plain(side, shape, seed)])
    every = (trials.edges, trials.causal, trials.values, trials.layout, trials.repeat)
    for name, launches in zip(cases.SUMMARY, every):  # noqa: B905 (Python 3.9)
        yield name, seeds[0], launches(side, seeds[0])


class _Arrays:
    """:class:`flashcore.trials.Arrays` of a kernel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.D = kernel, kernel.variant.head_dims[0]

    def draw(self, shape: Shape, seed: int, values: str = "plain") -> Arrays:
        return draw(shape, seed, values)

    def target(self, shape: Shape, heads_last: bool = False) -> Guarded:
        return Guarded(np.empty(Guarded.size(shape), np.int16), shape, np.float16, heads_last)

    def judge(
        self,
        label: str,
        shape: Shape,
        arrays: Arrays,
        target: Guarded,
        known: roundings.Expected | None = None,
        **options: Any,
    ) -> Trial:
        label = ", ".join([label, *(f"{k} {v:g}" if k == "scale" else k for k, v in options.items())])
        before = [array.copy() for array in arrays]
        try:
            self.kernel(*arrays, target.out, **options)
        except FlashcoreError as e:
            return Trial(label, shape, fault=str(e).strip().splitlines()[0])
        verdict = roundings.judge(target.out.astype(np.float64), known or expected(*before, **options))
        fault = None if target.intact() else "wrote outside its output"
        untouched = all(map(np.array_equal, arrays, before))
        return Trial.of(label, shape, verdict, fault or (None if untouched else "changed its inputs"))

    def expected(self, arrays: Arrays) -> roundings.Expected:
        return expected(*arrays)


# ------------------------------------------------------------------------------------------------ bench
def bench(kernel: Kernel, shapes: Mapping[str, Shape], report: Report | None = None) -> dict[str, Any]:
    """Time ``kernel`` on every shape against itself and against NumPy; returns the ``benchmark`` document, without a
    roofline. Calls ``report`` with each row and its comparison.

    Raises:
        AuditFailed: a timed output is wrong.
    """
    kernel.threads = 1
    rows: list[dict[str, Any]] = []
    comparisons: list[dict[str, Any]] = []
    for name, shape in shapes.items():
        floor = None
        few = shape.B * shape.H * shape.S * shape.keys <= MAX_SCORES
        for rival in ("", "numpy") if few else ("",):
            ours, theirs = _timed(kernel, shape, numpy=bool(rival))
            title = f"{name}/{rival}" if rival else name
            ratio = stats.paired_ratio(ours, theirs, floor=floor or 0.0)
            blocks = [round(float(r), 5) for r in stats.block_ratios(ours, theirs).reshape(-1)]
            comparison = {
                "benchmark": name, "against": title, "null": not rival, "mode": "wall", **ratio, "floor": floor,
                "replicates": REPLICATES, "block_ratios": blocks, "throttled_blocks": 0, "unthrottled": None,
                "clocks": [],
            }  # fmt: skip
            samples = (theirs if rival else ours).reshape(-1)
            row = {
                "name": title, "variant": rival or kernel.label, "shape": shape.as_dict(), "mode": "wall", "unit": "us",
                "launches_per_sample": 1, "launches": int(samples.size),
                "samples": [round(sample, 3) for sample in samples.tolist()], "stats": stats.summary(samples),
            }  # fmt: skip
            floor = floor or stats.floor_of(ratio)
            rows.append(row)
            comparisons.append(comparison)
            if report:
                report(row, comparison)
    headline = shapes.get("mission") or next(iter(shapes.values()))
    return documents.document(
        "benchmark", method_version="numpy-1", variant=kernel.variant.name, label=kernel.label,
        configuration=kernel.built.configuration, device="cpu", threads=1, torch=None,
        environment={"device": "cpu", "numpy": np.__version__}, config=headline.as_dict(), benchmarks=rows,
        comparisons=comparisons, fastest=[], audits=[], skipped=[],
    )  # fmt: skip


def _timed(kernel: Kernel, shape: Shape, numpy: bool) -> tuple[np.ndarray, np.ndarray]:
    """Microseconds of the kernel, and of itself or NumPy's attention: [replicates, blocks, samples], each replicate on
    other inputs."""
    taken: tuple[list[float], list[float]] = ([], [])
    for replicate in range(REPLICATES):
        arrays, out = draw(shape, replicate), np.full((shape.B, shape.H, shape.S, shape.D), math.nan, np.float16)

        def ours(arrays: Arrays = arrays, out: np.ndarray = out) -> None:
            kernel(*arrays, out)

        def theirs(arrays: Arrays = arrays) -> None:
            attention(*arrays, np.float32).astype(np.float16)

        sides = (ours, theirs if numpy else ours)
        for block in range(BLOCKS):
            for side in (0, 1, 1, 0) if block % 2 == 0 else (1, 0, 0, 1):
                sides[side]()
                taken[side].extend(_sample(sides[side]) for _ in range(RUN))
        fault = roundings.judge(out.astype(np.float64), expected(*arrays)).fault
        if fault is not None:
            raise AuditFailed(f"{kernel.label} on {shape}: wrong results: {fault}")
    size = (REPLICATES, BLOCKS, 2 * RUN)
    return np.array(taken[0]).reshape(size), np.array(taken[1]).reshape(size)


def _sample(call: Callable[[], None]) -> float:
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1000
