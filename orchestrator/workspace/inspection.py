"""What there is to build, test and time in a folder, for the job that ``fcctl init`` writes."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.workspace import build_files, starter
from orchestrator.workspace.builders import builder_of, recipes
from orchestrator.workspace.findings import (
    MAIN,
    MAX_SOURCES,
    Findings,
    Program,
    arguments,
    files_below,
    read_text,
    script_needs_arguments,
)
from orchestrator.workspace.python_build import extra_for_tests, pip_compiles, python_build, requirements

_TARGETS = re.compile(r"^([A-Za-z0-9][A-Za-z0-9_. \t-]*):(?![=:])", re.MULTILINE)
_CALLS_PYTHON = re.compile(r"^\t.*\bpython3?\s|\$\(shell\s+python3?\s|^PYTHON\w*\s*[:?]?=", re.MULTILINE)
_CALLS_MAKE = re.compile(r"\bmake\b.*?\s-C|\$[({]MAKE[)}]", re.IGNORECASE)
#: A Makefile without it has shortcuts alone: tests, uploads.
_COMPILES = re.compile(r"nvcc|hipcc|cmake|ninja|\bclang\b(?!-)|\bg?cc\b|\b[gc]\+\+|\$[({](?:CC|CXX)[)}]", re.IGNORECASE)
_FORMATS = re.compile(r"^.*(?:clang.format|\b(?:ruff|black|isort|flake8|pre-commit)\b).*", re.MULTILINE | re.IGNORECASE)
_NAMES_GPU = re.compile(r"nvcc|cuda|hip|\bsycl", re.IGNORECASE)
#: It names an architecture, or includes a file whose name make computes.
_NAMES_ARCH = re.compile(r"-arch\b|-gencode|--gpu-arch|\b(?:sm|compute)_|^-?include.*\$", re.MULTILINE)
#: It builds a module for Python.
_MODULE = re.compile(r"pybind11|nanobind|\bPython3?_|PYTHON_INCLUDE|python3?-config", re.IGNORECASE)
_INCLUDE = re.compile(r'^[ \t]*#\s*include\s*"([^"]+\.(?:cu|cpp|cc|cxx))"', re.MULTILINE)
#: What is defined in a source, and what only looks like it.
_FUNCTION = re.compile(r"\b(?!(?:if|for|while|switch|catch|main|__launch_bounds__)\b)(\w+)\s*\([^;{}]{0,2000}\)\s*\{")
_HEADER = re.compile(r'^[ \t]*#\s*include\s*[<"]([\w./+-]+\.(?:h|hpp|cuh|hh))[>"]', re.MULTILINE)
_SOURCES = (".cu", ".hip", ".cpp", ".cc", ".cxx", ".c")
_HEADERS = (".h", ".hpp", ".cuh", ".hh")
#: The libraries whose headers a program includes; of curand_kernel.h it needs none.
_LIBRARY = re.compile(
    r'^[ \t]*#\s*include\s*[<"](cublasLt|cublas|cudnn|cufft|curand(?!_kernel)|cusolver|cusparse|nccl)', re.MULTILINE
)
#: Calls of the driver, and OpenMP, which need an option each.
_OPTIONS = {
    "-lcuda": re.compile(r"\bcu(?:Init|Ctx\w+|Module\w+|LaunchKernel|MemAlloc|TensorMapEncode\w+|DeviceGet)\("),
    "-Xcompiler=-fopenmp": re.compile(r"^[ \t]*#\s*include\s*<omp\.h>", re.MULTILINE),
}
#: A format such as ``%.2f us`` or ``time_us=%f``; in a stream ``<< " ms"``.
_PRINTS_TIME = re.compile(
    r'%[-+\d.]*l?[fgeE]\s*[nuµm]s\b|_[num]s\s*[=:]\s*%|<<\s*"\s*[nuµm]s\b|_[num]s\s*[=:]\s*"\s*<<'
)
#: Headers that nvcc alone does not find.
_TORCH = re.compile(r'^[ \t]*#\s*include\s*[<"](?:torch|ATen|c10|pybind11)/', re.MULTILINE)
#: Of a program of its own, or of a Python module.
_NOT_LINKED = re.compile(f"{MAIN.pattern}|{_TORCH.pattern}", re.MULTILINE)
#: A torch extension that is compiled when the script runs; a kernel in Triton, Numba, CuPy, CuTe or Pallas.
_TORCH_EXTENSION = re.compile(r"\bcpp_extension\b.*?\bload(?:_inline)?\s*\(", re.DOTALL)
_LOADS = re.compile(r"^(?!def\b)\w.*\bload(?:_inline)?\s*\(", re.MULTILINE)
_KERNEL = re.compile(
    r"^[ \t]*@(?:\w+\.)?(?:triton|cuda|cute|tilelang|jit)\.(?:jit|kernel|rawkernel)\b|\btarget\s*=\s*[\"']cuda\b"
    r"|\b(?:pallas_call|RawKernel|RawModule|SourceModule|ElementwiseKernel|ReductionKernel)\(",
    re.MULTILINE,
)
_IMPORTS_TORCH = re.compile(r"^[ \t]*(?:import|from) (?:torch|triton)\b", re.MULTILINE)
#: It does something when it runs: Triton's tutorials end with ``benchmark.run(print_data=True)``, Numba's examples
#: with ``kernel[grid, block](x)``.
_SCRIPT = re.compile(
    r"^if __name__ ==|^\w+\.run\(.*\bprint_data\b|^(?:for|while|with)\b"
    r"|^(?:\w+\[.+\]|print|(?:main|run|test|bench)\w*)\(",
    re.MULTILINE,
)
_BENCHES = [
    "bench*.py",
    *(f"{place}/{name}*.py" for name in ("bench", "run", "*/bench") for place in ("benchmarks", "benchmark", "bench")),
]
_OLD_CMAKE = re.compile(r"\bcmake_minimum_required\s*\(\s*VERSION\s+(?:2\.\d+|3\.[0-4])(?:\.\d+)*[\s)]", re.IGNORECASE)
_CTEST = re.compile(r"\b(enable_testing|add_test|gtest_discover_tests)\b|include\(CTest\)")
_TESTS = [f"{place}{name}" for place in ("", "*/", "tests/*/", "test/*/")
          for name in ("test_*.py", "*_test.py")]  # fmt: skip
#: A file of this name has tests that pytest runs if it is named, or is a script beside what it tests.
_TEST_SCRIPT, _HAS_TESTS = "test.py", re.compile(r"^import unittest|^[ \t]*def test_", re.MULTILINE)
#: A test without parameters; others get theirs from pytest, or from the script that they are in.
_PLAIN_TEST = re.compile(r"^import unittest|^[ \t]*def test_\w*\(\s*(?:self\s*)?\)", re.MULTILINE)
#: A script that writes its figures to ``--out FILE``; such figures as the reader ``flashcore`` reads.
_OUT = re.compile(r"""["']--out(?:put)?["']""")
_FLASHCORE = re.compile(r"""["']flashcore["']""")
#: A shell script that works on another machine itself.
_ELSEWHERE = re.compile(r"^[^#\n]*\b(?:gcloud|ssh|scp|rsync)\b", re.MULTILINE)


def inspect_folder(folder: Path) -> Findings:
    """What there is to build in ``folder``."""
    benches = _benches(folder)
    bench = next((name for name in benches if not script_needs_arguments(read_text(folder / name))), None)
    text = read_text(folder / bench) if bench else ""
    option = _OUT.search(text)
    built = _built(folder, bench)
    scripts = dict(_shell_scripts(folder))
    others = [*(n for n, here in scripts.items() if not here), *(n for n in benches[:MAX_SOURCES] if n != bench)]
    return replace(
        built,
        bench_out=option[0].strip("\"'") if option else None,
        bench_reads="flashcore" if option and _FLASHCORE.search(text) and "p50" in text else None,
        shell_scripts=tuple(name for name, here in scripts.items() if here),
        others=(*_builds_below(folder), *others, *built.others),
    )


def _builds_below(folder: Path) -> list[str]:
    """The Makefiles beside kernels that the build at the top does not call."""
    top = "".join(read_text(folder / name) for name in build_files.MAKEFILES)
    if not has_build(folder) or _CALLS_MAKE.search(top):
        return []
    below = (p for p in files_below(folder) if p.name in build_files.MAKEFILES and any(p.parent.glob("*.cu")))
    names = (path.relative_to(folder).as_posix() for path in below if path.parent != folder)
    return [name for name in names if name.rpartition("/")[0] not in top][:MAX_SOURCES]


def has_build(folder: Path) -> bool:
    """Whether there is a file that tells how to build ``folder``."""
    cmake = read_text(folder / "CMakeLists.txt").strip() != ""
    return cmake or any((builder_of(folder), _makefile(folder), python_build(folder)))


def _makefile(folder: Path) -> Path | None:
    """The Makefile, unless it has nothing or calls formatters and no compiler."""
    path = next((folder / name for name in build_files.MAKEFILES if read_text(folder / name).strip()), None)
    text = "\n".join(build_files.texts(path).values()) if path else ""
    return None if _FORMATS.search(text) and not _COMPILES.search(_FORMATS.sub("", text)) else path


def _benches(folder: Path) -> list[str]:
    """The scripts that time something, the likeliest first: at the top, with ``--out``, named as the folder."""
    paths = [p for glob in _BENCHES for p in sorted(folder.glob(glob)) if p.is_file() and p.name.isprintable()]
    name = re.sub(r"\W", "_", folder.resolve().name).lower()

    def unlikely(path: Path) -> tuple[bool, bool]:
        return path.parent != folder and not _OUT.search(read_text(path)), name not in path.stem.lower()

    return [path.relative_to(folder).as_posix() for path in sorted(paths, key=unlikely)]


def _shell_scripts(folder: Path) -> Iterator[tuple[str, bool]]:
    """The ``scripts/*.sh``, and whether each works on the machine that it runs on, and is no part of a build below;
    those at the top, and notebooks, are only named."""
    below = [p for p in files_below(folder) if p.name in build_files.MAKEFILES and p.parent != folder]
    builds = "".join(map(read_text, below if (folder / "scripts").is_dir() else ()))
    for pattern in ("scripts/*.sh", "*.sh", "*.ipynb", "[Mm]akefile[._]*"):
        for path in sorted(folder.glob(pattern))[:MAX_SOURCES]:
            if path.name.isprintable() and path.suffix not in (".am", ".in"):
                here = path.parent != folder and path.name not in builds and not _ELSEWHERE.search(read_text(path))
                yield path.relative_to(folder).as_posix(), here


def _built(folder: Path, bench: str | None) -> Findings:
    texts = _texts(folder, (".cu",))
    kernels = tuple(itertools.islice((name for name, text in texts.items() if "__global__" in text), MAX_SOURCES))
    found = Findings(uses_nvcc=bool(texts))
    python = python_build(folder)
    makefile = _makefile(folder)
    if makefile and (not python or _compiles(makefile)):
        return _with_make(found, folder, makefile)
    if read_text(folder / "CMakeLists.txt").strip() and not python:
        return _with_cmake(found, folder)
    alone = python is not None or runs_kernels(folder)
    found = replace(
        found, **_python_tests(folder, alone=alone), python_bench=bench,
        python_extra=extra_for_tests(folder),
        uses_nvcc=bool(kernels if python in (None, "build.py") else texts),
        python_build=python, requirements=requirements(folder),
        rewritten=_rewritten(folder, {folder / n: read_text(folder / n) for n in ("setup.py", python or "setup.py")}),
    )  # fmt: skip
    if python == "pyproject.toml" and not pip_compiles(folder):
        return replace(found, uses_nvcc=False)
    if builder := None if python else builder_of(folder):
        targets = recipes(folder, builder)
        return replace(
            found, builder=builder.tool, builder_steps=builder.steps, make_targets=targets, uses_nvcc=bool(texts)
        )
    return found if python else _plain(found, folder, texts, kernels)


def _python_tests(folder: Path, *, alone: bool) -> dict[str, Any]:
    """Whether pytest finds tests; else the test.py that it must be given, or those that test when they run,
    if such scripts do so ``alone``."""
    texts = {path: read_text(path) for pattern in _TESTS for path in folder.glob(pattern)}
    scripts = {path: text for path, text in sorted(texts.items()) if _is_test_script(text)}
    if any(not text or (path not in scripts and _HAS_TESTS.search(text)) for path, text in texts.items()):
        return {"python_tests": True}
    named = (folder / _TEST_SCRIPT, *sorted(folder.glob(f"*/{_TEST_SCRIPT}")))
    tested = (path.relative_to(folder).as_posix() for path in named if _HAS_TESTS.search(read_text(path)))
    if test := next(filter(str.isprintable, tested), None):
        return {"python_tests": True, "python_test_scripts": (test,)}
    beside = (path for path in sorted(texts) if path.parent == folder and path not in scripts)
    run = [folder / _TEST_SCRIPT, *beside, *scripts] if alone else []
    written = ((path, text) for path in run if (text := read_text(path)))
    names = (path.relative_to(folder).as_posix() for path, text in written if not script_needs_arguments(text))
    return {"python_test_scripts": tuple(name for name in names if name.isprintable())[:MAX_SOURCES]}


def _is_test_script(text: str) -> bool:
    """Whether a script calls its tests with parameters itself; pytest would take the parameters for fixtures."""
    return "__main__" in text and "pytest" not in text and not _PLAIN_TEST.search(text)


def _compiles(makefile: Path) -> bool:
    """Whether ``make`` alone builds something; a Makefile whose goal is ``help`` has shortcuts."""
    text = "\n".join(build_files.texts(makefile).values())
    return _COMPILES.search(text) is not None and build_files.default_goal(makefile) not in starter.NO_BUILD


def _with_make(found: Findings, folder: Path, makefile: Path) -> Findings:
    texts = build_files.texts(makefile)
    text = "\n".join(texts.values())
    below = (p for p in files_below(folder) if p.name in build_files.MAKEFILES or p.suffix == ".mk")
    texts |= {path: build_files.uncommented(read_text(path)) for path in below}
    every = "\n".join(texts.values())
    targets = tuple(dict.fromkeys(name for names in _TARGETS.findall(text) for name in names.split()))
    goal = build_files.default_goal(makefile)
    target = starter.make_target(targets, goal)
    others = [name for name in targets if name not in starter.NO_PROGRAM]
    peers = [] if target else list(build_files.peers(makefile, goal, others))
    built = [build_files.built(makefile, name) for name in (target or goal, *peers)]
    return replace(
        found,
        uses_nvcc="nvcc" in text.lower() or found.uses_nvcc,
        make_targets=targets,
        make_goal=goal,
        make_python=_CALLS_PYTHON.search(every) is not None,
        names_arch="nvcc" not in every.lower() or _NAMES_ARCH.search(every) is not None,
        rewritten=_rewritten(folder, texts),
        arch_variables=build_files.make_variables(every),
        make_peers=tuple(peers),
        make_folders=tuple(dict.fromkeys(name for found in built for name in found.folders[:MAX_SOURCES])),
        **_programs(folder, [program for found in built for program in found.programs]),
        programs_use_gpu=found.uses_nvcc or _NAMES_GPU.search(every) is not None,
        **(_python_tests(folder, alone=True) if _MODULE.search(every) else {}),
    )


def _with_cmake(found: Findings, folder: Path) -> Findings:
    lists = build_files.lists_below(folder)
    every = "\n".join(lists.values())
    tests = _CTEST.search(lists.get(folder / "CMakeLists.txt", "")) is not None
    return replace(
        found,
        cmake=True,
        cmake_presets=tuple(_presets(folder)),
        cmake_leftovers=any((folder / "build" / name).exists() for name in ("CMakeCache.txt", "CMakeFiles")),
        cmake_tests=tests,
        cmake_policy=" -DCMAKE_POLICY_VERSION_MINIMUM=3.5" if _OLD_CMAKE.search(every) else "",
        # Without a kernel, ptxas prints nothing.
        uses_nvcc="CUDA" in every and any(path.suffix in (".cu", ".cuh") for path in files_below(folder)),
        rewritten=_rewritten(folder, lists),
        arch_variables=build_files.cmake_variables(every),
        **_programs(folder, build_files.programs(folder), search=not tests),
        programs_use_gpu=found.uses_nvcc or _NAMES_GPU.search(every) is not None,
        **(_python_tests(folder, alone=True) if _MODULE.search(every) and not tests else {}),
    )


def _presets(folder: Path) -> Iterator[str]:
    try:
        presets = json.loads(read_text(folder / "CMakePresets.json"))["configurePresets"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return
    for preset in presets[:MAX_SOURCES] if isinstance(presets, list) else ():
        name = preset.get("name") if isinstance(preset, dict) and not preset.get("hidden") else None
        if isinstance(name, str) and name.isprintable():
            yield name


def _programs(folder: Path, known: Iterable[Program], *, search: bool = True) -> dict[str, Any]:
    """The programs that are known to be built; if none is, whether there are any, and the sources of those that need
    arguments."""
    programs = {program.command: program for program in itertools.islice(known, 5 * MAX_SOURCES)}
    if programs or not search:
        return {"programs": tuple(programs.values())}
    texts = {path: read_text(path) for path in files_below(folder) if path.suffix in _SOURCES}
    mains = {path: arguments([text]) for path, text in texts.items() if MAIN.search(text)}
    others = [path for path, needed in mains.items() if needed][: 5 * MAX_SOURCES]
    return {
        "unnamed_programs": "" in mains.values(),
        "not_run": tuple(dict.fromkeys(path.stem for path in others)),
        "others": tuple(path.relative_to(folder).as_posix() for path in others),
    }


def _rewritten(folder: Path, texts: Mapping[Path, str]) -> tuple[tuple[str, str], ...]:
    """Paths relative to ``folder``, and sed's options for each."""
    found = build_files.rewritten(texts)
    return tuple((Path(os.path.relpath(path, folder)).as_posix(), options) for path, options in found.items())


def _plain(found: Findings, folder: Path, texts: Mapping[str, str], kernels: Sequence[str]) -> Findings:
    """Of a folder without build files: programs for nvcc, else kernels; and scripts that compile some when they run."""
    programs = [name for name, text in texts.items() if MAIN.search(text) and not _TORCH.search(text)]
    names, left_out = programs[:MAX_SOURCES], programs[MAX_SOURCES : 10 * MAX_SOURCES]
    left_out += [name for name, text in texts.items() if MAIN.search(text) and name not in programs]
    extensions, kernel_scripts = gpu_scripts(folder)
    scripts = (*extensions, *kernel_scripts)
    left_out += [name for name in scripts if script_needs_arguments(read_text(folder / name))]
    scripts = tuple(name for name in scripts if name not in left_out)
    uses_torch = any(_IMPORTS_TORCH.search(read_text(folder / name)) for name in scripts)
    texts = {**texts, **_texts(folder, (".cpp", ".cc", ".cxx"))}
    included = {Path(path).name for text in texts.values() for path in _INCLUDE.findall(text)}
    sources = [n for n, text in texts.items() if Path(n).name not in included and not _NOT_LINKED.search(text)]
    alone = [name for name in kernels if name in sources]
    options = [f"-I{place}" for place in _include_folders(folder, {name: texts[name] for name in (*names, *alone)})]
    linked = {name: _linked(name, programs, sources, texts) for name in names}
    compiled = {n: ["-o", _built_as(n), *options, *_arguments(linked[n], texts)] for n in names}
    if not names and not scripts:
        compiled = {n: [*options, "-c", n, "-o", _built_as(n) + ".o"] for n in alone}
    return replace(
        found,
        rewritten=_rewritten(folder, {folder / name: read_text(folder / name) for name in extensions}),
        compiled=tuple((name, tuple(words)) for name, words in compiled.items()),
        programs=tuple(Program(shlex.quote(_built_as(name)), arguments([texts[name]])) for name in names),
        prints_times=any(_PRINTS_TIME.search(texts[name]) for name in names),
        others=tuple(left_out),
        gpu_scripts=scripts, script_tools=("torch",) * uses_torch + ("nvcc",) * bool(extensions),
    )  # fmt: skip


def _built_as(source: str) -> str:
    return "build/" + source.removesuffix(".cu").replace("/", "_")


def _include_folders(folder: Path, texts: Mapping[str, str]) -> Iterator[str]:
    """The folders in which headers are that are not beside the files that include them."""
    paths = [path.relative_to(folder).as_posix() for path in files_below(folder) if path.suffix in _HEADERS]
    found = set[str]()
    for name, text in texts.items():
        for header in _HEADER.findall(text):
            places = [path.removesuffix(header) for path in paths if f"/{path}".endswith(f"/{header}")]
            beside = (folder / name).parent / header
            if places and not beside.is_file() and places[0] not in found:
                found.add(places[0])
                yield places[0].rstrip("/") or "."


def _arguments(sources: Sequence[str], texts: Mapping[str, str]) -> Iterator[str]:
    """The sources of a program, and the libraries whose headers they include."""
    yield from sources
    text = "\n".join(texts[source] for source in sources)
    yield from dict.fromkeys(f"-l{library}" for library in _LIBRARY.findall(text))
    yield from (option for option, pattern in _OPTIONS.items() if pattern.search(text))


def _linked(program: str, programs: Sequence[str], sources: Sequence[str], texts: Mapping[str, str]) -> list[str]:
    """``program`` with those of the ``sources`` whose functions it, or another of them, names and does not define: of
    sources to whose folder no other program is nearer."""
    folders = {Path(name).parent for name in programs}
    nearest = {source: next((f for f in Path(source).parents if f in folders), None) for source in sources}
    functions = {
        source: set(_FUNCTION.findall(texts[source]))
        for source in sources if nearest[source] in (None, Path(program).parent)
    }  # fmt: skip
    linked = [program]
    for name in linked:
        words = set(re.findall(r"\w+", texts[name])) - set(_FUNCTION.findall(texts[name]))
        linked.extend(source for source, defined in functions.items() if source not in linked and defined & words)
    return linked


def runs_kernels(folder: Path) -> bool:
    """Whether ``folder`` has scripts for the GPU, or tests or benchmarks beside kernels in Python."""
    if any(gpu_scripts(folder)):
        return True
    texts = {path.name: read_text(path) for path in folder.glob("*.py")}
    tests = any(re.match(r"test_|bench|.*_test\.py$|test\.py$", name) for name in texts)
    return tests and any(_KERNEL.search(text) or _TORCH_EXTENSION.search(text) for text in texts.values())


def gpu_scripts(folder: Path) -> tuple[list[str], list[str]]:
    """The scripts at the top of ``folder`` that compile torch extensions, and those that run Triton kernels."""
    texts = {path.name: read_text(path) for path in sorted(folder.glob("[!-]*.py")) if path.name.isprintable()}
    scripts = {
        name: text for name, text in texts.items() if not re.match(r"test_|.*_test\.py$|(?:setup|build)\.py$", name)
    }
    alone = {name: _SCRIPT.search(text) is not None for name, text in scripts.items()}
    extensions = [
        n for n, text in scripts.items() if _TORCH_EXTENSION.search(text) and (alone[n] or _LOADS.search(text))
    ]
    kernels = [name for name, text in scripts.items() if _KERNEL.search(text) and alone[name]]
    return extensions[:MAX_SOURCES], [name for name in kernels if name not in extensions][:MAX_SOURCES]


def _texts(folder: Path, suffixes: tuple[str, ...]) -> dict[str, str]:
    """The files with these endings, with their text."""
    names = ((path, path.relative_to(folder).as_posix()) for path in files_below(folder) if path.suffix in suffixes)
    return {name: read_text(path) for path, name in names if not name.startswith("-")}
