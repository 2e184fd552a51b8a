from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fcctl_remote import wire
from orchestrator.base.errors import NotFoundError
from orchestrator.runs.job import job as jobs
from orchestrator.runs.job.gate_fields import misspelt
from orchestrator.runs.job.job import GATE_NAMES, InvalidJob, JobFile

WHOLE = """\
job: phase1
title: A job with everything
needs: {gpu: true, compute_capability: 8.9, tools: [nvcc, ncu]}
env:
  BLOCK: 0064
  MODE: on
budget: {usd: 1.5, minutes: 30}
lock: shared
steps:
  - id: build
    run: |
      make
    timeout: 10m
    collect: [{reader: ptxas, file: "@log"}]
    gates:
      - max(build.kernels[*].registers) <= 120
      - expr: sum(build.kernels[*].spill_store_bytes) == 0
        when: host.gpu.present
        hint: less unrolling
  - id: profile-1
    where: controller
    run: "true"
    timeout: 90
    retries: 2
    optional: true
    needs: {tools: [ncu]}
    env: {KERNEL: wmma}
    exit_codes: {"1": warned, 69: unavailable}
    activity: profile
"""


def parsed(text: str, name: str | None = None) -> JobFile:
    return jobs.parse(text, "jobs/x.yaml", name)


def test_the_whole_format() -> None:
    job = parsed(WHOLE, "phase1").job
    assert job.env == {"BLOCK": "0064", "MODE": "on"}
    assert job.needs.spec() == wire.Needs(True, "8.9", ["nvcc", "ncu"])
    assert job.budget.minutes == 30
    build, profile = (step.spec() for step in job.steps)
    assert build == wire.StepSpec(
        id="build",
        run="make\n",
        timeout_s=600,
        collect=[wire.CollectSpec("ptxas", "@log")],
        gates=[
            wire.GateSpec("max(build.kernels[*].registers) <= 120"),
            wire.GateSpec("sum(build.kernels[*].spill_store_bytes) == 0", "host.gpu.present", "less unrolling"),
        ],
        activity="build",
    )
    assert profile == wire.StepSpec(
        id="profile-1",
        run="true",
        timeout_s=90,
        retries=2,
        optional=True,
        needs=wire.Needs(tools=["ncu"]),
        env={"KERNEL": "wmma"},
        exit_codes={"1": "warned", "69": "unavailable"},
        activity="profile",
    )
    assert job.steps[1].where == "controller"


def test_empty_keys_are_absent_ones() -> None:
    job = parsed("job: a\nenv:\ntitle:\nneeds:\nsteps:\n  - id: x\n    run: ls\n    env: {A: }\n").job
    assert job.env == {}
    assert job.steps[0].env == {"A": ""}


MINIMAL = "job: a\nsteps:\n  - id: x\n    run: ls\n"


