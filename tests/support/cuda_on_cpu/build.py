"""Compile a kernel for the processor with ``cuda_on_cpu.h``.

    library = compile_on_cpu(registry.VARIANTS["fused"], {"TILE_N": 32}, folder)

A CUDA launch is not C++: ``kernel<<<blocks, threads>>>(args)`` becomes ``launch(kernel, blocks, threads)(args)`` in a
copy of the sources; nothing else about them changes.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from flashcore import toolchain
from flashcore.library import Args
from flashcore.registry import CSRC
from flashcore.variant import Variant

HERE = Path(__file__).parent
#: Of this process and of the workers that are forked from it.
SHARED = Path(tempfile.mkdtemp(prefix="fcctl-cuda-on-cpu-"))
atexit.register(shutil.rmtree, SHARED, ignore_errors=True)
#: The processor converts halves; every x86-64 of the last ten years does. Otherwise each is a call.
HALVES = ["-mf16c"] if platform.machine() in ("x86_64", "AMD64") else []


def run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]


@functools.lru_cache
def apart(compiler: str) -> list[str]:
    """What keeps libraries of one process apart, if the compiler has to be told: else a kernel that several have, a
    template, would be the first one's in all."""
    argv = [compiler, "-fno-gnu-unique", "-fsyntax-only", "-x", "c++", "/dev/null"]
    return [] if subprocess.run(argv, capture_output=True, check=False).returncode else ["-fno-gnu-unique"]


def plain_command(compiler: str) -> list[str]:
    return [compiler, *apart(compiler), "-std=c++17", "-fPIC", "-U_FORTIFY_SOURCE"]


def compiled_once(argv: list[str], folder: str, name: str) -> Path:
    """The folder with what ``argv`` makes, of all workers by the first one that needs it."""
    found = SHARED / folder
    found.mkdir(exist_ok=True)
    with (found / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (found / name).exists():
            run([*argv, "-o", str(found / "new")])
            (found / "new").rename(found / name)
    return found


def compile_on_cpu(
    variant: Variant, overrides: Mapping[str, int], folder: Path, fragments: str = "Scattered", arch: int = 0,
    races: bool = False, masked: bool = False,
) -> ctypes.CDLL:  # fmt: skip
    """The library of ``variant``, built in ``folder``; ``flashcore_forward`` takes a pointer to ``library.Args``.

    ``fragments``: how WMMA spreads them over lanes, Scattered, Ampere or Apart (mma.h). ``arch``: compiled as for this
    one (890: sm_89), where a source tells them apart. ``races``: a launch fails if two threads touch the same shared
    memory with no barrier between (races.cpp). ``masked``: the flagship's tiling takes masks.
    """
    sources = [p for p in CSRC.iterdir() if p.suffix in {".cu", ".cuh", ".h"}]
    for path in sources:
        text = re.sub(r"(\w+)<<<(.*?)>>>\(", r"cuda_on_cpu::launch(\1, \2)(", path.read_text(), flags=re.DOTALL)
        (folder / path.name).write_text(f'#line 1 "{path}"\n{text}')
    output = folder / f"{variant.name}.so"
    defines = [f"-D{name}={value}" for name, value in variant.configure(overrides).items()]
    defines += [f"-D__CUDA_ARCH__={arch}"] if arch else []
    defines += ["-DMASKED=1"] if masked else []
    plain = plain_command(toolchain.cxx())
    command = [*plain, "-O1", *HALVES, "-Wno-unknown-pragmas"]
    if races:  # of -fsanitize=thread only what the compiler does: races.cpp has the functions that it calls
        command += ["-fsanitize=thread", "-DCUDA_ON_CPU_RACES"]
    header, kind = HERE / "cuda_on_cpu.h", "races" if races else "plain"
    # GCC takes it compiled, if it was with the same options and no macro that is defined here is used in it.
    first = compiled_once([*command, "-x", "c++-header", str(header)], kind, f"{header.name}.gch")
    argv = [*command, *defines, f"-DCUDA_ON_CPU_FRAGMENTS=k{fragments}", f"-I{first}", f"-I{HERE}",
            "-include", header.name, "-x", "c++", str(folder / variant.source.name)]  # fmt: skip
    if races:
        whole = folder / f"{variant.name}.o"
        run([*argv, "-c", "-o", str(whole)])
        detector = compiled_once([*plain, "-O2", "-c", str(HERE / "races.cpp")], "detector", "races.o") / "races.o"
        run([*plain, "-shared", str(detector), str(whole), "-o", str(output)])
    else:
        run([*argv, "-shared", "-o", str(output)])
    return loaded(output)


def loaded(file: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(file))
    library.flashcore_forward.argtypes = [ctypes.POINTER(Args)]
    library.flashcore_error.restype = ctypes.c_char_p
    return library
