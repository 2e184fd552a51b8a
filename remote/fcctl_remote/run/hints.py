"""Known failures and their cures: from the last lines of a log, or from a gate that failed, to a hint."""

from __future__ import annotations

import re

MISSING_PROGRAM = (
    "a program is missing on the host: install it there or give its full path; name it under needs.tools to be told "
    "before the step runs"
)


def _known(pattern: str, hint: str) -> tuple[re.Pattern[str], str]:
    return re.compile(pattern, re.MULTILINE), hint


#: First match wins, so the specific stand before the general.
KNOWN = (
    _known(
        r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters",
        "GPU counters are for administrators only on this machine; open them to everybody: fcctl hosts prepare TARGET "
        "(NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module)",
    ),
    _known(
        r"nvcc: No such file|CUDA_HOME (environment variable )?is not set|nvcc[:` '].*not found",
        "nvcc is not on PATH: set CUDA_HOME=/usr/local/cuda and PATH=$CUDA_HOME/bin:$PATH, or install the CUDA "
        "toolkit; fcctl preflight shows what was found",
    ),
    _known(
        r"could not select device driver|nvidia-container-cli",
        "docker cannot give this machine's GPU to a container: sudo apt install nvidia-container-toolkit, then sudo "
        "nvidia-ctk runtime configure --runtime=docker and sudo systemctl restart docker",
    ),
    _known(
        r"CUDA out of memory|cudaErrorMemoryAllocation|CUDA error: out of memory",
        "the GPU's memory is full: see who holds it with nvidia-smi, use a smaller shape or batch, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    _known(
        r"no kernel image is available|cudaErrorNoKernelImageForDevice|invalid device function",
        "the binary was built for another GPU: compile for this one with -arch=sm_$FCCTL_CUDA_ARCH (fcctl "
        "preflight names it), and check that the toolkit knows that architecture",
    ),
    _known(
        r"Unsupported gpu architecture",
        "this CUDA toolkit has no code for that GPU: install a newer one (sm_89 and sm_90 need CUDA 11.8, sm_100 and "
        "sm_120 need 12.8); a toolkit that is newer than an old GPU has dropped it. nvcc --list-gpu-arch prints what "
        "it has",
    ),
    _known(
        r"identifier \"wmma\" is undefined|must be a class or namespace name\n.*\bwmma::",
        "the source uses wmma without its header: #include <mma.h> and using namespace nvcuda; in a .cu file, and "
        "compile for sm_70 or newer",
    ),
    _known(
        r"unrecognized (command[- ]line )?option .{0,3}-(arch|gencode|-?generate-code|-expt|-use_fast_math)",
        "a C++ compiler got an option of nvcc: with torch.utils.cpp_extension put it into extra_cuda_cflags (load) or "
        'extra_compile_args={"nvcc": [..]}, and name CUDA sources .cu',
    ),
    _known(
        r"expected primary-expression before .{0,2}<|__(global|device)__.{0,2} does not name a type|"
        r"expected expression\n.*<<<",
        "CUDA code in a .cpp file, which a C++ compiler compiles: move kernels and <<<...>>> launches into a .cu file "
        "and call a function of that file",
    ),
    _known(
        r"Ninja is required to load C\+\+ extensions|ninja: (command )?not found|directory: 'ninja'",
        'ninja is missing there: "$FCCTL_PYTHON" -m pip install ninja, or sudo apt install ninja-build',
    ),
    _known(
        r"torch\._C\._LinkerError|undefined (reference to|symbol:)|cannot find -l|ld returned [1-9]",
        "code that is declared is not linked: name each .cpp and .cu file in the extension's sources and each library "
        "(-l, -L); symbols of c10, at or torch mean an extension built with another torch: delete its build folder",
    ),
    _known(
        r"CUDA driver version is insufficient|cudaErrorInsufficientDriver|unsupported toolchain",
        "there is no NVIDIA driver, or it is older than the CUDA toolkit (fcctl preflight tells which): install or "
        "update it, or build with an older toolkit",
    ),
    _known(
        r"no CUDA-capable device|No CUDA GPUs are available|Found no NVIDIA driver|not compiled with CUDA enabled",
        "the step found no GPU to use (fcctl preflight says why): run it on a machine that has one; with "
        "needs: {gpu: true} it is 'unavailable' elsewhere",
    ),
    _known(
        r"No space left on device|Disk quota exceeded|ENOSPC",
        "the host's disk is full: df -h there; the next run first deletes the collected runs there",
    ),
    _known(
        r"externally-managed-environment",
        "the system keeps pip out of its Python: make a virtual environment in the step, "
        "fcctl-host venv build/venv, and install with build/venv/bin/python -m pip: it sees what $FCCTL_PYTHON has",
    ),
    _known(
        r"CMakeCache\.txt directory .+ is different than|does not match the source .+ used to generate cache",
        "a CMakeCache.txt of another machine was sent along: name CMake's build folder in .gitignore, or build in "
        "a folder of another name",
    ),
    _known(
        r"\b(module|ml|conda|mamba|micromamba|spack): (command )?not found",
        "that is a function of an interactive shell, and steps read no .bashrc: load it in the step, "
        ". /etc/profile.d/modules.sh or . ~/miniconda3/etc/profile.d/conda.sh, or give the program's full path",
    ),
    _known(
        r"No module named '?torch\b|No module named '?numpy\b",
        'this Python lacks torch: use "$FCCTL_PYTHON" in the step (the Python there that has it), or install it',
    ),
    _known(
        r"Could not find a version that satisfies|No matching distribution found",
        "pip found no such package, or no network: install what the step needs on the host beforehand; "
        "pip install --no-build-isolation --no-deps . asks no package index",
    ),
    _known(
        r"No module named",
        "a Python package is missing there: install it for the Python that runs the step, "
        '"$FCCTL_PYTHON" -m pip install NAME',
    ),
    _known(
        r"fatal error: \S+: No such file|cannot open source file|\.\./\S*: No such file|not contain a CMakeLists\.txt",
        "a file is missing there: sent is what lies below fcctl.toml and git does not ignore; look for a file "
        "above that folder, an ignored one, or a submodule that is not checked out",
    ),
    _known(
        r"cannot execute: required file not found|bad interpreter: |\\r\W: (No such file|command not found)",
        "the script's first line names a program that is not there, most often because of Windows line endings: "
        "sed -i 's/\\r$//' FILE, and `* text=auto eol=lf` in .gitattributes",
    ),
    _known(
        r"[1-9]\d* bytes spill (stores|loads)",
        "registers spill to local memory: unroll less, use smaller tiles, or raise the limit of -maxrregcount / "
        "__launch_bounds__",
    ),
    _known(r"command not found|: not found$|No such file or directory: '[^/']+'", MISSING_PROGRAM),
    _known(
        r"Permission denied",
        "something is not readable, writable or executable for this user: a script needs chmod +x before it is "
        "sent, or call it with bash; if it has that, its disk is mounted noexec: set another `root` for the target",
    ),
)

