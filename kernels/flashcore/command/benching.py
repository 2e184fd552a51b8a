"""``bench``: time against PyTorch's SDPA, and against other variants, in one process."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flashcore import build, documents, registry, roofline, shapes
from flashcore.command.asked import kernel_of, plain_kernel
from flashcore.errors import UsageError, nearest

HEADER = f"  {'us per launch':<28} {'p50':>9} {'p90':>9} {'p99':>9} {'min':>9} {'max':>9}   kernel's time / this"


def run(options: argparse.Namespace) -> int:
    chosen = shapes.parse(options.shape or "all")
    ceilings = roofline.load(options.peaks) if options.peaks else None
    plainest = not (options.null or options.against or options.modes or options.peaks)
    without_torch = plain_kernel(options, chosen.values()) if plainest else None
    if without_torch is not None:
        from flashcore import plain

        print(HEADER)
        out = documents.folder(options.out)
        name = f"benchmark-{build.slug(without_torch.label)}.json"
        print(documents.write_json(out / name, plain.bench(without_torch, chosen, _report)))
        return 0
    kernel = kernel_of(options, chosen=chosen.values(), judged=True)
    modes = _modes(options, kernel.variant.device)
    from flashcore import bench, separate

    out = documents.folder(options.out)
    if options.null:
        return _null(kernel, chosen, modes, options.null, out)
    backends, rivals = _rivals(options, chosen.values())
    print(HEADER)
    document, export = bench.run(
        kernel, chosen, rivals=rivals, backends=backends, iterations=options.iterations, modes=modes,
        ceilings=ceilings, report=_report,
    )  # fmt: skip
    separate.end()
    path = documents.write_json(out / f"benchmark-{build.slug(kernel.label)}.json", document)
    documents.write_json(out / "bench_export.json", export)
    print(path)
    return 0


def _report(row: dict[str, Any], ratio: dict[str, Any]) -> None:
    s = row["stats"]
    numbers = " ".join(f"{s[k]:>9.2f}" for k in ("p50", "p90", "p99", "min", "max"))
    versus = f"{ratio['ratio']:.3f} [{ratio['ci_low']:.3f}, {ratio['ci_high']:.3f}]" + (
        " (A/A null)" if ratio["null"] else ""
    )
    roof = f"  {row['roofline']['pct']:.0f} % of {row['roofline']['bound']}" if "roofline" in row else ""
    slow = f"  throttled in {ratio['throttled_blocks']} blocks" if ratio["throttled_blocks"] else ""
    print(f"  {row['name']:<28} {numbers}   {versus}{roof}{slow}", flush=True)


def _null(kernel: Any, chosen: dict[str, shapes.Shape], modes: Sequence[str], repeats: int, out: Path) -> int:
    from flashcore import bench

    metrics: dict[str, float] = {}
    for name, shape in chosen.items():
        for mode in modes:
            found = bench.null(kernel, name, shape, mode, repeats)
            metrics.update({f"{name}.{mode}.{key}": value for key, value in found.items()})
            print(
                f"  {name}/{mode}: {found['both']} of {repeats} within 1 % with an interval that contains 1; "
                f"worst {found['worst']:.4f}, widest interval {found['widest']:.4f}, floor {found['floor']:.4f}, "
                f"{found['covering_1_unfloored']} contain 1 without the floor",
                flush=True,
            )
    metrics["fewest_both"] = min(value for name, value in metrics.items() if name.endswith(".both"))
    document = documents.document("metrics", variant=kernel.variant.name, label=kernel.label, metrics=metrics)
    print(documents.write_json(out / f"null-{build.slug(kernel.label)}.json", document))
    return 0


def _rivals(options: argparse.Namespace, chosen: Iterable[shapes.Shape]) -> tuple[list[str] | None, list[Any]]:
    """``--against``: PyTorch's backends (None for all of them), and other variants."""
    if not options.against:
        return None, []
    from flashcore import reference

    labels = options.against.split(",")
    others = [label for label in labels if label not in reference.BACKENDS]
    for label in others:
        name = registry.split(label)[0]
        if name not in registry.VARIANTS:
            raise UsageError(f"unknown name {name!r}", hint=nearest(name, [*reference.BACKENDS, *registry.VARIANTS]))
    kernels = [kernel_of(options, label, chosen, judged=True) for label in others]
    return [n for n in labels if n in reference.BACKENDS], kernels


def _modes(options: argparse.Namespace, device: str) -> tuple[str, ...]:
    from flashcore import timing

    known = timing.modes(device)
    chosen = tuple(options.modes.split(",")) if options.modes else known
    for mode in chosen:
        if mode not in known:
            raise UsageError(f"{mode!r} is not a timing mode on {device}", hint=nearest(mode, known))
    return chosen