@pytest.mark.parametrize(
    ("text", "line", "words", "hint"),
    [
        (MINIMAL + "    timout: 5\n", 5, "unknown key 'timout' in steps[0]", "did you mean 'timeout'?"),
        (MINIMAL + "stepz: []\n", 5, "unknown key 'stepz'", "did you mean 'steps'?"),
        (MINIMAL + "    timeout: 5x\n", 5, "expected a duration such as 90s", None),
        (MINIMAL + "    timeout: 0\n", 5, "expected a duration above 0", None),
        (MINIMAL + "    retries: many\n", 5, "steps[0].retries: expected a whole number", None),
        (MINIMAL + "    where: host-side\n", 5, "unknown value 'host-side'", "did you mean 'host'?"),
        (MINIMAL + "    activity: bnch\n", 5, "unknown value 'bnch'", "did you mean 'bench'?"),
        (MINIMAL + "    needs: {gpus: true}\n", 5, "unknown key 'gpus' in steps[0].needs", "did you mean 'gpu'?"),
        (MINIMAL + "    needs: {tools: ['a b']}\n", 5, "steps[0].needs.tools[0]: invalid value 'a b'", "must match"),
        (MINIMAL + "needs:\n  compute_capability: ada\n", 6, "invalid value 'ada'", "must match"),
        (MINIMAL + "    collect:\n      - {reader: ptxs, file: a}\n", 6, "unknown reader 'ptxs'", "mean 'ptxas'?"),
        (MINIMAL + "    collect: [{reader: ptxas}]\n", 5, "missing key 'file'", None),
        (MINIMAL + "    collect: [{reader: ptxas, file: ../x}]\n", 5, "inside the source folder", None),
        (MINIMAL + "    collect: [{reader: ptxas, file: /etc/passwd}]\n", 5, "inside the source folder", None),
        (MINIMAL + "    gates:\n      - build.x <= 1\n      - build.x <=\n", 7, "of 'build.x <='", None),
        (MINIMAL + "    gates: [{expr: build.x == 1, when: (}]\n", 5, "gates[0].when", None),
        (MINIMAL + "    gates: [benchmrk.x < 1]\n", 5, "unknown name 'benchmrk'", "did you mean 'benchmark'?"),
        (MINIMAL + "    gates: [correctness.sumary.max_err]\n", 5, "unknown field 'sumary'", "did you mean 'summary'"),
        (MINIMAL + "    gates: ['has(build.kernel[0])']\n", 5, "unknown field 'kernel'", "did you mean 'kernels'?"),
        (
            MINIMAL + "    gates: ['1 < max(steps.x.benchmark.benchmarks[name=\"a\"].stats.p5O)']\n",
            5,
            "unknown field 'p5O' of benchmark.benchmarks.stats",
            "did you mean 'p50'?",
        ),
        (MINIMAL + "    gates: [{when: host.gpu}]\n", 5, "missing key 'expr'", None),
        (MINIMAL + "    env: {A-B: 1}\n", 5, "not a valid name of an environment variable", None),
        (MINIMAL + "    exit_codes: {300: warned}\n", 5, "'300' is not an exit code", None),
        (MINIMAL + "    exit_codes: {1: warn}\n", 5, "unknown value 'warn'", "did you mean 'warned'?"),
        (MINIMAL.replace("id: x", "id: X y"), 3, "invalid value 'X y'", "must match"),
        (MINIMAL + "  - id: x\n    run: ls\n", 5, "duplicate step id 'x', first used on line 3", None),
        ("job: a\nsteps:\n  - run: ls\n", 3, "missing key 'id' in steps[0]", None),
        ("job: a\nsteps:\n  - id: x\n    run:\n", 4, "missing key 'run'", None),
        ("job: a\nsteps: ls\n", 2, "steps: expected a list, found 'ls'", None),
        ("job: a\nsteps:\n  - {id: b, run: true}\n", 3, "steps[0].run: expected text, found True", "quotes"),
        ("job: a\nsteps: []\n", 1, "the job has no steps", "'uses'"),
        ("steps:\n  - id: x\n    run: ls\n", 1, "missing key 'job'", None),
        ("- a\n", 1, "expected a job", None),
        ("", 1, "expected a job", None),
        ("job: a\njob: b\n", 2, "duplicate key 'job', first used on line 1", None),
        ("job: !!python/name:os.system\n", 1, "tags", None),
        (MINIMAL + "budget: {minutes: .nan}\n", 5, "budget.minutes", None),
        (MINIMAL + "lock: none\n", 5, "unknown value 'none'", "exclusive"),
    ],
)
def test_mistakes_name_line_and_nearest(text: str, line: int, words: str, hint: str | None) -> None:
    with pytest.raises(InvalidJob) as caught:
        parsed(text)
    problem = caught.value.problems[0]
    assert problem.where == f"jobs/x.yaml:{line}", str(problem)
    assert words in problem.message
    if hint:
        assert hint in (problem.hint or "")
    assert str(problem) in caught.value.message
    assert caught.value.exit_code == 3


def test_a_job_is_called_as_its_file() -> None:
    with pytest.raises(InvalidJob, match=r"jobs/x\.yaml:1: the key 'job' is 'a'"):
        parsed(MINIMAL, "x")


def test_all_mistakes_are_told_at_once() -> None:
    text = "job: a\nenvv: {}\nsteps:\n  - id: x\n    run: ls\n    timeout: z\n  - id: y\n    gates: [')']\n"
    with pytest.raises(InvalidJob) as caught:
        parsed(text)
    assert [p.where for p in caught.value.problems] == [f"jobs/x.yaml:{line}" for line in (6, 7, 8, 2)]


# ------------------------------------------------------------------------------------------------ uses
def library(**texts: str) -> object:
    def load(name: str) -> JobFile:
        if name not in texts:
            raise NotFoundError(f"no job named '{name}'", hint=f"known: {', '.join(texts)}")
        return jobs.parse(texts[name], f"jobs/{name}.yaml", name)

    return load


def text(name: str, *, uses: str = "", steps: str = "", **keys: str) -> str:
    lines = [f"job: {name}", *(f"{key}: {value}" for key, value in keys.items())]
    lines += [f"uses: [{uses}]"] if uses else []
    lines += ["steps:", *(f"  - {{id: {step}, run: ls}}" for step in steps.split())] if steps else []
    return "\n".join(lines) + "\n"


