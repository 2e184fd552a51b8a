"""What the operators of a gate make of JSON values: comparing, membership, arithmetic; lists element by element."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod,
}  # fmt: skip
_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,7}\Z")


class Undecidable(Exception):
    """The expression has no value here: verdict ``unavailable``. The text says why."""


class NotANumber(Exception):
    """A NaN was compared: verdict ``fail``, whatever stands around the comparison."""

    def __init__(self, value: Any) -> None:
        super().__init__("NaN")
        self.value = value


def kind(value: Any) -> str:
    """What ``value`` is, to a person."""
    if value is None:
        return "null"
    kinds = ((bool, "true or false"), ((int, float), "a number"), (str, "text"), (list, "a list"))
    return next((name for types, name in kinds if isinstance(value, types)), "an object")


def short(text: str) -> str:
    """``text``, at most 80 characters of it."""
    return text if len(text) <= 80 else text[:77] + "..."


# --- comparisons
def compare(op: str, left: Any, right: Any) -> Any:
    """True or false, or a list of them where one side is a list."""
    if op in ("in", "not in"):
        return _contains(left, right) == (op == "in")
    if op in ("==", "!=") and isinstance(left, list) and isinstance(right, list):
        _no_nan(left, right)
        return (left == right) == (op == "==")
    return each(op, compare_one, left, right)


def _contains(left: Any, right: Any) -> bool:
    _no_nan(left)
    if isinstance(right, str) and isinstance(left, str):
        return left in right
    if isinstance(right, list):
        _no_nan(*right)
        return left in right
    if isinstance(right, Mapping) and isinstance(left, str):
        return left in right
    raise Undecidable("'in' needs a list or a string on its right, found %s" % kind(right))


def _no_nan(*values: Any) -> None:
    for value in values:
        if isinstance(value, float) and math.isnan(value):
            raise NotANumber(value)
        if isinstance(value, list):
            _no_nan(*value)


def compare_one(op: str, left: Any, right: Any) -> bool:
    """Of two single values; text is ordered as a version, or not at all."""
    _no_nan(left, right)
    if op in ("==", "!="):
        return bool(left == right) == (op == "==")
    if isinstance(left, str) and isinstance(right, str):
        a, b = _version(left), _version(right)
        if a is None or b is None:
            raise Undecidable("'%s' cannot compare text, only numbers and versions such as \"8.9\"" % op)
        width = max(len(a), len(b))
        return _ordered(op, a + (0,) * (width - len(a)), b + (0,) * (width - len(b)))
    return _ordered(op, number(left, op), number(right, op))


def _version(text: str) -> tuple[int, ...] | None:
    return tuple(int(n) for n in text.split(".")) if _VERSION.match(text) else None


def _ordered(op: str, left: Any, right: Any) -> bool:
    return bool(_ORDER[op](left, right))


# --- arithmetic
def each(op: str, apply: Callable[[str, Any, Any], Any], left: Any, right: Any) -> Any:
    """``apply`` to two values, or element by element where one or both are lists."""
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            raise Undecidable("'%s' between lists of %d and %d elements" % (op, len(left), len(right)))
        return [apply(op, a, b) for a, b in zip(left, right)]  # noqa: B905
    if isinstance(left, list):
        return [apply(op, a, right) for a in left]
    if isinstance(right, list):
        return [apply(op, left, b) for b in right]
    return apply(op, left, right)


def arithmetic(op: str, left: Any, right: Any) -> Any:
    """Of two numbers; like all here, it raises :class:`Undecidable` where there is no answer."""
    a, b = number(left, op), number(right, op)
    if b == 0 and op in ("/", "//", "%"):
        raise Undecidable("division by zero")
    return _ARITHMETIC[op](a, b)


def number(value: Any, op: str) -> Any:
    """``value`` itself, if it is a number and no boolean; ``op`` is what asks."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise Undecidable("'%s' needs a number, found %s" % (op, kind(value)))
