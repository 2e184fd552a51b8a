"""The first job for a repository. Text only: nothing is read or written."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from orchestrator.workspace import build_files
from orchestrator.workspace.findings import BuilderStep, Findings

_TEST_TARGETS = ("test", "check", "tests")
_BENCH_TARGETS = ("bench", "benchmark", "benchmarks", "perf")
_RUN_TARGETS = ("run",)
_BUILD_TARGETS = ("all", "build")
#: They print or delete, and build nothing.
NO_BUILD = ("help", "usage", "info", "list", "clean", "distclean", "win32", "win64", "windows", "mingw")
NO_PROGRAM = (*NO_BUILD, *_TEST_TARGETS, *_BENCH_TARGETS, *_RUN_TARGETS)


@dataclass(frozen=True)
class _Step:
    id: str
    run: str
    timeout: str
    comment: str = ""
    needs: tuple[str, ...] = ()
    gpu: bool = False
    env: str | None = None
    collect: tuple[tuple[str, str], ...] = ()
    optional: bool = False  # whether there may be nothing to collect: a build may find all up to date
    keep_going: bool = False
    gates: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def job_text(findings: Findings, job: str, place: str | None = None) -> str:
    """A job that builds, tests and times what was found, with ptxas's resources where nvcc compiles; ``place`` is the
    folder of it all, below the workspace's."""
    steps, others = _with_scripts(_steps(findings), findings.shell_scripts)
    if place:
        steps = [replace(step, run=f"cd {shlex.quote(place)}\n{step.run}") for step in steps]
    head = f"""\
# A job: shell steps that run in order on the target, each in the same copy of the source. The first step that fails,
# or whose gate fails, ends the run. Check this file with: fcctl jobs validate {job}
job: "{job}"
title: {_title(steps)}

steps:
"""
    others += findings.others
    rest = f"\n# Found, and not run by this job: {', '.join(others)}\n" if others else ""
    if findings.programs and not any(step.id in ("run", "bench") for step in steps):
        programs = _step_text(replace(_run_programs(findings), notes=()))
        rest += "\n# These need arguments: uncomment them, and write arguments.\n" + textwrap.indent(programs, "# ")
    return head + "\n".join(_step_text(step) for step in steps) + rest


#: The order of the steps, by their ids; and what a script is for, by a part of its name.
_ORDER = {"build": 0, "test": 1, "run": 2, "python": 2, "bench": 3, "profile": 4}
_PURPOSES = {"build": "build", "compile": "build", "test": "test", "check": "test", "bench": "bench", "prof": "profile",
             "ncu": "profile"}  # fmt: skip


def _with_scripts(steps: list[_Step], scripts: tuple[str, ...]) -> tuple[list[_Step], list[str]]:
    """The steps with those that only a shell script has; and the scripts that are in none."""
    added: dict[str, _Step] = {}
    others = []
    for script in scripts:
        name = script.rpartition("/")[2]
        purpose = next((step for part, step in _PURPOSES.items() if part in name), "")
        if not purpose or purpose in added or any(step.id == purpose for step in steps):
            others.append(script)
        elif purpose == "bench":
            added[purpose] = _bench(f"bash {shlex.quote(script)}")
        else:
            added[purpose] = _Step(purpose, f"bash {shlex.quote(script)}", "10m", gpu=purpose == "profile")
    own = [step for step in steps if step.id != "hello" or not added]
    return sorted([*own, *added.values()], key=lambda step: _ORDER.get(step.id, 0)), others


def _title(steps: list[_Step]) -> str:
    ids = [step.id for step in steps]
    return f"{', '.join(ids[:-1])} and {ids[-1]}".capitalize() if len(ids) > 1 else ids[0].capitalize()


