"""``fcctl init`` in repositories as people have them; what it writes is valid, and does what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
import tracemalloc
from pathlib import Path

import pytest

from fcctl_remote import readers
from fcctl_remote.probe import gpu
from orchestrator.base.errors import ConflictError, NotFoundError
from orchestrator.cli.main import main
from orchestrator.runs.job.job import Job
from orchestrator.workspace.init import init, init_example
from orchestrator.workspace.workspace import Workspace, find_workspace
from tests.support.command import Fcctl
from tests.support.scripts import script
from tests.support.workspace import REPOSITORY

KERNEL = "__global__ void k2(float *x) { x[threadIdx.x] *= 2; }\n"
CUDA = "#include <cstdio>\n__global__ void k(float *x) { x[threadIdx.x] *= 2; }\nint main() { return 0; }\n"
SETUP = "from setuptools import Extension, setup  # as torch's CUDAExtension\nsetup(ext_modules=[])\n"
EXTENSION = """
from torch.utils.cpp_extension import load

# compiled when this runs
extension = load(name="flash", sources=["main.cpp", "flash.cu"])
"""
TRITON = "import triton\n@triton.jit\ndef add(): ...\nif __name__ == '__main__':\n    add()\n"
MAKEFILE = """\
CC = c++
OUT := app
.PHONY: all check bench
all: $(OUT)
$(OUT): main.cpp
\t$(CC) -o $@ $<
check: all
\t./$(OUT)
bench: all
\t./$(OUT)
"""


def repository(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def workspace(folder: Path) -> Workspace:
    return find_workspace(folder, environ={"XDG_CONFIG_HOME": "/nowhere"})


def first_job(folder: Path) -> Job:
    init(folder)
    return workspace(folder).jobs.get("first")


def played(
    folder: Path, number: int, name: str = "first", *, check: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """A step of a job, by its number, as the host program runs it."""
    step = workspace(folder).jobs.get(name).steps[number]
    known = {"FCCTL_OUT": str(folder), "FCCTL_CUDA_ARCH": "89", "FCCTL_PYTHON": sys.executable}
    line = ["bash", "-eo", "pipefail", "-c", step.run]
    environ = {**os.environ, **step.env, **known, **env}
    return subprocess.run(line, cwd=folder, env=environ, check=check, capture_output=True, text=True)


def untitled(run: str) -> str:
    """The commands without what tells their figures apart, and which of them failed."""
    run = re.sub(r"^(# )?try (\S.*)", lambda line: (line[1] or "") + shlex.split(line[2])[0], run, flags=re.MULTILINE)
    return re.sub(r" \|\| failed\+=.*|^\s*failed=(?:;.*)?\n|^\s*\[ -z .*\n", "", run, flags=re.MULTILINE)


LATENCY = """
import argparse, json
parser = argparse.ArgumentParser()
parser.add_argument("--out")
times = {"flashcore": {"p50": 45.0, "p90": 46.0, "p99": 47.0}, "pytorch": {"p50": 90.0}}
with open(parser.parse_args().out, "w") as file:
    json.dump({"config": {"B": 1, "H": 8, "S": 512, "D": 64}, "results": {"mission": times}}, file)
