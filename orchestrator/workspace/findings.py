"""What ``fcctl init`` saw in a folder, the files that it reads, and whether a program needs arguments, from the text of
its ``main``."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MAIN = re.compile(r"^[ \t]*(?:int|auto)\s+main\s*\(([^()]{0,500})\)", re.MULTILINE)
#: ``int argc, char **argv``, whatever these are called.
_PARAMETERS = re.compile(r"int\s+(\w+)\s*,.*?(\w+)\s*(?:\[\s*\])?\s*$", re.DOTALL)
#: Where a program says how it is called, up to the end of the statement; and the strings in it.
_USAGE = re.compile(r'"[^"\n]{0,40}?\busage\b[^;]{0,600}', re.IGNORECASE)
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_BEFORE = re.compile(r"^.{0,40}?\busage\b[\s:=-]*(?:%s|\./\S+)?\s*", re.IGNORECASE)
_NAMES_ITSELF = re.compile(r"%s|\w\[0\]|\./")
_FIRST_WORD = re.compile(r"^[\w.-]+\s+(?=\S)")
_STOPS = re.compile(r"\b(?:exit|_Exit|abort|\w{0,40}usage\w{0,40}|help)\s*\(|\breturn\b|\bthrow\b", re.IGNORECASE)
#: What has a ``main`` of its own from a library, which needs no arguments.
_LIBRARY_MAIN = re.compile(
    r"\b(?:BENCHMARK_MAIN|NVBENCH_MAIN|CATCH_CONFIG_MAIN|DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN)\b"
    r"|^(?:TYPED_)?TEST(?:_F|_P)?\(",
    re.MULTILINE,
)
#: An argument of argparse that is no option, and what makes it one that may be left out.
_POSITIONAL = re.compile(r"""\.add_argument\(\s*["'][^-"'][^)]*\)""")
_MAY_BE_ABSENT = re.compile(r"""nargs\s*=\s*["'][?*]""")
PLACEHOLDER = "ARGUMENTS"


@dataclass(frozen=True)
class Program:
    """A program that a build makes."""

    command: str  # for a shell
    arguments: str = ""  # that it does not run without; "" if it does


def arguments(sources: Iterable[str]) -> str:
    """The arguments without which the program of these source texts does not run, as its usage says; "" if it runs
    without any; PLACEHOLDER if there is no ``main`` in them or its usage is not known."""
    texts = list(sources)
    own = [text for text in texts if MAIN.search(text)]
    alone = not any(_needs_arguments(text) for text in own) if own else any(map(_LIBRARY_MAIN.search, texts))
    return "" if alone else next(filter(None, map(_usage, texts)), PLACEHOLDER)


def script_needs_arguments(text: str) -> bool:
    """Whether a Python script of this text does not run without arguments."""
    positional = (found[0] for found in _POSITIONAL.finditer(text))
    if "required=True" in text or not all(map(_MAY_BE_ABSENT.search, positional)):
        return True
    return "sys.argv[1]" in text and "len(sys.argv)" not in text


def _needs_arguments(text: str) -> bool:
    return any(
        parameters.strip() not in ("", "void") and _refuses_none(parameters, text[end:])
        for parameters, end in ((main[1], main.end()) for main in MAIN.finditer(text))
    )


def _refuses_none(parameters: str, body: str) -> bool:
    """Whether ``main`` ends where it gets no arguments, or reads one without counting them."""
    names = _PARAMETERS.search(parameters)
    if names is None:
        return True
    count, values = (re.escape(name) for name in names.groups())
    condition = re.compile(rf"\bif\s*\(\s*{count}\s*(-\s*1\s*)?(<=?|>=?|!=|==)\s*(\d{{1,3}})")
    place = 0
    while found := condition.search(body, place):
        number = int(found[3]) + bool(found[1])
        holds = {"<": number > 1, "<=": number >= 1, ">": number < 1, ">=": number <= 1, "==": number == 1}
        taken = holds.get(found[2], number != 1)
        branches = _branches(body, found.end())
        if _STOPS.search("".join(branches[:1] if taken else branches[1:2])):
            return True
        place = found.end() + (sum(map(len, branches)) if taken else 0)  # what follows `else` does not run
    return re.search(rf"\b{count}\b", body) is None and re.search(rf"\b{values}\s*\[\s*[1-9]", body) is not None


def _branches(body: str, start: int) -> list[str]:
    """What an ``if`` whose condition ends behind ``start`` does, and each ``else`` that follows."""
    ends = [start, _end_of_statement(body, start)]
    while other := re.compile(r"\s*else\b").match(body, ends[-1]):
        ends.append(_end_of_statement(body, other.end()))
    return [body[begin:end] for begin, end in itertools.pairwise(ends)]


def _end_of_statement(body: str, start: int) -> int:
    """Behind the first ``;`` or, if a block comes before it, behind its end."""
    depth = 0
    for found in re.compile(r"[{};]").finditer(body, start, start + 4000):
        depth += {"{": 1, "}": -1, ";": 0}[found[0]]
        if depth <= 0:
            return found.end()
    return min(len(body), start + 4000)


def _usage(text: str) -> str:
    for found in _USAGE.finditer(text):
        strings = "".join(_STRING.findall(found[0])).replace("\\t", " ")
        said = _BEFORE.sub("", strings).partition("\\n")[0].strip(" :")
        if not _NAMES_ITSELF.search(found[0]):
            said = _FIRST_WORD.sub("", said)
        if said and said.isprintable() and len(said) <= 100:
            return said
    return ""


class BuilderStep(NamedTuple):
    """A step of a job: its id, its commands, the JUnit report that they write, and what must exist for it."""

    id: str
    run: str
    junit: str = ""
    needs: str = ""


@dataclass(frozen=True)
class Findings:
    """Paths are relative to the folder."""

    make_targets: tuple[str, ...] | None = None  # None: no Makefile
    make_goal: str = ""  # what make makes without an argument
    make_peers: tuple[str, ...] = ()  # targets that link other programs, where none stands for all
    make_folders: tuple[str, ...] = ()  # that make writes to, and that neither it nor git makes
    make_python: bool = False  # the Makefiles call Python
    names_arch: bool = True  # the Makefiles choose the GPU's architecture, or call no nvcc
    cmake: bool = False
    cmake_tests: bool = False
    cmake_presets: tuple[str, ...] = ()  # that a user may name, of CMakePresets.json
    cmake_leftovers: bool = False  # the folder build has CMake's files of another computer
    builder: str = ""  # a program of orchestrator.workspace.builders; just's recipes are the make_targets
    builder_steps: tuple[BuilderStep, ...] = ()
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
    python_test_scripts: tuple[str, ...] = ()  # whose tests pytest does not find by itself, or that test when they run
    python_bench: str | None = None  # a script that times something
    bench_out: str | None = None  # its option for the file of its figures
    bench_reads: str | None = None  # the reader for that file
    shell_scripts: tuple[str, ...] = ()  # that may be a step
    others: tuple[str, ...] = ()  # that a person may want to run, as sources of programs that need arguments
    gpu_scripts: tuple[str, ...] = ()  # that compile their kernels when they run: torch extensions, Triton
    uses_nvcc: bool = False  # the build above calls it
    compiled: tuple[tuple[str, tuple[str, ...]], ...] = ()  # sources without a build, and nvcc's arguments for each
    cmake_policy: str = ""  # an option that CMake 4 needs for a project which names a version before 3.5
    prints_times: bool = False  # a program above prints a time with its unit
    script_tools: tuple[str, ...] = ()  # what gpu_scripts need


MAX_SOURCES = 20
MAX_READ = 1024 * 1024
_NOT_SOURCES = {"build", "dist", "results", "node_modules", "third_party", "third-party", "venv"}


def files_below(folder: Path) -> Iterator[Path]:
    """The files of up to four folders' depth, in order of their names; hidden and built folders, and names that cannot
    be printed, are left out."""
    for place, folders, files in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        deeper = folders if depth < 4 else ()
        folders[:] = sorted(f for f in deeper if f[0] != "." and f not in _NOT_SOURCES and f.isprintable())
        yield from (Path(place, name) for name in sorted(files) if name.isprintable())


def read_text(path: Path) -> str:
    """The first MiB; "" if it cannot be read or is no file: to open a FIFO would wait for its other end."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            return file.read(MAX_READ).decode(errors="replace")
    except (OSError, ValueError):  # a name with a null character
        return ""
