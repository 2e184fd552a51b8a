"""From a job and a target to the plan of the host program. Pure: the same input gives the same plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fcctl_remote import wire
from orchestrator.base.errors import UsageError, did_you_mean, nearest
from orchestrator.base.run_id import slug
from orchestrator.machines.targets import CloudTarget, IdleGpu, SandboxTarget, Target
from orchestrator.runs.job.job import Job, Step

if TYPE_CHECKING:
    from orchestrator.runs.job.files import StepSearch
    from orchestrator.runs.source import Source

#: Steps of these activities use a GPU where there is one, whatever their needs say; those of the others do not.
GPU_ACTIVITIES, OTHER_ACTIVITIES = ("bench", "profile", "tune"), ("preflight", "build")
#: A machine that fcctl started goes off so long after its last run, seconds.
IDLE_STOP_S = 15 * 60.0


def make_plan(
    job: Job,
    target: Target,
    source: Source,
    settings: Mapping[str, str],
    steps_range: str | None,
    run_id: str,
    now: float,
    *,
    workspace: str,
    searches: Mapping[str, wire.Tuning] | None = None,
    idle: IdleGpu | None = None,
) -> wire.RunPlan:
    """Returns the host's part of one run. ``job`` has its ``uses`` unfolded; ``now`` is epoch seconds; ``workspace``
    names the tree on the host; ``idle`` counts if neither job nor target has a rule. Raises UsageError for an unknown
    setting or step."""
    check_settings(job, settings)
    steps = [s for s in slice_steps(job.steps, steps_range) if s.where == "host"]
    specs = [_with_settings(step, settings) for step in steps]
    for step, spec in zip(steps, specs, strict=True):
        spec.tune = None if step.tune is None else (searches or {})[step.tune]
    return wire.RunPlan(
        run_id=run_id,
        job=job.job,
        target=target.name,
        workspace=slug(workspace),
        tree_sha256=source.tree_sha256,
        steps=specs,
        title=job.title,
        created=now,
        needs=job.needs.spec(),
        env={**job.env, **target.env, **settings},
        lock=job.lock,
        max_minutes=job.budget.minutes,
        git_commit=source.git_commit,
        idle_stop_s=IDLE_STOP_S if target.kind not in ("local", "ssh") else None,
        sudo_ncu=target.owned,
        container=(target.container if job.container is None else job.container) or None,
        python=target.python,
        secrets=list(dict.fromkeys([*target.secrets, *job.secrets])),
        idle=_gpu_idle(job.idle or target.idle or idle, job, steps),
    )


def _gpu_idle(rule: IdleGpu | None, job: Job, steps: Sequence[Step]) -> wire.GpuIdle | None:
    """The rule for the host program, with the steps that it is for."""
    if rule is None or rule.minutes == 0:
        return None
    return wire.GpuIdle(rule.gpu_below, rule.minutes * 60, [step.id for step in steps if _uses_gpu(job, step)])


def _uses_gpu(job: Job, step: Step) -> bool:
    """Whether an idle GPU in ``step`` means that something is wrong."""
    if step.uses_gpu is not None:
        return step.uses_gpu
    needed = any(needs.gpu or needs.compute_capability for needs in (job.needs, step.needs))
    return step.activity in GPU_ACTIVITIES or (needed and step.activity not in OTHER_ACTIVITIES)


def controller_steps(job: Job, settings: Mapping[str, str], steps_range: str | None) -> list[wire.StepSpec]:
    """The steps that run here, before anything is billed; the job's environment is in each."""
    steps = [s for s in slice_steps(job.steps, steps_range) if s.where == "controller"]
    specs = [_with_settings(step, settings) for step in steps]
    for spec in specs:
        spec.env = {**job.env, **spec.env, **settings}
    return specs


def check_settings(job: Job, settings: Mapping[str, str]) -> None:
    """Raises UsageError if ``--set`` names a variable that neither the job nor a step declares."""
    declared = set(job.env).union(*(step.env for step in job.steps))
    for key in settings:
        if key not in declared:
            hint = did_you_mean(key, declared) if declared else f"declare it in the job's file: env: {{{key}: VALUE}}"
            raise UsageError(f"--set {key}: the job '{job.job}' has no env variable of this name", hint=hint)


