"""A search's spec: its space, and how a configuration is built, checked and timed."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from fcctl_remote.base import durations
from fcctl_remote.gates import evaluate as gates
from fcctl_remote.wire import DOCUMENT_KINDS, READERS, CollectSpec, GateSpec
from fcctl_tune.errors import SpecError
from fcctl_tune.search.space import Space, render, shown

SCHEMA_VERSION = 1
DIRECTIONS = ("min", "max")
MAX_TRIALS, MAX_CASES = 100_000, 64

_TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_OF_FILE = re.compile(r"\$\{?(\w*)\}?")


@dataclass(frozen=True)
class Stage:
    """A configuration's build or check: its command, the files to read as documents, and gates on them."""

    run: str
    collect: Tuple[CollectSpec, ...] = ()
    gates: Tuple[GateSpec, ...] = ()


@dataclass(frozen=True)
class Metric:
    """A bench's number or samples: the expression ``value`` on the document that ``reader`` makes of ``file``. A serve
    command has only unit and direction."""

    value: str = ""
    reader: str = ""
    file: str = ""
    unit: str = "us"
    direction: str = "min"


@dataclass(frozen=True)
class Timeouts:
    """Seconds of one build, check and bench."""

    build: float = 120.0
    check: float = 60.0
    bench: float = 60.0


@dataclass(frozen=True)
class Spec:
    """One search. ``space`` is None until ``space_command`` was run on the host (:meth:`with_space`)."""

    tune: str
    space: Optional[Space]
    build: Optional[Stage]
    title: str = ""
    space_command: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    check: Optional[Stage] = None
    bench: str = ""
    serve: str = ""
    metric: Metric = Metric()
    cases: Tuple[str, ...] = ("default",)
    held_out: Tuple[str, ...] = ()
    timeouts: Timeouts = Timeouts()
    trials: int = 128
    elites: int = 6
    #: What :meth:`from_dict` read.
    entry: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_dict(cls, entry: Any) -> Spec:
        """From YAML or JSON. Raises: SpecError, with the key that is wrong and its form."""
        if not isinstance(entry, Mapping):
            raise SpecError("tune", "a search file must be a mapping of keys")
        _known(entry, _KEYS, "")
        command = _command(entry, "space")
        if command and "parameters" in entry:
            raise SpecError("space", "this command prints the parameters: remove `parameters` and `constraints`")
        serve, bench = _command(entry, "serve"), _command(entry, "bench")
        if bool(serve) == bool(bench):
            raise SpecError(
                "bench", "write either `bench` or `serve`, the command that measures a configuration; not both"
            )
        trials = _count(entry, "trials", 128, MAX_TRIALS)
        spec = cls(
            tune=_name(entry.get("tune"), "tune"),
            title=_plain(entry, "title"),
            space=None if command else Space.from_dict(entry),
            space_command=command,
            env=_environment(entry.get("env")),
            build=_build(entry),
            check=_check(entry.get("check")),
            bench=bench,
            serve=serve,
            metric=_metric(entry.get("metric"), bool(serve)),
            cases=_cases(entry.get("cases"), "cases", ("default",)),
            held_out=_cases(entry.get("held_out"), "held_out", ()),
            timeouts=_timeouts(entry.get("timeouts")),
            trials=trials,
            elites=_count(entry, "elites", min(6, trials), trials),
            entry=dict(entry),
        )
        _agree(spec)
        return spec

    def with_space(self, listing: Any) -> Spec:
        """This spec with the output of its space command. Raises: SpecError, if that is no listing."""
        if not isinstance(listing, Mapping):
            raise SpecError(
                "space", 'the command must print {"parameters": {...}, "configurations": [...], "default": {...}}'
            )
        keys = ("parameters", "configurations", "constraints", "default")
        _known(listing, keys, "space.")
        own = {key: value for key, value in self.entry.items() if key not in ("space", *keys)}
        return Spec.from_dict({**own, **listing})

    def narrowed(self, trials: Optional[int], elites: Optional[int], cases: Sequence[str]) -> Spec:
        """With the numbers and cases of a command line; searched cases are not held out. Raises: SpecError."""
        entry = dict(self.entry)
        if trials is not None:
            entry.update(trials=trials, elites=min(self.elites, trials))
        if elites is not None:
            entry["elites"] = elites
        if cases:
            entry.update(cases=list(dict.fromkeys(cases)), held_out=[c for c in self.held_out if c not in cases])
        return Spec.from_dict(entry)

    @property
    def known_space(self) -> Space:
        """Raises: SpecError, before the space command was run."""
        if self.space is None:
            raise SpecError("space", "its command has not run yet")
        return self.space


