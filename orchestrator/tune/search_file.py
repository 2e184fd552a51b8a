"""What ``tune/<name>.yaml`` says: a search as the host gets it, and what only the controller needs of the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator.base import safe_paths as paths
from orchestrator.base.errors import FcctlError, JobError, UsageError, did_you_mean, nearest
from orchestrator.base.text import yaml_lines
from orchestrator.base.text.problems import Problem
from orchestrator.runs.job.job import InvalidJob, Job, Step

if TYPE_CHECKING:
    from fcctl_tune.search.spec import Spec

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_STEP_OF_PATH = re.compile(r"[^.\[\]]+|\[(\d+)\]")
#: What a file with nothing but a space, for ``--space``, may have.
SPACE_KEYS = ("parameters", "constraints", "configurations", "default", "space")


class InvalidSearch(InvalidJob):
    """A search's file is wrong. ``problems`` holds what is."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__(problems)
        if self.hint == "see docs/jobs.md":
            self.hint = "see docs/tune.md"


@dataclass(frozen=True)
class Adopt:
    """The table that winners come into: a file of the workspace.

    ``write`` is a command that reads the rows, as JSON, on its input and prints the file's new content; without one the
    file is a JSON table of ours.
    """

    file: str
    write: str = ""


@dataclass(frozen=True)
class Search:
    """One search, ready to be sent."""

    name: str
    spec: Spec
    #: As written, which is how an environment is.
    env: Mapping[str, str]
    adopt: Adopt | None = None
    #: Other names of it: variable, and its values, each a name.
    variants: tuple[str, tuple[str, ...]] | None = None
    #: How its file is called in messages.
    file: str = ""

    def to_json(self, env: Mapping[str, str]) -> str:
        """The spec as the host gets it, titled by its variant in ``env``, the environment that its step will have.

        That environment is not part of it: it belongs to the step, where ``--set`` can reach it.
        """
        entry = self.spec.to_dict()
        if self.variants is not None:
            entry["title"] = env.get(self.variants[0], "")
        entry.pop("adopt", None)
        entry.pop("env", None)
        return json.dumps(entry)

    def called(self, variant: str) -> Search:
        """The search that goes by the name ``variant``."""
        if self.variants is None or variant not in self.variants[1]:
            raise ValueError(f"{variant} is no name of {self.name}")
        return replace(self, env={**self.env, self.variants[0]: variant})

    def has_variant(self, value: str) -> bool:
        """Whether its variable may have that value: a name of it, or what its file says anyway. What follows a colon
        is the kernel's own (``fused:WARPS_KV=2``), and known on the machine alone."""
        if self.variants is None:
            return True
        variable, names = self.variants
        return value.partition(":")[0] in names or value == self.env.get(variable)

    def check_variant(self, job: Job, step: Step, settings: Mapping[str, str]) -> None:
        """Whether it has the variant that ``step`` of ``job`` asks for.

        Raises:
            UsageError: ``--set`` names one that its file does not.
            JobError: the job's file does.
        """
        if self.variants is None:
            return
        variable, _ = self.variants
        value = {**job.env, **step.env, **settings}.get(variable, "")
        if not self.has_variant(value):
            raise _no_such_variant(self, variable, value, None if variable in settings else job.job)

    def may_have(self, variable: str, value: str) -> bool:
        """Whether its environment has that by what its file says, by one of its names or as it is."""
        if self.variants is not None and variable == self.variants[0] and value in self.variants[1]:
            return True
        return self.env.get(variable) == value


@dataclass(frozen=True)
class SearchFile:
    """A YAML file, and how it is called in messages."""

    file: str
    document: yaml_lines.Document

    @classmethod
    def read(cls, text: str, file: str) -> SearchFile:
        """Raises: InvalidSearch."""
        try:
            return cls(file, yaml_lines.read(text))
        except yaml_lines.YamlError as error:
            raise InvalidSearch([Problem(f"{file}:{error.line}", error.message)]) from None

    @property
    def entries(self) -> dict[str, Any]:
        """Its keys that have a value. Raises: InvalidSearch, if it has no keys at all."""
        if not isinstance(self.document.data, dict):
            raise InvalidSearch([Problem(f"{self.file}:1", "expected keys such as 'tune', 'parameters' and 'bench'")])
        return {key: value for key, value in self.document.data.items() if value is not None}

    def where(self, *path: str | int) -> str:
        return f"{self.file}:{self.document.line(path)}"


def parse(sheet: SearchFile, name: str | None = None, space: SearchFile | None = None) -> Search:
    """Check one file.

    Args:
        name: what its ``tune:`` must say, if anything.
        space: a file with a space alone, which takes the place of its own.

    Raises:
        InvalidSearch: with its line.
    """
    entry = sheet.entries
    if name is not None and entry.get("tune", name) != name:
        problem = f"the search calls itself '{entry['tune']}'"
        raise InvalidSearch([Problem(sheet.where("tune"), problem, f"write 'tune: {name}', as the file")])
    declared = entry.get("env")
    # As written: an environment is text, and 8.10 no number.
    env = {key: sheet.document.raw.get(("env", key), "") for key in declared} if isinstance(declared, dict) else {}
    problems = list(_faults(entry, env, sheet))
    if not NAME.fullmatch(str(entry.get("tune", ""))):
        problems.append(Problem(sheet.where("tune"), "tune: is the search's name, of a-z, 0-9 and hyphens"))
    if problems:
        raise InvalidSearch(problems)
    adopt, variants = _adopt(entry.pop("adopt", None)), _variants(entry.pop("variants", None))
    if space is not None:
        entry = _in_space(entry, _space(space))
    spec = _spec({**entry, **({"env": env} if env else {})}, sheet, space)
    return Search(spec.tune, spec, env, adopt, variants, sheet.file)


