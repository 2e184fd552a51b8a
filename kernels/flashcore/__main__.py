"""``python -m flashcore``: build, check, bench and profile a kernel variant; measure what the GPU can do.

A VARIANT is a name of ``python -m flashcore list``, or one with settings: ``stage5:NUM_PRODUCER_WARPS=2+TILE_M=64``.

Results go to stdout as a table and to the output folder as documents; errors go to stderr, with what to do.
Exit codes: 0 ok; 1 wrong results or a failed build; 2 usage; 69 this machine lacks something (torch, nvcc, ncu, a GPU).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flashcore import build, documents, profile, registry, roofline, sanitize, shapes, toolchain
from flashcore.errors import FlashcoreError, Unavailable, UsageError, nearest
from flashcore.tuned import Tuned


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    try:
        return int(options.command(options))
    except FlashcoreError as e:
        print("error: " + str(e), file=sys.stderr)
        return e.exit_code
    except BrokenPipeError:  # `... | head` has seen enough; nothing is left to be flushed at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flashcore", description="Attention kernels: build, check, bench, profile."
    )
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = verbs.add_parser("list", help="variants, their parameters and the named shapes")
    listing.add_argument("--json", action="store_true", help="as one JSON object")
    listing.set_defaults(command=_list)

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "variant",
        nargs="?",
        default="auto",
        metavar="VARIANT",
        help="a variant, as NAME or NAME:K=V+K=V; auto (default): baseline on a GPU, else cpu",
    )
    common.add_argument(
        "--set", action="append", default=[], metavar="K=V", help="a compile-time parameter; may be repeated"
    )
    common.add_argument("--debug", action="store_true", help="compile without optimisation, for a debugger")
    common.add_argument("--verbose", action="store_true", help="show the compile command and the compiler's output")
    common.add_argument("--out", metavar="DIR", help="folder for documents (default $FCCTL_OUT, else build/flashcore)")
    shaped = argparse.ArgumentParser(add_help=False)
    shaped.add_argument(
        "--shape", default=None, metavar="SHAPE", help="all, a name, or B,H,S,D; several separated by ';'"
    )

    building = verbs.add_parser(
        "build", parents=[common, shaped], help="compile, or take from the cache; report resources"
    )
    building.add_argument("--arch", metavar="LIST", help="GPU architectures, as 80,89 (default: 89 and this GPU's)")
    building.add_argument("--device", choices=["cuda", "cpu"], help="what auto builds for (default: what is here)")
    building.set_defaults(command=_build)
    checking = verbs.add_parser("check", parents=[common, shaped], help="compare with float64: 20 cases")
    checking.add_argument("--seeds", metavar="A,B,C", help="repeat a run's seeds (default: fresh ones)")
    checking.add_argument("--sanitize", action="store_true", help="run compute-sanitizer's memcheck and racecheck, too")
    checking.add_argument("--launches", action="store_true", help="only launch small odd shapes, for a sanitizer")
    checking.set_defaults(command=_check)
    timing = verbs.add_parser("bench", parents=[common, shaped], help="time against PyTorch SDPA in one process")
    timing.add_argument("--iterations", type=int, default=100, metavar="N", help="samples per side, at least 100")
    timing.add_argument("--modes", metavar="LIST", help="of hot,cold,eager (default: all)")
    timing.add_argument(
        "--against", metavar="LIST", help="rivals: sdpa, sdpa-flash, ... or variants (default: every SDPA backend)"
    )
    timing.add_argument("--peaks", metavar="FILE", help="this GPU's ceilings, as peaks wrote them (default: measure)")
    timing.add_argument("--null", type=int, metavar="N", help="instead: compare the kernel with itself N times")
    timing.set_defaults(command=_bench)
    profiling = verbs.add_parser("profile", parents=[common, shaped], help="one launch under Nsight Compute")
    profiling.add_argument(
        "--loop", action="store_true", help="only launch a few times, for a profiler started by hand"
    )
    profiling.set_defaults(command=_profile)
    tuning = verbs.add_parser("tune", help="what a search over configurations asks: fcctl tune VARIANT --on HOST")
    tuning.add_argument("variant", metavar="VARIANT", help="a variant; with --set or as NAME:K=V, some of it fixed")
    tuning.add_argument("--set", action="append", default=[], metavar="K=V", help="a parameter that does not vary")
    how = tuning.add_mutually_exclusive_group(required=True)
    how.add_argument("--space", dest="how", action="store_const", const="space", help="print legal configurations")
    how.add_argument("--build", dest="how", action="store_const", const="build", help="compile the environment's one")
    how.add_argument("--serve", dest="how", action="store_const", const="serve", help="check and time, told on stdin")
    tuning.add_argument("--mode", metavar="MODE", help="what is timed: hot (default), cold or eager")
    tuning.add_argument("--out", metavar="DIR", help="folder for documents (default $FCCTL_OUT, else build/flashcore)")
    tuning.set_defaults(command=_tune)
    measuring = verbs.add_parser("peaks", help="measure this GPU: tensor cores, exp2, copies, launches")
    measuring.add_argument(
        "--out", metavar="DIR", help="folder for documents (default $FCCTL_OUT, else build/flashcore)"
    )
    measuring.set_defaults(command=_peaks)
    return parser


# ------------------------------------------------------------------------------------------------ what options mean
def _need_torch() -> Any:
    """torch, or the fix.

    Raises:
        Unavailable: this Python has no torch or no numpy.
    """
    try:
        import numpy as np  # noqa: F401
        import torch
    except ImportError as e:
        raise Unavailable(
            f"this Python has no {e.name}",
            cause=f"{sys.executable} was asked to run a kernel",
            hint=f"{sys.executable} -m pip install torch numpy   (or run with the Python that has them; "
            "fcctl steps find it in $FCCTL_PYTHON)",
        ) from e
    return torch


def _device_here() -> str:
    return "cpu" if toolchain.gpu_arch() is None else "cuda"


def _overrides(pairs: Sequence[str]) -> dict[str, int]:
    chosen = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not value.lstrip("-").isdigit():
            raise UsageError(f"--set {pair} is not NAME=NUMBER", hint="for example --set KEYS=64")
        chosen[name.strip()] = int(value)
    return chosen


def _variant(options: argparse.Namespace, label: str) -> tuple[registry.Variant, dict[str, int]]:
    """The variant called ``label``, and the settings that the label names."""
    asked = getattr(options, "device", None)
    name, settings = registry.split(label)
    variant = registry.find(name, lambda: asked or _device_here())
    if asked and variant.device != asked:
        raise Unavailable(f"{variant.name} is a {variant.device} kernel: there is no {asked} code to compile")
    return variant, _overrides(settings)


def _tuned(options: argparse.Namespace, label: str | None = None) -> Tuned:
    """The variant of the command line, with its ``--set``; or the one called ``label``, without."""
    variant, overrides = _variant(options, label or options.variant)
    if label is None:
        overrides.update(_overrides(options.set))
    return Tuned(variant, overrides, debug=options.debug, archs=getattr(options, "arch", None))


def _built(options: argparse.Namespace, tuned: Tuned, chosen: Iterable[shapes.Shape] | None) -> list[build.Built]:
    """Build what ``chosen`` need (None: all that this machine can come to), and say so."""
    libraries = tuned.prepare(chosen)
    for built in libraries:
        how = "cached" if built.cached else f"built in {built.document['duration_s']:.1f} s"
        print(f"{built.label}: {how}, {built.library}")
        if options.verbose:
            print(built.document["command"], built.log.read_text(encoding="utf-8"), sep="\n")
    return libraries


def _kernel(
    options: argparse.Namespace, label: str | None = None, chosen: Iterable[shapes.Shape] | None = None
) -> Tuned:
    """What is to run, built for the ``chosen`` shapes (None: for all that this machine can come to)."""
    variant, _ = _variant(options, label or options.variant)
    _need_torch()
    if variant.device == "cuda" and not _need_torch().cuda.is_available():
        raise Unavailable(
            f"{variant.name} runs on a GPU and torch sees none",
            hint="run it on the GPU machine (fcctl run test --on HOST), or build it here: python -m flashcore build",
        )
    tuned = _tuned(options, label)
    _built(options, tuned, chosen)
    return tuned


# ------------------------------------------------------------------------------------------------ the verbs
def _list(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(_listed(), indent=1))
        return 0
    for variant in registry.VARIANTS.values():
        print(f"{variant.name:<12} {variant.device:<5} {variant.summary}")
        for p in variant.parameters:
            values = " ".join(f"[{v}]" if v == p.default else str(v) for v in p.values)
            print(f"{'':<12} {p.name}: {values}   {p.meaning}")
        for constraint in variant.constraints:
            print(f"{'':<12} {constraint.text}")
    print("shapes       " + "; ".join(f"{name} {shape}" for name, shape in shapes.SHAPES.items()))
    return 0


def _listed() -> dict[str, Any]:
    variants = [
        {
            "name": v.name,
            "device": v.device,
            "summary": v.summary,
            "causal": v.causal,
            "head_dims": list(v.head_dims),
            "dtypes": list(v.dtypes),
            "configurations": sum(1 for _ in v.space()),
            "parameters": [
                {"name": p.name, "values": list(p.values), "default": p.default, "meaning": p.meaning}
                for p in v.parameters
            ],
            "constraints": [c.text for c in v.constraints],
        }
        for v in registry.VARIANTS.values()
    ]
    named = {name: shape.as_dict() for name, shape in shapes.SHAPES.items()}
    return {"schema_version": 1, "variants": variants, "shapes": named}


def _build(options: argparse.Namespace) -> int:
    chosen = list(shapes.parse(options.shape or "mission").values())
    tuned = _tuned(options)
    for number, built in enumerate(_built(options, tuned, chosen), start=1):
        if built.configuration:
            used = next(c for c in map(tuned.choice, chosen) if c.configuration == built.configuration)
            print("  " + " ".join(f"{k}={v}" for k, v in built.configuration.items()) + f"   ({used.reason})")
        for k in built.document["kernels"]:
            print(
                f"  {k['name']} {k['arch']}: {k['registers']} registers, {k['stack_bytes']} B stack, "
                f"{k['spill_store_bytes']} + {k['spill_load_bytes']} B spilled, {k['smem_bytes']} B shared memory"
            )
        if "resources_unread" in built.document:
            print("warning: kernel resources are not known: " + built.document["resources_unread"], file=sys.stderr)
        print(build.save(built, documents.folder(options.out), f"-{number}" if number > 1 else ""))
    return 0


def _check(options: argparse.Namespace) -> int:
    chosen = shapes.parse(options.shape or "all")
    seeds = [int(s) for s in options.seeds.split(",")] if options.seeds else None
    kernel = _kernel(options)
    if options.launches:
        print(f"{sanitize.launches(kernel)} launches")
        return 0
    from flashcore import check

    def report(case: dict[str, Any]) -> None:
        error = "    -    " if case["max_err"] is None else f"{case['max_err']:.2e}"
        allowed = f" of {case['tolerance']['max_err']:.2e}" if case["tolerance"] else ""
        print(
            f"  {'pass' if case['passed'] else 'FAIL'}  {case['name']:<12} max err {error}{allowed}  {case['message']}",
            flush=True,
        )

    document = check.run(kernel, chosen, seeds, report)
    out = documents.folder(options.out)
    if options.sanitize:
        document["sanitizer"] = _sanitized(kernel, out)
    path = documents.write_json(out / f"correctness-{build.slug(kernel.label)}.json", document)
    summary = document["summary"]
    print(f"{summary['passed']}/{summary['total']} passed, seeds {','.join(map(str, document['seeds']))}\n{path}")
    found = [part["status"] for part in document.get("sanitizer", [])]
    return 0 if summary["failed"] == 0 and "failed" not in found else 1


def _sanitized(kernel: Tuned, out: Path) -> list[dict[str, Any]]:
    if kernel.variant.device != "cuda":
        refused = {"status": "unavailable", "errors": None, "message": "compute-sanitizer watches GPU kernels only"}
        parts = [{"tool": tool, **refused} for tool in sanitize.TOOLS]
    else:
        parts = sanitize.run([kernel.label], out / f"sanitizer-{build.slug(kernel.label)}.log")
    for part in parts:
        print(f"  {part['status']}  {part['tool']}  {part['message'] or ''}", flush=True)
    return [{"label": kernel.label, **part} for part in parts]


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
            raise UsageError(
                f"nothing is called {name!r}", hint=nearest(name, [*reference.BACKENDS, *registry.VARIANTS])
            )
    return [n for n in labels if n in reference.BACKENDS], [_kernel(options, label, chosen) for label in others]


def _modes(options: argparse.Namespace, device: str) -> tuple[str, ...]:
    from flashcore import timing

    known = timing.modes(device)
    chosen = tuple(options.modes.split(",")) if options.modes else known
    for mode in chosen:
        if mode not in known:
            raise UsageError(f"{mode!r} is no way to time on {device}", hint=nearest(mode, known))
    return chosen


def _bench(options: argparse.Namespace) -> int:
    chosen = shapes.parse(options.shape or "all")
    ceilings = roofline.load(options.peaks) if options.peaks else None
    kernel = _kernel(options, chosen=chosen.values())
    modes = _modes(options, kernel.variant.device)
    from flashcore import bench

    out = documents.folder(options.out)
    if options.null:
        return _null(kernel, chosen, modes, options.null, out)
    backends, rivals = _rivals(options, chosen.values())
    print(f"  {'us per launch':<28} {'p50':>9} {'p90':>9} {'p99':>9} {'min':>9} {'max':>9}   kernel's time / this")

    def report(row: dict[str, Any], ratio: dict[str, Any]) -> None:
        s = row["stats"]
        numbers = " ".join(f"{s[k]:>9.2f}" for k in ("p50", "p90", "p99", "min", "max"))
        versus = f"{ratio['ratio']:.3f} [{ratio['ci_low']:.3f}, {ratio['ci_high']:.3f}]" + (
            " (A/A null)" if ratio["null"] else ""
        )
        roof = f"  {row['roofline']['pct']:.0f} % of {row['roofline']['bound']}" if "roofline" in row else ""
        slow = f"  throttled in {ratio['throttled_blocks']} blocks" if ratio["throttled_blocks"] else ""
        print(f"  {row['name']:<28} {numbers}   {versus}{roof}{slow}", flush=True)

    document, export = bench.run(
        kernel, chosen, rivals=rivals, backends=backends, iterations=options.iterations, modes=modes,
        ceilings=ceilings, report=report,
    )  # fmt: skip
    path = documents.write_json(out / f"benchmark-{build.slug(kernel.label)}.json", document)
    documents.write_json(out / "bench_export.json", export)
    print(path)
    return 0


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
                f"{found['covering_1_unfloored']} contain 1 without it",
                flush=True,
            )
    metrics["fewest_both"] = min(value for name, value in metrics.items() if name.endswith(".both"))
    document = documents.document("metrics", variant=kernel.variant.name, label=kernel.label, metrics=metrics)
    print(documents.write_json(out / f"null-{build.slug(kernel.label)}.json", document))
    return 0


def _profile(options: argparse.Namespace) -> int:
    chosen = shapes.parse(options.shape or "mission")
    if len(chosen) != 1:
        raise UsageError("profile takes one shape", hint="--shape mission")
    variant, _ = _variant(options, options.variant)
    if variant.device != "cuda":
        raise Unavailable(f"{variant.name} does not run on a GPU: there is nothing for Nsight Compute to see")
    if not options.loop:
        profile.ncu()
    tuned = _kernel(options, chosen=chosen.values())
    ((name, shape),) = chosen.items()
    kernel = tuned.for_shape(shape)
    if options.loop:
        profile.loop(kernel, shape)
        return 0
    label = tuned.label
    arguments = [label, "--shape", ",".join(map(str, (shape.B, shape.H, shape.S, shape.D)))]
    about = {
        "variant": kernel.variant.name,
        "label": label,
        "configuration": kernel.built.configuration,
        "shape": {"name": name, **shape.as_dict()},
    }
    slug = f"{kernel.built.slug}-{name.replace(',', 'x')}"
    path = profile.run(slug, arguments, documents.folder(options.out), about)
    for found in json.loads(path.read_text(encoding="utf-8"))["kernels"]:
        for metric, value in found["metrics"].items():
            print(f"  {metric:<28} {'-' if value is None else f'{value:,.6g}'}")
        stalls = ", ".join(f"{s['reason']} {s['warps']:.2f}" for s in found["top_stalls"])
        print(f"  {'stalls, warps per issue':<28} {stalls}")
    print(path)
    return 0


def _tune(options: argparse.Namespace) -> int:
    variant, fixed = _variant(options, options.variant)
    fixed.update(_overrides(options.set))
    if options.how == "serve":
        _need_torch()
    from flashcore import tune

    return tune.run(variant, options.how, fixed, options.mode, lambda: documents.folder(options.out))


def _peaks(options: argparse.Namespace) -> int:
    _need_torch()
    from flashcore import peaks

    document = peaks.run()
    for name, value in document["metrics"].items():
        print(f"  {name:<28} {value:>14,.3f}")
    print(documents.write_json(documents.folder(options.out) / "peaks.json", document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
