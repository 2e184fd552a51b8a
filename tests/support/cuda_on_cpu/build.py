"""Compile a kernel for the processor with ``cuda_on_cpu.h``.

    library = compile_on_cpu(registry.VARIANTS["fused"], {"TILE_N": 32}, folder)

A CUDA launch is not C++: ``kernel<<<blocks, threads>>>(args)`` becomes ``launch(kernel, blocks, threads)(args)`` in a
copy of the sources; nothing else about them changes.
"""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from flashcore import toolchain
from flashcore.launch import Args
from flashcore.registry import CSRC, Variant

HERE = Path(__file__).parent
#: The processor converts halves; every x86-64 of the last ten years does. Otherwise each is a call.
HALVES = ["-mf16c"] if platform.machine() in ("x86_64", "AMD64") else []


def compile_on_cpu(
    variant: Variant, overrides: Mapping[str, int], folder: Path, fragments: str = "Scattered", arch: int = 0
) -> ctypes.CDLL:
    """The library of ``variant``, built in ``folder``; ``flashcore_forward`` takes a pointer to ``launch.Args``.

    ``fragments``: how WMMA spreads them over lanes, Scattered, Ampere or Apart (mma.h). ``arch``: compiled as for this
    one (890: sm_89), where a source tells them apart.
    """
    sources = [p for p in CSRC.iterdir() if p.suffix in {".cu", ".cuh", ".h"}]
    for path in sources:
        text = re.sub(r"(\w+)<<<(.*?)>>>\(", r"cuda_on_cpu::launch(\1, \2)(", path.read_text(), flags=re.DOTALL)
        (folder / path.name).write_text(f'#line 1 "{path}"\n{text}')
    output = folder / f"{variant.name}.so"
    defines = [f"-D{name}={value}" for name, value in variant.configure(overrides).items()]
    defines += [f"-D__CUDA_ARCH__={arch}"] if arch else []
    argv = [toolchain.cxx(), "-x", "c++", "-std=c++17", "-O1", *HALVES, "-U_FORTIFY_SOURCE", "-shared", "-fPIC",
            "-Wno-unknown-pragmas", *defines, f"-DCUDA_ON_CPU_FRAGMENTS=k{fragments}", f"-I{HERE}", "-include",
            "cuda_on_cpu.h", str(folder / variant.source.name), "-o", str(output)]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    library = ctypes.CDLL(str(output))
    library.flashcore_forward.argtypes = [ctypes.POINTER(Args)]
    library.flashcore_error.restype = ctypes.c_char_p
    return library
