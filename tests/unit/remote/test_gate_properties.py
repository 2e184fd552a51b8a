"""Properties of the gate language, over generated expressions and documents."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fcctl_remote.gates.evaluate import GateError, evaluate, names, parse
from fcctl_remote.wire import GateSpec

FRAGMENTS = [
    "a", "b.c", "[*]", "[0]", '[x="y"]', "(", ")", "[", "]", ",", "max", "len", "1", "2.5", "'s'", "true", "null",
    "not", "and", "or", "in", "<", "<=", "==", "=", "+", "-", "*", "/", "//", "%", ".", " ", '"', "has",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcxy"), inner, max_size=4),
    max_leaves=12,
)
SOUP = st.text(max_size=60) | st.lists(st.sampled_from(FRAGMENTS), max_size=25).map(" ".join)
SOUP |= st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join)


@given(SOUP)
@example("not " * 500)
@example("-" * 1900)
@example("[" * 1900)
@example("a" + ".b" * 900 + "==1")
@example("1" + "0" * 31)
def test_parser_raises_only_gate_error(expr: str) -> None:
    column = 1
    try:
        names(expr)
    except GateError as error:
        column = error.column
    assert 1 <= column <= len(expr) + 1


@given(SOUP, st.dictionaries(st.sampled_from(["a", "b"]), JSON, max_size=2))
def test_evaluation_never_raises(expr: str, context: dict[str, Any]) -> None:
    result = evaluate(GateSpec(expr), context)
    assert result.verdict in ("pass", "fail", "not_applicable", "unavailable")
    if result.verdict == "unavailable":
        assert result.hint


def arithmetic() -> st.SearchStrategy[str]:
    number = st.integers(0, 999).map(str) | st.floats(0.001, 1e6).map(lambda f: format(f, ".4f"))
    return st.recursive(
        number,
        lambda inner: (
            st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(" ".join)
            | inner.map(lambda s: f"({s})")
            | inner.map(lambda s: f"-{s}")
        ),
        max_leaves=10,
    )


@given(arithmetic(), st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), arithmetic())
def test_agrees_with_python(left: str, op: str, right: str) -> None:
    expr = f"{left} {op} {right}"
    try:
        expected = eval(expr)
    except ZeroDivisionError:
        expected = None
    result = evaluate(GateSpec(expr), {})
    assert result.verdict == {None: "unavailable", True: "pass", False: "fail"}[expected]
    if expected is not None:
        assert result.value == eval(left)


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.data())
def test_boolean_operators_agree_with_python(values: list[bool], data: st.DataObject) -> None:
    words = [data.draw(st.sampled_from(["", "not "])) + str(v).lower() for v in values]
    ops = [data.draw(st.sampled_from(["and", "or"])) for _ in values[1:]]
    expr = words[0] + "".join(f" {op} {word}" for op, word in zip(ops, words[1:], strict=True))
    expected = eval(expr.replace("true", "True").replace("false", "False"))
    assert evaluate(GateSpec(expr), {}).verdict == ("pass" if expected else "fail")


@given(st.lists(st.floats(), min_size=1, max_size=8), st.floats(allow_nan=False))
def test_a_nan_among_the_values_never_passes(values: list[float], limit: float) -> None:
    for expr in ("max(m.v) <= m.l", "all(m.v[*] <= m.l)", "not (max(m.v) > m.l)"):
        result = evaluate(GateSpec(expr), {"m": {"v": values, "l": limit}})
        if any(math.isnan(v) for v in values):
            assert result.verdict == "fail"
        else:
            assert result.verdict == ("pass" if max(values) <= limit else "fail")


@pytest.mark.parametrize("literal", ["1_000", "1e5", "1E-3", ".5", "5."])
def test_number_forms(literal: str) -> None:
    if "_" in literal:
        with pytest.raises(GateError):
            parse(literal + " == 1")
    else:
        assert evaluate(GateSpec(f"{literal} == m.x"), {"m": {"x": float(literal)}}).verdict == "pass"