def _steps(findings: Findings) -> list[_Step]:
    if findings.builder:
        return _builder_steps(findings)
    if findings.make_targets is not None:
        return _make_steps(findings, findings.make_targets)
    if findings.cmake:
        return _cmake_steps(findings)
    if findings.python_build:
        return _python_steps(findings)
    if findings.compiled:
        lines = {source: f"{_NVCC} {shlex.join(words)}" for source, words in findings.compiled}
        alone = replace(findings, requirements="", python_tests=False, python_test_scripts=())
        scripts = _python_steps(alone) if findings.gpu_scripts else []
        others = [replace(step, id="python") for step in scripts if step.id == "run"]
        return [_nvcc(lines), *_run_those_that_can(findings), *others]
    if findings.gpu_scripts or findings.python_test_scripts or findings.python_tests or findings.python_bench:
        return _python_steps(findings)
    notebooks = [shlex.quote(name) for name in findings.others if name.endswith(".ipynb")]
    execute = f"\n# {_NOTEBOOKS} {' '.join(notebooks)}" * bool(notebooks)
    return [_Step("hello", "uname -a" + execute, "1m", f"{NOTHING}: write your commands here.")]


#: The job's comment then, which ``init`` looks for.
NOTHING = "Nothing to build or run was found"
_NOTEBOOKS = '"$FCCTL_PYTHON" -m jupyter nbconvert --execute --to notebook --output-dir "$FCCTL_OUT"'
#: Comes home with the run; a file of this name in the repository stays as it is.
_BUILD_LOG = "$FCCTL_OUT/build.log"
_JUNIT = "$FCCTL_OUT/junit.xml"
_FIGURES = "$FCCTL_OUT/benchmark.json"


def _logged(run: str) -> str:
    """The commands, their output also in the build log."""
    if "\n" in run:
        run = "{\n" + "".join(f"  {line}\n" for line in run.splitlines()) + "}"
    return f'{run} 2>&1 | tee "{_BUILD_LOG}"'


def _build(findings: Findings, run: str, comment: str, tools: tuple[str, ...], *, keep_going: bool = False) -> _Step:
    began = f"touch {_BEGAN}\n" * findings.unnamed_programs
    if not findings.uses_nvcc:
        return _Step("build", began + run, "10m", comment, needs=tools, keep_going=keep_going)
    return _Step(
        "build",
        build_files.commands(findings.rewritten) + began + _logged(run) + _WHICH * keep_going,  # in this order
        "10m",
        comment,
        needs=(*tools, "nvcc"),
        env='{NVCC_APPEND_FLAGS: "-Xptxas=-v"}   # nvcc reads it: ptxas prints what each kernel uses',
        collect=(("ptxas", _BUILD_LOG),),
        optional=True,
        keep_going=keep_going,
        notes=_RESOURCE_GATES,
    )


#: The lines of make and ninja that name what failed.
_WHICH = f' || {{ grep -E "^FAILED: |[*]{{3}} .*Error" "{_BUILD_LOG}"; exit 1; }}'
_RESOURCE_GATES = (
    "gates:                     # uncomment: the build fails above these limits",
    "  - max(build.kernels[*].registers) <= 128",
    "  - sum(build.kernels[*].spill_store_bytes) == 0",
)


def make_target(targets: tuple[str, ...], goal: str) -> str:
    """What make is asked to build; "": its own goal, which is ``goal``."""
    named = next((target for target in _BUILD_TARGETS if target in targets), "")
    if named or goal not in NO_BUILD:
        return named
    return next((target for target in targets if target not in NO_PROGRAM), "")


def _make_steps(findings: Findings, targets: tuple[str, ...]) -> list[_Step]:
    variables = "".join(f' {name}="$FCCTL_CUDA_ARCH"' for name in findings.arch_variables)
    more = _steps_of_targets(findings, targets, lambda name: f"make {name}{variables}")
    runs = any(step.id != "test" for step in more)
    findings = replace(findings, unnamed_programs=findings.unnamed_programs and not runs)
    keep_going = not more and _run_alone(findings)
    goals = [make_target(targets, findings.make_goal) or findings.make_goal * bool(findings.make_peers)]
    line = f"make {'-k ' * keep_going}-j4 {' '.join([*goals, *findings.make_peers])}".rstrip() + variables
    build = _build(findings, line, "", ("make",), keep_going=keep_going)
    before = [f"mkdir -p {shlex.join(findings.make_folders)}   # git does not track them"] * bool(findings.make_folders)
    before += [_ARCH] * (findings.uses_nvcc and not findings.names_arch)
    steps = [replace(build, run="\n".join([*before, build.run]))]
    steps += more or _python_tests(findings, _IMPORTS_BUILT)
    steps += [] if runs else _run_those_that_can(findings)
    if findings.make_python:
        return [replace(step, run=f"{_PATH}\n{step.run}") for step in steps]
    return steps


