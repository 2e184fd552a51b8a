"""Gates: success conditions over documents, in a small expression language.

An expression is parsed (Pratt's method) into nodes and walked over plain JSON values. Nothing is ever handed to
Python's own evaluator, and no attribute of a Python object can be reached. ``docs/gates.md`` describes the language.

What cannot be decided is never a pass: a missing path, a null where a number belongs, an empty list under ``all`` or
``max``, mixed types and a division by zero all give the verdict ``unavailable``; a NaN that is compared gives ``fail``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any

from fcctl_remote.gates import syntax as nodes
from fcctl_remote.gates.syntax import FUNCTIONS, GateError, Node, names, parse
from fcctl_remote.gates.values import (
    NotANumber,
    Undecidable,
    arithmetic,
    compare,
    compare_one,
    each,
    kind,
    number,
    short,
)
from fcctl_remote.wire import GateResult, GateSpec

__all__ = ["FUNCTIONS", "GateError", "NoValue", "Node", "evaluate", "names", "parse", "value"]

MAX_ITEMS = 100_000  # elements of any list an expression may touch
MAX_NAMED = 5  # names that a reason gives
MAX_COMPARED = 200  # keys that a mistyped one is compared with
SHOWN_ITEMS = 20  # elements of a list that a GateResult's value keeps


class NoValue(Exception):
    """An expression has no value over these documents; the text says why."""


def evaluate(spec: GateSpec, context: Mapping[str, Any]) -> GateResult:
    """The verdict on one gate; never raises, whatever the documents hold.

    ``context`` maps top-level names to JSON values. ``value`` of the result is the left-hand side's value when the
    expression is a comparison, so that a person sees the number that was judged.
    """
    result = GateResult(expr=spec.expr, verdict="unavailable", when=spec.when, hint=spec.hint)
    try:
        if spec.when is not None and not _condition(_value(parse(spec.when), context), spec.when):
            result.verdict = "not_applicable"
            return result
        node = parse(spec.expr)
        result.value = _shown_value(_judged(node, context))
        result.verdict = "pass" if _condition(_value(node, context), spec.expr) else "fail"
    except NotANumber as nan:
        result.verdict = "fail"
        result.value = _shown_value(nan.value)
    except (GateError, Undecidable) as reason:
        result.hint = "%s; %s" % (reason, spec.hint) if spec.hint else str(reason)
    except (OverflowError, RecursionError, MemoryError) as reason:
        result.hint = "cannot be computed: %s" % type(reason).__name__
    return result


def value(node: nodes.Node, context: Mapping[str, Any]) -> Any:
    """What a parsed expression is worth: a number, text, a boolean, or a list of them. Raises NoValue: something it
    names is missing, it divides by zero, or it compares a NaN."""
    try:
        return _value(node, context)
    except NotANumber:
        raise NoValue("a comparison with NaN has no value") from None
    except (Undecidable, OverflowError, RecursionError, MemoryError) as reason:
        raise NoValue(str(reason) or type(reason).__name__) from None


def _condition(value: Any, expr: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, list):
        raise Undecidable("'%s' is a list of true and false; write all(..) or any(..)" % short(expr))
    raise Undecidable("'%s' is %s, not true or false" % (short(expr), kind(value)))


def _judged(node: nodes.Node, context: Mapping[str, Any]) -> Any:
    """What to show a person: what a comparison is about, also of one inside all() or any().

    That is its first operand with something of a document in it: ``x`` of ``x <= 3`` and of ``0.8 <= x <= 1.25``.
    """
    if isinstance(node, nodes.Call) and node.function in ("all", "any") and isinstance(node.args[0], nodes.Comparison):
        node = node.args[0]
    if isinstance(node, nodes.Comparison):
        node = next((operand for operand in node.operands if nodes.mentions_document(operand)), node.operands[0])
    return _value(node, context)


def _shown_value(value: Any) -> Any:
    """A value fit for strict JSON and for one line: bounded, and non-finite numbers as words."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, str):
        return value if len(value) <= 200 else value[:200] + ".."
    if isinstance(value, list):
        return [_shown_value(v) for v in value[:SHOWN_ITEMS]]
    if isinstance(value, Mapping):
        return "{%d keys}" % len(value)
    return value


