"""The gate language: what it accepts, what it decides, and that nothing undecidable ever passes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fcctl_remote.gates.evaluate import GateError, evaluate, names, parse
from fcctl_remote.wire import GateSpec

CONTEXT: dict[str, Any] = {
    "correctness": {
        "cases": [{"name": "a", "passed": True, "max_err": 0.01}, {"name": "b", "passed": True, "max_err": 0.02}],
        "summary": {"total": 20, "passed": 20, "failed": 0, "max_err": 0.02},
    },
    "build": {
        "kernels": [
            {"name": "baseline", "arch": "sm_89", "registers": 43, "spill_store_bytes": 0, "smem_bytes": 768},
            {"name": "wmma", "arch": "sm_89", "registers": 118, "spill_store_bytes": 0, "smem_bytes": 65536},
            {"name": "wmma", "arch": "sm_90", "registers": 120, "spill_store_bytes": 8, "smem_bytes": 65536},
        ]
    },
    "benchmark": {
        "benchmarks": [
            {"name": "mission", "variant": "fc", "shape": {"S": 512}, "stats": {"p50": 25.9, "p90": None}},
            {"name": "mission", "variant": "sdpa", "shape": {"S": 512}, "stats": {"p50": 45.09, "p90": 50.0}},
            {"name": "long", "variant": "fc", "shape": {"S": 2048}, "stats": {"p50": 1397.7}},
        ]
    },
    "host": {"gpu": {"compute_capability": "10.0", "name": "NVIDIA L4"}},
    "many": {"a": list(range(300)), "b": list(range(300))},
    "text": {"quoted": 'a"b\\c', "lines": "1\n2\t3"},
    "steps": {"bench-cpu": {"benchmark": {"n": 1}}},
    "env": {"MODE": "fast"},
    "keys": {
        "five": {f"k{n}": n for n in range(5)},
        "six": {f"k{n}": n for n in range(6)},
        "rows": [{"n": n, "m": n % 5} for n in (0, 0, 1, 2, 3, 4, 5)],
    },
    "one": [{"n": 1}],
    "signed": [{"n": -1}, {"n": -2.5}, {"n": 1}],
    "bad": {"nan": math.nan, "list": [1.0, math.nan], "inf": math.inf, "empty": [], "null": None, "text": "x"},
}


def verdict(expr: str, when: str | None = None) -> str:
    return evaluate(GateSpec(expr, when), CONTEXT).verdict


@pytest.mark.parametrize(
    "expr",
    [
        "correctness.summary.passed == 20",
        "correctness.summary.passed == correctness.summary.total",
        "max(build.kernels[*].registers) <= 120",
        "max(build.kernels[arch='sm_89'].registers) <= 118",
        'benchmark.benchmarks[name="mission", variant="fc"].stats.p50 < 58',
        (
            'benchmark.benchmarks[name="mission", variant="sdpa"].stats.p50 '
            '/ benchmark.benchmarks[name="mission", variant="fc"].stats.p50 >= 1.7'
        ),
        "benchmark.benchmarks[shape.S>=1024].stats.p50 > 1000",
        "15 <= benchmark.benchmarks[0].stats.p50 <= 30",
        "all(correctness.cases[*].passed)",
        "all(correctness.cases[*].max_err <= 0.06)",
        "all(0 < correctness.cases[*].max_err <= 0.06)",
        "any(build.kernels[*].spill_store_bytes > 0)",
        "sum(correctness.cases[*].passed) == 2",
        "len(build.kernels) == 3 and not (len(build.kernels) == 4)",
        "abs(-3) == 3 and abs(1 - 1.5) < 1",
        "min(3, 1, 2) == 1 and max([3, 1, 2]) == 3",
        'host.gpu.compute_capability >= "8.9"',  # as versions, not as text
        '"L4" in host.gpu.name',
        '"k4" in keys.five',
        'env.MODE in ["fast", "full"] and env.MODE not in ["slow"]',
        'steps["bench-cpu"].benchmark.n == 1',
        "build.kernels[-1].registers == 120 and build.kernels[-3].registers == 43",
        "len(correctness.cases[passed=true]) == 2 and correctness.cases[passed != false, name='a'].max_err == 0.01",
        "benchmark.benchmarks[stats.p90=null].variant == 'fc' and len(build.kernels[registers > -1]) == 3",
        "build.kernels[smem_bytes < 65536].registers == 43 and build.kernels[spill_store_bytes >= 8].registers == 120",
        "signed[n=-1].n == -1 and signed[n=-2.5].n == -2.5 and signed[n<-1].n == -2.5 and signed[n=1].n == 1",
        "len(build.kernels[registers <= 118]) == 2 and len(build.kernels[name == 'wmma']) == 2",
        "has(build.kernels) and not has(profile) and not has(bad.null) and not has(bad.empty)",
        "true or bad.missing == 1",
        "1 + 2 * 3 - 4 / 2 == 5 and 7 // 2 == 3 and 7 % 4 == 3 and -2 * -3 == 6",
        "bad.inf > 1",
        "[1, 2] == [1, 2.0] and [1, 2] != [2, 1] and [1] != [1, 1]",
        "all(many.a == many.b)",
        "all(many.a <= many.b)",
        # A version that says less is followed by zeros.
        '"8.9" == "8.9" and "8.9" < "8.9.1" and "8.9.1" > "8.9" and "8.9" >= "8.9.0" and "8.9.0" <= "8.9"',
        '"9" < "10" and "0.9" < "0.10" and not ("8.9.0" < "8.9") and not ("8.9" > "8.9.0")',
        r'''text.quoted == "a\"b\\c" and text.quoted == 'a"b\\c' and text.lines == "1\n2\t3"''',
        "10 - 4 + 3 == 9 and 10 - 4 - 3 == 3 and 12 / 2 * 3 == 18 and 7 // 2 / 2 == 1.5 and 3 * 5 // 2 == 7",
        "5 * 5 % 4 == 1 and 7 % 4 * 2 == 6 and 3 * 0 == 0 and 0 - 3 == -3 and 2 - -1 == 3 and -1 + 3 == 2",
        "all(0 < 1 <= build.kernels[*].registers) and all(build.kernels[*].registers > 0 < 1)",
        "any(build.kernels[*].registers == 43) and any(43 == build.kernels[*].registers)",
        "max(build.kernels[registers=118].registers) == 118 and sum(build.kernels[*].spill_store_bytes) == 8",
        "7 // 2 == 3 and -7 // 2 == -4 and 7 % 4 == 3 and -7 % 4 == 1 and 7.5 // 2 == 3 and 1 / 4 == 0.25",
    ],
)
def test_passes(expr: str) -> None:
    result = evaluate(GateSpec(expr), CONTEXT)
    assert result.verdict == "pass", result


@pytest.mark.parametrize(
    "expr",
    [
        "correctness.summary.passed == 19",
        "max(build.kernels[*].registers) < 120",
        "all(build.kernels[*].spill_store_bytes == 0)",
        "bad.inf <= 0.06",
        # NaN fails, however the condition is put.
        "bad.nan <= 0.06",
        "bad.nan > 0.06",
        "bad.nan != 1",
        "not (bad.nan > 0.06)",
        "max(bad.list) <= 1",
        "min(bad.list) <= 1",
        "bad.nan in [1, 2]",
        "bad.list == [1, 2]",
        "'x' in bad.list",
        "bad.nan > 1 or true",
    ],
)
def test_fails(expr: str) -> None:
    assert verdict(expr) == "fail"


@pytest.mark.parametrize(
    ("expr", "why"),
    [
        ("profile.kernels[0].metrics.tensor_active_pct >= 50", "'profile' does not exist here"),
        ("correctness.summary.pased == 20", "did you mean 'passed'?"),
        ("correctness.results == 20", "(its keys: "),
        ("build.kernels.registers <= 120", "[*].registers"),
        ('benchmark.benchmarks[name="mision"].stats.p50 < 1', "no element matches; name is mission, long"),
        ("benchmark.benchmarks[shape.S>4096].stats.p50 < 1", "no element matches; shape.S is 512, 2048"),
        ("benchmark.benchmarks[shape.B>1].stats.p50 < 1", "no element matches"),
        ('benchmark.benchmarks[name="mission"].stats.p50 < 58', "all(..) or any(..)"),
        ("max(benchmark.benchmarks[*].stats.p90) < 60", "no key 'p90'"),
        ('max(benchmark.benchmarks[name="mission"].stats.p90) < 60', "found null"),
        ("max(bad.empty) < 1", "empty list"),
        ("all(bad.empty)", "empty list"),
        ("sum(bad.empty) == 0", "empty list"),
        ("bad.text < 3", "found text"),
        ("1 in bad.text", "'in' needs a list or a string on its right, found text"),
        ("1 in bad", "needs a list or a string on its right, found an object"),
        ('bad.text < "y"', "cannot compare text"),
        ("1 / 0 == 1", "division by zero"),
        ("1 // 0 == 1", "division by zero"),
        ("1 % 0 == 1", "division by zero"),
        ("all(build.kernels[*].registers > 0 < correctness.cases[*].max_err)", "lists have different lengths"),
        ("keys.five.a == 1", "has no key 'a' (its keys: k0, k1, k2, k3, k4);"),
        ("keys.six.a == 1", "has no key 'a' (its keys: k0, k1, k2, k3, k4, ..);"),
        ("keys.rows[n=9].n == 9", "no element matches; n is 0, 1, 2, 3, 4, ..;"),
        ("keys.rows[m=9].n == 9", "no element matches; m is 0, 1, 2, 3, 4;"),
        ("correctness.summary.passed", "not true or false"),
        ("1 and true", "not true or false"),
        ("bad.empty[0] == 1", "no element 0"),
        ("1 < build.kernels[ 3 ].registers", "'build.kernels[ 3 ].registers' has no element 3"),
        ("build.kernels[-4].registers == 43", "'build.kernels[-4].registers' has no element -4"),
        (f"bad.{'k' * 75}.a == 1", f"'bad.{'k' * 73}...' has no key"),
        (f"bad.{'k' * 76} == 1", f"'bad.{'k' * 76}' has no key"),
        ("build.kernels[*].registers <= 120 and true", "all(..) or any(..)"),
        ("one[*].n == 1", "all(..) or any(..)"),
        ("build.kernels[*].registers == correctness.cases[*].max_err[0]", "no element 0"),
        ("all(build.kernels[*].registers - correctness.cases[*].max_err > 0)", "3 and 2 elements"),
    ],
)
def test_undecidable_is_unavailable_and_says_why(expr: str, why: str) -> None:
    result = evaluate(GateSpec(expr, hint="see the log"), CONTEXT)
    assert result.verdict == "unavailable"
    assert why in result.hint
    assert result.hint.endswith("; see the log")


def test_when_false_is_not_applicable_and_missing_when_is_unavailable() -> None:
    assert verdict("1 == 2", when='"H100" in host.gpu.name') == "not_applicable"
    assert verdict("1 == 1", when='"L4" in host.gpu.name') == "pass"
    assert verdict("1 == 1", when="profile.x == 1") == "unavailable"


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        ("benchmark.benchmarks[0].stats.p50 < 20", 25.9),
        ("10 < benchmark.benchmarks[0].stats.p50", 25.9),
        ("all(build.kernels[*].registers <= 50)", [43, 118, 120]),
        ("bad.nan < 1", "NaN"),
        ("bad.inf < 1", "Infinity"),
        ("true and false", False),
        ("len(build.kernels) == 2", 3),
        ("0.8 <= benchmark.benchmarks[0].stats.p50 <= 1.25", 25.9),
        ("3 >= benchmark.benchmarks[0].stats.p50", 25.9),
        ("correctness.summary.total > benchmark.benchmarks[0].stats.p50", 20),
        ("1 < 2", 1),
        ("0 - bad.inf < 1", "-Infinity"),
        ("bad.inf == bad", "Infinity"),
        ("bad == 1", "{6 keys}"),
        ("bad.text == 'y'", "x"),
    ],
)
def test_value_is_what_the_comparison_is_about(expr: str, value: Any) -> None:
    assert evaluate(GateSpec(expr), CONTEXT).value == value


def test_shown_value_is_bounded() -> None:
    context = {"m": {"xs": list(range(5000)), "s": "x" * 5000}}
    assert evaluate(GateSpec("m.xs == [1]"), context).value == list(range(20))
    assert len(evaluate(GateSpec('m.s == "x"'), context).value) < 250
    for length in (200, 201):
        shown = evaluate(GateSpec('m.s == "x"'), {"m": {"s": "x" * length}}).value
        assert shown == "x" * 200 + ".." * (length > 200)


def test_lists_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcctl_remote.gates.evaluate.MAX_ITEMS", 3)
    for count, found in ((3, "pass"), (4, "unavailable")):
        assert evaluate(GateSpec("len(m[*]) > 0"), {"m": list(range(count))}).verdict == found


@pytest.mark.parametrize(
    ("expr", "column", "says"),
    [
        ("", 1, "empty"),
        ("   ", 1, "empty"),
        ("build.x = 3", 9, "use '=='"),
        ("maxx(build.k) < 3", 1, "did you mean 'max'?"),
        ("frobnicate(1)", 1, "known: abs"),
        ("a && b", 3, "'&&' is not an operator of gates; use 'and'"),
        ("a||b", 2, "'||' is not an operator of gates; use 'or'"),
        ("a & b", 3, "'&' is not an operator of gates; use 'and'"),
        ("a |b", 3, "'|' is not an operator of gates; use 'or'"),
        ("!a", 1, "'!' is not an operator of gates; use 'not'"),
        ("2 ** 3 == 8", 3, "'**' is not an operator of gates; use '*'"),
        ("a.b < ", 6, "expected a value"),
        ("a.b < (1 + 2", 13, "expected ')'"),
        ("a..b", 3, "expected a name"),
        ("a[b c]", 5, "expected a comparison"),
        ("a[1.5]", 3, "whole number"),
        ('a == "open', 6, "no closing quote"),
        ("a b", 3, "expected an operator"),
        ("a == 0x10", 6, "not a number"),
        ("a == $b", 6, "unexpected character"),
        ("len(1, 2)", 1, "one value"),
        ("has(1 + 2)", 1, "takes a path"),
        ("len()", 1, "a value"),
        ("a[n=b]", 5, "quoted string"),
        ("a[n=-true]", 6, "quoted string"),
        ("a[n=-'b']", 6, "quoted string"),
        ("a[n=]", 5, "found ']'"),
        ("a.b[0 == 1", 7, "to close the bracket"),
        ("a[-x]", 4, "whole number"),
        ("(" * 60 + "1" + ")" * 60, 41, "deep"),
    ],
)
def test_errors_point_at_the_place(expr: str, column: int, says: str) -> None:
    with pytest.raises(GateError) as caught:
        parse(expr)
    assert says in caught.value.message
    assert caught.value.column == column


@pytest.mark.parametrize(("expr", "name"), [(3, "int"), (None, "NoneType"), (["a"], "list")])
def test_a_gate_is_a_string(expr: Any, name: str) -> None:
    with pytest.raises(GateError, match=f"a gate is a string, not {name}") as caught:
        parse(expr)
    assert caught.value.column == 1


def test_length_is_bounded() -> None:
    assert parse(f"1{' ' * 1993} == 1")
    with pytest.raises(GateError, match="2001 characters; at most 2000"):
        parse(f"1{' ' * 1995} == 1")
    with pytest.raises(GateError, match="at most 2000"):
        parse("1 + " * 1000 + "1 == 1")


def test_bad_expression_is_unavailable_not_an_exception() -> None:
    result = evaluate(GateSpec("a &&& b"), {})
    assert (result.verdict, result.value) == ("unavailable", None)
    assert "column 3" in result.hint


def test_names() -> None:
    assert names('max(build.k[*].r) <= 1 and has(profile) or build.x in [env.A, steps["a"].b]') == [
        "build",
        "profile",
        "env",
        "steps",
    ]


def test_python_objects_cannot_be_reached() -> None:
    for expr in ("m.__class__ == 1", 'm["__class__"] == 1', "m.keys == 1", 'm.s.upper == "X"', "len(m.f) == 1"):
        assert evaluate(GateSpec(expr), {"m": {"s": "x", "f": object()}}).verdict == "unavailable"


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