def _steps_of_targets(findings: Findings, targets: tuple[str, ...], line: Callable[[str], str]) -> list[_Step]:
    """Those that test, run and time."""
    steps = []
    if test := next((target for target in _TEST_TARGETS if target in targets), None):
        steps.append(_test(line(test)))
    if run := next((target for target in _RUN_TARGETS if target in targets), None):
        steps.append(replace(_run(line(run)), gpu=findings.uses_nvcc))
    if bench := next((target for target in _BENCH_TARGETS if target in targets), None):
        steps.append(replace(_bench(line(bench)), gpu=findings.uses_nvcc))
    return steps


def _builder_steps(findings: Findings) -> list[_Step]:
    tools = (findings.builder,)
    if findings.builder == "just":
        recipes = findings.make_targets or ()
        build = next((recipe for recipe in _BUILD_TARGETS if recipe in recipes), "")
        steps = [_build(findings, f"just {build}", "", tools)] if build else []
        return [*steps, *_steps_of_targets(findings, recipes, "just {}".format)] or [
            _build(findings, "just", "", tools)
        ]
    make: dict[str, Callable[[BuilderStep], _Step]] = {
        "build": lambda step: _build(findings, step.run, "", tools),
        "test": lambda step: _test(step.run, (("junit", step.junit),) if step.junit else ()),
        "bench": lambda step: replace(_bench(step.run), gpu=findings.uses_nvcc),
    }
    return [make[step.id](step) for step in findings.builder_steps]


_PATH = 'export PATH="$(dirname "$FCCTL_PYTHON"):$PATH"   # so that the Makefile calls a python that has torch'
_ARCH = 'export NVCC_PREPEND_FLAGS="-arch=sm_$FCCTL_CUDA_ARCH"   # for the target\'s GPU: the Makefile has no -arch'


def _test(run: str, collect: tuple[tuple[str, str], ...] = (), gates: tuple[str, ...] = ()) -> _Step:
    return _Step("test", run, "10m", collect=collect, gates=gates, notes=_GPU_NOTE)


#: With the modules that make or CMake built.
_IMPORTS_BUILT = 'PYTHONPATH="build:.:${PYTHONPATH:-}" "$FCCTL_PYTHON"'
_TESTED = (
    "correctness.summary.failed == 0",
    (
        "{expr: correctness.summary.passed > 0, when: correctness.summary.failed == 0, "
        'hint: "each test was skipped: see why with pytest -rs or ctest -V"}'
    ),
)
_GPU_NOTE = ("needs: {gpu: true}         # uncomment: without a GPU the step is 'unavailable'",)


def _bench(run: str) -> _Step:
    return _Step("bench", run, "10m", collect=_PRINTED, optional=True, notes=_TIME_GATE)


_TIME = "min(benchmark.benchmarks[*].stats.p50) < 50"
_TIME_GATE = ("gates:                     # uncomment: the step fails above this time", f"  - {_TIME}")
#: What it prints, if it prints such: lines as 'softmax n=1024: 12.5 us' and '412.5 GB/s'.
_PRINTED = (("times", "@log"), ("rates", "@log"))


def _cmake_steps(findings: Findings) -> list[_Step]:
    variables = "".join(f' -D{name}="$FCCTL_CUDA_ARCH"' for name in findings.arch_variables)
    keep_going = not findings.cmake_tests and _run_alone(findings)
    configure = "rm -rf build/CMakeCache.txt build/CMakeFiles &&\n" * findings.cmake_leftovers
    configure += _PRESETS % ", ".join(map(shlex.quote, findings.cmake_presets)) if findings.cmake_presets else ""
    configure += f"cmake -S . -B build -DCMAKE_BUILD_TYPE=Release{findings.cmake_policy}{variables} &&\n"
    line = "MAKEFLAGS=-k " * keep_going + "cmake --build build --parallel 4"
    steps = [_build(findings, configure + line, "", ("cmake",), keep_going=keep_going)]
    if findings.cmake_tests:
        run = f'ctest --test-dir build --output-on-failure --output-junit "{_JUNIT}"'
        steps.append(_test(run, (("junit", _JUNIT),), _TESTED))
    return [*steps, *_python_tests(findings, _IMPORTS_BUILT), *_run_those_that_can(findings)]


