"""``fcctl init``: inspects a folder and writes a configuration and a first job for it."""

import itertools
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.base.errors import ConflictError, NotFoundError
from orchestrator.base.files import alone_in, make_folders, write_atomic
from orchestrator.base.run_id import slug
from orchestrator.runs.job.files import example_workspace
from orchestrator.runs.job.job import MAX_JOB_NAME
from orchestrator.workspace import starter

_MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
_PACKAGE = re.compile(r"^\[(?:project|build-system)\]", re.MULTILINE)
_TARGETS = re.compile(r"^([A-Za-z0-9][A-Za-z0-9_. \t-]*):(?![=:])", re.MULTILINE)
#: What make builds without an argument.
_GOAL = re.compile(r"^(?:\.DEFAULT_GOAL\s*:?=\s*(\S+)|([^\s#:=.][^:=\n]*?)\s*:(?![:=]))", re.MULTILINE)
_CALLS_PYTHON = re.compile(r"^\t.*\bpython3?\s|\$\(shell\s+python3?\s|^PYTHON\w*\s*[:?]?=", re.MULTILINE)
_MAKE_INCLUDE = re.compile(r"^-?include[ \t]+([\w./-]+)\s*$", re.MULTILINE)
#: It names an architecture, or includes a file whose name make computes.
_NAMES_ARCH = re.compile(r"-arch\b|-gencode|--gpu-arch|\b(?:sm|compute)_|^-?include.*\$", re.MULTILINE)
_MAIN = re.compile(r"^\s*(?:int|auto)\s+main\s*\(", re.MULTILINE)
_MAIN_OF = re.compile(r"^\s*(?:int|auto)\s+main\s*\(([^)]*)\)", re.MULTILINE)
#: A program of CMake's with its sources; where programs are not put beside their CMakeLists.txt.
_EXECUTABLE = re.compile(
    r"^\s*(?:cuda_)?add_executable\s*\(\s*([\w.+-]+)(?!\s+(?:ALIAS|IMPORTED|EXCLUDE_FROM_ALL)\b)(\s[^)]*)\)",
    re.MULTILINE | re.IGNORECASE,
)
_PROJECT = re.compile(r"^\s*project\s*\(\s*([\w.+-]+)", re.MULTILINE | re.IGNORECASE)
_CMAKE_COMMENT = re.compile(r"#\[\[.*?\]\]|#[^\n]*", re.DOTALL)
_OUTPUT_FOLDER = re.compile(r"(?:EXECUTABLE_OUTPUT_PATH|RUNTIME_OUTPUT_DIRECTORY)\b")
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+\.cu)"', re.MULTILINE)
#: The libraries whose headers a program includes; of curand_kernel.h it needs none.
_LIBRARY = re.compile(
    r'^\s*#\s*include\s*[<"](cublasLt|cublas|cudnn|cufft|curand(?!_kernel)|cusolver|cusparse|nccl)', re.MULTILINE
)
#: A format such as ``%.2f us`` or ``time_us=%f``; in a stream ``<< " ms"``.
_PRINTS_TIME = re.compile(
    r'%[-+\d.]*l?[fgeE]\s*[nuµm]s\b|_[num]s\s*[=:]\s*%|<<\s*"\s*[nuµm]s\b|_[num]s\s*[=:]\s*"\s*<<'
)
#: Headers that nvcc alone does not find.
_TORCH = re.compile(r'^\s*#\s*include\s*[<"](?:torch|ATen|c10|pybind11)/', re.MULTILINE)
#: A torch extension that is compiled when the script runs; a kernel in Triton, Numba, CuPy or CuTe.
_TORCH_EXTENSION = re.compile(r"\bcpp_extension\b.*?\bload(?:_inline)?\s*\(", re.DOTALL)
_LOADS = re.compile(r"^(?!def\b)\w.*\bload(?:_inline)?\s*\(", re.MULTILINE)
_KERNEL = re.compile(
    r"^\s*@(?:triton|cuda|numba\.cuda|cute|tilelang)\.(?:jit|kernel)\b|\b(?:RawKernel|RawModule|SourceModule)\(",
    re.MULTILINE,
)
_IMPORTS_TORCH = re.compile(r"^\s*(?:import|from) (?:torch|triton)\b", re.MULTILINE)
#: Triton's tutorials end with ``benchmark.run(print_data=True)``.
_SCRIPT = re.compile(r"^if __name__ ==|^\w+\.run\(.*\bprint_data\b", re.MULTILINE)
#: Folders of FlashCore's workspace, beside its fcctl.toml.
_EXAMPLE = ("jobs", "kernels/flashcore", "tune")
_BENCHES = (
    "bench.py",
    "benchmark.py",
    "benchmarks.py",
    "benchmarks/bench*.py",
    "benchmark/bench*.py",
    "bench/bench*.py",
)
_CTEST = re.compile(r"\b(enable_testing|add_test|gtest_discover_tests)\b|include\(CTest\)")
_TESTS = [f"{place}{name}" for place in ("", "tests/", "tests/*/", "test/", "test/*/")
          for name in ("test_*.py", "*_test.py")]  # fmt: skip