#: What a failed gate's expression is about -> hint.
GATES: tuple[tuple[str, str], ...] = (
    ("spill", "registers spill to local memory: unroll less, use smaller tiles, or relax __launch_bounds__"),
    ("registers", "fewer live values: unroll less, smaller tiles, or cap them with -maxrregcount and watch for spills"),
    ("smem", "smaller tiles or fewer stages use less shared memory"),
    ("occupancy", "low occupancy: fewer registers or less shared memory per block lets more blocks run at once"),
    ("tensor", "tensor cores idle: a scalar fallback may be left in; check the toggles, and the SASS for HMMA"),
    ("nan", "a NaN came out: keep running sums in FP32 and rescale by the row's maximum"),
)

EXIT_CODES = {
    126: "the script or a program in it is not executable: chmod +x, or call it with bash",
    127: MISSING_PROGRAM,
    137: "killed (SIGKILL): most often the host ran out of memory; see dmesg there, and try a smaller shape",
    139: "a segmentation fault: run the step under compute-sanitizer (GPU) or with -fsanitize=address (CPU)",
    141: "a pipe's reader ended first (`| head`), and steps run with pipefail: add `|| true` if that is meant",
}


def for_log(text: str, exit_code: int | None) -> str | None:
    """A hint for a failed step, from what it printed last and how it ended; None if this is a new failure."""
    for pattern, hint in KNOWN:
        if pattern.search(text):
            return hint
    return EXIT_CODES.get(exit_code) if exit_code is not None else None


def for_gate(expr: str) -> str | None:
    """A hint for a failed gate that its job gave none for."""
    lowered = expr.lower()
    for word, hint in GATES:
        if word in lowered:
            return hint
    return None