_KEYS = (
    "tune", "title", "parameters", "constraints", "configurations", "default", "space", "env", "build", "collect",
    "gates", "check", "bench", "serve", "metric", "cases", "held_out", "timeouts", "trials", "elites",
)  # fmt: skip


def _agree(spec: Spec) -> None:
    """Raises: SpecError, when two keys contradict each other."""
    for case in spec.held_out:
        if case in spec.cases:
            raise SpecError("held_out", f"{case} is also in `cases`, so it is not held out")
    if not spec.serve and spec.check is None:
        raise SpecError(
            "check", "write `check`, the command that checks the output: without it a wrong kernel could win"
        )
    clash = sorted(set(spec.env) & set(spec.space.names if spec.space else ()))
    if clash:
        raise SpecError("env", f"{clash[0]} is already a parameter")


def _valid(value: Any, is_valid: object, where: str, problem: str) -> Any:
    """``value``. Raises: SpecError, unless it ``is_valid``."""
    if not is_valid:
        raise SpecError(where, f"{shown(value)} {problem}")
    return value


def _known(entry: Mapping[Any, Any], keys: Sequence[str], where: str) -> None:
    for key in entry:
        if key not in keys:
            near = difflib.get_close_matches(str(key), keys, n=1)
            # A workspace's file has keys at the top that are not of a spec: they are not listed.
            listed = f"; known: {', '.join(keys)}" if where else ""
            hint = f"; did you mean {near[0]}?" if near else listed
            raise SpecError(where + str(key)[:80], "unknown key" + hint)


