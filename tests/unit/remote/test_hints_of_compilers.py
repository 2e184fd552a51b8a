"""The hints meet what compilers, ninja and torch really print, whatever the language of the quotes; all that
docs/troubleshooting.md quotes is tested with that page."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import traceback
from pathlib import Path

import pytest

from fcctl_remote.run import hints

NVCC = shutil.which("nvcc")
LAUNCH = "void kernel(int);\nint main() { kernel<<<1, 2>>>(3); }\n"
FRAGMENT = "__global__ void f() { wmma::fragment<wmma::matrix_a, 16, 16, 16, float, wmma::row_major> a; }\n"


def printed(folder: Path, name: str, text: str, *argv: str, **env: str) -> str:
    """What a compiler that refuses ``text`` prints."""
    (folder / name).write_text(text)
    done = subprocess.run(
        [*argv, name], cwd=folder, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
@pytest.mark.parametrize(
    ("text", "options", "cure"),
    [
        (LAUNCH, (), "into a .cu file"),
        ("__global__ void f() {}\n", (), "into a .cu file"),
        ("int main() {}\n", ("-arch=sm_89",), "extra_cuda_cflags"),
        ("void launch();\nint main() { launch(); }\n", (), "name each .cpp and .cu file"),
        ("int main() {}\n", ("-lno_such_library",), "development package"),
        ("int main() {}\n", ("-o", "bin/a"), "mkdir -p FOLDER"),
        ("int main() {}\n", ("-c", "-o", "bin/a.o"), "mkdir -p FOLDER"),
        ('#include "cublas_v2.h"\n', (), "development package"),
    ],
)
def test_a_cxx_compiler(tmp_path: Path, text: str, options: tuple[str, ...], cure: str, locale: str) -> None:
    log = printed(tmp_path, "a.cpp", text, "c++", *options, LC_ALL=locale)
    assert cure in (hints.for_log(log, 1) or "")


@pytest.mark.skipif(NVCC is None, reason="there is no nvcc")
@pytest.mark.parametrize(
    ("text", "options", "cure"),
    [
        (FRAGMENT, (), "#include <mma.h>"),
        ("", ("-arch=sm_20",), "no longer compiles for that old GPU"),
        ("", ("-arch=sm_999",), "too old for that GPU"),
        ('__global__ void f() { asm("wgmma.fence.sync.aligned;"); }', ("-arch=sm_90",), "FCCTL_CUDA_ARCH: 90a"),
        ("#include <no_such_library.h>\n", (), "development package"),
        ('#include "../no_such_file.h"\n', (), "fcctl sends the files below"),
    ],
)
def test_nvcc(tmp_path: Path, text: str, options: tuple[str, ...], cure: str) -> None:
    log = printed(tmp_path, "a.cu", text, str(NVCC), "-c", *options)
    assert cure in (hints.for_log(log, 1) or "")


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ('a.cu(3): error: identifier "cudaThreadSynchronize" is undefined', "CUDA 12 toolkit"),
        ('a.cu(3): error: namespace "thrust" has no member class "unary_function"', "CUDA 12 toolkit"),
        ('error: argument of type "int" is incompatible with parameter of type "const cudaGraphEdgeData *"', "CUDA 12"),
        (
            "a.cpp:8:75: error: could not convert ‘dev’ from ‘int’ to ‘CUmemLocation’ {aka ‘CUmemLocation_st’}",
            "CUDA 12",
        ),
        ("a.cpp:2:16: error: expected expression\nint main() { k<<<1, 2>>>(3); }", "into a .cu file"),  # clang
        ("fatal: unable to access 'https://github.com/a/b.git/': Could not resolve host: github.com", "no network"),
        ("CMake Error at a:1 (find_package):\n  Could not find a package configuration", "development package"),
        ("OSError: CUDA_HOME environment variable is not set. Please set it", "torch is built for the CPU only"),
        ("CUDA error: an illegal instruction was encountered", "built for another GPU"),
        ("CUDA error at a.cu:12 code=98(cudaErrorInvalidDeviceFunction)", "built for another GPU"),
        (
            "CMake Error at CMakeLists.txt:1:\n  Compatibility with CMake < 3.5 has been removed",
            "POLICY_VERSION_MINIMUM",
        ),
        ("LookupError: setuptools-scm was unable to detect version for /a", "SETUPTOOLS_SCM_PRETEND_VERSION"),
        ("ModuleNotFoundError: No module named 'expecttest.a'", "-m pip install expecttest"),
        ("E   ModuleNotFoundError: No module named 'cutlass'", "-m pip install nvidia-cutlass-dsl"),
        ("sgemm.exe\nmake: sgemm.exe: No such file or directory", "a program is missing"),
    ],
)
def test_lines_of_compilers_that_are_not_here(line: str, cure: str) -> None:
    assert cure in (hints.for_log(line + "\n", 1) or "")


def test_a_new_failure_has_no_hint_but_that_of_its_exit_code() -> None:
    assert hints.for_log("assertion failed: 3 != 4\n0 bytes spill stores", 1) is None
    for log, code in (("Killed", 137), ("Illegal instruction (core dumped)", 132)):
        assert (hints.for_log(log, None), hints.for_log(log, code)) == (None, hints.EXIT_CODES[code])
    assert hints.for_gate("benchmark.speedup > 2") is None


@pytest.mark.parametrize("atom", ["1", "../", "nvcc: ", "does not match the source ", "x" * 1500 + "\n"])
def test_a_log_of_whatever_form_has_its_hint_at_once(atom: str) -> None:
    """The supervisor looks for it itself: meanwhile it would hear no cancel."""
    log, before = (atom * 70_000)[:65_000], time.process_time()
    assert "chmod +x" in (hints.for_log(f"{log} Permission denied", 1) or "")
    assert time.process_time() - before < 5


@pytest.mark.skipif(shutil.which("cmake") is None, reason="there is no cmake")
@pytest.mark.parametrize(
    ("lines", "cure"),
    [
        ("find_package(NoSuchLibrary REQUIRED)", "development package"),
        ("find_package(NoSuchLibrary QUIET)\nmessage(FATAL_ERROR stop)", None),
        ("find_library(X_L x_l)\nadd_executable(a a.c)\ntarget_link_libraries(a ${X_L})", "development package"),
        ("find_package(Boost REQUIRED COMPONENTS no_such_part)", "development package"),
        ("add_executable(a a.c)\ntarget_link_libraries(a CUDA::no_such_part)", "development package"),
        ("cmake_minimum_required(VERSION 99.0)", "pip install cmake"),
    ],
)
def test_cmake(tmp_path: Path, lines: str, cure: str | None) -> None:
    (tmp_path / "a.c").write_text("int main() {}\n")
    text = f"cmake_minimum_required(VERSION 3.10)\nproject(p C)\n{lines}\n"
    log = printed(tmp_path, "CMakeLists.txt", text, "cmake", "-B", "build")
    found = hints.for_log(log, 1)
    assert cure in (found or "") if cure else found is None


def test_torch_without_ninja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpp_extension = pytest.importorskip("torch.utils.cpp_extension")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError) as refused:
        cpp_extension.verify_ninja_availability()
    log = "".join(traceback.format_exception(refused.value))
    assert "-m pip install ninja" in (hints.for_log(log, 1) or "")
