"""A kernel's configurations: parameters with their values, and the legal combinations."""

from __future__ import annotations

import difflib
import json
import math
import random
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from fcctl_remote.gates import evaluate as gates
from fcctl_tune.errors import SpecError

Value = Union[bool, int, float, str]
#: A full set of parameters, in the space's order.
Params = Dict[str, Value]

MAX_PARAMETERS, MAX_VALUES, MAX_TEXT = 64, 1000, 200
MAX_LISTED = 200_000
#: Up to so many combinations are enumerated; a larger space is sampled.
COUNTED = 1 << 18
#: Draws that may all be illegal, before the space is walked from a random place.
DRAWS = 200

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
#: Variables that change how commands run.
_RESERVED = re.compile(
    r"(TUNE|FCCTL|LD|DYLD|BASH|PYTHON|CUDA_VISIBLE)_.*|PYTHON(PATH|HOME)|PATH|HOME|ENV|IFS|SHELLOPTS"
    # Bash gives these its own values: all configurations would be the same.
    r"|BASH|BASHPID|BASHOPTS|EUID|UID|PPID|S?RANDOM|SECONDS|LINENO|EPOCH(SECONDS|REALTIME)|HISTCMD|SHLVL|OPTIND|OPTERR"
    r"|PWD|OLDPWD|PS[14]|COMP_WORDBREAKS|_"
)


