"""Known failures and their cures: from the last lines of a log, or from a gate that failed, to a hint."""

from __future__ import annotations

import re

MISSING_PROGRAM = (
    "a program is missing on the machine: install it, or write its full path; list it in needs.tools, so that fcctl "
    "checks for it before the step runs"
)

#: Pattern -> hint. The first match wins, so the specific stand before the general.
KNOWN = {
    r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters":
        "only administrators may read GPU performance counters on this machine; allow all users: fcctl hosts prepare "
        "TARGET (NVreg_RestrictProfilingToAdminUsers=0 for the nvidia module)",
    r"nvcc: No such file|CUDA_HOME (environment variable )?is not set|nvcc[:` '].*not found":
        "nvcc is not on PATH, or torch is built for the CPU only: set CUDA_HOME=/usr/local/cuda and "
        "PATH=$CUDA_HOME/bin:$PATH, or install the CUDA toolkit; see what fcctl found: fcctl preflight",
    r"could not select device driver|nvidia-container-cli":
        "docker cannot give this machine's GPU to a container: sudo apt install nvidia-container-toolkit, then sudo "
        "nvidia-ctk runtime configure --runtime=docker and sudo systemctl restart docker",
    r"CUDA out of memory|cudaErrorMemoryAllocation|CUDA error: out of memory":
        "the GPU's memory is full: see which process uses it with nvidia-smi, use a smaller shape or batch, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    r"no kernel image is available|invalid device function|an illegal instruction was encountered|"
    r"(NoKernelImageForDevice|InvalidDeviceFunction|IllegalInstruction|NO_BINARY_FOR_GPU|ILLEGAL_INSTRUCTION)\b":
        "the binary was built for another GPU: compile with -arch=sm_$FCCTL_CUDA_ARCH, and check that the toolkit "
        "supports that architecture; an illegal instruction may also be a trap in the kernel",
    r"Unsupported gpu architecture '\w+_([1-6]\d|7[0-4])\b":
        "this CUDA toolkit no longer compiles for that old GPU: change the Makefile or CMakeLists.txt to "
        "-arch=sm_$FCCTL_CUDA_ARCH",
    r"Unsupported gpu architecture":
        "this CUDA toolkit is too old for that GPU: sm_89 and sm_90 need CUDA 11.8, sm_100 and sm_120 need 12.8",
    r'to \W{1,3}(cudaMemLocation|CUmemLocation)\b|"cudaDeviceProp" has no member|type "const cudaGraphEdgeData \*"|'
    r'"cudaThread\w+" is undefined|"thrust" has no member class "(unary|binary)_function"':
        "CUDA 13 changed or removed this: change the source, or use a CUDA 12 toolkit, first in the step: export "
        "PATH=/usr/local/cuda-12.9/bin:$PATH",
    r"not supported on \.target|requires \.target":
        "the code needs another architecture than it is compiled for: -arch=sm_$FCCTL_CUDA_ARCH; wgmma and setmaxnreg "
        "need sm_90a: env: {FCCTL_CUDA_ARCH: 90a} in the job",
    r"identifier \"wmma\" is undefined|must be a class or namespace name\n.*\bwmma::":
        "the source uses wmma without its header: #include <mma.h> and using namespace nvcuda; in a .cu file, and "
        "compile for sm_70 or newer",
    r"unrecognized (command[- ]line )?option .{0,3}-(arch|gencode|-?generate-code|-expt|-use_fast_math)":
        "a C++ compiler got an option of nvcc: with torch.utils.cpp_extension put it into extra_cuda_cflags (load) or "
        'extra_compile_args={"nvcc": [..]}, and name CUDA sources .cu',
    r"expected primary-expression before .{0,2}<|__(global|device)__.{0,2} does not name a type|"
    r"expected expression\n.*<<<":
        "CUDA code in a .cpp file, which a C++ compiler compiles: move kernels and <<<...>>> launches into a .cu file "
        "and call a function of that file",
    r"Ninja is required to load C\+\+ extensions|ninja: (command )?not found|directory: 'ninja'":
        'ninja is missing on the machine: "$FCCTL_PYTHON" -m pip install ninja, or sudo apt install ninja-build',
    r"fatal error: \S+: No such file.*\n.*#\s*include\s*<|set to NOTFOUND|but the target was not found|cannot find -l|"
    r"fatal error: (cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvml|cupti|cutlass|cute)\S*: No such file|"
    r"CMake Error.*\n(.*\n)?.*(Could NOT find|By not providing|Could not find a package)":
        "a library of the build is missing on the machine: install its development package, name its folders in the "
        "target's env: {CPATH: .., LIBRARY_PATH: .., CMAKE_PREFIX_PATH: ..}, or check out its submodule: git submodule "
        "update --init; if it is above the folder of fcctl.toml, run fcctl init there",
    r"cannot open output file (\S+/)|[Cc]an't create (\S+/)\S*: No such file":
        "fcctl sends neither empty folders nor what git ignores; first in the step: mkdir -p FOLDER",
    r"torch\._C\._LinkerError|undefined (reference to|symbol:)|ld returned [1-9]":
        "code that is declared is not linked: name each .cpp and .cu file in the extension's sources and each library "
        "(-l); symbols of c10, at or torch mean an extension built with another torch: delete its build folder",
    r"CUDA driver version is insufficient|cudaErrorInsufficientDriver|unsupported toolchain":
        "the NVIDIA driver is missing or older than the CUDA toolkit (fcctl preflight shows which): install or update "
        "the driver, or build with an older toolkit",
    r"no CUDA-capable device|No CUDA GPUs are available|Found no NVIDIA driver|not compiled with CUDA enabled":
        "the step found no GPU (fcctl preflight shows why): run it on a machine with a GPU; with needs: {gpu: true} "
        "it is 'unavailable' on other machines",
    r"No space left on device|Disk quota exceeded|ENOSPC":
        "the machine's disk is full: see df -h on the machine; the next run first deletes the collected runs from it",
    r"fatal: not a git repository|setuptools[-_]scm was unable to detect version":
        "steps work in a copy of the source without .git: check out submodules before the run; for setuptools-scm set "
        "SETUPTOOLS_SCM_PRETEND_VERSION in the job's env",
    r"externally-managed-environment":
        "pip may not install into the system's Python: create a virtual environment in the step with fcctl-host venv "
        "build/venv, and install with build/venv/bin/python -m pip; it also has the packages of $FCCTL_PYTHON",
    r"CMakeCache\.txt directory .+ is different than|does not match the source .+ used to generate cache":
        "fcctl sent a CMakeCache.txt of another machine: add CMake's build folder to .gitignore, or build in another "
        "folder",
    r"\b(module|ml|conda|mamba|micromamba|spack): (command )?not found":
        "this command is a function of interactive shells, and steps do not read .bashrc: load it in the step, "
        ". /etc/profile.d/modules.sh or . ~/miniconda3/etc/profile.d/conda.sh, or write the program's full path",
    r"No module named '?torch\b|No module named '?numpy\b":
        'this Python has no torch: use "$FCCTL_PYTHON" in the step, which is a Python with torch, or install torch',
    r"Could not find a version that satisfies|No matching distribution|Could not resolve host|in name resolution":
        "the machine has no network, or the package does not exist: install before the run what the build downloads; "
        "pip install --no-build-isolation --no-deps . needs no package index",
    r"No module named '?(?P<NAME>\w{1,80})":
        "a Python package is missing on the machine: install it for the Python of the step, "
        '"$FCCTL_PYTHON" -m pip install NAME',
    r"Compatibility with CMake < 3\.5 has been removed":
        "this CMake refuses a project made for an older one: cmake -DCMAKE_POLICY_VERSION_MINIMUM=3.5",
    r"CMake [\d.]+ or higher is required":
        'the machine\'s CMake is too old: "$FCCTL_PYTHON" -m pip install cmake',
    r"fatal error: \S+: No such file|cannot open source file|\.\./\S*: No such file|not contain a CMakeLists\.txt":
        "a file is missing on the machine: fcctl sends the files below the folder of fcctl.toml that git does not "
        "ignore; check for a file outside that folder, an ignored file, or a submodule that is not checked out",
    r"cannot execute: required file not found|bad interpreter: |\\r\W: (No such file|command not found)":
        "the first line of the script names a program that does not exist, often because of Windows line endings: sed "
        "-i 's/\\r$//' FILE, and `* text=auto eol=lf` in .gitattributes",
    r"[1-9]\d* bytes spill (stores|loads)":
        "registers spill to local memory: unroll less, use smaller tiles, or raise the limit of -maxrregcount / "
        "__launch_bounds__",
    r"command not found|: not found$|No such file or directory: '[^/']+'|^make(\[\d+\])?: [^/\s]+: No such file or ":
        MISSING_PROGRAM,
    r"Permission denied":
        "this user may not read, write or execute a file: chmod +x a script before the run, or call it with bash; if "
        "it is executable, its disk is mounted noexec: set another `root` in the target",
}  # fmt: skip