"""
#: A repository with the files of FlashCore's author.
FLASHCORE = {
    "build.py": "print('built')\n", "csrc/a.cu": KERNEL, "tests/test_a.py": "", "pyproject.toml": "[tool.x]\n",
    "benchmarks/benchmark_latency.py": LATENCY, "benchmarks/bench_all.py": "", "scripts/profile_ncu.sh": "true\n",
    "scripts/preflight.sh": "nvidia-smi\n", "scripts/bench_l4.sh": "gcloud compute ssh l4 --command true\n",
}  # fmt: skip
#: What lies in a repository, and the steps of its first job.
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "make": ("build test bench", {"Makefile": MAKEFILE, "main.cpp": "int main() { return 0; }"}),
    "make-cuda": ("build run", {"Makefile": "NVCC ?= nvcc\napp: a.cu\n\t$(NVCC) -o app a.cu\n", "a.cu": CUDA}),
    "make that calls cmake": (
        "build run",
        {"Makefile": "all:\n\tcmake -B build\n", "CMakeLists.txt": "project(p LANGUAGES CUDA)\n", "a.cu": CUDA},
    ),
    "make with two targets on a line": ("build run bench", {"Makefile": "a:\n\ttrue\nrun bench: a\n\ttrue\n"}),
    "names that no shell takes": ("build", {"it's.cu": KERNEL, "-x.cu": KERNEL, "a\nb.cu": KERNEL}),
    "make that helps": ("build test", {"Makefile": "help:\n\techo\nclean:\n\ttrue\napp test: \n\ttrue\n"}),
    "settings of tools": ("test", {"pyproject.toml": "[tool.ruff]\n", "test_a.py": ""}),
    "gnumakefile": ("build test", {"GNUmakefile": "x:\n\ttrue\ntest:\n\ttrue\n"}),
    "cmake": ("build test", {"CMakeLists.txt": "project(p CXX)\nenable_testing()\nadd_test(NAME t COMMAND true)\n"}),
    "cmake-cuda": ("build run", {"CMakeLists.txt": "project(p LANGUAGES CUDA)\n", "a.cu": CUDA}),
    "cmake, programs": (
        "build run",
        {
            "CMakeLists.txt": "project(p LANGUAGES CUDA)\nadd_subdirectory(src)\nadd_executable(sized a.cu)\n",
            "a.cu": CUDA.replace("main() {", "main(int argc, char **argv) { if (argc != 2) return 1;"),
            "src/CMakeLists.txt": "add_executable(alone\n    one.cpp b.cu)\n",
            "src/b.cu": CUDA,
        },
    ),
    "cmake that could use CUDA": (
        "build",
        {"CMakeLists.txt": "project(p CXX)\nif(WITH_CUDA)\n  enable_language(CUDA)\nendif()\n", "a.cpp": ""},
    ),
    "cmake, module for Python": (
        "build test",
        {
            "CMakeLists.txt": "project(p CXX)\nfind_package(pybind11)\n",
            "test_it.py": "import it\nprint(it.add(1, 2))\n",
        },
    ),
    "make, no module for Python": (
        "build",
        {"Makefile": "a: a.c\n\tcc -o a a.c\n", "a.c": "", "test_it.py": "print(1)\n"},
    ),
    "setup.py": ("build test", {"setup.py": SETUP, "tests/test_a.py": "", "csrc/a.cu": CUDA}),
    "pyproject": ("build", {"pyproject.toml": "[build-system]\n"}),
    "a script that runs all benchmarks": (
        "build bench",
        {"pyproject.toml": "[build-system]\n", "benchmarks/run_all.py": "", "benchmarks/plot.py": "", "run.py": ""},
    ),
    "pytest at the top": ("build test", {"pyproject.toml": "[build-system]\n", "test_a.py": ""}),
    "pyproject with a bench": (
        "build test bench",
        {"pyproject.toml": "[build-system]\n", "bench.py": "", "tests/deep/a_test.py": ""},
    ),
    "scripts": ("test bench", {"kernel.py": "", "test_kernel.py": "", "benchmark.py": ""}),
    "requirements": ("build test", {"requirements.txt": "numpy\n", "test_k.py": "", "play.ipynb": ""}),
    "requirements of a program": ("build run python", {"requirements.txt": "numpy\n", "a.cu": CUDA, "k.py": TRITON}),
    "project without a package": (
        "build test",
        {"pyproject.toml": "[project]\nname='x'\ndependencies = ['numpy>=1']\n", "test_a.py": ""},
    ),
    "project and folders that build": ("build run", {"pyproject.toml": "[project]\nname='x'\n", "a.cu": CUDA}),
    "tests beside the modules": ("build test", {"pyproject.toml": "[build-system]\n", "k/k_test.py": ""}),
    "tests of another kind": ("build", {"pyproject.toml": "[build-system]\n", "tests/run.sh": ""}),
    "build.py": ("build test bench profile", FLASHCORE),
    "shell scripts alone": ("build", {"scripts/build_kernels.sh": "true\n", "scripts/push.sh": "scp a b:\n"}),
    "plain": ("build run", {"a.cu": CUDA, "src/b-2.cu": CUDA, "lib.cu": "int f();", "odd name.cu": CUDA}),
    "plain, timed": (
        "build bench",
        {"a.cu": CUDA.replace("return", 'printf("time_us=%f", 1.5); return'), "k.cu": KERNEL},
    ),
    "torch extension": (
        "bench",
        {"bench.py": EXTENSION, "main.cpp": "", "flash.cu": "#include <torch/types.h>\n" + KERNEL},
    ),
    "triton": (
        "test run",
        {"add.py": TRITON, "shared.py": TRITON.partition("if ")[0], "test_add.py": TRITON + "def test_add(): ...\n"},
    ),
    "triton, as its tutorials": ("run", {"add.py": TRITON.partition("if ")[0] + "bench.run(print_data=True)\n"}),
    "numba": ("run", {"add.py": TRITON.replace("triton", "cuda").replace("import", "from numba import")}),
    "numba, as its examples": ("run", {"add.py": "@cuda.jit\ndef add(x): ...\nadd[8, 32](x)\n"}),
    "cupy": (
        "run",
        {"add.py": "add = cp.ElementwiseKernel('T x', 'T y', 'y = x', 'add')\nfor _ in range(3):\n    add(x)\n"},
    ),
    "pallas": ("run", {"add.py": "def add(x):\n    return pl.pallas_call(kernel, out_shape=x)(x)\nprint(add(1))\n"}),
    "kernels with a script of tests": (
        "test",
        {"k.py": TRITON.partition("if ")[0], "test.py": "import k\nk.add[8](1)\n"},
    ),
    "scripts that test a torch extension": (
        "test run bench",
        {"k.py": EXTENSION, "test.py": TRITON, "test_it.py": "import k\nassert k.f(1) == 2\n", "benchmarks.py": TRITON},
    ),
    "package with a script of tests": ("build test", {"setup.py": SETUP, "test.py": "print('max error: 0')\n"}),
    "package whose Makefile helps": (
        "build test",
        {
            "pyproject.toml": "[build-system]\n",
            "test_x.py": "",
            "Makefile": "help:\n\techo\nneeds:\n\tcommand -v nvcc\nbench:\n\ttrue\n",
        },
    ),
    "kernels and a Makefile that formats": (
        "build run",
        {
            "a.cu": CUDA,
            "Makefile": "CLANG_FORMAT_EXTS := c cu cc\nstyle:\n\truff format .\n\tls *.cu | xargs clang-format -i\n",
        },
    ),
    "kernels alone": ("build", {"a.cu": KERNEL}),
    "just": (
        "build test",
        {"justfile": "default: build\n@build:\n  nvcc a.cu\ntest arg='1': build\n  ./a\n", "a.cu": CUDA},
    ),
    "meson": ("build test", {"meson.build": "project('p', 'cuda')\n", "a.cu": CUDA}),
    "bazel": ("build test", {"MODULE.bazel": "", "k/a.cu": CUDA}),
    "cargo": ("build test bench", {"Cargo.toml": "[package]\n", "src/k.cu": KERNEL, "benches/b.rs": ""}),
    "julia": ("build test", {"Project.toml": "name = 'K'\n", "test/runtests.jl": ""}),
    "autotools": ("build", {"configure": "#!/bin/sh\n", "Makefile.in": "all:\n", "a.cu": CUDA}),
    "setup_cuda.py": ("build test", {"setup_cuda.py": SETUP, "k.cu": "#include <torch/all.h>\n", "test_k.py": "k()\n"}),
    "package with tests in test.py": ("build test", {"setup.py": SETUP, "a k/test.py": "def test_it(): ...\n"}),
    "benchmarks two folders below": (
        "build bench",
        {"pyproject.toml": "[build-system]\n", "benchmark/scripts/benchmark_it.py": ""},
    ),
    "nothing": ("hello", {"README": "", "a b.ipynb": ""}),
}


@pytest.mark.parametrize(("steps", "files"), CASES.values(), ids=CASES)
def test_what_is_written_is_valid_and_fits_and_so_is_what_is_commented_out(
    tmp_path: Path, steps: str, files: dict[str, str]
) -> None:
    assert [step.id for step in first_job(repository(tmp_path, files)).steps] == steps.split()
    config = tmp_path / "fcctl.toml"
    config.write_text(re.sub(r"^# (?=\[|[a-z_]+ = )", "", config.read_text(), flags=re.MULTILINE))
    job = tmp_path / "jobs" / "first.yaml"
    job.write_text(re.sub(r"^    # ", "    ", job.read_text(), flags=re.MULTILINE))
    found = workspace(tmp_path)
    assert found.config.target("gpu").host == "gpu-box"  # type: ignore[union-attr]
    assert found.config.budget.per_run_usd == 2.0
    unfolded = found.jobs.get("first")
    if "build" in steps and any("nvcc" in step.needs.tools for step in unfolded.steps):
        assert len(unfolded.steps[0].gates) == 2
    assert all(step.needs.gpu for step in unfolded.steps if step.id == "test")


#: Arguments of main(), what it does with them, and what the job writes behind the program; None: it runs without.
MAINS = {
    "none": ("void", "", None),
    "defaults": ("int argc, char **argv", "int n = 64; if (argc > 1) n = atoi(argv[1]);", None),
    "another default": ("int argc, char **argv", "if (argc != 2) { n = 64; } else { n = atoi(argv[1]); }", None),
    "parsed": ("int argc, char *argv[]", "benchmark::Initialize(&argc, argv);", None),
    "counted": ("int argc, char **argv", r'if (argc != 3) { printf("usage: ./gemm [M] [N]\n"); exit(1); }', "[M] [N]"),
    "else": ("int c, char **v", r'if (c >= 2) { f(v[1]); } else { print_usage(); }', "ARGUMENTS"),
    "named": ("int argc, char **argv", r'if (argc - 1 < 1) return puts("Usage:  run <model> [options]\n");',
              "<model> [options]"),
    "streamed": ("int argc, char **argv", r'if (argc == 1) { cerr << "USAGE: " << argv[0] << " a.jpg\n"; return 1; }',
                 "a.jpg"),
    "not counted": ("int argc, char **argv", "f(argv[1]);", "ARGUMENTS"),
    "chained": ("int argc, char **argv", "if (argc == 1) { n = 1; } else if (argc == 2) { n = 2; } else { exit(1); }",
                None),
    "chained, none": ("int argc, char **argv", "if (argc == 3) n = 3; else if (argc == 2) n = 2; else exit(1);",
                      "ARGUMENTS"),
}  # fmt: skip


@pytest.mark.parametrize(("parameters", "body", "arguments"), MAINS.values(), ids=MAINS)
def test_a_program_runs_unless_it_needs_arguments(
    tmp_path: Path, parameters: str, body: str, arguments: str | None
) -> None:
    text = f"int main({parameters}) {{\n  {body}\n  return 0;\n}}\n"
    makefile = "BIN = bin\nSRC := $(wildcard src/*.cpp)\nOBJ = $(SRC:src/%.cpp=o/%.o)\nall: $(BIN)/a lib.so\n"
    makefile += "$(BIN)/a: $(OBJ)\n\t@$(CXX) -o $@ $^\no/%.o: src/%.cpp\n\t$(CXX) -c -o $@ $<\n"
    makefile += "lib.so: x.cu\n\tnvcc -shared -o $@ $<\n"
    folders = {
        "bin/a": {"Makefile": makefile, "src/a.cpp": text, "src/b.cpp": ""},
        "build/a": {"a.cu": text},
        "build/prog": {"CMakeLists.txt": "add_executable(prog src/a.cpp)\n", "src/a.cpp": text},
    }
    for number, (command, files) in enumerate(folders.items()):
        folder = repository(tmp_path / str(number), files)
        run = next((step.run for step in first_job(folder).steps if step.id == "run"), "")
        told = f"{command} {arguments}\n"
        assert run == ("" if arguments else f"{command}\n")
        assert ("#       " + told in (folder / "jobs/first.yaml").read_text()) == (arguments is not None)


@pytest.mark.skipif(shutil.which("make") is None or shutil.which("cmake") is None, reason="needs make and cmake")
@pytest.mark.parametrize(
    "build",
    [
        {"Makefile": "all:\n\t$(MAKE) -C src\n", "src/Makefile": "all: a b c\n%: %.c\n\tcc -o $@ $<\n"},
        {"Makefile": "EXE=$(shell ls src/*.c | sed 's/.c$$//')\nall: $(EXE)\n%: %.c\n\tcc -o $@ $<\n"},
        {"CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(p C)\ninclude(m.cmake)\n"
                           + "".join(f"set(S src/{n}.c)\ncuda_add_executable({n} ${{S}})\n" for n in "abc"),
         "m.cmake": "macro(cuda_add_executable)\nadd_executable(${ARGV})\nendmacro()\n"},
        {"CMakeLists.txt": "cmake_minimum_required(VERSION 3.10)\nproject(p C)\nfunction(f N)\n"
                           "add_executable(${N} src/${N}.c)\nendfunction()\nf(a)\nf(b)\nf(c)\n"},
    ],
    ids=["make below", "computed by make", "sources of cmake", "function of cmake"],
)  # fmt: skip
def test_programs_whose_names_are_computed_run(tmp_path: Path, build: dict[str, str]) -> None:
    main = 'int puts(const char *);\nint main() { puts("%s: 3 us"); return %d; }\n'
    needy = "int main(int argc, char **argv) { return argv[1][0]; }\n"
    sources = {"src/a.c": main % ("a", 0), "src/b.c": main % ("b", 3), "src/c.c": needy}
    repository(tmp_path, {**build, **sources, "old": "#!/bin/sh\n", "scripts/b.sh": "ssh x\n"})
    (tmp_path / "old").chmod(0o755)
    init(tmp_path)
    assert "# Found, and not run by this job: scripts/b.sh, src/c.c\n" in (tmp_path / "jobs/first.yaml").read_text()
    assert played(tmp_path, 0).returncode == 0
    run = played(tmp_path, 1)
    log = re.sub(r"(==>|failed:) .*/", r"\1 ", run.stdout)
    assert (run.returncode, log) == (1, "==> a <==\na: 3 us\n==> b <==\nb: 3 us\nfailed: b\n")


STEP = {"FCCTL_CUDA_ARCH": "89", "CUDA_HOME": "/opt/cuda"}
#: Build files that name GPUs, how the job changes or calls them, and what nvcc and CMake then get for an L4.
NAMED = {
    "flags": ("Makefile", "F = -O3 -arch=sm_70 -gencode arch=compute_75,code=\\\"sm_75,compute_75\\\"\n", "sed",
              "F = -O3 -arch=sm_89 -gencode arch=compute_89,code=\\\"sm_89,compute_89\\\"\n"),
    "setup.py": ("setup.py", SETUP + "flags = ['arch=compute_80,code=sm_80']\n", "sed",
                 SETUP + "flags = ['arch=compute_89,code=sm_89']\n"),
    "script": ("run.py", EXTENSION.replace("flash.cu", "sm_80.cu"), "", ""),
    "flags of a script": ("run.py", EXTENSION.replace('"flash.cu"]', '"flash.cu"], extra_cuda_cflags=["-arch=sm_75"]'),
                          "sed",
                          EXTENSION.replace('"flash.cu"]', '"flash.cu"], extra_cuda_cflags=["-arch=sm_89"]')),
    "native": ("Makefile", "F = -arch=native --gpu-architecture native\nCFLAGS = -march=native\n", "sed",
               "F = -arch=sm_89 --gpu-architecture sm_89\nCFLAGS = -march=native\n"),
    "native in cmake": ("CMakeLists.txt", "set(CMAKE_CUDA_ARCHITECTURES native)\n", "sed",
                        "set(CMAKE_CUDA_ARCHITECTURES 89)\n"),
    "list of cmake": ("CMakeLists.txt",
                      'set(CMAKE_CUDA_ARCHITECTURES "70;75-real;80")\nset(X CUDA_ARCHITECTURES 86 Y)\n', "sed",
                      'set(CMAKE_CUDA_ARCHITECTURES "89")\nset(X CUDA_ARCHITECTURES 89 Y)\n'),
    "toolkit": ("Makefile", "CUDA_PATH ?= /usr/local/cuda-7.5\nI=/usr/local/cuda/a\nF = -arch=sm_90a\n", "sed",
                "CUDA_PATH ?= /opt/cuda\nI=/usr/local/cuda/a\nF = -arch=sm_90a\n"),
    "comment": ("Makefile", "all:  # -arch=sm_70\n\tnvcc a.cu\n", "NVCC_PREPEND_FLAGS", ""),
    "number": ("Makefile", "SM ?= 7.5\nall:\n\tnvcc -arch=compute_$(subst .,,${SM})\n", ' SM="$FCCTL_CUDA_ARCH"', ""),
    "loop": ("Makefile", "SMS ?= 50 60\n$(foreach s,$(SMS),$(eval G += -gencode arch=compute_$(s),code=sm_$(s)))\n",
             ' SMS="$FCCTL_CUDA_ARCH"', ""),
    "variable of cmake": ("CMakeLists.txt", "if(NOT DEFINED CC)\nset(CC 86)\nendif()\nset(CUDA_ARCHITECTURES ${CC})\n",
                          ' -DCC="$FCCTL_CUDA_ARCH"', ""),
    "one GPU alone": ("Makefile", "F = -arch=sm_90a\n", "", ""),
    "a file's name": ("Makefile", "a: gemm_sm_80.o sm_80.cu\n", "", ""),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text", "how", "after"), NAMED.values(), ids=NAMED)
def test_build_files_that_name_a_gpu_compile_for_the_target(
    tmp_path: Path, name: str, text: str, how: str, after: str
) -> None:
    sources = {} if name == "run.py" else {"a.cu": CUDA}
    build = first_job(repository(tmp_path, {name: text, **sources})).steps[0]
    assert how in build.run
    assert ("sed" in build.run) == (how == "sed")
    if how == "sed":
        sed = "".join(line + "\n" for line in build.run.splitlines() if line.startswith("sed "))
        subprocess.run(["bash", "-euc", sed], cwd=tmp_path, env={**os.environ, **STEP}, check=True)
        assert (tmp_path / name).read_text() == after


def test_a_toolkit_that_the_machine_has_stays_the_one_that_builds(tmp_path: Path) -> None:
    old = "/usr/local/cuda-7.5"
    folder = repository(tmp_path, {"Makefile": f"N = {old}/bin/nvcc\nall:\n\techo $(N)\n"})
    run = first_job(folder).steps[0].run
    for path in (folder / "Makefile", folder / "jobs/first.yaml"):
        path.write_text(path.read_text().replace(old, str(tmp_path)))  # which is there
    assert old in run
    assert f"{tmp_path}/bin/nvcc" in played(folder, 0).stdout


def test_what_pip_installs_of_a_project_that_is_no_package(tmp_path: Path) -> None:
    build = first_job(repository(tmp_path, CASES["project without a package"][1])).steps[0]
    assert "build/venv/bin/python -m pip install 'numpy>=1' pytest\n" in build.run
    folders = {"pyproject.toml": "[project]\nname='x'\n", "a/setup.py": SETUP, "a/a.cu": KERNEL, "b/b.py": EXTENSION}
    assert init(repository(tmp_path / "folders", folders)).jobs == ["a", "b"]


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_what_cmake_left_on_another_computer_is_not_in_the_way(tmp_path: Path) -> None:
    cache = "CMAKE_HOME_DIRECTORY:INTERNAL=/their/folder\nCMAKE_GENERATOR:INTERNAL=Ninja\n"
    files = {"CMakeLists.txt": "project(p NONE)\n", "build/CMakeCache.txt": cache}
    first_job(repository(tmp_path, files))
    assert played(tmp_path, 0).returncode == 0


def test_what_only_make_knows_is_left_out(tmp_path: Path) -> None:
    makefile = """\