def _value(node: nodes.Node, context: Mapping[str, Any]) -> Any:
    if isinstance(node, nodes.Literal):
        return node.value
    if isinstance(node, nodes.ListOf):
        return [_value(item, context) for item in node.items]
    if isinstance(node, nodes.Path):
        return _follow(node, context)
    if isinstance(node, nodes.Call):
        return _call(node, context)
    if isinstance(node, nodes.Unary):
        return _unary(node, context)
    if isinstance(node, nodes.Comparison):
        return _compare_chain(node, context)
    if node.op in ("and", "or"):
        return _logical(node, context)
    return each(node.op, arithmetic, _value(node.left, context), _value(node.right, context))


def _unary(node: nodes.Unary, context: Mapping[str, Any]) -> Any:
    value = _value(node.operand, context)
    if node.op == "not":
        return not _condition(value, "the operand of not")
    return each(node.op, arithmetic, 0, value)


def _logical(node: nodes.Binary, context: Mapping[str, Any]) -> bool:
    left = _condition(_value(node.left, context), "the left side of %s" % node.op)
    if left == (node.op == "or"):
        return left
    return _condition(_value(node.right, context), "the right side of %s" % node.op)


# --- paths
def _follow(path: nodes.Path, context: Mapping[str, Any]) -> Any:
    """The path's value: one value, or a list once ``[*]`` or a filter with several hits was passed."""
    if path.root not in context or context[path.root] is None:
        raise Undecidable("'%s' does not exist here" % path.root)
    values: list[Any] = [context[path.root]]
    many = False
    for part in path.parts:
        if isinstance(part, (nodes.Every, nodes.Where)):
            values = _select(part, values, path)
            many = many or isinstance(part, nodes.Every) or len(values) != 1
        else:
            values = [_step(part, value, path) for value in values]
    return values if many else values[0]


def _select(part: nodes.Every | nodes.Where, values: list[Any], path: nodes.Path) -> list[Any]:
    elements: list[Any] = []
    for value in values:
        if not isinstance(value, list):
            raise Undecidable("'%s': [..] needs a list, found %s" % (short(path.text), kind(value)))
        elements.extend(v for v in value if isinstance(part, nodes.Every) or _matches(part, v))
        if len(elements) > MAX_ITEMS:
            raise Undecidable("'%s': more than %d elements" % (short(path.text), MAX_ITEMS))
    if not elements and isinstance(part, nodes.Where):
        raise Undecidable("'%s': no element matches%s" % (short(path.text), _what_there_is(part, values)))
    return elements


def _what_there_is(part: nodes.Where, values: list[Any]) -> str:
    """The elements' own values of what the filter asked for first: most often a name was not quite right."""
    keys = part.conditions[0][0]
    present: list[str] = []
    for element in (element for value in values for element in value):
        given: Any = element
        for key in keys:
            given = given.get(key) if isinstance(given, Mapping) else None
        if isinstance(given, (str, int, float)) and str(given) not in present:
            present.append(str(given))
        if len(present) > MAX_NAMED:
            break
    if not present:
        return ""
    more = ", .." if len(present) > MAX_NAMED else ""
    return "; %s is %s%s" % (".".join(keys), ", ".join(short(text) for text in present[:MAX_NAMED]), more)


def _matches(part: nodes.Where, element: Any) -> bool:
    for keys, op, literal in part.conditions:
        value = element
        for key in keys:
            if not isinstance(value, Mapping) or key not in value:
                return False
            value = value[key]
        try:
            if not compare_one(op, value, literal):
                return False
        except (Undecidable, NotANumber):
            return False
    return True