#: A script that writes its figures to ``--out FILE``; such figures as the reader ``flashcore`` reads.
_OUT = re.compile(r"""["']--out(?:put)?["']""")
_FLASHCORE = re.compile(r"""["']flashcore["']""")
#: A shell script that works on another machine itself.
_ELSEWHERE = re.compile(r"^[^#\n]*\b(?:gcloud|ssh|scp|rsync)\b", re.MULTILINE)
_MAX_SOURCES, _MAX_PROJECTS = 20, 100
_MAX_READ = 256 * 1024
_NOT_SOURCES = {"build", "dist", "results", "node_modules", "third_party", "third-party", "venv"}
#: Their scripts are run from the folder above them.
_NO_PROJECTS = {"bench", "benchmark", "benchmarks", "scripts", "test", "tests"}


@dataclass
class Written:
    """What ``init`` did. Paths are absolute."""

    root: Path
    written: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    backups: list[Path] = field(default_factory=list)
    jobs: list[str] = field(default_factory=lambda: ["first"])
    name: str | None = None
    #: The top of the git repository, if the workspace is a part of it.
    repository: Path | None = None


def init(folder: Path, *, host: str | None = None, force: bool = False) -> Written:
    """Make ``folder`` a workspace. Nothing that is there is lost: with ``force`` the old files are kept as ``*.bak``.
    Raises NotFoundError: there is no such folder; ConflictError: there is a fcctl.toml already, or a folder cannot be
    written."""
    folder = folder.absolute()
    if not folder.is_dir():
        raise NotFoundError(f"{folder} is not a folder", hint=f"mkdir -p {shlex.quote(str(folder))}")
    try:
        with alone_in(folder):  # serializes concurrent calls
            _check(folder, force=force)
            done = Written(folder, repository=_repository_above(folder))
            _write_all(done, host, force)
    except OSError as error:
        raise _not_writable(folder, error) from error
    return done


def init_example(folder: Path, *, force: bool = False) -> Written:
    """Write FlashCore's workspace to ``folder``, which is created. Old files are treated, and errors raised, as by
    :func:`init`."""
    folder = folder.absolute()
    try:
        make_folders(folder)
        with alone_in(folder):
            _check(folder, force=force)
            done = Written(folder, jobs=["phase0"])
            source = example_workspace()
            paths = [source / "fcctl.toml", *(path for part in _EXAMPLE for path in _all_files(source / part))]
            for path in reversed(paths):  # fcctl.toml, which makes it a workspace, is the last
                _write(done, folder / path.relative_to(source), path.read_bytes(), replace=force)
            _write(done, folder / "results" / ".gitignore", starter.RESULTS_IGNORE, replace=False)
    except OSError as error:
        raise _not_writable(folder, error) from error
    return done


def _not_writable(folder: Path, error: OSError) -> ConflictError:
    hint = f"ls -ld {shlex.quote(str(folder))}"
    return ConflictError(f"cannot write in {folder}", cause=error.strerror, hint=hint)


