"""The schema of fcctl.toml, its layers, and the origin of each value.

Layers, the strongest first: ``FCCTL_*`` variables, the workspace's fcctl.toml, the user's own file, defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError

from orchestrator.base import models, toml
from orchestrator.base.errors import ConfigError, NotFoundError, did_you_mean, nearest
from orchestrator.base.models import WRITTEN, Problem
from orchestrator.base.run_id import slug
from orchestrator.machines.targets import KINDS, LocalPath, Name, SecretSource, SshTarget, Target
from orchestrator.money.caps import Budget
from orchestrator.runs.job.phase import Phase
from orchestrator.runs.notices import Notify, without_secret
from orchestrator.schedules.due import Schedule

Path = tuple[str, ...]
#: The built-in targets, named like their kind: this machine, and an emulated cloud machine.
BUILT_IN_TARGETS = ("local", "sandbox")
CUDA_IMAGE = "nvidia/cuda:12.9.1-devel-ubuntu24.04"
_ENV_SECTIONS = ("FCCTL_PROJECT_", "FCCTL_BUDGET_", "FCCTL_NOTIFY_", "FCCTL_TARGETS_")


class _Section(BaseModel):
    model_config = WRITTEN


class Project(_Section):
    """``[project]``: the workspace itself."""

    #: Names the tree on the host; the folder's name if absent.
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=48)]
    #: Folder of the job files, relative to fcctl.toml.
    jobs: Annotated[LocalPath, Field(min_length=1)] = "jobs"
    #: Folder of the results, relative to fcctl.toml.
    results: Annotated[LocalPath, Field(min_length=1)] = "results"
    #: The container image whose nvcc compiles on a computer that has none; empty: none does.
    cuda_image: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/:@-]*$", max_length=200)] = CUDA_IMAGE


class Config(_Section):
    project: Project
    targets: dict[str, Target]
    budget: Budget
    schedules: dict[str, Schedule]
    notify: Notify
    secrets: dict[str, SecretSource] = {}
    phases: dict[str, Phase] = {}

    @property
    def configured(self) -> list[str]:
        """The names of the targets that some file or variable named, sorted."""
        return sorted(name for name in self.targets if name not in BUILT_IN_TARGETS)

    def target_or_default(self, name: str | None) -> Target:
        """The target called ``name``; without one, the only one that was configured, else this machine."""
        if name is not None:
            return self.target(name)
        return self.targets[self.configured[0] if len(self.configured) == 1 else "local"]

    def target(self, name: str) -> Target:
        """The target called ``name``, or the machine of ``ssh:[user@]host[:port]``. Raises NotFoundError: there is
        none; names the nearest, and all."""
        if name.startswith("ssh:"):
            return _ad_hoc(name)
        if name in self.targets:
            return self.targets[name]
        at = next((t.name for t in self.targets.values() if isinstance(t, SshTarget) and t.host == name), None)
        near = nearest(name, self.targets)
        known = f"known: {', '.join(sorted(self.targets))}; any machine of ~/.ssh/config: --on ssh:HOST"
        means = f"the target '{at}' has this host name: --on {at}" if at else f"did you mean '{near}'?" if near else ""
        raise NotFoundError(
            f"unknown target '{name}'",
            cause="fcctl.toml has no [targets." + (name if name.isprintable() else "...") + "]",
            hint=f"{means} ({known})" if means else known,
        )


_AD_HOC = re.compile(r"(?:(?P<user>[^@]+)@)?(?P<host>\[[^\]]+\]|[^:@\[\]]+)(?::(?P<port>\d{1,5}))?")


def _ad_hoc(name: str) -> SshTarget:
    match = _AD_HOC.fullmatch(name.removeprefix("ssh:"))
    hint = "write ssh:HOST, ssh:USER@HOST or ssh:USER@HOST:PORT; HOST may be an alias of ~/.ssh/config"
    if match is None:
        raise NotFoundError(f"invalid target '{name}'", hint=hint)
    host = match["host"].strip("[]")
    values = {"host": host, "user": match["user"], "port": int(match["port"]) if match["port"] else None}
    try:
        return SshTarget.model_validate({"name": slug(host)[:24].strip("-"), **values})
    except ValidationError:
        raise NotFoundError(f"invalid target '{name}'", hint=hint) from None


@dataclass(frozen=True)
class Layer:
    """Values of one source. ``origins`` has the line of each table, key and element."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: Mapping[tuple[str | int, ...], str] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """A valid configuration, and the source of each of its values (absent: a default)."""

    config: Config
    origins: Mapping[Path, str]

    def values(self) -> dict[str, tuple[Any, str]]:
        """Dotted key -> (value, origin), for every value that is set or has a default."""
        values: dict[str, tuple[Any, str]] = {}
        for path, value in _leaves(self.config.model_dump(mode="json")):
            if value is not None and not (path[0] == "targets" and path[-1] == "name"):
                values[".".join(path)] = (_shown(path, value), self.origins.get(path, "default"))
        return values

    def get(self, key: str) -> Any:
        """One value, or a table of them. Raises NotFoundError: there is no such key; names the nearest."""
        node: Any = self.config.model_dump(mode="json")
        node["notify"] = {name: _shown(("notify", name), value) for name, value in node["notify"].items()}
        parts = key.split(".")
        for i, part in enumerate(parts):
            if not isinstance(node, dict) or part not in node:
                known = node if isinstance(node, dict) else {}
                near = nearest(part, known)
                meant = ".".join([*parts[:i], near, *parts[i + 1 :]]) if near else ""
                hint = f"did you mean '{meant}'?" if near else did_you_mean(part, known)
                raise NotFoundError(f"unknown configuration key '{key}'", hint=hint)
            node = node[part]
        return node


def _shown(path: Path, value: Any) -> Any:
    """A value as it may be printed: a webhook's address is secret."""
    secret = path in (("notify", "webhook"), ("notify", "slack"))
    return without_secret(value) if secret and isinstance(value, str) else value