def _in_space(entry: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """What ``space`` does not say stays as it is, constraints above all; but for what it takes the place of. What then
    cannot be beside one another, such as a list and constraints, is an error and not left out."""
    gone = {*space, "space"}
    if "space" in space:
        gone = set(SPACE_KEYS)
    elif "configurations" in space:
        gone |= {"constraints", "default"}
    elif "parameters" in space:
        gone |= {"configurations", "default"}
    return {key: value for key, value in entry.items() if key not in gone} | dict(space)


def _space(sheet: SearchFile) -> dict[str, Any]:
    """What a file with a space alone says: parameters and constraints, or configurations listed."""
    for key in sheet.entries:
        if key not in SPACE_KEYS:
            hint = did_you_mean(key, SPACE_KEYS)
            raise InvalidSearch([Problem(sheet.where(key), f"unknown key '{key}' in a file with a space", hint)])
    return sheet.entries


def with_searches(job: Job, searches: Mapping[str, Search]) -> Job:
    """``job`` with what its searches declare in the environment of their steps; the job's own values are stronger."""
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
    refusal = f"{variable}={value}: the search '{search.name}' has no such variant"
    cause = f"{search.file} names {', '.join(names)}"
    if job is not None:
        return JobError(f"the job '{job}' has {refusal}", cause=cause, hint=f"correct jobs/{job}.yaml, or: {instead}")
    hint = f"did you mean {instead}?" if near else f"one that there is: {instead}"
    return UsageError(f"--set {refusal}", cause=cause, hint=hint)


# ------------------------------------------------------------------------------------------------ what may be wrong
def _spec(entry: Mapping[str, Any], sheet: SearchFile, space: SearchFile | None) -> Spec:
    from fcctl_tune.errors import SpecError
    from fcctl_tune.search.spec import Spec

    try:
        return Spec.from_dict(entry)
    except SpecError as error:
        key = error.key.split(".")[0].split("[")[0]
        if space is None or key in space.entries:
            raise InvalidSearch([_problem(error.key, error.problem, space or sheet)]) from None
        problem = _problem(error.key, error.problem, sheet)
        if key in SPACE_KEYS and problem.hint is None:
            problem = replace(
                problem, hint=f"{space.file} keeps what it does not say itself: write `{key}:` there, too"
            )
        raise InvalidSearch([problem]) from None


def _problem(key: str, problem: str, sheet: SearchFile) -> Problem:
    """The spec's own words, with the line of the key."""
    path = tuple(int(m.group(1)) if m.group(1) else m.group() for m in _STEP_OF_PATH.finditer(key))
    ours = nearest(key, ("variants", "adopt")) if problem.startswith("there is no such key") else None
    return Problem(sheet.where(*path), f"{key}: {problem}", f"did you mean '{ours}'?" if ours else None)


def _faults(entry: Mapping[str, Any], env: Mapping[str, str], sheet: SearchFile) -> Iterator[Problem]:
    """What is wrong with the keys that stay here."""
    if "adopt" in entry:
        yield from _adopt_faults(entry["adopt"], sheet)
    if "variants" in entry:
        yield from _variant_faults(entry["variants"], env, sheet)


def _adopt_faults(adopt: Any, sheet: SearchFile) -> Iterator[Problem]:
    parts = {"file": adopt} if isinstance(adopt, str) else adopt
    if not isinstance(parts, dict) or not isinstance(parts.get("file"), str):
        yield Problem(sheet.where("adopt"), "adopt: is a file, or {file: FILE, write: COMMAND}")
        return
    for key in parts:
        if key not in ("file", "write"):
            hint = did_you_mean(str(key), ("file", "write"))
            yield Problem(sheet.where("adopt", key), f"adopt: unknown key '{key}'", hint)
    if not isinstance(parts.get("write", ""), str):
        yield Problem(sheet.where("adopt", "write"), "adopt.write: is a shell command")
    if paths.fault(parts["file"]):
        yield Problem(sheet.where("adopt"), f"adopt: {parts['file']!r} must be a path below the workspace's folder")


def _variant_faults(variants: Any, env: Mapping[str, str], sheet: SearchFile) -> Iterator[Problem]:
    where = sheet.where("variants")
    if not isinstance(variants, dict) or len(variants) != 1:
        yield Problem(where, "variants: is one variable with its values, {VARIANT: [one, other]}")
        return
    ((variable, values),) = variants.items()
    if variable not in env:
        yield Problem(where, f"variants: '{variable}' is no variable of env", did_you_mean(str(variable), list(env)))
    if not isinstance(values, list) or not values or not all(isinstance(v, str) and NAME.fullmatch(v) for v in values):
        yield Problem(where, "variants: its values are names of a-z, 0-9 and hyphens")


def _adopt(value: Any) -> Adopt | None:
    if not value:
        return None
    return Adopt(value) if isinstance(value, str) else Adopt(value["file"], value.get("write", ""))


def _variants(value: Mapping[str, Sequence[str]] | None) -> tuple[str, tuple[str, ...]] | None:
    if not value:
        return None
    ((variable, values),) = value.items()
    return variable, tuple(values)
