"""A kernel's launches under compute-sanitizer: memory accesses out of bounds, hazards in shared memory.

The launches are small and odd, since each instruction is watched: single rows, lengths beside the tiles' multiples,
queries and keys of different length, with and without a causal mask, both layouts. Each tensor is an allocation of its
own (PyTorch's cache of memory is off), so that one element too far is seen.

Racecheck's *warnings* fail, as its errors do: it warns of hazards within a warp, which are races since threads of a
warp run apart (Volta and later), even where today's instruction order hides them. ``__syncwarp()`` is the cure.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashcore import documents
from flashcore.shapes import Shape

TOOLS = ("memcheck", "racecheck")
SHAPES = (
    Shape(1, 2, 1, 64),
    Shape(1, 1, 17, 64),
    Shape(2, 1, 63, 64),
    Shape(1, 2, 65, 64),
    Shape(1, 1, 130, 64, S_kv=77),
    Shape(1, 1, 33, 64, S_kv=257),
)
TIMEOUT_S, TIMED_OUT = 240, -1
#: Several at once get in each other's way at times, and one ends without a word: it is tried again.
ATTEMPTS = 3
_ERROR_CODE = 42
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
_WARNINGS = re.compile(r"RACECHECK SUMMARY: .*?(\d+) warning")


def launches(kernel: Any) -> int:
    """Launch ``kernel`` (a launch.Kernel or tuned.Tuned), every configuration of it, on all of :data:`SHAPES`, and
    every tiling of a library that chooses (:mod:`flashcore.forced`), for a sanitizer to watch; returns how often."""
    import torch

    from flashcore import forced, inputs

    count = 0
    for number, shape in enumerate(SHAPES):
        q, k, v = inputs.draw(shape, number, kernel.variant.device)
        for causal in (False, True)[: 1 + kernel.variant.causal]:
            turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
            for one in kernel.kernels():
                one(q, k, v, causal=causal)
                one(*turned, causal=causal)
                count += 2
    count += sum(forced.launches(one) for one in kernel.kernels())
    if kernel.variant.device == "cuda":
        torch.cuda.synchronize()
    return count


def run(arguments: Sequence[str], log: Path) -> list[dict[str, Any]]:
    """Watch ``python -m flashcore check ARGUMENTS --launches`` with each tool; what they printed goes to ``log``.

    Returns for each tool {tool, status: passed | failed | unavailable, errors, message, seconds}.
    """
    program = _program()
    if program is None:
        missing = "compute-sanitizer is not on PATH and not in CUDA_HOME/bin; it is a part of the CUDA toolkit"
        return [{"tool": tool, **_part("unavailable", message=missing)} for tool in TOOLS]
    found, printed = [], []
    for tool in TOOLS:
        command = [
            program, "--tool", tool, "--error-exitcode", str(_ERROR_CODE), "--kernel-name", "kns=flashcore_",
            "--print-limit", "10", sys.executable, "-m", "flashcore", "check", *arguments, "--launches",
        ]  # fmt: skip
        for attempt in range(ATTEMPTS):
            started = time.perf_counter()
            code, output = _watched(command)
            seconds = round(time.perf_counter() - started, 1)
            part = {"tool": tool, **verdict(code, output), "seconds": seconds}
            printed.append(f"$ {' '.join(command)}\n{output}[exit code {code}]\n")
            if part["status"] != "unavailable" or code == TIMED_OUT or attempt + 1 == ATTEMPTS:
                found.append(part)
                break
    documents.write_text(log, "\n".join(printed))
    return found


def _watched(command: list[str]) -> tuple[int, str]:
    """Exit code and output; :data:`TIMED_OUT` after :data:`TIMEOUT_S`, when the tool and what it watches are killed."""
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            code = process.wait(timeout=TIMEOUT_S)
            said = ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code, said = TIMED_OUT, f"\nstopped after {TIMEOUT_S} s"
        output.seek(0)
        return code, output.read() + said


def verdict(code: int, output: str) -> dict[str, Any]:
    """What a tool's exit code and output mean. Without its summary nothing was looked at, and nothing is claimed."""
    summaries = [int(a or b) for a, b in _SUMMARY.findall(output)]
    last = next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "no output")
    if not summaries:
        return _part("unavailable", message=f"compute-sanitizer gave no result: {last[:300]}")
    errors = sum(summaries)
    if errors:
        warned = sum(int(n) for n in _WARNINGS.findall(output))
        first = next((s for s in output.splitlines() if re.match(r"=+ (Invalid|Error|Warning|Race|Program)", s)), last)
        counted = f"{warned} of {errors} are warnings, which also fail: " if warned else ""
        return _part("failed", errors, (counted + first.lstrip("= "))[:300])
    if code != 0:
        return _part("failed", errors, f"the launches failed with exit code {code}: {last[:300]}")
    return _part("passed", 0)


def _part(status: str, errors: int | None = None, message: str | None = None) -> dict[str, Any]:
    return {"status": status, "errors": errors, "message": message}


def _program() -> str | None:
    beside = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin" / "compute-sanitizer"
    return shutil.which("compute-sanitizer") or (str(beside) if os.access(beside, os.X_OK) else None)
