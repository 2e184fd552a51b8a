"""Jobs: what ``jobs/<name>.yaml`` may say, and the steps that come of it once ``uses`` is unfolded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fcctl_remote import wire
from fcctl_remote.base import durations
from orchestrator.base import models, yaml_lines
from orchestrator.base.errors import JobError, NotFoundError, did_you_mean
from orchestrator.base.models import WRITTEN, Path, Problem
from orchestrator.machines.targets import IdleGpu, Image, SecretName
from orchestrator.runs.job.gate_fields import misspelt

NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
MAX_STEPS = 200
ACTIVITIES = ("preflight", "build", "test", "bench", "profile", "tune")
#: What a gate may start from: documents by kind, and the facts of the run.
GATE_NAMES = (*wire.DOCUMENT_KINDS, "env", "host", "step", "steps")
#: Values under these keys stay as they were written: 8.10 is no number, and an environment holds only text.
_TEXT_KEYS = ("env", "compute_capability", "exit_codes", "title")

Activity = Literal["preflight", "build", "test", "bench", "profile", "tune"]
MAX_JOB_NAME = 40
JobName = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MAX_JOB_NAME)]
Duration = Annotated[float, BeforeValidator(durations.seconds)]


def _known_reader(value: str) -> str:
    if value not in wire.READERS:
        raise _Unknown(f"unknown reader '{value}'", did_you_mean(value, wire.READERS))
    return value


def _inside(value: str) -> str:
    if value.startswith(("/", "~")) or ".." in value.split("/") or not value.isprintable():
        raise ValueError(f"{value!r} must be a path inside the source folder")
    return value


def _is_expression(value: str) -> str:
    from fcctl_remote.gates import evaluate as gates

    try:
        gates.parse(value)
    except gates.GateError as error:
        pointer = f" at column {error.column}" if error.column else ""
        raise ValueError(f"{error.message}{pointer} of {value!r}") from None
    for name in gates.names(value):
        if name not in GATE_NAMES:
            raise _Unknown(f"unknown name '{name}' in {value!r}", did_you_mean(name, GATE_NAMES))
    for name, place, known in misspelt(value):
        raise _Unknown(f"unknown field '{name}' of {place} in {value!r}", f"did you mean '{known}'?")
    return value


def _env(value: dict[str, str]) -> dict[str, str]:
    for key in value:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            raise ValueError(f"{key!r} is not a valid name of an environment variable")
    return value


Expression = Annotated[str, Field(min_length=1, max_length=2000), AfterValidator(_is_expression)]
Env = Annotated[dict[str, str], AfterValidator(_env)]
Program = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+-]*$", max_length=64)]


class _Unknown(ValueError):
    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class _Part(BaseModel):
    model_config = WRITTEN


class Needs(_Part):
    """What the machine must have; else the step is ``unavailable``."""

    gpu: bool = False
    #: At least this, as ``8.9``.
    compute_capability: Annotated[str, Field(pattern=r"^\d{1,2}\.\d$")] | None = None
    #: nvcc, ncu, torch, cxx, compute-sanitizer, or any program's name.
    tools: list[Program] = []

    def spec(self) -> wire.Needs:
        return wire.Needs(self.gpu, self.compute_capability, list(self.tools))


class Gate(_Part):
    """A condition on the results; a bare string is an ``expr``."""

    expr: Expression
    when: Expression | None = None
    hint: str | None = None
    #: The run may pass although this could not be decided.
    optional: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"expr": value} if isinstance(value, str) else value


class Collect(_Part):
    """A file (or glob) the step leaves, and the reader that makes a document of it."""

    reader: Annotated[str, AfterValidator(_known_reader)]
    file: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_inside)]
    #: No such file, or a file with nothing to read in it, is no fault of the step.
    optional: bool = False


class JobBudget(_Part):
    """The most that a run of the job may cost or take."""

    usd: Annotated[float, Field(gt=0, le=1_000_000)] | None = None
    minutes: Annotated[float, Field(gt=0, le=7 * 24 * 60)] | None = None


class Step(_Part):
    id: JobName
    run: Annotated[str, Field(min_length=1)]
    where: Literal["host", "controller"] = "host"
    timeout: Duration = 600.0
    needs: Needs = Field(default_factory=Needs)
    retries: Annotated[int, Field(ge=0, le=10)] = 0
    optional: bool | Literal["unavailable"] = False
    #: Later steps run although this one failed; the run fails at its end.
    keep_going: bool = False
    env: Env = {}
    exit_codes: dict[str, Literal["passed", "warned", "failed", "skipped", "unavailable"]] = {}
    activity: Activity = "test"
    collect: list[Collect] = []
    gates: list[Gate] = []
    #: Whether the run may be ended because the GPU is idle in this step; None: as its needs and its activity say.
    uses_gpu: bool | None = None
    #: It searches: ``tune/NAME.yaml`` says what, and its script starts the search with what it then finds there.
    tune: JobName | None = None

    @model_validator(mode="before")
    @classmethod
    def _activity_by_default(cls, value: Any) -> Any:
        if isinstance(value, dict) and "activity" not in value:
            if value.get("id") in ACTIVITIES:
                return {**value, "activity": value["id"]}
            if value.get("tune") is not None:
                return {**value, "activity": "tune"}
        return value

    @field_validator("tune")
    @classmethod
    def _on_the_machine(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("where") == "controller":
            raise _Unknown("a search can only run on the machine", "remove 'where' from the step")
        return value

    @field_validator("exit_codes")
    @classmethod
    def _codes(cls, value: dict[str, str]) -> dict[str, str]:
        for code in value:
            if not code.isdecimal() or not code.isascii() or not 0 <= int(code) <= 255:
                raise ValueError(f"{code!r} is not an exit code (0 to 255)")
        return value

    def spec(self) -> wire.StepSpec:
        """The step for the host program."""
        own = {"timeout_s": self.timeout, "unavailable_ok": self.optional == "unavailable", "tune": None}
        return wire.decode(wire.StepSpec, {**self.model_dump(), **own, "optional": self.optional is True})


class Job(_Part):
    job: JobName
    title: Annotated[str, Field(max_length=200)] = ""
    needs: Needs = Field(default_factory=Needs)
    env: Env = {}
    #: Names of environment variables whose values are secret.
    secrets: list[SecretName] = []
    #: The container image that its steps run in; "": none, whatever the target says.
    container: Image | Literal[""] | None = None
    budget: JobBudget = Field(default_factory=JobBudget)
    #: When a run is ended because it leaves the GPU idle; None: as the target says.
    idle: IdleGpu | None = None
    #: ``exclusive``: the machine to itself; ``shared``: side by side with other shared runs.
    lock: Literal["exclusive", "shared"] = "exclusive"
    #: Its runs get ``artifacts/manifest.yaml`` and ``artifacts/reports/summary.md`` once they are collected.
    report: bool = False
    #: Jobs whose steps come first.
    uses: list[JobName] = []
    steps: Annotated[list[Step], Field(max_length=MAX_STEPS)] = []


class InvalidJob(JobError):
    """A job file is wrong. ``problems`` holds each of its faults."""

    def __init__(self, found: list[Problem]) -> None:
        message, hint = models.summary(found)
        super().__init__(message, hint=hint or "fcctl help jobs")
        self.problems = tuple(found)


@dataclass(frozen=True)
class JobFile:
    """One file as written: ``uses`` not yet unfolded. ``file`` is its name in messages."""

    job: Job
    file: str
    document: yaml_lines.Document = field(repr=False)

    def where(self, path: Path) -> str:
        return f"{self.file}:{self.document.line(path)}"


def parse(text: str, file: str, name: str | None = None) -> JobFile:
    """Checks one job file; ``file`` is its name in messages, ``name`` what ``job:`` must say. Raises InvalidJob with
    all problems."""
    try:
        document = yaml_lines.read(text)
    except yaml_lines.YamlError as error:
        raise InvalidJob([Problem(f"{file}:{error.line}", error.message)]) from None
    if not isinstance(document.data, dict):
        raise InvalidJob(
            [Problem(f"{file}:1", "expected a job with keys such as 'job' and 'steps'", "fcctl help jobs")]
        )
    try:
        job = Job.model_validate(_as_written(document.data, (), document))
    except ValidationError as error:
        found = models.of_model(Job, error, lambda path: f"{file}:{document.line(path)}")
        raise InvalidJob(found) from None
    checked = JobFile(job, file, document)
    found = list(_faults(checked, name))
    if found:
        raise InvalidJob(found)
    return checked


def _as_written(value: Any, path: Path, document: yaml_lines.Document) -> Any:
    """``value`` without its empty keys, and with the text of what must stay text."""
    if isinstance(value, dict):
        return {k: _as_written(v, (*path, k), document) for k, v in value.items() if v is not None or _is_text(path)}
    if isinstance(value, list):
        return [_as_written(v, (*path, i), document) for i, v in enumerate(value)]
    return document.raw.get(path, value) if _is_text(path) else value


def _is_text(path: Path) -> bool:
    return any(part in _TEXT_KEYS for part in path[-2:])


def _faults(file: JobFile, name: str | None) -> Iterator[Problem]:
    job = file.job
    if name is not None and job.job != name:
        yield Problem(
            file.where(("job",)),
            f"the key 'job' is '{job.job}', but the file is named '{name}'",
            f"write 'job: {name}', or rename the file",
        )
    if not job.steps and not job.uses:
        yield Problem(file.where(()), "the job has no steps", "add 'steps', or 'uses' with other jobs")
    seen: dict[str, int] = {}
    for index, step in enumerate(job.steps):
        line = file.document.line(("steps", index, "id"))
        if step.id in seen:
            yield Problem(f"{file.file}:{line}", f"duplicate step id '{step.id}', first used on line {seen[step.id]}")
        seen.setdefault(step.id, line)


def resolve(name: str, load: Callable[[str], JobFile]) -> Job:
    """Returns the job with the steps of the jobs it uses in front, each once. Used jobs bring their needs and
    environment; the using job's values win. Raises InvalidJob, also for a circle."""
    file = load(name)
    order: list[JobFile] = []
    _unfold(file, load, [], order)
    return _joined(file, order)


