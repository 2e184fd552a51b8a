"""The plan of a run: its steps, its environment, its limits, and what the host is told of its target."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fcctl_remote import wire
from orchestrator.base.errors import UsageError
from orchestrator.machines.targets import GcpTarget, IdleGpu, LocalTarget, SandboxTarget, SshTarget, Target
from orchestrator.money.caps import worst_case_minutes
from orchestrator.runs.job import job as jobs
from orchestrator.runs.job.plan import controller_steps, cuda_arch, make_plan, parse_settings, slice_steps, without

JOB = jobs.parse(
    """\
job: phase0
title: The baseline
needs: {tools: [cxx]}
env: {ITERATIONS: 100, MODE: fast}
budget: {minutes: 30}
steps:
  - {id: lint, run: ls, where: controller, env: {LEVEL: 1}}
  - {id: build, run: make, timeout: 5m, retries: 1}
  - {id: test, run: make test, env: {SEED: 1, MODE: slow}}
  - {id: bench, run: make bench, timeout: 10m}
""",
    "jobs/phase0.yaml",
).job
TARGET = LocalTarget(name="local", env={"MODE": "target", "CUDA_HOME": "/opt/cuda"})


@dataclass(frozen=True)
class Identity:
    tree_sha256: str = "ab" * 32
    git_commit: str | None = "c" * 40


def plan(settings: dict[str, str] | None = None, steps: str | None = None) -> wire.RunPlan:
    return make_plan(
        JOB,
        TARGET,
        Identity(),
        settings or {},
        steps,
        "20261121t081530z-phase0-local-3fa9c1",
        5.0,
        workspace="flashcore",
    )


def test_the_plan() -> None:
    made = plan()
    assert [step.id for step in made.steps] == ["build", "test", "bench"]
    assert (made.job, made.target, made.workspace, made.title) == ("phase0", "local", "flashcore", "The baseline")
    assert (made.tree_sha256, made.git_commit, made.created) == ("ab" * 32, "c" * 40, 5.0)
    assert made.needs == wire.Needs(tools=["cxx"])
    assert made.max_minutes == 30
    assert wire.decode(wire.RunPlan, wire.encode(made)) == made
    assert plan() == made


def test_the_environment_from_weak_to_strong() -> None:
    assert plan().env == {"ITERATIONS": "100", "MODE": "target", "CUDA_HOME": "/opt/cuda"}
    made = plan({"MODE": "set", "SEED": "7"})
    assert made.env["MODE"] == "set"
    assert made.steps[1].env == {"SEED": "7", "MODE": "set"}
    assert made.steps[0].env == {}


@pytest.mark.parametrize(("key", "hint"), [("ITERATION", "'ITERATIONS'"), ("CUDA_HOME", "known: "), ("PATH", "known")])
def test_only_declared_variables_can_be_set(key: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan({key: "1"})
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    ("steps", "ids"),
    [
        (None, "lint build test bench"),
        ("build..test", "build test"),
        ("test..", "test bench"),
        ("..build", "lint build"),
        ("test", "test"),
        ("..", "lint build test bench"),
        (" build .. bench ", "build test bench"),
    ],
)
def test_slices(steps: str | None, ids: str) -> None:
    assert [step.id for step in slice_steps(JOB.steps, steps)] == ids.split()


@pytest.mark.parametrize(
    ("steps", "words", "hint"),
    [
        ("tset", "no step 'tset'", "did you mean 'test'?"),
        ("build..zzz", "no step 'zzz'", "lint, build, test, bench"),
        ("bench..build", "'build' runs before 'bench'", "order: "),
    ],
)
def test_slices_that_make_no_sense(steps: str, words: str, hint: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        plan(steps=steps)
    assert hint in str(caught.value.hint)


def test_steps_of_the_controller() -> None:
    (lint,) = controller_steps(JOB, {"LEVEL": "2"}, None)
    assert lint.env == {"ITERATIONS": "100", "MODE": "fast", "LEVEL": "2"}
    assert controller_steps(JOB, {}, "build..") == []


def test_worst_case_counts_every_attempt_and_stops_at_the_budget() -> None:
    steps = plan().steps
    assert worst_case_minutes(steps) == 2 * 5 + 10 + 10
    assert worst_case_minutes(steps, 12) == 12
    assert worst_case_minutes(steps, 500) == 30


def test_settings_of_the_command_line() -> None:
    assert parse_settings(["A=1", "B=x=y", "A=", "A=2"]) == {"A": "2", "B": "x=y"}
    for bad in ("A", "=1"):
        with pytest.raises(UsageError, match="KEY=VALUE"):
            parse_settings([bad])


WATCHED = jobs.parse(
    """\