OUT = bin/a
ifeq ($(OS), Windows_NT)
OUT = a.exe
define lines
x
endef
else ifdef MINGW
OUT := b.exe
endif
all: $(OUT) b ./c $(shell ls)
$(OUT): $(shell find .).cu a.cu
\t@mkdir -p bin
\t-nvcc -o $@ $^ $$HOME
%: %.cu
\tnvcc -o $@ $<
./c: ; nvcc $(shell ls).cu -o $@
b:
\tcd sub && $(MAKE)
LOOP = $(LOOP)$(LOOP)
"""
    files = {"Makefile": makefile, "a.cu": CUDA, "sub/Makefile": "x: x.c\n\tcc $< -o x\n", "sub/x.c": "int main() {}"}
    _, run = first_job(repository(tmp_path, files)).steps
    assert untitled(run.run) == "bin/a\n# ./c ARGUMENTS\n"


def test_programs_of_a_makefile_in_which_no_target_stands_for_all_are_made(tmp_path: Path) -> None:
    makefile = "sum: sum.c\n\tcc -o $@ $<\nmul: mul.c\n\tcc $< -o $@\ndebug: sum.c\n\tcc -g -o sum $<\n"
    makefile += "profile: sum\n\tncu -o $@ ./sum\ntest: sum.c\n\tcc -o $@ $< && ./$@\n"
    sources = {f"{name}.c": "int main(void) { return 0; }\n" for name in ("sum", "mul")}
    build, test, run = first_job(repository(tmp_path / "a", {"Makefile": makefile, **sources})).steps
    assert build.run == "make -j4 sum mul\n"
    assert (test.run, untitled(run.run)) == ("make test\n", "./sum\n./mul\n")
    for more in ("all: sum\n", ".DEFAULT_GOAL = every\nevery: sum\n"):
        text = {"Makefile": makefile + more, **sources}
        assert "mul" not in first_job(repository(tmp_path / more[:3], text)).steps[0].run


def test_folders_that_git_does_not_hold_are_made(tmp_path: Path) -> None:
    makefile = "all: bin/a\nbin/a: obj/a.o\n\t$(CC) -o $@ $<\nobj/%.o: %.c\n\t$(CC) -c $< -o $@\n"
    files = {"Makefile": makefile, "a.c": "int main(void) { return 0; }\n"}
    for number, (more, made) in enumerate({"": True, "x:\n\tmkdir -p y\n": True, "x:\n\tmkdir bin\n": False}.items()):
        folder = repository(tmp_path / str(number), {**files, "Makefile": makefile + more})
        build, run = first_job(folder).steps
        assert build.run.startswith("mkdir -p bin obj ") == made
        if made:
            subprocess.run(["bash", "-euc", build.run + run.run], cwd=folder, check=True, capture_output=True)


def test_a_makefile_of_shortcuts_does_not_build_a_python_package(tmp_path: Path) -> None:
    package = {
        "setup.py": SETUP,
        "csrc/a.cu": KERNEL,
        "test.py": "import unittest\n",
        "CMakeLists.txt": "project(p CUDA)\n",
    }
    makefile = {"Makefile": "dist:\n\tpython setup.py sdist\nupload: dist\n\ttwine upload dist/*\n"}
    build, test = first_job(repository(tmp_path / "one", {**package, **makefile})).steps
    assert "setup.py build_ext --inplace" in build.run
    assert "-m pytest test.py --junitxml=" in test.run
    (build,) = first_job(
        repository(tmp_path / "two", {**package, "Makefile": "a.so: a.cu\n\tnvcc -shared -o $@ $<\n"})
    ).steps
    assert "make -j4" in build.run


def test_a_package_without_extensions_is_installed_and_its_own_benchmark_runs(tmp_path: Path) -> None:
    files = {
        "setup.py": "setup()",
        "k.cu": KERNEL,
        "CMakeLists.txt": "\n",
        "go.sh": "",
        "Makefile": "all:\n\tpytest\n# make\n",
    }
    benches = {f"benchmarks/bench_{name}.py": "" for name in ("a", "my_op", "z")}
    folder = repository(tmp_path / "my-op", {**files, **benches})
    build, bench = first_job(folder).steps
    assert "pip install -e ." in build.run
    assert all(collect.optional for collect in build.collect)
    assert "benchmarks/bench_my_op.py" in bench.run
    others = "# Found, and not run by this job: go.sh, benchmarks/bench_a.py, benchmarks/bench_z.py\n"
    assert others in (folder / "jobs/first.yaml").read_text()
    (step,) = first_job(repository(tmp_path / "empty", {"CMakeLists.txt": "\n", "k/a.cu": KERNEL, "README": ""})).steps
    assert "nvcc" in step.run


def test_an_extension_without_torch_is_built_by_pip_with_what_it_requires(tmp_path: Path) -> None:
    files = {"setup.py": SETUP.replace("torch", "pybind11"), "tests/test_a.py": ""}
    build, test = first_job(repository(tmp_path, files)).steps
    assert "build/venv/bin/python -m pip install -e . pytest" in build.run
    assert test.run.startswith("build/venv/bin/python -m pytest")


def test_headers_elsewhere_in_the_repository_are_found(tmp_path: Path) -> None:
    text = '#include "util/check.h"\n#include <near.cuh>\n#include <cuda.h>\n'
    headers = {"common/inc/util/check.h": "", "k/near.cuh": ""}
    build, _ = first_job(repository(tmp_path / "one", {**headers, "k/a.cu": text + CUDA})).steps
    assert "-o build/k_a -Icommon/inc k/a.cu 2>&1" in build.run
    (build,) = first_job(repository(tmp_path / "two", {**headers, "k/a.cu": text + KERNEL})).steps
    assert "-Icommon/inc -c k/a.cu" in build.run


def test_jobs_whose_names_would_be_the_same_are_numbered(tmp_path: Path) -> None:
    folder = repository(tmp_path, {f"{name}/Makefile": "all:\n\ttrue\n" for name in ("a-b", "a/b", "a b")})
    assert init(folder).jobs == ["a-b", "a-b-2", "a-b-3"]
    texts = "".join(path.read_text() for path in folder.glob("jobs/*.yaml"))
    assert all(texts.count(f"cd {place}\n") == 1 for place in ("a-b", "a/b", "'a b'"))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("A := b\nhelp:\n\techo\nclean:\n\ttrue\napp test:\n\ttrue\n", "make -j4 app"),
        ("$(APP): a.c\n\tcc\nclean:\n\ttrue\n", "make -j4"),
        (".DEFAULT_GOAL := help\napp:\n\tcc\nhelp:\n\techo\n", "make -j4 app"),
        (".PHONY: help\nhelp:\n\techo\nall: a\n", "make -j4 all"),
    ],
)
def test_make_builds_and_does_not_help(tmp_path: Path, text: str, line: str) -> None:
    assert first_job(repository(tmp_path, {"Makefile": text})).steps[0].run.strip() == line


def test_a_makefile_that_names_no_architecture_builds_for_the_target(tmp_path: Path) -> None:
    makefile = "all:\n\tnvcc -c a.cu\nbench: all\n\ttrue\n"
    build, bench = first_job(repository(tmp_path / "none", {"Makefile": makefile, "a.cu": CUDA})).steps
    assert 'NVCC_PREPEND_FLAGS="-arch=sm_$FCCTL_CUDA_ARCH"' in build.run
    assert bench.needs.gpu
    files = {"Makefile": "all:\n\tmake -C src\n", "src/rules.mk": "FLAGS = -gencode arch=compute_90a,code=sm_90a\n"}
    build, _ = first_job(repository(tmp_path / "one", {**files, "src/a.cu": CUDA})).steps
    assert "NVCC_PREPEND_FLAGS" not in build.run
    common = {"common.mk": files["src/rules.mk"] + "run: all\n\ttrue\n", "k/a.cu": CUDA}
    for name, include in (("plain", "../common.mk"), ("computed", "$(TOP)/common.mk")):
        init(repository(tmp_path / name, {**common, "k/Makefile": f"all:\n\tnvcc\ninclude {include}\n"}))
        text = (tmp_path / name / "jobs/k.yaml").read_text()
        assert ("make run" in text, "NVCC_PREPEND_FLAGS" in text) == (name == "plain", False)
    assert list(build.needs.tools) == ["make", "nvcc"]


def test_a_makefile_that_calls_python_gets_the_one_with_torch(tmp_path: Path) -> None:
    makefile = "build:\n\tpython -c 'import sys; print(sys.executable)' > out\nrun: build\n\ttrue\n"
    first_job(repository(tmp_path / "one", {"Makefile": makefile}))
    (tmp_path / "python").symlink_to(sys.executable)
    for number in range(2):
        played(tmp_path / "one", number, check=True, FCCTL_PYTHON=str(tmp_path / "python"))
    assert (tmp_path / "one/out").read_text() == f"{tmp_path}/python\n"
    (step,) = first_job(repository(tmp_path / "two", {"Makefile": "all:\n\tcc -o my_python a.c\n"})).steps
    assert "PATH" not in step.run


def test_each_program_is_linked_with_the_kernels_beside_it(tmp_path: Path) -> None:
    calls = CUDA.replace("return", "k2<<<1, 32>>>(nullptr); return")
    torch = {"top.cu": calls, "t.cu": "#include <torch/extension.h>\n" + KERNEL}
    files = {"one/a.cu": calls, "one/k/k.cu": KERNEL, "two/b.cu": calls, "two/k.cu": KERNEL}
    files |= {"lib/l.cu": "void k3();\n" + KERNEL.replace("k2(float *x) {", "k2(float *x) { k3();"),
              "lib/m.cu": KERNEL.replace("k2", "k3"), "lib/same.cu": KERNEL.replace("k2", "k")}  # fmt: skip
    build = first_job(repository(tmp_path, {**files, **torch})).steps[0]
    linked = re.findall(r"-o build/\w+ (.+)", untitled(build.run))
    assert linked == ["top.cu lib/l.cu lib/m.cu", "one/a.cu one/k/k.cu", "two/b.cu two/k.cu"]


def test_a_program_is_linked_with_the_functions_beside_it_that_are_no_kernels(tmp_path: Path) -> None:
    calls = '#include "part.cpp"\n' + CUDA.replace("return", "gold(part()); check(); return")
    files = {"a.cu": calls, "gold.cpp": "void gold(int n) {\n}\n", "utils.cu": "void check() {}\n"}
    others = {
        "part.cpp": "int part() { return 1; }\n",
        "gold_main.cpp": "void gold(int) {}\nint main() {}\n",
        "bind.cpp": "#include <torch/extension.h>\nvoid check() {}\n",
        "unused.cc": "void unused() {}\n",
    }
    build = first_job(repository(tmp_path, {**files, **others})).steps[0]
    assert "-o build/a a.cu utils.cu gold.cpp 2>&1" in build.run


def test_each_folder_that_builds_on_its_own_has_a_job(fcctl: Fcctl, tmp_path: Path) -> None:
    files = {
        "kernels/a b/Makefile": "all:\n\techo built > out\n", "kernels/a b/sub/Makefile": "x:\n",
        "kernels/attn/attn.py": TRITON.partition("if ")[0], "kernels/attn/test_attn.py": "def test_a(): ...\n",
        "kernels/soft/soft.py": EXTENSION, "kernels/soft/soft.cu": KERNEL,
        "utils.py": EXTENSION.replace("ext", "  ext"),
        "kernels/an-example/of-a-name-that-is/too-long-for-a-job/main.cu": CUDA, "tests/Makefile": "x:\n",
    }  # fmt: skip
    done = fcctl("init", cwd=repository(tmp_path, files))
    names = ["kernels-a-b", "kernels-attn", "kernels-soft", "of-a-name-that-is-too-long-for-a-job"]
    assert sorted(path.stem for path in (tmp_path / "jobs").iterdir()) == names
    assert "fcctl run JOB --on " in done.err
    assert fcctl("jobs", "validate", cwd=tmp_path).code == 0
    assert workspace(tmp_path).jobs.get("kernels-soft").steps[0].run == 'cd kernels/soft\n"$FCCTL_PYTHON" soft.py\n'
    played(tmp_path, 0, "kernels-a-b", check=True)
    assert (tmp_path / "kernels/a b/out").read_text() == "built\n"


def test_figures_of_several_programs_stay_apart(tmp_path: Path) -> None:
    prints = '#include <cstdio>\nint main() { puts("GPU time: %s us"); }\n'
    files = {"CMakeLists.txt": "add_executable(a a.cpp)\nadd_executable(b b.cpp)\n"}
    sources = {f"{name}.cpp": prints % time for name, time in (("a", 3), ("b", 4))}
    first_job(repository(tmp_path, {**files, **sources}))
    for name in "ab":
        script(tmp_path / "build" / name, f"echo 'GPU time: {ord(name)} us'")
    (tmp_path / "log").write_text(played(tmp_path, 1, check=True).stdout)
    found = readers.read("times", str(tmp_path / "log"))["benchmarks"]
    assert {b["name"]: b["stats"]["p50"] for b in found} == {"build/a GPU time": 97.0, "build/b GPU time": 98.0}


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_a_program_that_does_not_compile_stops_no_other(fcctl: Fcctl, tmp_path: Path) -> None:
    sources = {"a.c": "int main() { return x; }", "b.c": "int main() { return 3; }", "c.c": "int main() { return 0; }"}
    repository(tmp_path, {"Makefile": "all: a b c\n%: %.c\n\tcc -o $@ $<\n", **sources})
    assert fcctl("init", cwd=tmp_path).code == 0
    done = fcctl("run", "first", "--on", "local", "--json", cwd=tmp_path)
    build, run = done.json["steps"]
    assert (done.code, build["status"], run["status"]) == (100, "failed", "failed")
    assert "step 'build'" in done.json["message"]
    assert run["message"].splitlines()[-1] == "failed: ./a ./b"
    with_nvcc = repository(tmp_path / "n", {"Makefile": "NVCC = nvcc\nall: a b c\n%: %.c\n\tcc -o $@ $<\n", **sources})
    init(with_nvcc)
    made = played(with_nvcc, 0)
    assert (made.returncode, (with_nvcc / "c").exists()) == (1, True)
    assert re.search(r"\*\*\* .*: a\] Error 1\n\Z", made.stdout), "the last line names it"


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ('p.add_argument("--size", required=True)', False), ("n = int(sys.argv[1])", False),
        ('p.add_argument("kernel", choices=["a"])', False), ("p.add_argument('n', nargs='?', default=4)", True),
        ("n = int(sys.argv[1]) if len(sys.argv) > 1 else 4", True), ('p.add_argument("-n", type=int)', True),
    ],
)  # fmt: skip
def test_a_script_that_needs_arguments_is_named_and_not_run(tmp_path: Path, text: str, runs: bool) -> None:
    job = first_job(repository(tmp_path, {"add.py": f"{TRITON}\n{text}\n", "bench.py": text + "\n"}))
    assert [step.id for step in job.steps] == (["run", "bench"] if runs else ["hello"])
    named = "# Found, and not run by this job: bench.py, add.py" in (tmp_path / "jobs/first.yaml").read_text()
    assert named == (not runs)


def test_programs_beyond_twenty_are_named(tmp_path: Path) -> None:
    first_job(repository(tmp_path, {f"k{number:02}.cu": CUDA for number in range(22)}))
    assert "# Found, and not run by this job: k20.cu, k21.cu\n" in (tmp_path / "jobs/first.yaml").read_text()
    main = "void k() {}\nint main() { k(); }\n"
    plain = {f"k{number:02}.cu": main for number in range(20)}
    build, _ = first_job(repository(tmp_path / "plain", {**plain, "k20.cu": CUDA, "k21.cu": CUDA})).steps
    assert re.findall(r"-o build/k00 (.+)", untitled(build.run)) == ["k00.cu"], (
        "programs are linked with none of others"
    )
    folders = {f"{place}/k{number:02}.cu": CUDA for place in "ab" for number in range(11)}
    assert init(repository(tmp_path / "folders", folders)).jobs == ["a", "b"]


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_cmake_that_does_not_configure_builds_nothing(tmp_path: Path) -> None:
    text = (
        "project(p C)\nset(CUDA 1)\nfind_package(NoSuch REQUIRED)\nadd_executable(a a.cpp)\nadd_executable(b b.cpp)\n"
    )
    main = "int main() { return 0; }\n"
    init(repository(tmp_path, {"CMakeLists.txt": text, "a.cpp": main, "b.cpp": main, "k.cu": KERNEL}))
    build = played(tmp_path, 0)
    assert ("NoSuch" in build.stdout, "gmake" in build.stdout, build.returncode) == (True, False, 1)


def test_a_triton_script_beside_a_program_runs_too(tmp_path: Path) -> None:
    job = first_job(repository(tmp_path, {"a.cu": CUDA, "add.py": TRITON}))
    assert [(step.id, step.run.strip()) for step in job.steps[1:]] == [
        ("run", "build/a"), ("python", '"$FCCTL_PYTHON" add.py')
    ]  # fmt: skip


def test_a_folder_may_be_named_as_a_number(tmp_path: Path) -> None:
    names = ("01", "1e5", "on", "ok")
    init(repository(tmp_path, {f"{name}/Makefile": "all:\n\ttrue\n" for name in names}))
    jobs = workspace(tmp_path).jobs
    assert [jobs.get(name).steps[0].run.splitlines()[0] for name in names] == [f"cd {name}" for name in names]


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"pyproject.toml": "[build-system]\nrequires = ['hatchling']\n"}, False),
        ({"pyproject.toml": "[build-system]\n", "setup.py": "setup(packages=['k'])\n"}, False),
        ({"pyproject.toml": "[build-system]\nrequires = [\n  'scikit-build-core',\n]\n"}, True),
        ({"setup.py": SETUP.replace("torch", "pybind11")}, True),
        ({"setup.py": SETUP}, True),
    ],
)
def test_a_package_needs_nvcc_if_it_may_compile_kernels(tmp_path: Path, settings: dict[str, str], needed: bool) -> None:
    """In the first repository the .cu file defines no kernel; in the second a kernel is beside the package."""
    build = first_job(repository(tmp_path, {**settings, "k/__init__.py": "", "csrc/k.cu": '#include "k.cuh"\n'})).steps[
        0
    ]
    assert ("nvcc" in build.needs.tools, len(build.collect)) == (needed, int(needed))
    beside = first_job(repository(tmp_path / "beside", {**settings, "k/__init__.py": "", "a.cu": KERNEL})).steps[0]
    assert ("nvcc" in beside.needs.tools) == needed


def test_kernels_at_the_top_do_not_hide_the_packages_below_them(tmp_path: Path) -> None:
    files = {"core.cu": KERNEL, "binding/setup.py": SETUP, "binding/core.cu": KERNEL}
    assert init(repository(tmp_path / "one", files)).jobs == ["binding"]
    assert init(repository(tmp_path / "two", {**files, "core.cu": CUDA})).jobs == ["first"]
    assert init(repository(tmp_path / "three", {"core.cu": KERNEL, "test/a.cu": CUDA})).jobs == ["first"]


def test_a_script_that_a_build_below_calls_is_no_step(tmp_path: Path) -> None:
    files = {"Makefile": "all:\n\tmake -C src\n", "src/Makefile": "all:\n\t../scripts/test_kernel.sh\n"}
    job = first_job(repository(tmp_path, {**files, "scripts/test_kernel.sh": "true\n", "scripts/bench.sh": "true\n"}))
    assert [step.id for step in job.steps] == ["build", "bench"]
    assert "# Found, and not run by this job: scripts/test_kernel.sh\n" in (tmp_path / "jobs/first.yaml").read_text()


def test_makefiles_of_other_names_are_named(tmp_path: Path) -> None:
    first_job(repository(tmp_path, {"Makefile_Summit": "a:\n", "makefile.gpu": "a:\n", "Makefile.in": "", "a.F90": ""}))
    assert "not run by this job: Makefile_Summit, makefile.gpu\n" in (tmp_path / "jobs/first.yaml").read_text()


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_a_build_that_made_no_program_did_not_run_one(tmp_path: Path) -> None:
    cmake = "cmake_minimum_required(VERSION 3.10)\nproject(p NONE)\noption(EXAMPLES OFF)\n"
    below = "function(f N)\nadd_executable(${N} ${N}.cpp)\nendfunction()\nf(a)\n"
    folder = repository(tmp_path, {"CMakeLists.txt": cmake, "ex/CMakeLists.txt": below, "ex/a.cpp": "int main() {}\n"})
    first_job(folder)
    assert played(folder, 0).returncode == 0
    run = played(folder, 1)
    assert (run.returncode, run.stdout) == (1, "no program was built: see the options for examples\n")


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_the_presets_of_cmake_are_named_with_the_line_that_uses_one(tmp_path: Path) -> None:
    listed = [
        {"name": "base", "hidden": True},
        {"name": "gcc release", "cacheVariables": {"WHICH": "preset"}},
        {"name": "dev"},
    ]
    presets = json.dumps(
        {
            "version": 2,
            "configurePresets": [{"generator": "Unix Makefiles", "binaryDir": "out", **one} for one in listed],
        }
    )
    cmake = 'cmake_minimum_required(VERSION 3.20)\nproject(p NONE)\nmessage("it is ${WHICH}")\n'
    folder = repository(tmp_path, {"CMakeLists.txt": cmake, "CMakePresets.json": presets})
    line = first_job(folder).steps[0].run.splitlines()[0]
    assert line == "# CMakePresets.json has 'gcc release', dev; with one, instead: cmake --preset NAME -B build &&"
    typed = line.partition("instead: ")[2].replace("NAME", "'gcc release'").removesuffix(" &&")
    done = subprocess.run(["bash", "-c", typed], cwd=folder, capture_output=True, text=True, check=True)
    assert "it is preset" in done.stderr
    assert (folder / "build/CMakeCache.txt").is_file()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"configurePresets": [1, {}, {"name": 2}]}', '{"configurePresets": {}}']
)
def test_presets_that_are_none(tmp_path: Path, text: str) -> None:
    folder = repository(tmp_path, {"CMakeLists.txt": "project(p NONE)\n", "CMakePresets.json": text})
    assert first_job(folder).steps[0].run.startswith("cmake -S . -B build")


def test_a_program_does_not_need_the_arguments_of_one_that_makes_its_sources(tmp_path: Path) -> None:
    usage = 'int main(int argc, char **argv) { if (argc < 2) { puts("usage: text FILE\\n"); return 1; } }\n'
    makefile = "all: app\napp: app.cpp app.inc\n\tc++ -o $@ $<\napp.inc: text\n\t./text app.txt > $@\n"
    makefile += "text: text.cpp\n\tc++ -o $@ $<\n"
    _, run = first_job(
        repository(tmp_path, {"Makefile": makefile, "app.cpp": "int main() {}\n", "text.cpp": usage})
    ).steps
    assert untitled(run.run) == "./app\n# ./text FILE\n"


def test_nvcc_is_needed_and_its_resources_are_read(tmp_path: Path) -> None:
    for name in ("make-cuda", "make that calls cmake", "cmake-cuda", "setup.py", "plain"):
        folder = tmp_path / name
        build = first_job(repository(folder, CASES[name][1])).steps[0]
        assert "nvcc" in build.needs.tools
        assert [c.reader for c in build.collect] == ["ptxas"]
        assert "-Xptxas=-v" in build.run + build.env.get("NVCC_APPEND_FLAGS", "")
    without = first_job(repository(tmp_path / "without", CASES["cmake that could use CUDA"][1])).steps[0]
    assert (list(without.needs.tools), list(without.collect)) == (["cmake"], [])
    plain = first_job(repository(tmp_path / "again", CASES["plain"][1])).steps[0]
    assert plain.run.count("nvcc") == 3
    assert "-o 'build/odd name' 'odd name.cu'\n" in untitled(plain.run)
    assert "lib.cu" not in plain.run


def test_programs_of_cmake_that_take_no_arguments_run(tmp_path: Path) -> None:
    files = dict(CASES["cmake, programs"][1])
    _, run = first_job(repository(tmp_path / "one", files)).steps
    assert (untitled(run.run), run.needs.gpu) == ("build/src/alone\n# build/sized ARGUMENTS\n", True)


def test_lists_of_sources_in_cmake_are_read(tmp_path: Path) -> None:
    main = 'int main(int argc, char **argv) { if (argc < 2) { printf("Usage: app <M> <N>\\n"); return 1; } }\n'
    cmake = "project(p CUDA)\nset(SRC\n  k.cu\n  %s)\nset(NAME app)\nadd_executable(${NAME} ${SRC})\n"
    for number, place in enumerate(("${CMAKE_CURRENT_SOURCE_DIR}/src/main.cu", '"${PROJECT_SOURCE_DIR}/src/main.cu"')):
        files = {"CMakeLists.txt": cmake % place, "k.cu": KERNEL, "src/main.cu": main}
        folder = repository(tmp_path / str(number), files)
        first_job(folder)
        assert "\n#       build/app <M> <N>\n" in (folder / "jobs/first.yaml").read_text()
    lost = repository(tmp_path / "lost", {**files, "CMakeLists.txt": cmake % "${ELSEWHERE}", "src/main.cu": CUDA})
    assert "find . -type f" in first_job(lost).steps[1].run


def test_programs_that_cmake_does_not_build_there_do_not_run(tmp_path: Path) -> None:
    files = {
        "CMakeLists.txt": """