@dataclass(frozen=True)
class Parameter:
    """One dimension; its ``values`` differ and are of one type: numbers, booleans or text."""

    name: str
    values: Tuple[Value, ...]
    default: Value

    @cached_property
    def ordered(self) -> Tuple[Value, ...]:
        """Numbers by size, other values as given."""
        if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in self.values):
            return tuple(sorted(self.values, key=float))
        return self.values

    @cached_property
    def texts(self) -> Dict[Value, str]:
        """``NAME=value`` for each value."""
        return {v: f"{self.name}={json.dumps(v, ensure_ascii=False)}" for v in self.values}

    @property
    def is_ordinal(self) -> bool:
        """Whether a value lies between two others: three numbers or more."""
        return len(self.values) > 2 and not isinstance(self.values[0], (bool, str))

    def find(self, value: Any, where: str) -> Value:
        """The parameter's own value that equals ``value``. Raises: SpecError."""
        for own in self.values:
            if own == value and isinstance(own, bool) == isinstance(value, bool):
                return own
        raise SpecError(where, f"{self.name}={shown(value)} is not one of its values {shown(self.values)}")

    @classmethod
    def from_dict(cls, name: Any, entry: Any, where: str) -> Parameter:
        """From ``[values]`` (the first is the default), ``{values: [...], default: V}``, or a single value. Raises:
        SpecError."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SpecError(where, f"{str(name)[:80]!r} is not a valid name for an environment variable")
        if _RESERVED.fullmatch(name):
            raise SpecError(
                where, f"{name} is a variable that the shell or the search uses; choose another name for the parameter"
            )
        fixed: Any = None
        if isinstance(entry, Mapping):
            unknown = sorted(set(map(str, entry)) - {"values", "default"})
            if unknown or "values" not in entry:
                raise SpecError(where, f"has {', '.join(unknown) or 'no values'}; its keys are values and default")
            fixed, entry = entry.get("default"), entry["values"]
        values = _values(entry if isinstance(entry, (list, tuple)) else [entry], where)
        first = cls(name, values, values[0])
        return first if fixed is None else cls(name, values, first.find(fixed, where + ".default"))

    def as_dict(self) -> Dict[str, Any]:
        return {"values": list(self.values), "default": self.default}


def _values(entry: Sequence[Any], where: str) -> Tuple[Value, ...]:
    if not 0 < len(entry) <= MAX_VALUES:
        raise SpecError(where, f"needs 1 to {MAX_VALUES} values, has {len(entry)}")
    kinds = set()
    for value in entry:
        if isinstance(value, bool):
            kinds.add("a bool")
        elif isinstance(value, (int, float)) and _is_finite(value):
            kinds.add("a number")
        elif isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable():
            kinds.add("text")
        else:
            raise SpecError(
                where, f"{shown(value)} is not a valid value: use a number, a boolean or a short plain text"
            )
    if len(kinds) > 1:
        raise SpecError(where, f"mixes {' and '.join(sorted(kinds))} in {shown(entry)}")
    if len(set(entry)) != len(entry):
        raise SpecError(where, f"contains a value twice: {shown(entry)}")
    return tuple(entry)


def _is_finite(value: Union[int, float]) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


@dataclass(frozen=True)
class Constraint:
    """A rule in the gate language on parameters; a configuration that it cannot decide is not legal."""

    expr: str
    node: gates.Node = field(compare=False, repr=False)
    names: Tuple[str, ...] = ()

    @classmethod
    def parse(cls, expr: Any, parameters: Sequence[Parameter], where: str) -> Constraint:
        """Raises: SpecError."""
        try:
            node, names = gates.parse(expr), gates.names(expr)
        except gates.GateError as error:
            raise SpecError(where, f"{shown(expr)}: {error}") from None
        known = [p.name for p in parameters]
        for name in names:
            if name not in known:
                near = "".join(f"; did you mean {one}?" for one in difflib.get_close_matches(name, known, n=1))
                raise SpecError(where, f"{expr}: unknown parameter {name}{near}")
        return cls(expr, node, tuple(names))

    def holds(self, params: Mapping[str, Value]) -> bool:
        try:
            return gates.value(self.node, params) is True
        except gates.NoValue:
            return False


@dataclass(frozen=True)
class Space:
    """Parameters and either constraints or the legal configurations themselves (``listed``)."""

    parameters: Tuple[Parameter, ...]
    constraints: Tuple[Constraint, ...] = ()
    listed: Optional[Tuple[Tuple[Value, ...], ...]] = None
    listed_default: Optional[Tuple[Value, ...]] = None

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Space:
        """From ``parameters`` with ``constraints``, or with ``configurations`` and ``default``. Raises: SpecError."""
        named = entry.get("parameters")
        if not isinstance(named, Mapping) or not 0 < len(named) <= MAX_PARAMETERS:
            raise SpecError("parameters", f"must have 1 to {MAX_PARAMETERS} names with their values")
        parameters = tuple(Parameter.from_dict(name, named[name], f"parameters.{name}") for name in named)
        rules = entry.get("constraints") or []
        if not isinstance(rules, (list, tuple)):
            raise SpecError("constraints", "must be a list of expressions")
        constraints = tuple(Constraint.parse(r, parameters, f"constraints[{i}]") for i, r in enumerate(rules))
        if entry.get("configurations") is None:
            space = cls(parameters, constraints)
        elif constraints:
            raise SpecError("constraints", "`configurations` already lists the legal ones: remove `constraints`")
        else:
            space = cls._listing(parameters, entry)
        _check_default(space)
        return space

    @classmethod
    def _listing(cls, parameters: Tuple[Parameter, ...], entry: Mapping[str, Any]) -> Space:
        many = entry["configurations"]
        if not isinstance(many, (list, tuple)) or not 0 < len(many) <= MAX_LISTED:
            raise SpecError("configurations", f"must be a list of 1 to {MAX_LISTED} configurations")
        bare = cls(parameters)
        listed = [bare._tuple(one, f"configurations[{i}]") for i, one in enumerate(many)]
        if len(set(listed)) != len(listed):
            raise SpecError("configurations", "a configuration appears twice")
        default = entry.get("default")
        first = None if default is None else bare._tuple(default, "default")
        return cls(parameters, (), tuple(listed), first)

    def _tuple(self, params: Any, where: str) -> Tuple[Value, ...]:
        if not isinstance(params, Mapping) or set(params) != set(self.names):
            raise SpecError(where, f"must give each parameter a value: {', '.join(self.names)}")
        return tuple(p.find(params[p.name], where) for p in self.parameters)

    def outline(self) -> Dict[str, Any]:
        """Parameters and constraints, without a listing of configurations."""
        named = {p.name: p.as_dict() for p in self.parameters}
        return {"parameters": named, "constraints": [c.expr for c in self.constraints]}

    @cached_property
    def names(self) -> Tuple[str, ...]:
        return tuple(p.name for p in self.parameters)

    @property
    def default(self) -> Params:
        """Trial 0 of every search, with which all others are compared."""
        if self.listed_default is not None:
            return self._params(self.listed_default)
        return {p.name: p.default for p in self.parameters}

    @cached_property
    def product(self) -> int:
        """Combinations of the values, legal or not."""
        return math.prod(len(p.values) for p in self.parameters)

    @property
    def is_counted(self) -> bool:
        """Whether the legal configurations are few enough to be enumerated."""
        return self.listed is not None or self.product <= COUNTED

    @cached_property
    def all(self) -> Tuple[Params, ...]:
        """Every legal configuration, the default first. Raises: ValueError, unless :attr:`is_counted`."""
        if not self.is_counted:
            raise ValueError(f"{self.product} combinations are too many to list")
        default = self.default
        return (default, *(one for one in self.configurations() if one != default))

    @property
    def size(self) -> Optional[int]:
        """The number of legal configurations; None for too many to count."""
        return len(self.all) if self.is_counted else None

    @cached_property
    def _listed_keys(self) -> frozenset[str]:
        return frozenset(self.key(self._params(one)) for one in self.listed or ())

    def __contains__(self, params: object) -> bool:
        """Whether ``params`` is a legal configuration."""
        try:
            own = self._params(self._tuple(params, ""))
        except SpecError:
            return False
        if self.listed is not None:
            return self.key(own) in self._listed_keys
        return all(c.holds(own) for c in self.constraints)

    def key(self, params: Mapping[str, Value]) -> str:
        """The configuration's canonical text, in the parameters' order: ``BLOCK=128 LAYOUT="row" UNROLL=1``."""
        return " ".join([p.texts[params[p.name]] for p in self.parameters])

    def configurations(self, rng: Optional[random.Random] = None) -> Iterator[Params]:
        """Every legal configuration once, in the parameters' order or shuffled by ``rng``.

        A constraint is tried as soon as its parameters are set, which omits whole branches.
        """
        if self.listed is not None:
            order = list(self.listed)
            if rng is not None:
                rng.shuffle(order)
            yield from map(self._params, order)
            return
        last = {c: max((self.names.index(n) for n in c.names), default=0) for c in self.constraints}
        due = [[c for c in self.constraints if last[c] == i] for i in range(len(self.parameters))]
        yield from self._walk({}, due, rng)

    def _walk(
        self, chosen: Params, due: Sequence[Sequence[Constraint]], rng: Optional[random.Random]
    ) -> Iterator[Params]:
        place = len(chosen)
        if place == len(self.parameters):
            yield dict(chosen)
            return
        values: List[Value] = list(self.parameters[place].values)
        if rng is not None:
            rng.shuffle(values)
        for value in values:
            chosen[self.names[place]] = value
            if all(c.holds(chosen) for c in due[place]):
                yield from self._walk(chosen, due, rng)
            del chosen[self.names[place]]

    def draw(self, rng: random.Random) -> Params:
        """A legal configuration, each equally likely unless nearly all of a huge space is illegal."""
        if self.is_counted:
            return dict(self.all[rng.randrange(len(self.all))])
        for _ in range(DRAWS):
            one = {p.name: p.values[rng.randrange(len(p.values))] for p in self.parameters}
            if all(c.holds(one) for c in self.constraints):
                return one
        return next(self.configurations(rng))  # there is one: the default

    def _params(self, values: Sequence[Value]) -> Params:
        return dict(zip(self.names, values))  # noqa: B905 (Python 3.9)


def _check_default(space: Space) -> None:
    default = space.default
    if default in space:
        return
    if space.listed is not None:
        raise SpecError("default", f"{space.key(default)} is not one of the listed configurations")
    at, broken = next((i, c) for i, c in enumerate(space.constraints) if not c.holds(default))
    try:
        verdict = gates.value(broken.node, default)
        problem = f"the default, {space.key(default)}, violates {broken.expr}"
        if verdict is not False:
            problem = f"{broken.expr} is {shown(verdict)} for the default configuration, which is not true or false"
    except gates.NoValue as error:
        problem = f"{broken.expr}: {error}"
    raise SpecError(f"constraints[{at}]", problem)


def render(value: Value) -> str:
    """A value as the text of an environment variable."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value)


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + ".."
