"""What ``tune/<name>.yaml`` says: a search as the host gets it, and what only the controller needs of the file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.domain import paths, yaml_lines
from orchestrator.domain.job import InvalidJob, Job
from orchestrator.domain.problems import Path, Problem
from orchestrator.errors import did_you_mean, nearest

if TYPE_CHECKING:
    from fcctl_tune.spec import Spec

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEP_OF_PATH = re.compile(r"[^.\[\]]+|\[(\d+)\]")
#: What a file with nothing but a space, for ``--space``, may have.
SPACE_KEYS = ("parameters", "constraints", "configurations", "default", "space")


class InvalidSearch(InvalidJob):
    """A search's file is wrong. ``problems`` holds what is."""

    def __init__(self, found: list[Problem]) -> None:
        super().__init__(found)
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
    file: str = ""
    document: yaml_lines.Document | None = field(default=None, repr=False, compare=False)

    def to_json(self) -> str:
        """The spec as the host gets it. Its environment is that of the step, where ``--set`` can reach it."""
        entry = self.spec.to_dict()
        entry.pop("adopt", None)
        entry.pop("env", None)
        return json.dumps(entry)

    def called(self, variant: str) -> Search:
        """The search that goes by the name ``variant``."""
        if self.variants is None or variant not in self.variants[1]:
            raise ValueError(f"{variant} is no name of {self.name}")
        return replace(self, env={**self.env, self.variants[0]: variant})


def parse(text: str, file: str, name: str | None = None, space: Mapping[str, Any] | None = None) -> Search:
    """Check one file.

    Args:
        file: how the file is called in messages.
        name: what its ``tune:`` must say, if anything.
        space: keys of :data:`SPACE_KEYS` that take the place of the file's own.

    Raises:
        InvalidSearch: with its line.
    """
    document = _read(text, file)
    if not isinstance(document.data, dict):
        raise InvalidSearch([Problem(f"{file}:1", "expected a search: keys such as 'tune', 'parameters', 'bench'")])
    entry = {key: value for key, value in document.data.items() if value is not None}
    if name is not None and entry.get("tune", name) != name:
        said = f"the search calls itself '{entry['tune']}'"
        raise InvalidSearch([Problem(_where(file, document, ("tune",)), said, f"write 'tune: {name}', as the file")])
    env = {str(key): document.raw.get(("env", str(key)), "") for key in entry.get("env") or {}}
    found = list(_faults(entry, env, file, document))
    if found:
        raise InvalidSearch(found)
    adopt, variants = _adopt(entry.pop("adopt", None)), _variants(entry.pop("variants", None))
    if space is not None:
        entry = {key: value for key, value in entry.items() if key not in SPACE_KEYS} | dict(space)
    spec = _spec({**entry, **({"env": env} if env else {})}, file, document)
    return Search(spec.tune, spec, env, adopt, variants, file, document)


def parse_space(text: str, file: str) -> dict[str, Any]:
    """A file with a space alone: parameters and constraints, or configurations listed.

    Raises:
        InvalidSearch: it is none.
    """
    document = _read(text, file)
    if not isinstance(document.data, dict) or not document.data:
        raise InvalidSearch([Problem(f"{file}:1", "expected a space: 'parameters', or 'configurations'")])
    for key in document.data:
        if key not in SPACE_KEYS:
            where, hint = _where(file, document, (key,)), did_you_mean(key, SPACE_KEYS)
            raise InvalidSearch([Problem(where, f"unknown key '{key}' in a file with a space", hint)])
    return document.data


def with_searches(job: Job, searches: Mapping[str, Search]) -> Job:
    """``job`` with what its searches declare in the environment of their steps; the job's own values are stronger."""
    if not searches:
        return job
    steps = []
    for step in job.steps:
        declared = searches[step.tune].env if step.tune is not None else {}
        env = {key: value for key, value in declared.items() if key not in job.env}
        steps.append(step.model_copy(update={"env": {**env, **step.env}}))
    return job.model_copy(update={"steps": steps})


def names(job: Job) -> list[str]:
    """The searches that steps of ``job`` run, each once."""
    return list(dict.fromkeys(step.tune for step in job.steps if step.tune is not None))


# ------------------------------------------------------------------------------------------------ what may be wrong
def _read(text: str, file: str) -> yaml_lines.Document:
    try:
        return yaml_lines.read(text)
    except yaml_lines.YamlError as error:
        raise InvalidSearch([Problem(f"{file}:{error.line}", error.message)]) from None


def _where(file: str, document: yaml_lines.Document, path: Path) -> str:
    return f"{file}:{document.line(path)}"


def _spec(entry: Mapping[str, Any], file: str, document: yaml_lines.Document) -> Spec:
    from fcctl_tune.errors import SpecError
    from fcctl_tune.spec import Spec

    try:
        return Spec.from_dict(entry)
    except SpecError as error:
        raise InvalidSearch([_problem(error.key, error.problem, file, document)]) from None


def _problem(key: str, problem: str, file: str, document: yaml_lines.Document) -> Problem:
    """The spec's own words, with the line of the key."""
    path = tuple(int(m.group(1)) if m.group(1) else m.group() for m in _STEP_OF_PATH.finditer(key))
    ours = nearest(key, ("variants", "adopt")) if problem.startswith("is no key") else None
    hint = f"did you mean '{ours}'?" if ours else None
    return Problem(_where(file, document, path), f"{key}: {problem}", hint)


def _faults(
    entry: Mapping[str, Any], env: Mapping[str, str], file: str, document: yaml_lines.Document
) -> Iterator[Problem]:
    """What is wrong with the keys that stay here."""
    adopt, variants = entry.get("adopt"), entry.get("variants")
    at = _where(file, document, ("adopt",))
    if adopt is not None and not isinstance(adopt, str):
        if not isinstance(adopt, dict) or not isinstance(adopt.get("file"), str):
            yield Problem(at, "adopt: is a file, or {file: FILE, write: COMMAND}")
            return
        for key in adopt:
            if key not in ("file", "write"):
                hint = did_you_mean(str(key), ("file", "write"))
                yield Problem(_where(file, document, ("adopt", key)), f"adopt: unknown key '{key}'", hint)
        if not isinstance(adopt.get("write", ""), str):
            yield Problem(_where(file, document, ("adopt", "write")), "adopt.write: is a shell command")
    path = adopt.get("file") if isinstance(adopt, dict) else adopt
    if isinstance(path, str) and paths.fault(path):
        yield Problem(at, f"adopt: {path!r} must be a path below the workspace's folder")
    if variants is not None:
        yield from _variant_faults(variants, env, _where(file, document, ("variants",)))


def _variant_faults(variants: Any, env: Mapping[str, str], where: str) -> Iterator[Problem]:
    if not isinstance(variants, dict) or len(variants) != 1:
        yield Problem(where, "variants: is one variable with its values, {VARIANT: [one, other]}")
        return
    ((variable, values),) = variants.items()
    if not _VARIABLE.fullmatch(str(variable)) or variable not in env:
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
