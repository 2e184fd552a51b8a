"""One launch of a kernel under Nsight Compute: the report is kept, its metrics become a ``profile`` document.

Besides what fcctl's reader makes of the report (one name for each metric on every chip), the document says which
variant and shape it was, ``top_stalls``: what warps waited for most, in warps per issued instruction, and what
:mod:`flashcore.advice` says to it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashcore import advice, documents, readers
from flashcore.errors import FlashcoreError, Unavailable
from flashcore.shapes import Shape

WARM_UP = 10  # launches before the profiled one
TOP_STALLS = 5
#: All of this project's kernels are named so.
KERNEL_NAMES = "regex:flashcore_"
#: What Nsight Compute says where it cannot work at all: a container without the driver's parts, a virtual GPU.
CANNOT = ("ERR_NVGPUCTRPERM", "LibraryNotLoaded", "Failed to initialize the profiler", "profiling is not supported")


def loop(kernel: Any, shape: Shape, launches: int = WARM_UP + 2) -> None:
    """Launch ``kernel`` (a launch.Kernel) on ``shape`` a few times, for a profiler to look at."""
    import torch

    from flashcore import inputs

    tensors = inputs.draw(shape, 1, kernel.variant.device)
    for _ in range(launches):
        kernel(*tensors)
    torch.cuda.synchronize()


def run(name: str, arguments: Sequence[str], out: Path, about: dict[str, Any], sms: int | None = None) -> Path:
    """Profile ``python -m flashcore profile ARGUMENTS --loop``; returns the path of ``out/profile-NAME.json``.

    The report is kept beside it; ``about`` (variant, shape ..) becomes part of the document.
    ``sms`` is the GPU's number of SMs.

    Raises:
        Unavailable: no ncu, or the driver keeps its counters from this user.
        FlashcoreError: ncu failed.
    """
    program = ncu()
    report = out / f"{name}.ncu-rep"
    command = [
        program, "-f", "-o", str(report), "--target-processes", "all", "-k", KERNEL_NAMES,
        "--launch-skip", str(WARM_UP), "--launch-count", "1", "--clock-control", "none", "--set", "full",
        sys.executable, "-m", "flashcore", "profile", *arguments, "--loop",
    ]  # fmt: skip
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace", check=False
    )
    said = next((line.strip() for line in done.stdout.splitlines() if any(c in line for c in CANNOT)), None)
    if said:
        raise _unavailable(said)
    if done.returncode != 0 or not report.exists():
        raise FlashcoreError("ncu failed", cause=done.stdout.strip()[-800:], hint="command: " + " ".join(command))
    # The reader looks for ncu on PATH only.
    os.environ["PATH"] = os.pathsep.join(filter(None, (os.environ.get("PATH"), str(Path(program).parent))))
    try:
        document = readers.read("ncu", report)
    except readers.Unreadable as e:
        kind = Unavailable if e.unavailable else FlashcoreError
        raise kind(f"{report} was written but cannot be read", cause=str(e)) from e
    for kernel in document["kernels"]:
        kernel["top_stalls"] = top_stalls(kernel.get("stalls") or {})
    said = {"sms": sms, "targets": advice.targets(about["variant"]), "levers": advice.LEVERS}
    content = {"schema_version": 1, **document, **about, **said}
    return documents.write_json(out / f"profile-{name}.json", content)


def top_stalls(stalls: dict[str, float]) -> list[dict[str, Any]]:
    """The largest reasons for waiting, by warps that waited for each issued instruction."""
    largest = sorted(stalls.items(), key=lambda item: -item[1])[:TOP_STALLS]
    return [{"reason": reason, "warps": round(warps, 3)} for reason, warps in largest if warps > 0]


def _unavailable(said: str) -> Unavailable:
    if "ERR_NVGPUCTRPERM" in said:
        return Unavailable(
            "Nsight Compute may not read this GPU's performance counters",
            cause="ERR_NVGPUCTRPERM: the driver allows only administrators to read them",
            hint="allow all users to read them: fcctl hosts prepare TARGET (NVreg_RestrictProfilingToAdminUsers=0 "
            "for the nvidia module)",
        )
    return Unavailable(
        "Nsight Compute cannot profile on this machine",
        cause=said[:300],
        hint="it is a container or a virtual GPU without profiling support; use another machine",
    )


def ncu() -> str:
    """Path of ncu, on PATH or in the CUDA toolkit.

    Raises:
        Unavailable: there is none.
    """
    beside = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin" / "ncu"
    found = shutil.which("ncu") or (str(beside) if os.access(beside, os.X_OK) else None)
    if not found:
        raise Unavailable(
            "ncu (Nsight Compute) not found",
            cause="it is not on PATH and not in CUDA_HOME/bin",
            hint="install the nsight-compute package of the CUDA toolkit, or add its folder to PATH",
        )
    return found