def _all_files(folder: Path) -> Iterator[Path]:
    """The files below ``folder`` that a build or an editor did not leave."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(f for f in folders if f not in ("__pycache__", "build"))
        yield from (Path(place, name) for name in sorted(files) if not name.endswith((".pyc", ".so", "~")))


def _check(folder: Path, *, force: bool) -> None:
    if (folder / "fcctl.toml").exists() and not force:
        raise ConflictError(
            f"{folder / 'fcctl.toml'} exists",
            cause="this folder is already a workspace",
            hint="to check it: fcctl doctor; to replace its files and keep the old ones as *.bak: fcctl init --force",
        )
    for name in ("jobs", "results"):
        if (folder / name).exists() and not (folder / name).is_dir():
            raise ConflictError(
                f"{folder / name} is not a folder",
                cause=f"a workspace needs a folder named {name}",
                hint=f"rename the file, or write a fcctl.toml with another `{name}` below [project]:"
                f" docs/configuration.md",
            )


def _repository_above(folder: Path) -> Path | None:
    if (folder / ".git").exists():
        return None
    return next((above for above in folder.resolve().parents if (above / ".git").exists()), None)


def _write_all(done: Written, host: str | None, force: bool) -> None:
    projects = _projects(done.root)
    done.jobs = list(projects) or done.jobs
    done.name = slug(done.root.resolve().name)[:48].strip("-")
    _write(done, done.root / "fcctl.toml", starter.config_text(done.name, host), replace=force)
    for job in done.jobs:
        place = projects.get(job)
        text = starter.job_text(inspect_folder(done.root / (place or "")), job, place)
        _write(done, done.root / "jobs" / f"{job}.yaml", text, replace=force)
    _write(done, done.root / "results" / ".gitignore", starter.RESULTS_IGNORE, replace=False)


def _write(done: Written, path: Path, content: str | bytes, *, replace: bool) -> None:
    make_folders(path.parent)
    if path.exists() or path.is_symlink():
        if not replace:
            done.kept.append(path)
            return
        backup = _free_backup(path)
        path.rename(backup)
        done.backups.append(backup)
    write_atomic(path.parent, path.name, content.encode() if isinstance(content, str) else content)
    done.written.append(path)


def _free_backup(path: Path) -> Path:
    number = 1
    while (backup := path.with_name(f"{path.name}.bak{number if number > 1 else ''}")).exists():
        number += 1
    return backup


def _projects(folder: Path) -> dict[str, str]:
    """Job name -> folder below ``folder``, of those that build or run on their own, if ``folder`` itself has nothing
    that does and one of them has a build or a script for the GPU."""
    if _has_build(folder) or any(folder.glob("*.cu")) or any(_gpu_scripts(folder)):
        return {}
    found: dict[Path, bool] = {}
    for place in dict.fromkeys(path.parent for path in _files(folder) if path.parent != folder):
        if not any(above in found for above in place.parents) and place.name not in _NO_PROJECTS:
            alone = _has_build(place) or any(_gpu_scripts(place))
            if alone or any(_MAIN.search(_read(source)) for source in place.glob("*.cu")):
                found[place] = alone
    paths = [place.relative_to(folder).as_posix() for place in found] if any(found.values()) else []
    return {_job_name(path): path for path in paths[:_MAX_PROJECTS]}


def _job_name(path: str) -> str:
    """``path`` as a job's name, without its first parts if it is too long."""
    name = slug(path.replace("/", "-"))
    while len(name) > MAX_JOB_NAME and "-" in name:
        name = name.partition("-")[2]
    return name[:MAX_JOB_NAME]


def _has_build(folder: Path) -> bool:
    """Whether there is a file that tells how to build ``folder``; a pyproject.toml may hold settings of tools alone."""
    files = [name for name in (*_MAKEFILES, "CMakeLists.txt", "build.py", "setup.py") if (folder / name).is_file()]
    return bool(files) or _PACKAGE.search(_read(folder / "pyproject.toml")) is not None


