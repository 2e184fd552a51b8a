"""The compilers of this machine: where they are, their version, and which GPU code to ask them for."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from flashcore.errors import Unavailable

#: The card these kernels are tuned for (L4); compiled always, so that its resources can be checked on any machine.
TARGET_ARCH = "89"


@dataclass(frozen=True)
class Gpu:
    """What the choice of a tiling depends on."""

    name: str
    sms: int  # streaming multiprocessors


TARGET_GPU = Gpu("NVIDIA L4", 58)
_MULTIPROCESSOR_COUNT = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT


def _version_line(program: str) -> str:
    text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    lines = [line for line in text.splitlines() if line.strip()]
    return next((line for line in lines if "release" in line), lines[0] if lines else "unknown")


def _nvcc_candidates() -> list[str]:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    homes += sorted(map(str, Path("/usr/local").glob("cuda-*")), reverse=True)
    return [os.path.join(home, "bin", "nvcc") for home in homes if home]


@functools.cache
def nvcc() -> str:
    """Path of nvcc, on PATH or in the usual places.

    Raises:
        Unavailable: there is none.
    """
    found = shutil.which("nvcc") or next((c for c in _nvcc_candidates() if os.access(c, os.X_OK)), None)
    if not found:
        raise Unavailable(
            "nvcc not found",
            cause="it is not on PATH, in CUDA_HOME or in /usr/local/cuda*",
            hint="install the CUDA toolkit, or: export CUDA_HOME=/path/to/cuda PATH=$CUDA_HOME/bin:$PATH",
        )
    return found


@functools.cache
def cxx() -> str:
    """Path of a C++ compiler: $CXX, c++, g++ or clang++.

    Raises:
        Unavailable: there is none.
    """
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise Unavailable("no C++ compiler found", hint="sudo apt-get install g++   (macOS: xcode-select --install)")


@functools.cache
def version(program: str) -> str:
    return _version_line(program)


@functools.cache
def gpu_arch() -> str | None:
    """The first GPU's compute capability as nvcc writes it (``90``), None without a GPU."""
    smi = shutil.which("nvidia-smi")
    if not smi:
        return None
    query = [smi, "--query-gpu=compute_cap", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    match = re.match(r"\s*(\d+)\.(\d+)", answer.stdout) if answer.returncode == 0 else None
    return match.group(1) + match.group(2) if match else None


@functools.cache
def gpu() -> Gpu | None:
    """The first visible GPU, asked of the driver itself, since a build needs no torch; None without one."""
    import ctypes

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, sms, name = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
    failed = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), 0)
        or cuda.cuDeviceGetName(name, len(name), device)
        or cuda.cuDeviceGetAttribute(ctypes.byref(sms), _MULTIPROCESSOR_COUNT, device)
    )
    return None if failed else Gpu(name.value.decode(errors="replace"), sms.value)


def meet() -> None:
    """Start CUDA on the first visible GPU, where PyTorch finds it started then: 0.6 of the 3.5 s that it needs on an
    H200. Nothing comes of it without one."""
    import ctypes

    with contextlib.suppress(OSError):
        cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        _ = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)


def archs(asked: str | None = None) -> list[str]:
    """GPU architectures to compile for: those ``asked`` for (``80,89``), else sm_89 and the GPU's own."""
    chosen = asked.replace("sm_", "").split(",") if asked else [TARGET_ARCH, gpu_arch() or TARGET_ARCH]
    return sorted({a.strip() for a in chosen if a.strip()})


def processors() -> int:
    """How many compilers can work at once: the processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def processor() -> str:
    """What ``-march=native`` depends on: a library built for one processor must not be loaded on another."""
    import platform

    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in text.splitlines() if line.startswith(wanted)}))


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """A compiler's run; what it said on either stream is its stdout."""
    plain = {**os.environ, "LC_ALL": "C"}  # messages in English and ASCII, whatever the machine's language
    return subprocess.run(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=plain,
        check=False,
    )