def resolved(name: str, **texts: str) -> jobs.Job:
    return jobs.resolve(name, library(**texts))  # type: ignore[arg-type]


def test_used_steps_come_first_and_once() -> None:
    job = resolved(
        "all",
        all=text("all", uses="test, bench", steps="report"),
        test=text("test", uses="build", steps="test", lock="shared"),
        bench=text("bench", uses="build", steps="bench"),
        build=text("build", steps="build"),
    )
    assert [step.id for step in job.steps] == ["build", "test", "bench", "report"]
    assert job.lock == "exclusive"


def test_needs_go_with_the_steps_that_have_them() -> None:
    job = resolved(
        "all",
        all=text("all", uses="a, b", steps="z", needs="{tools: [make]}"),
        a=text("a", steps="x", needs="{gpu: true, compute_capability: 8.9, tools: [nvcc]}"),
        b="job: b\nneeds: {compute_capability: 10.0}\nsteps:\n"
        "  - {id: y, run: ls, needs: {compute_capability: 9.0, tools: [ncu]}}\n",
    )
    needs = {step.id: step.needs.spec() for step in job.steps}
    assert needs["x"] == wire.Needs(True, "8.9", ["nvcc"])
    assert needs["y"] == wire.Needs(False, "10.0", ["ncu"])
    assert needs["z"] == wire.Needs()
    assert job.needs.tools == ["make"]


def test_the_using_job_s_environment_wins() -> None:
    used = text("a", steps="x", env="{N: 1, M: 1}")
    job = resolved("all", all=text("all", uses="a", env="{N: 2}"), a=used)
    assert job.env == {"N": "2", "M": "1"}


@pytest.mark.parametrize(
    ("texts", "where", "words", "hint"),
    [
        (
            {"all": text("all", uses="a, b"), "a": text("a", steps="x", env="{N: 1}"),
             "b": text("b", steps="y", env="{N: 2}")},
            "jobs/all.yaml:2", "the jobs 'a' and 'b' set different values of N", "env: {N: ...}",
        ),
        (
            {"all": text("all", uses="a"), "a": text("a", uses="b"), "b": text("b", uses="all")},
            "jobs/b.yaml:2", "circular 'uses': all -> a -> b -> all", None,
        ),
        ({"all": text("all", uses="all", steps="x")}, "jobs/all.yaml:2", "circular 'uses': all -> all", None),
        ({"all": text("all", uses="bild")}, "jobs/all.yaml:2", "unknown job 'bild'", "known: all"),
        (
            {"all": text("all", uses="a", steps="x"), "a": text("a", steps="x")},
            "jobs/all.yaml:4", "the job 'a' also has a step id 'x'", "unique",
        ),
        ({"all": text("all", uses="a"), "a": "job: a\nstep: []\n"}, "jobs/a.yaml:2", "unknown key 'step'", "steps"),
    ],
)  # fmt: skip
def test_mistakes_in_uses(texts: dict[str, str], where: str, words: str, hint: str | None) -> None:
    with pytest.raises(InvalidJob) as caught:
        resolved("all", **texts)
    problem = caught.value.problems[0]
    assert problem.where == where
    assert words in problem.message
    if hint:
        assert hint in (problem.hint or "")


def test_no_field_that_a_document_has_is_taken_for_a_typing_error() -> None:
    """``host.cpus`` beside ``host.cpu``, say: of published runs and of the readers' fixtures."""
    root = Path(__file__).resolve().parents[3]
    names: set[str] = set()
    for file in [*root.glob("results/reference/**/*.json"), *root.glob("tests/fixtures/**/*.json")]:
        with contextlib.suppress(ValueError):
            content = json.loads(file.read_bytes())
            if isinstance(content, dict):
                kind = str(content.get("kind"))
                names.update(_fields("host" if kind == "environment" else kind, content))
                names.update(_fields("host", content.get("host")))
    known = [name for name in names if name.partition(".")[0] in GATE_NAMES]
    assert len(known) > 300
    known += ["benchmark.benchmarks[0].stats.mad", "benchmark.benchmarks[0].stats.p95", "benchmark.benchmarks[0].state"]
    assert [(name, found) for name in known if (found := list(misspelt(name)))] == []


def _fields(place: str, value: Any) -> Iterator[str]:
    """``build.kernels.name`` of each object in a document, to the depth that a gate can name without quotes."""
    for one in value[:20] if isinstance(value, list) else [value]:
        for key, inner in one.items() if isinstance(one, dict) else ():
            if re.fullmatch(r"[A-Za-z_]\w*", key):
                yield f"{place}.{key}"
                yield from _fields(f"{place}.{key}", inner)