def _unfold(file: JobFile, load: Callable[[str], JobFile], chain: list[str], order: list[JobFile]) -> None:
    chain = [*chain, file.job.job]
    for index, used in enumerate(file.job.uses):
        where = file.where(("uses", index))
        if used in chain:
            raise InvalidJob([Problem(where, f"circular 'uses': {' -> '.join([*chain, used])}")])
        if any(known.job.job == used for known in order):
            continue
        _unfold(_load_used(used, load, where), load, chain, order)
    order.append(file)


def _load_used(name: str, load: Callable[[str], JobFile], where: str) -> JobFile:
    try:
        return load(name)
    except NotFoundError as error:
        raise InvalidJob([Problem(where, f"unknown job '{name}' in 'uses'", error.hint)]) from error


def _joined(file: JobFile, order: list[JobFile]) -> Job:
    steps: list[Step] = []
    owner: dict[str, str] = {}
    for part in order:
        own = part is file
        for step in part.job.steps:
            if step.id in owner:
                other = f"the job '{owner[step.id]}' also has a step id '{step.id}'"
                raise InvalidJob([Problem(_step_line(part, step.id), other, "step ids must be unique in a run")])
            owner[step.id] = part.job.job
            here = step.where == "controller"  # what the job needs, it needs of the machine it is for
            both = step.needs if own or here else _both(part.job.needs, step.needs)
            steps.append(step.model_copy(update={"needs": both}))
    if len(steps) > MAX_STEPS:
        raise InvalidJob([Problem(file.where(("uses",)), f"the job has {len(steps)} steps; the limit is {MAX_STEPS}")])
    lock = "exclusive" if any(part.job.lock == "exclusive" for part in order) else "shared"
    secrets = list(dict.fromkeys(name for part in [*order, file] for name in part.job.secrets))
    return file.job.model_copy(
        update={"steps": steps, "env": _joined_env(file, order), "secrets": secrets, "lock": lock}
    )


def _step_line(file: JobFile, step_id: str) -> str:
    index = next(i for i, step in enumerate(file.job.steps) if step.id == step_id)
    return file.where(("steps", index, "id"))


def _joined_env(file: JobFile, order: list[JobFile]) -> dict[str, str]:
    env: dict[str, str] = {}
    setter: dict[str, str] = {}
    for part in order[:-1]:
        for key, value in part.job.env.items():
            if env.get(key, value) != value and key not in file.job.env:
                message = f"the jobs '{setter[key]}' and '{part.job.job}' set different values of {key}"
                raise InvalidJob([Problem(file.where(("uses",)), message, f"set it in this job: env: {{{key}: ...}}")])
            env[key] = value
            setter[key] = part.job.job
    return {**env, **file.job.env}


def _both(one: Needs, other: Needs) -> Needs:
    """What satisfies both."""
    capabilities = [c for c in (one.compute_capability, other.compute_capability) if c]
    return Needs(
        gpu=one.gpu or other.gpu,
        compute_capability=max(capabilities, key=lambda c: tuple(map(int, c.split("."))), default=None),
        tools=list(dict.fromkeys([*one.tools, *other.tools])),
    )
