"""``tune/<name>.yaml``: the spec that the host gets, and the keys that only the controller needs; and a search as a job
of one step, which ``fcctl tune`` runs."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.base import safe_paths, yaml_lines
from orchestrator.base.errors import FcctlError, JobError, UsageError, did_you_mean, nearest
from orchestrator.base.models import Problem
from orchestrator.runs.job.job import Gate, InvalidJob, Job, Step
from orchestrator.tune.fleet_rules import SCHEDULER_FILE

if TYPE_CHECKING:
    from fcctl_tune.search.spec import Spec


NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_STEP_OF_PATH = re.compile(r"[^.\[\]]+|\[(\d+)\]")
#: The keys of a file for ``--space``.
SPACE_KEYS = ("parameters", "constraints", "configurations", "default", "space")


class InvalidSearch(InvalidJob):
    """A search's file has ``problems``."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        if self.hint == "fcctl help jobs":
            self.hint = "fcctl help tune"


@dataclass(frozen=True)
class Adopt:
    """The workspace's table of winners. The command ``write`` reads rows as JSON and prints the file's new content;
    without it the file is our own JSON table."""

    file: str
    write: str = ""


@dataclass(frozen=True)
class Search:
    """One search."""

    name: str
    spec: Spec
    #: As written in the file.
    env: Mapping[str, str]
    adopt: Adopt | None = None
    #: A variable and its values, each a further name of the search.
    variants: tuple[str, tuple[str, ...]] | None = None
    #: The file's name in messages.
    file: str = ""

    def to_json(self, env: Mapping[str, str]) -> str:
        """The host's spec, titled by its variant in ``env``, the step's environment, which ``--set`` can change."""
        title = {} if self.variants is None else {"title": env.get(self.variants[0], "")}
        return json.dumps({key: value for key, value in self.spec.entry.items() if key != "env"} | title)

    def called(self, variant: str) -> Search:
        """The search with the variant of that name."""
        if self.variants is None or variant not in self.variants[1]:
            raise ValueError(f"{variant} is not a variant of {self.name}")
        return replace(self, env={**self.env, self.variants[0]: variant})

    def has_variant(self, value: str) -> bool:
        """Whether its variable may have that value: a variant, or the file's own value. The part after a colon is the
        kernel's (``fused:WARPS_KV=2``), which only the machine knows."""
        if self.variants is None:
            return True
        variable, names = self.variants
        return value.partition(":")[0] in names or value == self.env.get(variable)

    def check_variant(self, job: Job, step: Step, settings: Mapping[str, str]) -> None:
        """Check the variant of ``step``. Raises: UsageError if ``--set``, JobError if the job names an unknown one."""
        if self.variants is None:
            return
        variable, _ = self.variants
        value = {**job.env, **step.env, **settings}.get(variable, "")
        if not self.has_variant(value):
            raise _no_such_variant(self, variable, value, None if variable in settings else job.job)


@dataclass(frozen=True)
class SearchFile:
    """A YAML file, and its name in messages."""

    file: str
    document: yaml_lines.Document

    @classmethod
    def read(cls, text: str, file: str) -> SearchFile:
        """Raises: InvalidSearch."""
        try:
            return cls(file, yaml_lines.read(text))
        except yaml_lines.YamlError as error:
            raise _invalid(f"{file}:{error.line}", error.message) from None

    @property
    def entries(self) -> dict[str, Any]:
        """Its keys with values. Raises: InvalidSearch, without any keys."""
        if not isinstance(self.document.data, dict):
            raise _invalid(f"{self.file}:1", "expected keys such as 'tune', 'parameters' and 'bench'")
        return {key: value for key, value in self.document.data.items() if value is not None}

    def where(self, *path: str | int) -> str:
        return f"{self.file}:{self.document.line(path)}"


