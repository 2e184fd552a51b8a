"""The base of validated models, and the problems of a file as text with line, message and hint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.base.errors import did_you_mean, nearest, plural

#: By a person: a key that is not known is a mistake.
WRITTEN = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)
#: By this or another version of fcctl: what this one does not know is passed over.
KEPT = ConfigDict(extra="ignore", frozen=True, defer_build=True)


Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """``where`` is ``file:line``."""

    where: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"

    def in_full(self) -> str:
        return f"{self} ({self.hint})" if self.hint else str(self)


def summary(problems: list[Problem]) -> tuple[str, str | None]:
    """Message and hint for an error that carries all of ``problems``."""
    if len(problems) == 1:
        return str(problems[0]), problems[0].hint
    lines = [plural(len(problems), "problem"), *(f"  {p.in_full()}" for p in problems)]
    return "\n".join(lines), None


def of_model(
    model: type[BaseModel], error: ValidationError, where: Callable[[Path], str], prefix: Path = ()
) -> list[Problem]:
    """Each error of pydantic in words. ``where`` gives ``file:line`` of a path; ``prefix`` leads to the model."""
    found = []
    for details in error.errors(include_url=False):
        path = tuple(part for part in details["loc"] if part != "[key]")
        message, hint = _words(model, path, details, prefix)
        found.append(Problem(where((*prefix, *path)), message, hint))
    return found


def dotted(path: Path) -> str:
    """``("steps", 0, "gates")`` -> ``steps[0].gates``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _words(model: type[BaseModel], path: Path, details: Any, prefix: Path) -> tuple[str, str | None]:
    kind = details["type"]
    name = dotted((*prefix, *path))
    parent = dotted((*prefix, *path[:-1]))
    inside = f" in {parent}" if parent else ""
    if kind == "extra_forbidden":
        known = list(_model_at(model, path[:-1]).model_fields)
        return f"unknown key '{path[-1]}'{inside}", did_you_mean(str(path[-1]), known)
    if kind == "missing":
        return f"missing key '{path[-1]}'{inside}", None
    if kind == "literal_error":
        allowed = re.findall("'(.*?)'", details["ctx"]["expected"])  # 'one', 'two' or 'three'
        near = nearest(str(details["input"]), allowed)
        hint = f"did you mean '{near}'? " * (near is not None) + f"allowed: {', '.join(allowed)}"
        return f"{name}: unknown value {_shown(details['input'])}", hint
    if kind == "string_pattern_mismatch":
        return f"{name}: invalid value {_shown(details['input'])}", f"it must match {details['ctx']['pattern']}"
    if kind == "value_error":
        return f"{name}: {reason(details)}", getattr(details["ctx"]["error"], "hint", None)
    is_bare = kind == "string_type" and isinstance(details["input"], bool | int | float)
    return f"{name}: {reason(details)}", f'put quotes around it: "{details["input"]}"' if is_bare else None


#: What is allowed, by pydantic's kind of error.
_ALLOWED = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a table of keys and values",
    "model": "a table of keys and values",
    "model_attributes": "a table of keys and values",
    "dataclass": "a table of keys and values",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "at most {le}",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
    "too_short": "at least {min_length} entries",
    "too_long": "at most {max_length} entries",
}
_FORMS = re.compile(r"_(?:type|parsing|from_float|parsing_size)$")


def reason(details: Mapping[str, Any]) -> str:
    """One of pydantic's errors in plain words, without the key: ``expected a number above 0, found -1``."""
    if details["type"] == "value_error":
        return str(details["msg"]).removeprefix("Value error, ")
    if details["type"] == "missing":
        return "missing"
    allowed = _ALLOWED.get(_FORMS.sub("", details["type"]))
    found = f", found {_shown(details['input'])}" if "input" in details else ""
    if allowed is None:
        message = str(details["msg"])
        return f"{message[:1].lower()}{message[1:]}{found}"
    limits = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in details.get("ctx", {}).items()}
    return f"expected {allowed.format_map(limits)}{found}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel]:
    for part in path:
        if isinstance(part, str) and part in model.model_fields:
            model = next(_models_in(model.model_fields[part].annotation), model)
    return model


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
