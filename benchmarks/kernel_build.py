"""Building a kernel variant for an L4 from nothing, with nvcc, as ``python -m flashcore build VARIANT`` does.

    python benchmarks/kernel_build.py [VARIANT ...]

The limit is on processor time for each of the compilers that work at once (at most 2 here), which other programs hardly
stretch; the wall clock beside it is what a person waits for. Without nvcc there is nothing to measure.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

from benchmarks.figures import Figure, machine, report  # noqa: E402
from flashcore import registry, toolchain  # noqa: E402
from flashcore.errors import Unavailable  # noqa: E402

LIMIT_S, PROCESSORS = 5.0, 2
VARIANTS = [v.name for v in registry.VARIANTS.values() if v.device == "cuda"]


def build_s(name: str, rounds: int = 2) -> tuple[float, float]:
    """Seconds of processor time and by the clock, interpreter included; the least of ``rounds``."""
    keep = sorted(os.sched_getaffinity(0))[:PROCESSORS] if hasattr(os, "sched_getaffinity") else []
    found = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "FLASHCORE_CACHE": folder, "PYTHONPATH": str(ROOT / "kernels")}
            argv = [sys.executable, "-m", "flashcore", "build", name, "--arch", toolchain.TARGET_ARCH, "--out", folder]
            before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(
                argv,
                env=environment,
                check=True,
                stdout=subprocess.DEVNULL,
                preexec_fn=(lambda: os.sched_setaffinity(0, keep)) if keep else None,
            )
            wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
            found.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall))
    return min(cpu for cpu, _ in found), min(wall for _, wall in found)


def measure_all(names: list[str] | None = None) -> list[Figure]:
    """Each variant's build; nothing where there is no nvcc."""
    try:
        toolchain.nvcc()
    except Unavailable as e:
        print(f"kernel builds are not measured: {e.message}", file=sys.stderr)
        return []
    found = []
    for name in names or VARIANTS:
        variant = registry.VARIANTS[name]
        compilers = max(1, len(variant.units(variant.configure(), PROCESSORS)))
        cpu, wall = build_s(name)
        each = f"{cpu:.2f} s on {compilers}" if compilers > 1 else "processor time"
        found.append(Figure(f"kernel build: {name}, {each}", cpu / compilers, "s", LIMIT_S))
        found.append(Figure("  by the clock", wall, "s"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variants", nargs="*", metavar="VARIANT", choices=[*VARIANTS, []], help="default: all")
    found = measure_all(parser.parse_args().variants)
    print(machine())
    return report(found)


if __name__ == "__main__":
    sys.exit(main())