def check_variants(
    job: Job, steps: Iterable[Step], settings: Mapping[str, str], searches: Mapping[str, StepSearch]
) -> None:
    """Raises UsageError if ``--set``, JobError if the job's file, names a variant that a search lacks."""
    for step in steps:
        search = searches.get(step.tune or "")
        if search is not None:
            search.check_variant(job, step, settings)


def parse_settings(pairs: Sequence[str]) -> dict[str, str]:
    """``["K=V", ..]`` as a mapping; the last value of a key wins. Raises UsageError for a pair without ``=``."""
    settings: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise UsageError(f"--set {pair}: expected KEY=VALUE", hint="--set ITERATIONS=200")
        settings[key] = value
    return settings


def slice_steps(steps: Sequence[Step], steps_range: str | None) -> list[Step]:
    """Returns the steps from ``a`` to ``b`` of ``a..b``, inclusive. Raises UsageError for an unknown step or the wrong
    order."""
    if steps_range is None:
        return list(steps)
    ids = [step.id for step in steps]
    first, dots, last = steps_range.strip().partition("..")
    if not dots:
        last = first
    start = _index(ids, first, 0)
    end = _index(ids, last, len(ids) - 1)
    if end < start:
        raise UsageError(
            f"--steps {steps_range}: the step '{last}' runs before '{first}'", hint=f"order: {', '.join(ids)}"
        )
    return list(steps[start : end + 1])


def without(job: Job, names: Sequence[str]) -> Job:
    """Returns the job without the steps called ``names``. Raises UsageError for an unknown one, and if none is left."""
    ids = [step.id for step in job.steps]
    for name in names:
        _index(ids, name, 0, "--skip")
    left = [step for step in job.steps if step.id not in names]
    if not left:
        raise UsageError("--skip removes every step", hint=f"the steps are {', '.join(ids)}")
    return job.model_copy(update={"steps": left}) if names else job


def _index(ids: list[str], name: str, default: int, option: str = "--steps") -> int:
    name = name.strip()
    if not name:
        return default
    if name not in ids:
        near = nearest(name, ids)
        hint = (f"did you mean '{near}'? " if near else "") + f"the steps are {', '.join(ids)}"
        raise UsageError(f"{option}: no step '{name}'", hint=hint)
    return ids.index(name)


def _with_settings(step: Step, settings: Mapping[str, str]) -> wire.StepSpec:
    """A step's own environment is stronger than the plan's, so a setting must reach in there too."""
    spec = step.spec()
    spec.env.update({key: value for key, value in settings.items() if key in spec.env})
    return spec


#: An L4's: the default of a target without a known GPU.
DEFAULT = "89"

#: Compute capabilities of the GPUs that Compute Engine has, https://developer.nvidia.com/cuda-gpus; machine families
#: bring theirs along, the others are attached by name.
_FAMILIES = {"g2": "89", "g4": "120", "a2": "80", "a3": "90", "a4": "100"}
_ACCELERATORS = {
    "nvidia-tesla-p100": "60", "nvidia-tesla-p4": "61", "nvidia-tesla-v100": "70", "nvidia-tesla-t4": "75",
    "nvidia-tesla-a100": "80", "nvidia-a100-80gb": "80", "nvidia-l4": "89", "nvidia-h100-80gb": "90",
}  # fmt: skip


def cuda_arch(target: Target) -> str:
    """What ``FCCTL_CUDA_ARCH`` says on the controller: the target's GPU as ``89``, an L4's where it is not known."""
    if isinstance(target, SandboxTarget) or not isinstance(target, CloudTarget):
        return DEFAULT
    attached = [_ACCELERATORS.get(name) for name in target.accelerators]
    return next((arch for arch in attached if arch), None) or _FAMILIES.get(target.machine_type.split("-")[0], DEFAULT)


def dotted(arch: str) -> str:
    """``89`` as ``8.9``, the way PyTorch's ``TORCH_CUDA_ARCH_LIST`` wants it."""
    return f"{arch[:-1]}.{arch[-1]}"