def _step(part: nodes.Key | nodes.Index, value: Any, path: nodes.Path) -> Any:
    if isinstance(part, nodes.Key):
        if isinstance(value, Mapping) and part.name in value:
            return value[part.name]
        if isinstance(value, list):
            raise Undecidable("'%s': .%s is used on a list; write [*].%s" % (short(path.text), part.name, part.name))
        near = difflib.get_close_matches(part.name, list(value)[:MAX_COMPARED]) if isinstance(value, Mapping) else []
        suffix = " (did you mean '%s'?)" % near[0] if near else _keys_of(value)
        raise Undecidable("'%s' has no key '%s'%s" % (short(path.text), part.name[:80], suffix))
    if not isinstance(value, list) or not -len(value) <= part.number < len(value):
        raise Undecidable("'%s' has no element %d" % (short(path.text), part.number))
    return value[part.number]


def _keys_of(value: Any) -> str:
    if not isinstance(value, Mapping) or not value:
        return ""
    names = [short(str(key)) for key in list(value)[:MAX_NAMED]]
    return " (its keys: %s%s)" % (", ".join(names), ", .." if len(value) > MAX_NAMED else "")


# --- comparisons
def _compare_chain(node: nodes.Comparison, context: Mapping[str, Any]) -> Any:
    values = [_value(operand, context) for operand in node.operands]
    answers = [compare(op, values[i], values[i + 1]) for i, op in enumerate(node.ops)]
    if len(answers) == 1:
        return answers[0]
    lengths = {len(a) for a in answers if isinstance(a, list)}
    if not lengths:
        return all(answers)
    if len(lengths) > 1:
        raise Undecidable("the compared lists have different lengths")
    rows = [a if isinstance(a, list) else [a] * next(iter(lengths)) for a in answers]
    return [all(column) for column in zip(*rows)]  # noqa: B905 - strict= is newer than Python 3.8


# --- functions
def _call(node: nodes.Call, context: Mapping[str, Any]) -> Any:
    if node.function == "has":
        return _has(node.args[0], context)
    values = [_value(arg, context) for arg in node.args]
    if node.function == "len":
        return _length(values[0])
    if node.function == "abs":
        value = values[0]
        return [abs(number(v, "abs")) for v in value] if isinstance(value, list) else abs(number(value, "abs"))
    # A single value counts as a list of one: a filter with one hit gives a value, with several a list.
    items = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    if not items:
        raise Undecidable("%s() of an empty list" % node.function)
    return _FOLDS[node.function](items)


def _has(node: nodes.Node, context: Mapping[str, Any]) -> bool:
    try:
        return _value(node, context) not in (None, [])
    except Undecidable:
        return False


def _length(value: Any) -> int:
    if isinstance(value, (list, str, Mapping)):
        return len(value)
    raise Undecidable("len() needs a list, found %s" % kind(value))


def _answers(items: list[Any]) -> list[bool]:
    """Every element must have an answer, also those that would not be looked at."""
    return [_condition(item, "the element of all() or any()") for item in items]


def _sum(items: list[Any]) -> Any:
    """Booleans count as 0 and 1, so that ``sum(correctness.cases[*].passed)`` counts the passes."""
    return sum(int(item) if isinstance(item, bool) else number(item, "sum") for item in items)


def _extreme(pick: Callable[[list[Any]], Any], name: str) -> Callable[[list[Any]], Any]:
    def fold(items: list[Any]) -> Any:
        numbers = [number(item, name) for item in items]
        for value in numbers:
            if math.isnan(value):
                return value  # min() and max() would lose a NaN, depending on where it stands
        return pick(numbers)

    return fold


_FOLDS: dict[str, Callable[[list[Any]], Any]] = {
    "all": lambda items: all(_answers(items)),
    "any": lambda items: any(_answers(items)),
    "sum": _sum,
    "min": _extreme(min, "min"),
    "max": _extreme(max, "max"),
}