def inspect_folder(folder: Path) -> starter.Findings:
    """What there is to build in ``folder``."""
    bench = _bench(folder)
    text = _read(folder / bench) if bench else ""
    option = _OUT.search(text)
    return replace(
        _built(folder, bench),
        bench_out=option[0].strip("\"'") if option else None,
        bench_reads="flashcore" if option and _FLASHCORE.search(text) and "p50" in text else None,
        shell_scripts=tuple(_shell_scripts(folder)),
    )


def _bench(folder: Path) -> str | None:
    """The first script that times something, those with ``--out`` before others."""
    paths = [
        path
        for pattern in _BENCHES
        for path in sorted(folder.glob(pattern))
        if path.is_file() and path.name.isprintable()
    ]
    found = sorted(paths, key=lambda path: path.parent != folder and not _OUT.search(_read(path)))
    return next((path.relative_to(folder).as_posix() for path in found), None)


def _shell_scripts(folder: Path) -> Iterator[tuple[str, bool]]:
    """The ``scripts/*.sh``, and whether each works on the machine that it runs on."""
    for path in sorted(folder.glob("scripts/*.sh"))[:_MAX_SOURCES]:
        if path.name.isprintable():
            yield f"scripts/{path.name}", not _ELSEWHERE.search(_read(path))


def _built(folder: Path, bench: str | None) -> starter.Findings:
    texts = _cuda_texts(folder)
    kernels = tuple(itertools.islice((name for name, text in texts.items() if "__global__" in text), _MAX_SOURCES))
    found = starter.Findings(cuda_sources=kernels)
    cmake = _read(folder / "CMakeLists.txt")
    # Without a kernel, ptxas prints nothing.
    nvcc = "CUDA" in cmake and any(path.suffix in (".cu", ".cuh") for path in _files(folder))
    if makefile := next((folder / name for name in _MAKEFILES if (folder / name).is_file()), None):
        text = "\n".join(_make_texts(makefile))
        below = [text, *(_read(path) for path in _files(folder) if path.name in _MAKEFILES or path.suffix == ".mk")]
        goals = _GOAL.findall(text)
        return replace(
            found, uses_nvcc="nvcc" in text.lower() or bool(texts),
            make_targets=tuple(dict.fromkeys(name for names in _TARGETS.findall(text) for name in names.split())),
            make_goal=next((goal for goal, _ in goals if goal), next((first for _, first in goals), "")),
            make_python=_CALLS_PYTHON.search("\n".join(below)) is not None,
            names_arch="nvcc" not in "".join(below).lower() or any(_NAMES_ARCH.search(part) for part in below),
        )  # fmt: skip
    if (folder / "CMakeLists.txt").is_file():
        return replace(
            found, cmake=True, cmake_tests=_CTEST.search(cmake) is not None, uses_nvcc=nvcc,
            cmake_programs=tuple(itertools.islice(_cmake_programs(folder), _MAX_SOURCES)),
        )  # fmt: skip
    tests = any(next(folder.glob(pattern), None) for pattern in _TESTS)
    found = replace(found, python_tests=tests, python_bench=bench, uses_nvcc=bool(kernels))
    for build in ("build.py", "setup.py", "pyproject.toml"):
        if (folder / build).is_file() and _has_build(folder):
            return replace(found, python_build=build)
    programs = tuple(itertools.islice((name for name, text in texts.items() if _MAIN.search(text)), _MAX_SOURCES))
    extensions, kernel_scripts = _gpu_scripts(folder)
    scripts = (*extensions, *kernel_scripts)
    uses_torch = any(_IMPORTS_TORCH.search(_read(folder / name)) for name in scripts)
    libraries = tuple(dict.fromkeys(name for text in texts.values() for name in _LIBRARY.findall(text)))
    included = {Path(path).name for text in texts.values() for path in _INCLUDE.findall(text)}
    alone = [n for n in kernels if n not in programs and Path(n).name not in included and not _TORCH.search(texts[n])]
    return replace(
        found,
        cuda_sources=tuple(alone), cuda_libraries=libraries,
        cuda_programs=tuple((name, tuple(_linked(name, programs, alone))) for name in programs),
        prints_times=any(_PRINTS_TIME.search(texts[name]) for name in programs),
        gpu_scripts=scripts, script_tools=("torch",) * uses_torch + ("nvcc",) * bool(extensions),
    )  # fmt: skip


