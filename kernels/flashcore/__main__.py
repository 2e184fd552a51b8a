"""``python -m flashcore``: build, check, bench and profile a kernel variant.

Results go to stdout as a table and to the output folder as documents; errors go to stderr, with what to do.
Exit codes: 0 ok; 1 wrong results or a failed build; 2 usage; 69 this machine lacks something (torch, nvcc, ncu, a GPU).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashcore import build, documents, profile, registry, shapes, toolchain
from flashcore.errors import FlashcoreError, Unavailable, UsageError, nearest


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
    listing.set_defaults(command=_list)

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "variant",
        nargs="?",
        default="auto",
        metavar="VARIANT",
        help="a variant's name; auto (default): baseline on a GPU, else cpu",
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

    building = verbs.add_parser("build", parents=[common], help="compile, or take from the cache; report resources")
    building.add_argument("--arch", metavar="LIST", help="GPU architectures, as 80,89 (default: 89 and this GPU's)")
    building.add_argument("--device", choices=["cuda", "cpu"], help="what auto builds for (default: what is here)")
    building.set_defaults(command=_build)
    checking = verbs.add_parser("check", parents=[common, shaped], help="compare with float64: 20 cases")
    checking.add_argument("--seeds", metavar="A,B,C", help="repeat a run's seeds (default: fresh ones)")
    checking.set_defaults(command=_check)
    timing = verbs.add_parser("bench", parents=[common, shaped], help="time against PyTorch SDPA in one process")
    timing.add_argument("--iterations", type=int, default=100, metavar="N", help="samples per side, at least 100")
    timing.add_argument(
        "--against", metavar="LIST", help="rivals: sdpa, sdpa-flash, ... or variants (default: every SDPA backend)"
    )
    timing.set_defaults(command=_bench)
    profiling = verbs.add_parser("profile", parents=[common, shaped], help="one launch under Nsight Compute")
    profiling.add_argument(
        "--loop", action="store_true", help="only launch a few times, for a profiler started by hand"
    )
    profiling.set_defaults(command=_profile)
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


def _variant(options: argparse.Namespace, name: str | None = None) -> registry.Variant:
    asked = getattr(options, "device", None)
    variant = registry.find(name or options.variant, lambda: asked or _device_here())
    if asked and variant.device != asked:
        raise Unavailable(f"{variant.name} is a {variant.device} kernel: there is no {asked} code to compile")
    return variant


def _built(options: argparse.Namespace, variant: registry.Variant, configured: bool = True) -> build.Built:
    """Build ``variant`` with the options' ``--set``, or with its defaults if it is not the one they are meant for."""
    overrides = _overrides(options.set) if configured else {}
    built = build.build(variant, overrides, debug=options.debug, archs=getattr(options, "arch", None))
    how = "cached" if built.cached else f"built in {built.document['duration_s']:.1f} s"
    print(f"{variant.name}: {how}, {built.library}")
    if options.verbose:
        print(built.document["command"], built.log.read_text(encoding="utf-8"), sep="\n")
    return built


def _kernel(options: argparse.Namespace, name: str | None = None) -> Any:
    variant = _variant(options, name)
    _need_torch()
    from flashcore.launch import Kernel

    return Kernel(_built(options, variant, configured=name is None))


# ------------------------------------------------------------------------------------------------ the verbs
def _list(_options: argparse.Namespace) -> int:
    for variant in registry.VARIANTS.values():
        print(f"{variant.name:<12} {variant.device:<5} {variant.summary}")
        for p in variant.parameters:
            values = " ".join(f"[{v}]" if v == p.default else str(v) for v in p.values)
            print(f"{'':<12} {p.name}: {values}   {p.meaning}")
        for constraint in variant.constraints:
            print(f"{'':<12} {constraint.text}")
    print("shapes       " + "; ".join(f"{name} {shape}" for name, shape in shapes.SHAPES.items()))
    return 0


def _build(options: argparse.Namespace) -> int:
    built = _built(options, _variant(options))
    for k in built.document["kernels"]:
        print(
            f"  {k['name']} {k['arch']}: {k['registers']} registers, {k['stack_bytes']} B stack, "
            f"{k['spill_store_bytes']} + {k['spill_load_bytes']} B spilled, {k['smem_bytes']} B shared memory"
        )
    if "resources_unread" in built.document:
        print("warning: kernel resources are not known: " + built.document["resources_unread"], file=sys.stderr)
    print(build.save(built, documents.folder(options.out)))
    return 0


def _check(options: argparse.Namespace) -> int:
    chosen = shapes.parse(options.shape or "all")
    seeds = [int(s) for s in options.seeds.split(",")] if options.seeds else None
    kernel = _kernel(options)
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
    path = documents.write_json(out / f"correctness-{kernel.variant.name}.json", document)
    summary = document["summary"]
    print(f"{summary['passed']}/{summary['total']} passed, seeds {','.join(map(str, document['seeds']))}\n{path}")
    return 0 if summary["failed"] == 0 else 1


def _bench(options: argparse.Namespace) -> int:
    chosen = shapes.parse(options.shape or "all")
    kernel = _kernel(options)
    from flashcore import bench, reference

    backends, rivals = None, []
    if options.against:
        names = options.against.split(",")
        backends = [n for n in names if n in reference.BACKENDS]
        for name in names:
            if name not in reference.BACKENDS and name not in registry.VARIANTS:
                raise UsageError(
                    f"nothing is called {name!r}", hint=nearest(name, [*reference.BACKENDS, *registry.VARIANTS])
                )
        rivals = [_kernel(options, name) for name in names if name in registry.VARIANTS]
    print(f"  {'us per launch':<28} {'p50':>9} {'p90':>9} {'p99':>9} {'min':>9} {'max':>9}   kernel's time / this")

    def report(row: dict[str, Any], ratio: dict[str, Any]) -> None:
        s = row["stats"]
        numbers = " ".join(f"{s[k]:>9.2f}" for k in ("p50", "p90", "p99", "min", "max"))
        versus = f"{ratio['ratio']:.3f} [{ratio['ci_low']:.3f}, {ratio['ci_high']:.3f}]" + (
            " (A/A null)" if ratio["null"] else ""
        )
        slow = f"  throttled in {ratio['throttled_blocks']} blocks" if ratio["throttled_blocks"] else ""
        print(f"  {row['name']:<28} {numbers}   {versus}{slow}", flush=True)

    document, export = bench.run(
        kernel, chosen, rivals=rivals, backends=backends, iterations=options.iterations, report=report
    )
    out = documents.folder(options.out)
    path = documents.write_json(out / f"benchmark-{kernel.variant.name}.json", document)
    documents.write_json(out / "bench_export.json", export)
    print(path)
    return 0


def _profile(options: argparse.Namespace) -> int:
    chosen = shapes.parse(options.shape or "mission")
    if len(chosen) != 1:
        raise UsageError("profile takes one shape", hint="--shape mission")
    kernel = _kernel(options)
    if kernel.variant.device != "cuda":
        raise Unavailable(f"{kernel.variant.name} does not run on a GPU: there is nothing for Nsight Compute to see")
    ((name, shape),) = chosen.items()
    if options.loop:
        profile.loop(kernel, shape)
        return 0
    arguments = [kernel.variant.name, "--shape", ",".join(map(str, (shape.B, shape.H, shape.S, shape.D)))]
    arguments += [part for pair in options.set for part in ("--set", pair)]
    label = f"{kernel.variant.name}-{name.replace(',', 'x')}"
    print(profile.run(label, arguments, Path(documents.folder(options.out))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