#: Modules that a package of another name has. That of the same name is something else, or does not exist.
_PACKAGES = {
    "PIL": "pillow", "cuda": "cuda-python", "cupy": "cupy-cuda13x", "cutlass": "nvidia-cutlass-dsl",
    "cv2": "opencv-python-headless", "pynvml": "nvidia-ml-py", "skimage": "scikit-image", "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}  # fmt: skip

#: The middle of a long line is not looked at: in one of digits a pattern would look for half a minute.
_LONG = re.compile(r"^(.{1000}).+(.{1000})$", re.MULTILINE)

#: What a failed gate's expression is about -> hint.
GATES: tuple[tuple[str, str], ...] = (
    ("spill", "registers spill to local memory: unroll less, use smaller tiles, or relax __launch_bounds__"),
    ("registers", "reduce live values: unroll less, use smaller tiles, or set -maxrregcount and check for spills"),
    ("smem", "use smaller tiles or fewer stages: they need less shared memory"),
    ("occupancy", "low occupancy: use fewer registers or less shared memory per block"),
    ("tensor", "the tensor cores are idle: a scalar fallback may run; check the build options and the SASS for HMMA"),
    ("nan", "the result contains NaN: accumulate in FP32, and rescale by the row's maximum"),
)

EXIT_CODES = {
    126: "the script or a program in it is not executable: chmod +x, or call it with bash",
    127: MISSING_PROGRAM,
    132: "an instruction that this processor does not have: compile there, or without -march=native",
    137: "killed (SIGKILL), most often because memory was full; see dmesg on the machine, and try a smaller shape",
    139: "a segmentation fault: run the step under compute-sanitizer (GPU) or with -fsanitize=address (CPU)",
    141: "the reader of a pipe ended first (`| head`), and steps run with pipefail: add `|| true` if this is intended",
}


def for_log(text: str, exit_code: int | None, arch: str | None = None) -> str | None:
    """A hint for a failed step, from what it printed last and how it ended; None if this is a new failure. ``arch`` is
    the step's FCCTL_CUDA_ARCH."""
    text = _LONG.sub(r"\1\n\2", text)
    for pattern, hint in KNOWN.items():
        found = re.search(pattern, text, re.MULTILINE)
        if found:
            flag = "-arch=sm_$FCCTL_CUDA_ARCH"
            told = hint.replace(flag, f"{flag} (here sm_{arch})") if arch else hint
            name = found.groupdict().get("NAME")
            return told.replace("NAME", _PACKAGES.get(name, name)) if name else told
    return EXIT_CODES.get(exit_code) if exit_code is not None else None


def for_gate(expr: str) -> str | None:
    """A hint for a failed gate that its job gave none for."""
    lowered = expr.lower()
    for word, hint in GATES:
        if word in lowered:
            return hint
    return None