def _mapping(value: Any, where: str, keys: Sequence[str], example: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SpecError(where, f"must be {example}")
    _known(value, keys, where + ".")
    return value


def _list(value: Any, where: str) -> Sequence[Any]:
    if value is not None and not isinstance(value, (list, tuple)):
        raise SpecError(where, "must be a list")
    return value or ()


def _name(value: Any, key: str) -> str:
    is_name = isinstance(value, str) and _TEXT.fullmatch(value)
    return str(_valid(value, is_name, key, "is not a valid name: use at most 64 letters, digits, '.', '_' and '-'"))


def _plain(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key) or ""
    is_plain = isinstance(value, str) and value.isprintable() and len(value) <= 500
    return str(_valid(value, is_plain, key, "is not one line of text"))


def _command(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    is_command = value is None or (isinstance(value, str) and "\0" not in value)
    return str(_valid(value, is_command, key, "is not a shell command") or "").strip()


def _count(entry: Mapping[str, Any], key: str, default: int, most: int) -> int:
    value = default if entry.get(key) is None else entry[key]
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
    return int(_valid(value, is_count, key, f"is not a whole number from 1 to {most}"))


def _environment(value: Any) -> Dict[str, str]:
    if value is not None and not isinstance(value, Mapping):
        raise SpecError("env", "must be a mapping of variables to values")
    variables = {}
    for name, text in (value or {}).items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise SpecError(f"env.{str(name)[:80]}", "cannot be an environment variable's name")
        if name.startswith("TUNE_"):
            raise SpecError(f"env.{name}", "cannot be set: the search itself sets the variables TUNE_*")
        is_text = isinstance(text, (str, int, float, bool)) and "\0" not in str(text)
        variables[name] = render(_valid(text, is_text, f"env.{name}", "is not text and not a number"))
    return variables


def _cases(value: Any, key: str, default: Tuple[str, ...]) -> Tuple[str, ...]:
    if value is None:
        return default
    names = tuple(_case(v, f"{key}[{i}]") for i, v in enumerate(_list(value, key)))
    if len(names) > MAX_CASES or (default and not names):
        raise SpecError(key, f"needs 1 to {MAX_CASES} names")
    if len(set(names)) != len(names):
        raise SpecError(key, "contains a case twice")
    return names


def _case(value: Any, where: str) -> str:
    """A case's name, which commands get as ``$TUNE_CASE``, such as ``1,8,512,64``."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    is_case = isinstance(value, str) and 0 < len(value) <= 100 and value.isprintable() and value[0] != "-"
    return str(_valid(value, is_case, where, "is not a valid case: use one line of text that does not begin with '-'"))


def _timeouts(value: Any) -> Timeouts:
    example = "{build: 2m, check: 30s, bench: 30s}"
    limits = {} if value is None else _mapping(value, "timeouts", ("build", "check", "bench"), example)
    return Timeouts(**{key: _seconds(text, f"timeouts.{key}") for key, text in limits.items()})


def _seconds(value: Any, where: str) -> float:
    try:
        return durations.seconds(value)
    except ValueError as error:
        raise SpecError(where, str(error)) from None


def _build(entry: Mapping[str, Any]) -> Optional[Stage]:
    command = _command(entry, "build")
    for key in ("collect", "gates"):
        if entry.get(key) and not command:
            raise SpecError(key, "needs a `build` command, and the file has none")
    return _stage(command, entry, "") if command else None


def _check(value: Any) -> Optional[Stage]:
    if value is None:
        return None
    entry = value if isinstance(value, Mapping) else {"run": value}
    _known(entry, ("run", "collect", "gates"), "check.")
    command = _command(entry, "run")
    if not command:
        raise SpecError("check.run", "must be the command that checks a configuration's output")
    return _stage(command, entry, "check.")


def _stage(command: str, entry: Mapping[str, Any], where: str) -> Stage:
    collect = [
        _collect(one, f"{where}collect[{i}]") for i, one in enumerate(_list(entry.get("collect"), f"{where}collect"))
    ]
    gated = [_gate(one, f"{where}gates[{i}]") for i, one in enumerate(_list(entry.get("gates"), f"{where}gates"))]
    return Stage(command, tuple(collect), tuple(gated))


def _collect(value: Any, where: str) -> CollectSpec:
    if not isinstance(value, Mapping) or set(value) != {"reader", "file"}:
        raise SpecError(where, "must be {reader: .., file: ..}")
    return CollectSpec(_reader(value["reader"], f"{where}.reader"), _file(value["file"], f"{where}.file"))


def _gate(value: Any, where: str) -> GateSpec:
    spec = value if isinstance(value, Mapping) else {"expr": value}
    if not set(spec) <= {"expr", "when", "hint"} or "expr" not in spec:
        raise SpecError(where, "must be an expression, or {expr: .., when: .., hint: ..}")
    for part in ("expr", "when"):
        if spec.get(part) is not None:
            _expression(spec[part], where, DOCUMENT_KINDS)
    return GateSpec(spec["expr"], spec.get("when"), spec.get("hint"))


def _reader(value: Any, where: str) -> str:
    if isinstance(value, str) and value in READERS:
        return value
    raise SpecError(where, f"unknown reader {shown(value)}; known: {', '.join(READERS)}")


def _file(value: Any, where: str) -> str:
    is_file = isinstance(value, str) and value and value.isprintable()
    name = str(_valid(value, is_file, where, "is not a file, such as $TUNE_OUT/build.log"))
    unknown = [m.group() for m in _OF_FILE.finditer(name) if m.group(1) not in ("TUNE_OUT", "FCCTL_OUT")]
    if unknown:
        raise SpecError(where, f"{shown(name)}: only the variable $TUNE_OUT is allowed, not {unknown[0]}")
    stays = ".." not in name.split("/") and not name.startswith("~")
    problem = "is outside the command's folder: write a path inside this folder, below $TUNE_OUT, or from /"
    return str(_valid(name, stays, where, problem))


def _expression(value: Any, where: str, kinds: Sequence[str]) -> str:
    """A gate expression on documents of these ``kinds``, the parameters and the environment."""
    try:
        names = gates.names(value)
    except gates.GateError as error:
        raise SpecError(where, f"{shown(value)}: {error}") from None
    for name in names:
        if name not in (*kinds, "params", "env"):
            raise SpecError(where, f"{shown(value)}: unknown name {name}; known: {', '.join(kinds)}, params, env")
    return str(value)


def _metric(value: Any, served: bool) -> Metric:
    if value is None and served:
        return Metric()
    example = "{reader: metrics, file: .., value: an expression, unit: us, direction: min}"
    entry = _mapping(value, "metric", ("value", "reader", "file", "unit", "direction"), example)
    direction = entry.get("direction", "min")
    _valid(direction, direction in DIRECTIONS, "metric.direction", "must be min or max")
    unit = _plain(entry, "unit") or "us"
    if served:
        return Metric(unit=unit, direction=direction)
    reader = _reader(entry.get("reader"), "metric.reader")
    expression = _expression(entry.get("value"), "metric.value", (READERS[reader],))
    return Metric(expression, reader, _file(entry.get("file"), "metric.file"), unit, direction)