def read_layer(text: str, name: str) -> Layer:
    """A TOML file's values; ``name`` is how it is called in messages. Raises ConfigError: it is not TOML; says on which
    line."""
    try:
        data = toml.loads(text)
    except toml.TomlError as error:
        reason = str(error)
        raise ConfigError(
            f"{name}:{error.line}: {reason[:1].lower()}{reason[1:]}", hint="fcctl help configuration"
        ) from None
    lines = toml.key_lines(text)
    return Layer(data, {path: f"{name}:{line}" for path, line in lines.items()})


def target_names(layer: Layer) -> list[str]:
    """The targets of a layer."""
    targets = layer.data.get("targets")
    return list(targets) if isinstance(targets, dict) else []


def env_layer(environ: Mapping[str, str], targets: Sequence[str]) -> Layer:
    """``FCCTL_PROJECT_*``, ``FCCTL_BUDGET_*`` and ``FCCTL_TARGETS_<NAME>_*``; other variables are ignored."""
    data: dict[str, Any] = {}
    origins: dict[tuple[str | int, ...], str] = {}
    for variable in sorted(environ):
        if variable.startswith(_ENV_SECTIONS):
            path = _env_path(variable, targets)
            _put(data, path, _split_list(path, environ[variable]))
            origins[path] = variable
    return Layer(data, origins)


def _env_path(variable: str, targets: Sequence[str]) -> Path:
    section, rest = variable.removeprefix("FCCTL_").split("_", 1)
    if section != "TARGETS":
        return (section.lower(), rest.lower())
    for name in sorted(targets, key=len, reverse=True):  # the longest first: l4-big before l4
        prefix = name.upper().replace("-", "_") + "_"
        if rest.startswith(prefix):
            return ("targets", name, rest.removeprefix(prefix).lower())
    raise ConfigError(f"{variable}: the name contains no known target", hint=f"targets: {', '.join(sorted(targets))}")


def _split_list(path: Path, text: str) -> Any:
    fields = [model.model_fields.get(path[-1]) for model in KINDS.values()] if path[0] == "targets" else []
    if path[0] == "notify":
        fields = [Notify.model_fields.get(path[-1])]
    types = [f.annotation for f in fields if f is not None]
    bare = [get_args(t)[0] if get_origin(t) is Annotated else t for t in types]
    is_list = any(get_origin(t) is list for t in bare)
    return [part.strip() for part in text.split(",")] if is_list else text


def _put(data: dict[str, Any], path: Path, value: Any) -> None:
    for part in path[:-1]:
        data = data.setdefault(part, {})
    data[path[-1]] = value


def combine(layers: Sequence[Layer], default_name: str) -> Loaded:
    """Validate the layers (the weakest first) as one configuration.

    Args:
        default_name: the project's name where no layer gives one.

    Raises ConfigError: with every problem, each with its file, line and the nearest valid key.
    """
    merged: dict[str, Any] = {"targets": {name: {"kind": name} for name in BUILT_IN_TARGETS}}
    origins: dict[tuple[str | int, ...], str] = {}
    for layer in layers:
        _merge(merged, layer.data, (), origins)
        origins.update(layer.origins)
    checked = _Checked(merged, origins, default_name)
    config = checked.config()
    if config is None:
        message, hint = models.summary(checked.problems)
        raise ConfigError(message, hint=hint or "fcctl help configuration")
    return Loaded(config, {tuple(map(str, path)): origin for path, origin in origins.items()})


