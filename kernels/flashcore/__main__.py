"""``python -m flashcore``: build, check, bench and profile a kernel variant; measure what the GPU can do.

A VARIANT is a name of ``python -m flashcore list``, or one with settings: ``stage5:NUM_PRODUCER_WARPS=2+TILE_M=64``.

Results go to stdout as a table and to the output folder as documents; errors go to stderr, with what to do.
Exit codes: 0 ok; 1 wrong results or a failed build; 2 usage; 69 this machine lacks something (torch, nvcc, ncu, a GPU).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from flashcore.errors import FlashcoreError


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    # A candidate's process is killed at its end; PyTorch would warn each time that it did not give its memory back.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        # A verb brings what it needs: `list` no compiler, `build` no torch.
        return int(importlib.import_module(f"flashcore.command.{options.command}").run(options))
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
    listing.set_defaults(command="listing")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "variant",
        nargs="?",
        default="auto",
        metavar="VARIANT",
        help="a variant, as NAME or NAME:K=V+K=V; auto (default): baseline on a GPU, otherwise cpu",
    )
    common.add_argument(
        "--set", action="append", default=[], metavar="K=V", help="a compile-time parameter; may be repeated"
    )
    common.add_argument("--debug", action="store_true", help="compile without optimisation, for a debugger")
    common.add_argument("--verbose", action="store_true", help="show the compile command and the compiler's output")
    common.add_argument("--out", metavar="DIR", help="folder for documents (default $FCCTL_OUT, else build/flashcore)")
    shaped = argparse.ArgumentParser(add_help=False)
    shaped.add_argument(
        "--shape",
        default=None,
        metavar="SHAPE",
        help="all, a name, B,H,S,D or B,H:H_kv,S:S_kv,D, and ,wN for a window, ,left ,right or ,rows for a mask, ,nN "
        "for packed sequences; several separated by ';'",
    )

    building = verbs.add_parser(
        "build", parents=[common, shaped], help="compile, or use the cached library; report the kernel's resources"
    )
    building.add_argument("--arch", metavar="LIST", help="GPU architectures, as 80,89 (default: 89 and this GPU's)")
    building.add_argument(
        "--device",
        choices=["cuda", "cpu"],
        help="the device of the variant auto (default: the GPU, if this machine has one)",
    )
    building.set_defaults(command="building")
    checking = verbs.add_parser("check", parents=[common, shaped], help="compare with float64 in 20 cases")
    checking.add_argument(
        "--case",
        default="all",
        metavar="CASE",
        help="cases: all, mission/1, edges or a shape; several separated by ';'",
    )
    checking.add_argument(
        "--seeds", metavar="A,B,C", help="use these seeds, for example of an earlier run (default: new seeds)"
    )
    checking.add_argument("--sanitize", action="store_true", help="also run compute-sanitizer's memcheck and racecheck")
    checking.add_argument(
        "--launches", action="store_true", help="only launch small odd shapes, for a sanitizer; check nothing"
    )
    checking.set_defaults(command="checking")
    timing = verbs.add_parser("bench", parents=[common, shaped], help="measure against PyTorch SDPA in one process")
    timing.add_argument("--iterations", type=int, default=100, metavar="N", help="samples per side, at least 100")
    timing.add_argument("--modes", metavar="LIST", help="one or more of hot,cold,eager (default: all)")
    timing.add_argument(
        "--against",
        metavar="LIST",
        help="what to compare with: sdpa, sdpa-flash, ... or variants (default: all SDPA backends)",
    )
    timing.add_argument(
        "--peaks", metavar="FILE", help="this GPU's peak rates, as `peaks` wrote them (default: measure them)"
    )
    timing.add_argument(
        "--null", type=int, metavar="N", help="compare the kernel with itself N times, and nothing else"
    )
    timing.set_defaults(command="benching")
    profiling = verbs.add_parser("profile", parents=[common, shaped], help="profile one launch with Nsight Compute")
    profiling.add_argument(
        "--loop", action="store_true", help="only launch a few times, for a profiler that you start yourself"
    )
    profiling.set_defaults(command="profiling")
    tuning = verbs.add_parser("tune", help="answer the requests of a search: fcctl tune VARIANT --on HOST")
    tuning.add_argument("variant", metavar="VARIANT", help="a variant; --set or NAME:K=V fixes some of its parameters")
    tuning.add_argument("--set", action="append", default=[], metavar="K=V", help="a parameter with a fixed value")
    how = tuning.add_mutually_exclusive_group(required=True)
    how.add_argument("--space", dest="how", action="store_const", const="space", help="print the legal configurations")
    how.add_argument(
        "--build",
        dest="how",
        action="store_const",
        const="build",
        help="compile the configuration in the environment variables",
    )
    how.add_argument(
        "--serve",
        dest="how",
        action="store_const",
        const="serve",
        help="check and measure configurations; requests come on standard input",
    )
    tuning.add_argument("--mode", metavar="MODE", help="what to measure: hot (default), cold or eager")
    tuning.add_argument("--out", metavar="DIR", help="folder for documents (default $FCCTL_OUT, else build/flashcore)")
    tuning.set_defaults(command="tuning")
    measuring = verbs.add_parser("peaks", help="measure this GPU's peak rates: tensor cores, exp2, copies, launches")
    measuring.add_argument(
        "--out", metavar="DIR", help="folder for documents (default $FCCTL_OUT, else build/flashcore)"
    )
    measuring.set_defaults(command="measuring")
    return parser


if __name__ == "__main__":
    sys.exit(main())