project(top CXX)
add_executable(${PROJECT_NAME} $<$<BOOL:1>:a.cpp> a.cpp)  # the main program (of two)
add_executable(top::alias ALIAS ${PROJECT_NAME})
add_executable(other IMPORTED)
add_executable(seldom EXCLUDE_FROM_ALL a.cpp)
#[[
add_executable(old a.cpp)
]]
add_subdirectory("sub folder")
""",
        "a.cpp": "int main() {}\n", "sub folder/CMakeLists.txt": "add_executable(b b.cpp)",
        "sub folder/b.cpp": "int main() {}",
    }  # fmt: skip
    _, run = first_job(repository(tmp_path / "one", files)).steps
    assert (untitled(run.run), run.needs.gpu) == ("build/top\n'build/sub folder/b'\n", False)
    for number, line in enumerate(("set(CMAKE_RUNTIME_OUTPUT_DIRECTORY bin)", "add_executable(size_${size} a.cpp)")):
        more = {**files, "CMakeLists.txt": f"{files['CMakeLists.txt']}{line}\n"}
        _, run = first_job(repository(tmp_path / f"{number}", more)).steps
        assert "find . -type f" in run.run


def test_a_program_is_linked_with_the_libraries_that_it_includes(tmp_path: Path) -> None:
    text = '#include <curand_kernel.h>\n#include "cublas_v2.h"\n' + CUDA
    driver = "#include <omp.h>\n" + CUDA.replace("return", "cuInit(0); return")
    build, _ = first_job(repository(tmp_path, {"a.cu": text, "b.cu": CUDA, "c.cu": driver})).steps
    linked = re.findall(r"-o build/\w (.+)", untitled(build.run))
    assert linked == ["a.cu -lcublas", "b.cu", "c.cu -lcuda -Xcompiler=-fopenmp"]


@pytest.mark.full
def test_tests_that_are_all_skipped_did_not_pass(fcctl: Fcctl, tmp_path: Path) -> None:
    skipped = "import pytest\n\n@pytest.mark.skip(reason='no GPU')\ndef test_it():\n    pass\n"
    repository(tmp_path, {"test_a.py": skipped})
    assert fcctl("init", cwd=tmp_path).code == 0
    env = {"FCCTL_PYTHON": sys.executable}
    (test,) = fcctl("run", "first", "--on", "local", "--json", cwd=tmp_path, env=env).json["steps"]
    assert (test["status"], [gate["verdict"] for gate in test["gates"]]) == ("failed", ["pass", "fail"])
    assert "each test was skipped" in test["gates"][1]["hint"]
    extras = "[build-system]\n[project.optional-dependencies]\ndocs = []\ntest = [\n  'numpy',\n]\n[tool.x]\ndev = 1\n"
    build, _ = first_job(repository(tmp_path / "two", {"pyproject.toml": extras, "test_a.py": ""})).steps
    assert "-m pip install -e '.[test]' pytest ||" in build.run


@pytest.mark.full
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_tests_import_what_pip_built_and_not_the_source_beside_them(fcctl: Fcctl, tmp_path: Path) -> None:
    module = '#include <Python.h>\nstatic struct PyModuleDef m = {PyModuleDef_HEAD_INIT, "_C"};\n'
    setup = "from setuptools import Extension, setup\n"
    files = {
        "setup.py": setup + "setup(name='k', packages=['k'], ext_modules=[Extension('k._C', ['k/c.c'])])\n",
        "k/c.c": module + "PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&m); }\n",
        "k/__init__.py": "from k import _C\n", "tests/test_k.py": "import k\ndef test_it(): assert k._C\n",
    }  # fmt: skip
    text = (init(repository(tmp_path, files)).root / "jobs/first.yaml").read_text()
    text = text.replace("-m pip install -e .", "-m pip install --no-build-isolation --no-index -e .")
    (tmp_path / "jobs/first.yaml").write_text(text)
    done = fcctl("run", "first", "--on", "local", "--json", cwd=tmp_path)
    assert [(step["id"], step["status"]) for step in done.json["steps"]] == [("build", "passed"), ("test", "passed")]


def test_a_benchmark_below_the_top_imports_what_is_at_the_top(tmp_path: Path) -> None:
    files = {"setup.py": SETUP, "theirs/__init__.py": "", "bench/bench_it.py": "import theirs\nprint('3 us')"}
    first_job(repository(tmp_path, files))
    assert played(tmp_path, 1, check=True).stdout == "3 us\n"


def test_tests_import_what_make_or_cmake_built(tmp_path: Path) -> None:
    """As a script, or by pytest if it has tests; which says "no tests ran" of a script."""
    cmake = "cmake_minimum_required(VERSION 3.10)\nproject(p NONE)\ninclude_directories(${Python3_INCLUDE_DIRS})\n"
    cmake += 'file(WRITE ${CMAKE_BINARY_DIR}/it.py "two = 2")\n'
    makefile = "PY = $(shell python3-config --includes)\nall:\n\techo two = 2 > it.py\n"
    for build in ({"CMakeLists.txt": cmake}, {"Makefile": makefile}):
        for tool, text in {
            "FCCTL_PYTHON": "import it\nassert it.two == 2\n",
            "pytest": "import it\ndef test_it(): ...\n",
        }.items():
            folder = repository(tmp_path / f"{tool}-of-{next(iter(build))}", {**build, "test_it.py": text})
            first_job(folder)
            assert played(folder, 0).returncode == 0
            done = played(folder, 1)
            assert (done.returncode, "1 passed" in done.stdout) == (0, tool == "pytest"), done.stderr


def test_scripts_whose_tests_have_parameters_of_their_own_run_without_pytest(tmp_path: Path) -> None:
    text = "import it\n\ndef test_it(p):\n    assert it.two == p\n\nif __name__ == '__main__':\n    test_it(2)\n"
    folder = repository(tmp_path / "one", {"setup.py": SETUP, "it.py": "two = 2\n", "tests/test_it.py": text})
    _, test = first_job(folder).steps
    assert test.run == 'PYTHONPATH=".:${PYTHONPATH:-}" "$FCCTL_PYTHON" tests/test_it.py\n'
    assert played(folder, 1).returncode == 0
    for number, more in enumerate(("import pytest\n", "def test_plain():\n    pass\n")):
        folder = repository(tmp_path / str(number), {"setup.py": SETUP, "tests/test_it.py": more + text})
        assert "-m pytest" in first_job(folder).steps[1].run


def test_each_script_of_tests_runs_once(tmp_path: Path) -> None:
    test, run, _ = first_job(repository(tmp_path, CASES["scripts that test a torch extension"][1])).steps
    assert test.needs.gpu
    assert untitled(test.run) == '"$FCCTL_PYTHON" test.py\n"$FCCTL_PYTHON" test_it.py\n'
    assert run.run == '"$FCCTL_PYTHON" k.py\n'


def test_scripts_that_compile_kernels_run_where_there_is_a_gpu(tmp_path: Path) -> None:
    (bench,) = first_job(repository(tmp_path / "torch", CASES["torch extension"][1])).steps
    assert (bench.run.strip(), bench.needs.gpu) == ('"$FCCTL_PYTHON" bench.py', True)
    assert list(bench.needs.tools) == ["torch", "nvcc"]
    _, run = first_job(repository(tmp_path / "triton", CASES["triton"][1])).steps
    assert (run.run.strip(), run.needs.gpu, list(run.needs.tools)) == ('"$FCCTL_PYTHON" add.py', True, ["torch"])
    (run,) = first_job(repository(tmp_path / "numba", CASES["numba"][1])).steps
    assert (run.needs.gpu, list(run.needs.tools)) == (True, [])


def test_the_scripts_of_a_flashcore_repository_become_steps(fcctl: Fcctl, tmp_path: Path) -> None:
    files = {name: text for name, text in FLASHCORE.items() if not name.startswith(("tests/", "csrc/"))}
    folder = repository(tmp_path, {**files, "scripts/profile_ncu.sh": "echo profiled\n"})
    assert fcctl("init", cwd=folder).code == 0
    text = (folder / "jobs/first.yaml").read_text()
    assert (
        "# Found, and not run by this job: scripts/preflight.sh, scripts/bench_l4.sh, benchmarks/bench_all.py\n" in text
    )
    text = text.replace("needs: {gpu: true}", "needs: {}")
    (folder / "jobs/first.yaml").write_text(text)
    done = fcctl("run", "first", "--on", "local", "--json", cwd=folder)
    assert [(step["id"], step["status"]) for step in done.json["steps"]] == [
        ("build", "passed"), ("bench", "passed"), ("profile", "passed")
    ]  # fmt: skip
    exported = json.loads(fcctl("results", "export", "last", "--format", "flashcore", cwd=folder).out)
    figures = exported["results"]["mission"]
    assert (figures["flashcore"]["p90"], figures["pytorch"]["p50"], exported["speedup"]) == (46.0, 90.0, 2.0)
    assert exported["config"] == {"B": 1, "H": 8, "S": 512, "D": 64}


@pytest.mark.skipif(shutil.which("make") is None or shutil.which("c++") is None, reason="needs make and a C++ compiler")
def test_the_steps_run(tmp_path: Path) -> None:
    steps = first_job(repository(tmp_path, CASES["make"][1])).steps
    assert [played(tmp_path, number).returncode for number, _ in enumerate(steps)] == [0] * len(steps)


NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


@pytest.mark.full
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("name", ["plain", "plain, timed", "kernels alone", "make-cuda"])
def test_nvcc_says_what_each_kernel_uses(tmp_path: Path, name: str) -> None:
    first_job(repository(tmp_path, CASES[name][1]))
    (tmp_path / "out").mkdir()
    path = f"{Path(str(NVCC)).parent}:{os.environ['PATH']}"
    played(tmp_path, 0, check=True, FCCTL_OUT=str(tmp_path / "out"), PATH=path)
    kernels = readers.read("ptxas", str(tmp_path / "out" / "build.log"))["kernels"]
    assert kernels
    assert name == "make-cuda" or {kernel["arch"] for kernel in kernels} >= {"sm_89"}
    for built in (tmp_path / "build").glob("*[!o]"):
        subprocess.run([built], check=True)  # its main() starts no kernel


def test_the_name_is_made_fit(tmp_path: Path) -> None:
    folder = tmp_path / "My Kernels (2)"
    folder.mkdir()
    init(folder)
    assert tomllib.loads((folder / "fcctl.toml").read_text())["project"]["name"] == "my-kernels-2"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    repository(tmp_path, {"jobs/first.yaml": "job: mine", "results/.gitignore": "mine"})
    done = init(tmp_path)
    assert {path.name for path in done.kept} == {"first.yaml", ".gitignore"}
    assert (tmp_path / "jobs" / "first.yaml").read_text() == "job: mine"
    with pytest.raises(ConflictError, match="exists"):
        init(tmp_path)
    written = (tmp_path / "fcctl.toml").read_text()
    (tmp_path / "fcctl.toml").write_text("# mine\n")
    init(tmp_path, force=True)
    assert (tmp_path / "fcctl.toml.bak").read_text() == "# mine\n"
    assert (tmp_path / "fcctl.toml").read_text() == written
    assert (tmp_path / "jobs" / "first.yaml.bak").read_text() == "job: mine"
    init(tmp_path, force=True)
    assert (tmp_path / "fcctl.toml.bak").read_text() == "# mine\n"
    assert (tmp_path / "fcctl.toml.bak2").read_text() == written


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "fcctl.toml").symlink_to(tmp_path / "elsewhere")
    init(tmp_path / "work", force=True)
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "work" / "fcctl.toml").is_file()


def test_a_part_of_a_repository_says_so(fcctl: Fcctl, tmp_path: Path) -> None:
    repository(tmp_path, {"top/.git/HEAD": "", "top/kernels/a/Makefile": MAKEFILE, "top/Makefile": MAKEFILE})
    said = fcctl("init", cwd=tmp_path / "top/kernels/a").err
    assert f"fcctl will send only this folder, not all of {tmp_path / 'top'}" in said
    assert "only this folder" not in fcctl("init", cwd=tmp_path / "top").err


@pytest.mark.parametrize("name", ["jobs", "results"])
def test_a_file_in_a_folders_place(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConflictError, match="is not a folder"):
        init(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="not a folder"):
        init(tmp_path / "nowhere")


def test_a_folder_jobs_of_another_program_is_left_alone(fcctl: Fcctl, tmp_path: Path) -> None:
    repository(tmp_path, {"jobs/train.yaml": "apiVersion: batch/v1\nkind: Job\n", "tests/test_a.py": ""})
    done = fcctl("init", cwd=tmp_path)
    assert done.out == "wrote  fcctl.toml\nwrote  fcctl-jobs/first.yaml\nwrote  results/.gitignore\n"
    assert fcctl("jobs", "validate", cwd=tmp_path).code == 0
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["train.yaml"]
    assert fcctl("init", "--force", cwd=tmp_path).code == 0
    assert fcctl("jobs", "validate", cwd=tmp_path).code == 0


@pytest.mark.parametrize("has_gpu", [True, False])
def test_what_comes_next_without_a_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_gpu: bool
) -> None:
    monkeypatch.setattr(gpu, "visible", lambda: has_gpu)
    assert main(["init", str(repository(tmp_path / "a", CASES["make"][1]))]) == 0
    told = capsys.readouterr().err
    assert ("fcctl doctor --on local, then: fcctl run first --on local" in told) == has_gpu
    assert (
        "uncomment [targets.gpu] in fcctl.toml and write its host (this computer has no GPU), then: " in told
    ) != has_gpu


def test_the_command(fcctl: Fcctl, tmp_path: Path) -> None:
    repository(tmp_path, CASES["make"][1])
    done = fcctl("init", "--host", "gpu-box", cwd=tmp_path)
    assert (done.code, done.out) == (0, "wrote  fcctl.toml\nwrote  jobs/first.yaml\nwrote  results/.gitignore\n")
    kept_out = ["runs/", "active/", "schedules/", "sessions/", "machines.jsonl", "index.sqlite*"]
    assert (tmp_path / "results" / ".gitignore").read_text().splitlines() == kept_out
    assert "fcctl run first --on gpu" in done.err
    assert fcctl("jobs", "validate", cwd=tmp_path).code == 0
    assert fcctl("init", cwd=tmp_path).code == 8
    repository(tmp_path, {"a part/a.cu": KERNEL})
    assert "next: cd 'a part', then: " in fcctl("init", "a part", cwd=tmp_path).err
    assert "hint:  mkdir -p '" in fcctl("init", "no part", cwd=tmp_path).err
    assert fcctl("init", "--host=-oX=y", "elsewhere", cwd=tmp_path).code == 2
    again = fcctl("init", "--force", "--json", cwd=tmp_path).json
    assert len(again["backups"]) == 2


def test_submodules_that_are_not_checked_out_are_named(fcctl: Fcctl, tmp_path: Path) -> None:
    modules = '[submodule "a"]\n\tpath = deps/a\n\turl = x\n[submodule "b"]\n\tpath = deps/b b\n'
    repository(tmp_path, {".gitmodules": modules, "deps/a/a.h": "", "a.cu": CUDA})
    (tmp_path / "deps/b b").mkdir()
    told = "not checked out: deps/b b; before a run: git submodule update --init --recursive"
    assert told in fcctl("init", cwd=tmp_path).err


def test_a_folder_with_nothing_to_build_says_what_to_do(fcctl: Fcctl, tmp_path: Path) -> None:
    done = fcctl("init", cwd=repository(tmp_path / "notes", {"a b.ipynb": ""}))
    assert "nothing to build or run was found" in done.err
    assert "write your commands into jobs/first.yaml" in done.err
    (step,) = workspace(tmp_path / "notes").jobs.get("first").steps
    assert "jupyter nbconvert --execute --to notebook --output-dir \"$FCCTL_OUT\" 'a b.ipynb'" in step.run
    done = fcctl("init", cwd=repository(tmp_path / "kernel", CASES["kernels alone"][1]))
    assert "nothing to build" not in done.err


def test_the_example_is_this_repositorys_workspace(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "kernels", "jobs", "tune", "fcctl.toml"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    tracked = {name for name in listed.stdout.splitlines() if (REPOSITORY / name).is_file()}
    root = tmp_path / "fc"
    done = init_example(root)
    assert done.jobs == ["phase0"]
    written = {path.relative_to(root).as_posix() for path in done.written}
    assert written >= tracked | {"results/.gitignore"}
    assert all((root / name).read_bytes() == (REPOSITORY / name).read_bytes() for name in tracked)
    assert len(workspace(root).jobs.get("phase0").steps) == 5
    with pytest.raises(ConflictError, match="exists"):
        init_example(root)
    assert (root / "jobs/test.yaml.bak") in init_example(root, force=True).backups


def test_init_example_prints_the_next_command(fcctl: Fcctl, tmp_path: Path) -> None:
    done = fcctl("init", "--example", "flashcore", "fc", cwd=tmp_path)
    assert "next: cd fc, then: fcctl run phase0 --on sandbox" in done.err
    assert fcctl("init", "--example", "flashcore", "--host", "box", cwd=tmp_path).code == 2


@pytest.mark.parametrize("name", ["Makefile", "setup.py", "a.cu", ".gitmodules", "bench.py"])
def test_a_fifo_in_the_place_of_a_source_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert init(tmp_path).jobs == ["first"]


SLOW = [
    ("CMakeLists.txt", "\nadd_executable(a "), ("CMakeLists.txt", "#[[\n"),
    ("a.cu", "\n"), ("bench.py", "\n\t"), ("justfile", "a"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "part"), SLOW)
def test_no_text_of_a_stranger_takes_more_time_the_longer_it_is(tmp_path: Path, name: str, part: str) -> None:
    """The processor time of 256 KiB; it grew with the square of the length."""
    (tmp_path / name).write_text(part * (256 * 1024 // len(part)))
    began = time.process_time()
    init(tmp_path)
    assert time.process_time() - began < 10


def test_variables_that_name_each_other_fill_no_memory(tmp_path: Path) -> None:
    uses = "add_executable(a a.cu ${A})\n" + "${A}" * 1000
    (tmp_path / "CMakeLists.txt").write_text(f"set(A {'x' * 100_000})\n{uses}\n")
    tracemalloc.start()
    try:
        init(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_a_build_file_that_is_executable_is_no_built_program(tmp_path: Path) -> None:
    """As Makefiles of gpumembench are: setting their architecture writes them anew."""
    below = "NVCC = nvcc -arch=sm_52\nall: a b\n%: %.c\n\tcc -o $@ $<\n"
    files = {"Makefile": "all:\n\t$(MAKE) -C src\n", "src/Makefile": below, "src/a.cu": CUDA}
    folder = repository(tmp_path, {**files, "src/a.c": "int main() {}\n", "src/b.c": "int main() {}\n"})
    (folder / "src/Makefile").chmod(0o755)
    first_job(folder)
    played(folder, 0, check=True)
    assert "sm_89" in (folder / "src/Makefile").read_text()
    assert played(folder, 1).stdout == "==> ./src/a <==\n==> ./src/b <==\n"


def test_builds_of_kernels_below_the_one_at_the_top_are_named(tmp_path: Path) -> None:
    """As in llm.c: dev/cuda has the kernels, one by one."""
    files = {"Makefile": "all: a\na: a.cu\n\tnvcc -o a a.cu\nwin64: a.cu\n\tx86_64-w64-mingw32-gcc -o a.exe a.c\n"}
    files |= {"a.cu": CUDA, "dev/cuda/Makefile": "all: b\n%: %.cu\n\tnvcc -o $@ $<\n", "dev/cuda/b.cu": CUDA}
    first_job(repository(tmp_path / "one", files))
    text = (tmp_path / "one/jobs/first.yaml").read_text()
    assert "# Found, and not run by this job: dev/cuda/Makefile\n" in text
    assert "win64" not in text
    for top in (
        "all: a\n\t$(MAKE) -C dev/cuda\n",
        "DIRS = dev/cuda\nall: a\n\tfor d in $(DIRS); do (cd $$d && make); done\n",
    ):
        folder = repository(tmp_path / str(len(top)), {**files, "Makefile": top + "a: a.cu\n\tnvcc -o a a.cu\n"})
        first_job(folder)
        assert "Found, and not run" not in (folder / "jobs/first.yaml").read_text()


@pytest.mark.parametrize(
    ("least", "old"), [("2.8", True), ("3.0.2", True), ("3.4", True), ("3.0...3.20", False), ("3.18", False)]
)
def test_a_project_for_an_old_cmake_is_configured_by_a_new_one(tmp_path: Path, least: str, old: bool) -> None:
    cmake = f"cmake_minimum_required(VERSION {least})\nproject(p CUDA)\nadd_executable(a a.cu)\n"
    run = first_job(repository(tmp_path, {"CMakeLists.txt": cmake, "a.cu": CUDA})).steps[0].run
    assert ("-DCMAKE_POLICY_VERSION_MINIMUM=3.5" in run) is old


def test_a_program_with_headers_of_torch_is_named_not_built(tmp_path: Path) -> None:
    files = {"a.cu": CUDA, "fa1/b.cu": "#include <torch/types.h>\n" + CUDA}
    job = first_job(repository(tmp_path, files))
    assert "b.cu" not in job.steps[0].run
    assert "not run by this job: fa1/b.cu\n" in (tmp_path / "jobs/first.yaml").read_text()