def _merge(into: dict[str, Any], data: dict[str, Any], path: Path, origins: dict[Any, str]) -> None:
    for key, value in data.items():
        here = (*path, key)
        old = into.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and not _another_kind(here, old, value):
            _merge(old, value, here, origins)
            continue
        for known in [p for p in origins if p[: len(here)] == here]:
            del origins[known]
        into[key] = {}
        if isinstance(value, dict):
            _merge(into[key], value, here, origins)
        else:
            into[key] = value


def _another_kind(path: Path, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """A target of another kind replaces the weaker layer's target: its keys do not apply."""
    return path[:1] == ("targets",) and len(path) == 2 and new.get("kind", old.get("kind")) != old.get("kind")


def _leaves(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, (*path, key))
    else:
        yield path, node


class _Checked:
    """Checks section by section, so that one problem does not hide another."""

    def __init__(self, data: dict[str, Any], origins: Mapping[tuple[str | int, ...], str], name: str) -> None:
        self.data = data
        self.origins = origins
        self.default_name = name
        self.problems: list[Problem] = []

    def config(self) -> Config | None:
        for key in self.data:
            if key not in Config.model_fields:
                hint = did_you_mean(key, Config.model_fields)
                self._problem((key,), f"unknown section '{key}'", hint)
        values = {
            "project": self._section(("project",), Project, {"name": self.default_name}),
            "budget": self._section(("budget",), Budget),
            "targets": {name: self._target(name) for name in self._table("targets")},
            "notify": self._section(("notify",), Notify),
            "secrets": {name: self._section(("secrets", name), SecretSource) for name in self._table("secrets")},
            "schedules": self._named("schedules", Schedule),
            "phases": self._named("phases", Phase),
        }
        return None if self.problems else Config.model_construct(**values)

    def _named(self, table: str, model: type[BaseModel]) -> dict[str, Any]:
        """The tables ``[table.NAME]`` whose names are valid."""
        names = [name for name in self._table(table) if self._name_is_valid(table, name)]
        return {name: self._section((table, name), model) for name in names}

    def _table(self, key: str) -> dict[str, Any]:
        value = self.data.get(key, {})
        if not isinstance(value, dict):
            self._problem((key,), f"{key}: expected tables such as [{key}.NAME]")
            return {}
        return value

    def _target(self, name: str) -> Any:
        path = ("targets", name)
        value = self.data["targets"][name]
        if not isinstance(value, dict):
            self._problem(path, f"targets.{name}: expected a table, [targets.{name}]")
            return None
        if not self._name_is_valid("targets", name):
            return None
        kind = value.get("kind")
        if kind is None:
            self._problem(path, f"missing key 'kind' in targets.{name}", f"kinds: {', '.join(sorted(KINDS))}")
            return None
        if not isinstance(kind, str) or kind not in KINDS:
            self._problem(
                (*path, "kind"), f"targets.{name}.kind: unknown value {kind!r}", did_you_mean(str(kind), KINDS)
            )
            return None
        if "name" in value:
            hint = "remove it: the table name is the target's name"
            self._problem((*path, "name"), f"unknown key 'name' in targets.{name}", hint)
            return None
        builder = value.get("builder")
        if isinstance(builder, str) and builder not in self.data["targets"]:
            hint = did_you_mean(builder, self.data["targets"])
            self._problem((*path, "builder"), f"targets.{name}.builder: unknown target '{builder}'", hint)
        return self._section(path, KINDS[kind], {"name": name})

    def _name_is_valid(self, table: str, name: str) -> bool:
        try:
            _NameOnly(name=name)
        except ValidationError:
            rule = "use at most 24 characters: a-z, 0-9, and hyphens inside the name"
            self._problem((table, name), f"{name!r} is not a valid name for [{table}.NAME]", rule)
            return False
        return True

    def _section(self, path: Path, model: type[BaseModel], defaults: Mapping[str, Any] | None = None) -> Any:
        value: Any = self.data
        for part in path:
            value = value.get(part, {})
        if not isinstance(value, dict):
            name = ".".join(path)
            self._problem(path, f"{name}: expected a table, [{name}]")
            return None
        given = {**(defaults or {}), **value}
        needed = {name for name, field in model.model_fields.items() if field.is_required()}
        if model is not Project and not value.keys() - {"kind"} and needed <= given.keys():
            # An empty table needs no validation, whose setup is slow.
            return model.model_construct(**given)
        try:
            return model.model_validate(given)
        except ValidationError as error:
            self.problems.extend(models.of_model(model, error, self._where, path))
            return None

    def _problem(self, path: tuple[str | int, ...], message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(self._where(path), message, hint))

    def _where(self, path: tuple[str | int, ...]) -> str:
        for length in range(len(path), 0, -1):
            if path[:length] in self.origins:
                return self.origins[path[:length]]
        return "fcctl.toml"


class _NameOnly(_Section):
    name: Name
