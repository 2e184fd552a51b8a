"""What ``fcctl init`` saw in a folder."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.workspace.programs import Program


@dataclass(frozen=True)
class Findings:
    """Paths are relative to the folder."""

    make_targets: tuple[str, ...] | None = None  # None: no Makefile
    make_goal: str = ""  # what make makes without an argument
    make_folders: tuple[str, ...] = ()  # that make writes to, and that neither it nor git makes
    make_python: bool = False  # the Makefiles call Python
    names_arch: bool = True  # the Makefiles choose the GPU's architecture, or call no nvcc
    cmake: bool = False
    cmake_tests: bool = False
    cmake_leftovers: bool = False  # the folder build has CMake's files of another computer
    builder: str = ""  # just, meson or bazel; just's recipes are the make_targets
    programs: tuple[Program, ...] = ()  # what the build makes
    unnamed_programs: bool = False  # it makes programs whose names are not known, and that need no arguments
    not_run: tuple[str, ...] = ()  # of these, those that need arguments: the names of their sources
    programs_use_gpu: bool = True
    rewritten: tuple[tuple[str, str], ...] = ()  # build files that name GPUs, and sed's options for the target's
    arch_variables: tuple[str, ...] = ()  # of make or CMake, for the GPU's number
    python_build: str | None = None  # build.py, setup.py, or pyproject.toml: what pip installs
    python_extra: str = ""  # its optional dependencies for tests
    requirements: str = ""  # pip's arguments for scripts and tests that nothing builds
    python_tests: bool = False
    python_test_script: str = ""  # whose tests pytest does not find by itself
    python_bench: str | None = None  # a script that times something
    bench_out: str | None = None  # its option for the file of its figures
    bench_reads: str | None = None  # the reader for that file
    shell_scripts: tuple[str, ...] = ()  # that may be a step
    others: tuple[str, ...] = ()  # that a person may want to run, as sources of programs that need arguments
    gpu_scripts: tuple[str, ...] = ()  # that compile their kernels when they run: torch extensions, Triton
    uses_nvcc: bool = False  # the build above calls it
    compiled: tuple[tuple[str, tuple[str, ...]], ...] = ()  # sources without a build, and nvcc's arguments for each
    prints_times: bool = False  # a program above prints a time with its unit
    script_tools: tuple[str, ...] = ()  # what gpu_scripts need