def _make_texts(makefile: Path) -> Iterator[str]:
    """The text of ``makefile`` and of what it includes by a plain path."""
    pending, seen = [makefile], set[Path]()
    while pending and len(seen) < _MAX_SOURCES:
        path = pending.pop()
        text = "" if path in seen else _read(path)
        seen.add(path)
        pending.extend(makefile.parent / name for name in _MAKE_INCLUDE.findall(text))
        yield text


def _linked(program: str, programs: Sequence[str], sources: Sequence[str]) -> Iterator[str]:
    """The ``sources`` that may belong to ``program``: no other program is in a folder that is nearer to them."""
    folders = {Path(name).parent for name in programs}
    for source in sources:
        nearest = next((above for above in Path(source).parents if above in folders), None)
        if nearest in (None, Path(program).parent):
            yield source


def _cmake_programs(folder: Path) -> Iterator[tuple[str, bool]]:
    """The commands that run what CMake builds, and whether each program takes no arguments."""
    project = "".join(_PROJECT.findall(_read(folder / "CMakeLists.txt"))[:1])
    lists = [
        (path.parent, _CMAKE_COMMENT.sub("", _read(path)).replace("${PROJECT_NAME}", project))
        for path in _files(folder)
        if path.name == "CMakeLists.txt"
    ]
    moved = any(_OUTPUT_FOLDER.search(text) for _, text in lists)
    for place, text in lists:
        for name, rest in _EXECUTABLE.findall(text):
            mains = [main for source in rest.split() for main in _MAIN_OF.findall(_read(place / source))]
            path = shlex.quote(Path("build", place.relative_to(folder), name).as_posix())
            command = f'"$(find . -type f -perm -u+x -name {name} | head -n 1)"' if moved else path
            yield command, bool(mains) and all(main.strip() in ("", "void") for main in mains)


def _gpu_scripts(folder: Path) -> tuple[list[str], list[str]]:
    """The scripts at the top of ``folder`` that compile torch extensions, and those that run Triton kernels."""
    texts = {path.name: _read(path) for path in sorted(folder.glob("[!-]*.py")) if path.name.isprintable()}
    scripts = {
        name: text for name, text in texts.items() if not re.match(r"test_|.*_test\.py$|(?:setup|build)\.py$", name)
    }
    alone = {name: _SCRIPT.search(text) is not None for name, text in scripts.items()}
    extensions = [
        n for n, text in scripts.items() if _TORCH_EXTENSION.search(text) and (alone[n] or _LOADS.search(text))
    ]
    kernels = [name for name, text in scripts.items() if _KERNEL.search(text) and alone[name]]
    return extensions[:_MAX_SOURCES], [name for name in kernels if name not in extensions][:_MAX_SOURCES]


def _cuda_texts(folder: Path) -> dict[str, str]:
    """The .cu files with their text."""
    names = ((path, path.relative_to(folder).as_posix()) for path in _files(folder) if path.name.endswith(".cu"))
    return {name: _read(path) for path, name in names if not name.startswith("-")}


def _files(folder: Path) -> Iterator[Path]:
    """The files of up to four folders' depth, in order of their names; hidden and built folders, and names that cannot
    be printed, are left out."""
    for place, folders, files in os.walk(folder):
        depth = len(Path(place).relative_to(folder).parts)
        deeper = folders if depth < 4 else ()
        folders[:] = sorted(f for f in deeper if f[0] != "." and f not in _NOT_SOURCES and f.isprintable())
        yield from (Path(place, name) for name in sorted(files) if name.isprintable())


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_READ).decode(errors="replace")
    except OSError:
        return ""