def _run_those_that_can(findings: Findings) -> list[_Step]:
    """Runs the programs that the build makes, if one of them needs no arguments."""
    if findings.unnamed_programs:
        names = " ".join(f"! -name {shlex.quote(name)}" for name in findings.not_run)
        lines = [f"{_BUILT} {names} | sort)", _NONE_BUILT, _TRY, _TRY_BUILT, _FAILED]
        return [replace(_run("\n".join(lines)), gpu=findings.programs_use_gpu)]
    return [_run_programs(findings)] if any(not program.arguments for program in findings.programs) else []


def _run_alone(findings: Findings) -> bool:
    """Whether the build makes several programs that run without arguments: one is of use without the others."""
    return findings.unnamed_programs or sum(not program.arguments for program in findings.programs) > 1


def _commands(commands: list[str], others: Sequence[str] = ()) -> str:
    """Runs each of several, whichever fails, below its name: figures of one name in two programs are apart then. The
    ``others`` are comments."""
    if len(commands) + len(others) < 2:
        return "\n".join(commands)
    lines = [f"try {shlex.quote(command)}" for command in commands]
    lines += [f"# try {shlex.quote(command)}" for command in others]
    return "\n".join([_TRY, *lines, _FAILED])


def _run_programs(findings: Findings) -> _Step:
    """Those that need arguments are comments, unless all do."""
    alone = [program.command for program in findings.programs if not program.arguments]
    others = [f"{program.command} {program.arguments}" for program in findings.programs if program.arguments]
    run = _run(_commands(alone, others) if alone else _commands(others), "bench" if findings.prints_times else "run")
    return replace(run, gpu=findings.programs_use_gpu)


def _run(run: str, step: str = "run") -> _Step:
    """Runs programs that print times or rates, or nothing to collect."""
    return _Step(step, run, "10m", gpu=True, collect=_PRINTED, optional=True, notes=_TIME_GATE)


def _python_steps(findings: Findings) -> list[_Step]:
    steps, python = [], '"$FCCTL_PYTHON"'
    rewrite, findings = build_files.commands(findings.rewritten), replace(findings, rewritten=())
    if findings.python_build == "build.py":
        steps.append(_build(findings, f"{python} build.py", _PYTHON, ()))
    elif findings.python_build and findings.python_build.startswith("setup"):
        steps.append(_build(findings, f"{python} {findings.python_build} build_ext --inplace", _PYTHON, ()))
    elif findings.python_build or findings.requirements:
        python, more = "build/venv/bin/python", " pytest" if findings.python_tests else ""
        pip = f"{python} -m pip install"
        line = f"fcctl-host venv build/venv\n{pip} {findings.requirements}{more}"
        if findings.python_build:
            offline = f"{pip} --no-build-isolation --no-deps .   # if no package index is reachable"
            package = f"'.[{findings.python_extra}]'" if findings.python_tests and findings.python_extra else "."
            line = f"fcctl-host venv build/venv\n{pip} -e {package}{more} ||\n  {offline}"
        steps.append(_build(findings if findings.python_build else Findings(), line, _VENV, ()))
    steps += _python_tests(findings, python)
    others = (findings.python_bench, *findings.python_test_scripts)
    if scripts := [name for name in findings.gpu_scripts if name not in others]:
        run = _commands([f"{python} {shlex.quote(name)}" for name in scripts])
        steps.append(replace(_run(run), needs=findings.script_tools))
    if findings.python_bench:
        bench = _python_bench(findings, _script(python, findings.python_bench))
        on_gpu = findings.python_bench in findings.gpu_scripts
        steps.append(replace(bench, needs=findings.script_tools, gpu=True) if on_gpu else bench)
    steps[0] = replace(steps[0], run=rewrite + steps[0].run, comment=steps[0].comment or _PYTHON)
    return steps


