"""``python -m flashcore.sweep LABEL... --shape SHAPES``: time many configurations quickly, and say which is fastest.

A LABEL is a variant, meaning every configuration of it, or one configuration: ``fused:TILE_M=64+STAGES=1``. A
configuration that needs stack or spills registers, here or on the card these kernels are for, is left out; one whose
output is not near PyTorch's, too. First each is timed for itself, then the best of each variant and shape in turns with
each other: what decides is the median of those. These are times to choose by; ``bench`` is the measurement.

Writes ``sweep.json``: a ``metrics`` document with a row for each variant and shape. They are not adopted into the table
of :mod:`flashcore.tilings`: nothing here was held out, and no interval measured. ``fcctl tune`` does that.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from flashcore import build, documents, registry, shapes, toolchain
from flashcore.errors import FlashcoreError, Unavailable, UsageError
from flashcore.shapes import Shape
from flashcore.variant import Configuration, Variant

if TYPE_CHECKING:
    from flashcore.launch import Kernel

#: Compilers at once: they wait for the disk, too.
BUILDERS = 16
#: Of each variant and shape, so many of the fastest are timed again in turns, so often.
FINALISTS, TURNS = 6, 9
REPEATS = 5
#: Further from PyTorch's output than this is wrong (outputs of S >= 64 keys are themselves below 4).
MAX_ERR = 5e-3


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flashcore.sweep", description="Find the fastest configuration of each shape."
    )
    parser.add_argument("labels", nargs="+", metavar="LABEL", help="a variant, or one configuration of it")
    parser.add_argument("--shape", default="all", metavar="SHAPE", help="all, a name, or B,H,S,D; several by ';'")
    parser.add_argument("--out", metavar="DIR", help="folder for documents (default $FCCTL_OUT, else build/flashcore)")
    options = parser.parse_args(argv)
    try:
        document = run(options.labels, shapes.parse(options.shape))
        print(documents.write_json(documents.folder(options.out) / "sweep.json", document))
    except FlashcoreError as e:
        print("error: " + str(e), file=sys.stderr)
        return e.exit_code
    return 0


def run(labels: Sequence[str], chosen: dict[str, Shape]) -> dict[str, Any]:
    """Time every configuration that ``labels`` name on every shape; returns the ``metrics`` document.

    Raises:
        UsageError: a label is no variant.
        Unavailable: no GPU, or no torch.
    """
    gpu = toolchain.gpu()
    if gpu is None:
        raise Unavailable(
            "this machine has no GPU to measure on", hint="run this on a GPU machine: fcctl run sweep --on HOST"
        )
    kernels = _kernels(_configurations(labels))
    rows: list[dict[str, Any]] = []
    metrics: dict[str, float] = {"configurations": float(sum(map(len, kernels.values())))}
    for name, shape in chosen.items():
        for variant, candidates in kernels.items():
            best = _fastest(candidates, shape)
            for place, (us, kernel) in enumerate(best):
                settings = " ".join(f"{k}={v}" for k, v in kernel.built.configuration.items())
                print(f"  {name:<14} {variant:<10} {us:>9.2f} us  {settings}", flush=True)
                metrics[f"{variant}.{name}.{place}_us"] = round(us, 4)
            if best:
                params = dict(best[0][1].built.configuration)
                row = {"env": {"VARIANT": variant}, "gpu": gpu.name, "sms": gpu.sms, "case": name}
                rows.append({**row, "params": params})
    return documents.document("metrics", tune="flashcore", metrics=metrics, rows=rows, device=gpu.name)


def _configurations(labels: Sequence[str]) -> list[tuple[Variant, Configuration]]:
    wanted = []
    for label in labels:
        name, settings = registry.split(label)
        variant = registry.find(name, lambda: "cuda")
        if variant.device != "cuda" or variant.chooses:
            raise UsageError(f"{name} has no configuration for each shape")
        named = dict(pair.split("=") for pair in settings)
        wanted += [(variant, c) for c in ([variant.configure({k: int(v) for k, v in named.items()})] if named else
                                          variant.space())]  # fmt: skip
    return wanted


def _kernels(wanted: Sequence[tuple[Variant, Configuration]]) -> dict[str, list[Kernel]]:
    """Built and loaded, those that neither spill nor need stack, by variant."""
    from flashcore.launch import Kernel

    with ThreadPoolExecutor(BUILDERS) as pool:
        built = list(pool.map(lambda one: build.build(*one), wanted))
    found: dict[str, list[Kernel]] = {}
    for one in built:
        if not any(
            k["stack_bytes"] or k["spill_store_bytes"] or k["spill_load_bytes"] for k in one.document["kernels"]
        ):
            found.setdefault(one.variant.name, []).append(Kernel(one))
    return found


def _fastest(kernels: Sequence[Kernel], shape: Shape) -> list[tuple[float, Kernel]]:
    """The :data:`FINALISTS` by their times in turns, the fastest first, with microseconds per launch."""
    import torch

    from flashcore import inputs, reference, timing

    def timer(kernel: Kernel) -> timing.Timer:
        eager = timing.Eager(kernel, [tensors])
        call_us = min([eager.sample() for _ in range(8)][3:])
        graph = timing.Graph(kernel, [tensors], call_us, cold=False)
        graph.lead_in()
        return graph

    tensors = inputs.draw(shape, 1, "cuda")
    right = reference.sdpa(*tensors)
    out = torch.empty_like(tensors[0])
    timed: list[tuple[float, Kernel]] = []
    for kernel in kernels:
        out.fill_(float("nan"))
        kernel(*tensors, out=out)
        if not float((out - right).abs().max()) <= MAX_ERR:
            print(f"  {kernel.built.configuration} gives wrong results on {shape} and is not measured", flush=True)
            continue
        alone = timer(kernel)  # not kept: its graph's outputs take memory
        timed.append((statistics.median(alone.sample() for _ in range(REPEATS)), kernel))
    timed.sort(key=lambda one: one[0])
    finalists = [(kernel, timer(kernel)) for _, kernel in timed[:FINALISTS]]
    turns: list[list[float]] = [[] for _ in finalists]
    for _ in range(TURNS):
        for taken, (_, one) in zip(turns, finalists):  # noqa: B905 (Python 3.9)
            taken.append(one.sample())
    best = [(statistics.median(taken), one[0]) for taken, one in zip(turns, finalists)]  # noqa: B905 (Python 3.9)
    return sorted(best, key=lambda one: one[0])


if __name__ == "__main__":
    sys.exit(main())
