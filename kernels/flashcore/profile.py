"""One launch of a kernel under Nsight Compute: the report is kept, its metrics become a ``profile`` document."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flashcore import documents, readers
from flashcore.errors import FlashcoreError, Unavailable

WARM_UP = 10  # launches before the profiled one
#: All of this project's kernels are named so.
KERNEL_NAMES = "regex:flashcore_"


def loop(kernel: object, shape: object, launches: int = WARM_UP + 2) -> None:
    """Launch ``kernel`` (a launch.Kernel) on ``shape`` a few times, for a profiler to look at."""
    import torch

    from flashcore import inputs

    tensors = inputs.draw(shape, 1, kernel.variant.device)  # type: ignore[attr-defined, arg-type]
    for _ in range(launches):
        kernel(*tensors)  # type: ignore[operator]
    torch.cuda.synchronize()


def run(label: str, arguments: Sequence[str], out: Path) -> Path:
    """Profile ``python -m flashcore profile ARGUMENTS --loop``; returns the document's path in ``out``.

    The report goes to ``$FCCTL_ARTIFACTS``, else to ``out``.

    Raises:
        Unavailable: no ncu, or the driver keeps its counters from this user.
        FlashcoreError: ncu failed.
    """
    report = Path(os.environ.get("FCCTL_ARTIFACTS") or out) / f"{label}.ncu-rep"
    command = [
        _ncu(), "-f", "-o", str(report), "--target-processes", "all", "-k", KERNEL_NAMES,
        "--launch-skip", str(WARM_UP), "--launch-count", "1", "--clock-control", "none", "--set", "full",
        sys.executable, "-m", "flashcore", "profile", *arguments, "--loop",
    ]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if "ERR_NVGPUCTRPERM" in done.stdout:
        raise Unavailable(
            "Nsight Compute may not read this GPU's counters",
            cause="ERR_NVGPUCTRPERM: the driver allows them to administrators only",
            hint="run as root, or: echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' | "
            "sudo tee /etc/modprobe.d/nvidia-profiling.conf && sudo reboot",
        )
    if done.returncode != 0 or not report.exists():
        raise FlashcoreError("ncu failed", cause=done.stdout.strip()[-800:], hint="command: " + " ".join(command))
    try:
        document = readers.read("ncu", report)
    except readers.Unreadable as e:
        kind = Unavailable if e.unavailable else FlashcoreError
        raise kind(f"{report} was written but not read", cause=str(e)) from e
    return documents.write_json(out / f"profile-{label}.json", document)


def _ncu() -> str:
    beside = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin" / "ncu"
    found = shutil.which("ncu") or (str(beside) if os.access(beside, os.X_OK) else None)
    if not found:
        raise Unavailable(
            "ncu (Nsight Compute) not found",
            cause="it is neither on PATH nor in CUDA_HOME/bin",
            hint="install the CUDA toolkit's nsight-compute package, or put its folder on PATH",
        )
    return found