job: train
needs: {gpu: true}
steps:
  - {id: look, run: ls, activity: preflight}
  - {id: build, run: make}
  - {id: compile, run: make, needs: {gpu: true}, uses_gpu: true, activity: build}
  - {id: fetch, run: wget, uses_gpu: false}
  - {id: train, run: python train.py}
  - {id: here, run: ls, where: controller}
""",
    "jobs/train.yaml",
).job


@pytest.mark.parametrize(
    ("job", "steps"),
    [
        (WATCHED, ["compile", "train"]),
        (WATCHED.model_copy(update={"needs": jobs.Needs()}), ["compile"]),
        (WATCHED.model_copy(update={"needs": jobs.Needs(compute_capability="8.9")}), ["compile", "train"]),
        (JOB, ["bench"]),
    ],
)
def test_the_steps_whose_gpu_may_not_be_idle(job: jobs.Job, steps: list[str]) -> None:
    made = make_plan(job, TARGET, Identity(), {}, None, "r", 5.0, workspace="w", idle=IdleGpu())
    assert made.idle == wire.GpuIdle(5.0, 600.0, steps)
    assert wire.decode(wire.RunPlan, wire.encode(made)) == made


@pytest.mark.parametrize(
    ("job", "target", "budget", "minutes"),
    [(3, 2, 1, 3), (None, 2, 1, 2), (None, None, 1, 1), (0, 2, 1, None), (None, 0, 1, None), (None, None, None, None)],
)
def test_the_jobs_rule_is_stronger_than_the_targets_and_that_than_the_budgets(
    job: int | None, target: int | None, budget: int | None, minutes: int | None
) -> None:
    rules = [None if value is None else IdleGpu(gpu_below=10, minutes=value) for value in (job, target, budget)]
    made = make_plan(
        JOB.model_copy(update={"idle": rules[0]}), TARGET.model_copy(update={"idle": rules[1]}), Identity(), {}, None,
        "r", 5.0, workspace="w", idle=rules[2],
    )  # fmt: skip
    assert (None if made.idle is None else (made.idle.seconds / 60, made.idle.below_pct)) == (
        None if minutes is None else (minutes, 10)
    )


def gcp(machine_type: str, **accelerators: int) -> GcpTarget:
    named = {name.replace("_", "-"): count for name, count in accelerators.items()}
    return GcpTarget(name="t", project="my-project", instance="vm", zones=["us-west1-c"], machine_type=machine_type,
                     accelerators=named)  # fmt: skip


@pytest.mark.parametrize(
    ("target", "arch"),
    [
        (gcp("g2-standard-4"), "89"),
        (gcp("a2-highgpu-1g"), "80"),
        (gcp("a3-highgpu-8g"), "90"),
        (gcp("n1-standard-4", nvidia_tesla_t4=1), "75"),
        (gcp("n1-standard-4", something_new=1), "89"),
        (gcp("z9-standard-4"), "89"),
        (SandboxTarget(name="sandbox"), "89"),
        (SshTarget(name="box", host="box"), "89"),
        (LocalTarget(name="local"), "89"),
    ],
)
def test_of_target(target: Target, arch: str) -> None:
    assert cuda_arch(target) == arch


def test_a_step_is_left_out_by_name() -> None:
    ids = [step.id for step in JOB.steps]
    assert [step.id for step in without(JOB, [ids[0]]).steps] == ids[1:]
    with pytest.raises(UsageError, match="no step 'nonsense'"):
        without(JOB, ["nonsense"])
    with pytest.raises(UsageError, match="removes every step"):
        without(JOB, ids)


@pytest.mark.parametrize(
    ("of_target", "of_job", "image"),
    [(None, None, None), ("a", None, "a"), ("a", "b", "b"), (None, "b", "b"), ("a", "", None)],
)
def test_the_job_s_container_is_stronger_than_the_target_s(
    of_target: str | None, of_job: str | None, image: str | None
) -> None:
    job, target = JOB.model_copy(update={"container": of_job}), TARGET.model_copy(update={"container": of_target})
    made = make_plan(job, target, Identity(), {}, None, "20261121t081530z-a-local-3fa9c1", 5.0, workspace="w")
    assert made.container == image


def test_an_image_is_one_word_and_no_option() -> None:
    for bad in ("--privileged", "a b", "-v"):
        with pytest.raises(jobs.InvalidJob, match="container"):
            jobs.parse(f"job: a\ncontainer: '{bad}'\nsteps: [{{id: a, run: ls}}]\n", "jobs/a.yaml")