def parse(sheet: SearchFile, name: str | None = None, space: SearchFile | None = None) -> Search:
    """Check one file, which must have the ``name`` if one is given; ``space`` is a file that replaces its own space.
    Raises: InvalidSearch, with the line."""
    entry = sheet.entries
    if name is not None and entry.get("tune", name) != name:
        problem = f"the name in the file is '{entry['tune']}'"
        raise _invalid(sheet.where("tune"), problem, f"write 'tune: {name}': the name must be the file's name")
    declared = entry.get("env")
    # As written: an environment is text, and 8.10 no number.
    env = {key: sheet.document.raw.get(("env", key), "") for key in declared} if isinstance(declared, dict) else {}
    adopt = _adopt(entry.pop("adopt"), sheet) if "adopt" in entry else None
    variants = _variants(entry.pop("variants"), env, sheet) if "variants" in entry else None
    if not NAME.fullmatch(str(entry.get("tune", ""))):
        raise _invalid(sheet.where("tune"), "tune: must be the search's name, of a-z, 0-9 and hyphens")
    if space is not None:
        entry = {key: value for key, value in entry.items() if key not in SPACE_KEYS} | _space(space, entry)
    spec = _spec({**entry, **({"env": env} if env else {})}, sheet, space)
    return Search(spec.tune, spec, env, adopt, variants, sheet.file)