def _python_tests(findings: Findings, python: str) -> list[_Step]:
    scripts = findings.python_test_scripts
    if findings.python_tests:
        named = "".join(f" {shlex.quote(name)}" for name in scripts)
        return [_test(f'{python} -m pytest{named} --junitxml="{_JUNIT}"', (("junit", _JUNIT),), _TESTED)]
    step = _test(_commands([_script(python, name) for name in scripts]))
    if findings.gpu_scripts:
        step = replace(step, needs=findings.script_tools, gpu=True, notes=())
    return [step] if scripts else []


def _script(python: str, name: str) -> str:
    path = 'PYTHONPATH=".:${PYTHONPATH:-}" ' if "/" in name and "PYTHONPATH" not in python else ""  # built in place
    return f"{path}{python} {shlex.quote(name)}"


def _python_bench(findings: Findings, run: str) -> _Step:
    if findings.bench_out is None:
        return _bench(run)
    bench = _bench(f'{run} {findings.bench_out} "{_FIGURES}"')
    if findings.bench_reads is None:
        return bench
    return replace(bench, collect=((findings.bench_reads, _FIGURES),), optional=False)


_VENV = "A virtual environment of this run; it can use the packages of the target's Python, such as torch."
_PYTHON = "FCCTL_PYTHON is a Python of the target, if possible one that has torch."
_PRESETS = "# CMakePresets.json has %s; with one, instead: cmake --preset NAME -B build &&\n"
_NVCC = 'nvcc -O3 -arch="sm_$FCCTL_CUDA_ARCH" -Xptxas=-v'


_TRY = 'failed=; try() { echo "==> $1 <=="; bash -c "$1" || failed+=" $1"; }'
#: The programs that the build made, whatever their names; files that were rewritten before are none.
_BEGAN = ".build-began"
_BUILT = f'built=$(find . -type f -perm -u+x -newer {_BEGAN} ! -path "*/CMakeFiles/*" ! -name "*.so*"'
_NONE_BUILT = '[ -n "$built" ] || { echo "no program was built: see the options for examples"; exit 1; }'
_TRY_BUILT = 'while IFS= read -r program <&3; do [ -z "$program" ] || try "$(printf %q "$program")"; done 3<<<"$built"'
_FAILED = '[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }'


def _nvcc(commands: dict[str, str]) -> _Step:
    """By what they compile, each whichever fails."""
    lines = list(commands.values())
    if len(commands) > 1:
        lines = [f"{command} || failed+={shlex.quote(f' {name}')}" for name, command in commands.items()]
        lines = ["failed=", *lines, _FAILED]
    return _Step(
        "build",
        "mkdir -p build\n" + _logged("\n".join(lines)),
        "10m",
        "FCCTL_CUDA_ARCH is the target's GPU (89 without a GPU): compiling needs no GPU.",
        needs=("nvcc",),
        collect=(("ptxas", _BUILD_LOG),),
        keep_going=len(commands) > 1,
        notes=_RESOURCE_GATES,
    )


def _step_text(step: _Step) -> str:
    lines = [f"# {step.comment}"] if step.comment else []
    lines.append(f"- id: {step.id}")
    lines.append(f"  timeout: {step.timeout}")
    needs = ["gpu: true"] if step.gpu else []
    if step.needs:
        needs.append(f"tools: [{', '.join(step.needs)}]")
    if needs:
        lines.append(f"  needs: {{{', '.join(needs)}}}   # without them the step is 'unavailable'")
    if step.env:
        lines.append(f"  env: {step.env}")
    if step.keep_going:
        lines.append("  keep_going: true   # after a compile error, the other steps run; then the run fails")
    lines.append("  run: |")
    lines.extend(f"    {line}" for line in step.run.splitlines())
    if step.collect:
        lines.append("  collect:")
        optional = ", optional: true" if step.optional else ""
        lines.extend(f'    - {{reader: {reader}, file: "{file}"{optional}}}' for reader, file in step.collect)
    if step.gates:
        lines.append("  gates:")
        lines.extend(f"    - {gate}" for gate in step.gates)
    lines.extend(f"  # {note}" for note in step.notes)
    return "".join(f"  {line}\n" for line in lines)