def _space(sheet: SearchFile, own: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a file for ``--space``, which replace the space of ``own``. Raises: InvalidSearch, for other keys,
    and for parameters alone where ``own`` has constraints."""
    for key in sheet.entries:
        if key not in SPACE_KEYS:
            hint = did_you_mean(key, SPACE_KEYS)
            raise _invalid(sheet.where(key), f"unknown key '{key}' in a file for --space", hint)
    if "constraints" in own and set(sheet.entries) == {"parameters"}:
        problem = "the file replaces the whole space, and the search has `constraints`: write `constraints:` in it too"
        raise _invalid(sheet.where("parameters"), problem)
    return sheet.entries


def with_searches(job: Job, searches: Mapping[str, Search]) -> Job:
    """``job`` with the variables of its searches in their steps; the job's own values take precedence."""
    if not searches:
        return job
    steps = []
    for step in job.steps:
        search = searches.get(step.tune or "")
        declared = search.env if search is not None else {}
        env = {key: value for key, value in declared.items() if key not in job.env}
        steps.append(step.model_copy(update={"env": {**env, **step.env}}))
    return job.model_copy(update={"steps": steps})


def _no_such_variant(search: Search, variable: str, value: str, job: str | None) -> FcctlError:
    """Args: job: whose file names it; None: the command line does."""
    names = search.variants[1] if search.variants else ()
    near = nearest(value.partition(":")[0], names)
    instead = f"--set {variable}={near or search.env[variable]}"
    refusal = f"{variable}={value}: unknown variant of the search '{search.name}'"
    cause = f"{search.file} has the variants {', '.join(names)}"
    if job is not None:
        return JobError(f"the job '{job}' sets {refusal}", cause=cause, hint=f"correct jobs/{job}.yaml, or: {instead}")
    hint = f"did you mean {instead}?" if near else f"use a variant of the file: {instead}"
    return UsageError(f"--set {refusal}", cause=cause, hint=hint)


def _spec(entry: Mapping[str, Any], sheet: SearchFile, space: SearchFile | None) -> Spec:
    from fcctl_tune.errors import SpecError
    from fcctl_tune.search.spec import Spec

    try:
        return Spec.from_dict(entry)
    except SpecError as error:
        is_of_space = space is not None and error.key.split(".")[0].split("[")[0] in SPACE_KEYS
        raise InvalidSearch([_problem(error.key, error.problem, space if space and is_of_space else sheet)]) from None


def _problem(key: str, problem: str, sheet: SearchFile) -> Problem:
    """The spec's problem, with the line of its key."""
    path = tuple(int(m.group(1)) if m.group(1) else m.group() for m in _STEP_OF_PATH.finditer(key))
    ours = nearest(key, ("variants", "adopt")) if problem.startswith("unknown key") else None
    return Problem(sheet.where(*path), f"{key}: {problem}", f"did you mean '{ours}'?" if ours else None)


def _adopt(adopt: Any, sheet: SearchFile) -> Adopt:
    """Raises: InvalidSearch."""
    parts = {"file": adopt} if isinstance(adopt, str) else adopt
    if not isinstance(parts, dict) or not isinstance(parts.get("file"), str):
        raise _invalid(sheet.where("adopt"), "adopt: must be a file, or {file: FILE, write: COMMAND}")
    for key in parts:
        if key not in ("file", "write"):
            hint = did_you_mean(str(key), ("file", "write"))
            raise _invalid(sheet.where("adopt", key), f"adopt: unknown key '{key}'", hint)
    if not isinstance(parts.get("write", ""), str):
        raise _invalid(sheet.where("adopt", "write"), "adopt.write: must be a shell command")
    if safe_paths.fault(parts["file"]):
        raise _invalid(sheet.where("adopt"), f"adopt: {parts['file']!r} must be a path below the workspace's folder")
    return Adopt(**parts)


def _variants(variants: Any, env: Mapping[str, str], sheet: SearchFile) -> tuple[str, tuple[str, ...]]:
    """Raises: InvalidSearch."""
    where = sheet.where("variants")
    if not isinstance(variants, dict) or len(variants) != 1:
        raise _invalid(where, "variants: must be one variable with its values, {VARIANT: [one, other]}")
    ((variable, values),) = variants.items()
    if variable not in env:
        hint = did_you_mean(str(variable), list(env))
        raise _invalid(where, f"variants: '{variable}' is not a variable in env", hint)
    if not isinstance(values, list) or not values or not all(isinstance(v, str) and NAME.fullmatch(v) for v in values):
        raise _invalid(where, "variants: its values must be names of a-z, 0-9 and hyphens")
    return variable, tuple(values)


def _invalid(where: str, problem: str, hint: str | None = None) -> InvalidSearch:
    return InvalidSearch([Problem(where, problem, hint)])


#: Of the job, and so in its runs' ids: ``last:tune``.
JOB_NAME = "tune"
#: Starts a step's search.
COMMAND = '"$FCCTL_TUNE_PYTHON" "$FCCTL_TUNE" run "$FCCTL_TUNE_SPEC" --out "$FCCTL_ARTIFACTS/tune"'


@dataclass(frozen=True)
class SearchOptions:
    """The command line's options of a search; None: as in its file."""

    trials: int | None = None
    elites: int | None = None
    strategy: str = "auto"
    #: The strategy of a second search at the same budget, to compare with.
    control: str | None = None
    cases: Sequence[str] = ()
    seed: int | None = None
    timeout_s: float = 3600.0
    #: The leader's name among several machines.
    host: str | None = None


def narrowed(search: Search, options: SearchOptions) -> Search:
    """``search`` with the numbers and cases of the command line. Raises: InvalidSearch."""
    from fcctl_tune.errors import SpecError

    try:
        return replace(search, spec=search.spec.narrowed(options.trials, options.elites, options.cases))
    except SpecError as error:
        raise InvalidSearch([Problem("the command line", f"{error.key}: {error.problem}")]) from None


def job_of(search: Search, options: SearchOptions) -> Job:
    """The job that carries ``search`` out."""
    words = ["--strategy", options.strategy]
    words += ["--compare", options.control] if options.control else []
    words += ["--seed", str(options.seed)] if options.seed is not None else []
    fleet = f' --fleet "$FCCTL_RUN_DIR/fleet/{SCHEDULER_FILE}" --host {options.host}' if options.host else ""
    hint = "no configuration passed build, check and measurement: see the log, and tune/tune_log.csv for each trial"
    step = Step(
        id=JOB_NAME, run=f"{COMMAND} {shlex.join(words)}{fleet}", tune=search.name, timeout=options.timeout_s,
        activity="tune", exit_codes={"69": "unavailable"},
        gates=[Gate(expr="tuning.summary.states.complete >= 1", hint=hint)],
    )  # fmt: skip
    title = f"Tune {search.name}" + (f": {search.spec.title}" if search.spec.title else "")
    return Job(job=JOB_NAME, title=title[:200], env=dict(search.env), steps=[step])
