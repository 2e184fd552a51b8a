"""Mutants are left out by rule, and no rule hides a missing test; which tests are asked about those that stay."""

from __future__ import annotations

import ast

import pytest

from tests.mutants_left_out import parts_of, says_nothing
from tests.mutation import chosen

NUMBER, BINARY, COMPARISON = "NumberReplacer", "ReplaceBinaryOperator", "ReplaceComparisonOperator"


def left_out(source: str, operator: str, piece: str) -> bool:
    """Whether the mutant of ``piece``, which the source has once, is left out."""
    assert source.count(piece) == 1
    before = source[: source.index(piece)]
    place = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1)
    ast.parse(source)
    return says_nothing(operator, place, parts_of(source))


@pytest.mark.parametrize(
    ("source", "operator", "piece"),
    [
        ("x: int | None = f()", f"{BINARY}_BitOr_Add", "|"),
        ("def f(a: int | str) -> None: ...", f"{BINARY}_BitOr_Mul", "|"),
        ("def f() -> list[3]: ...", NUMBER, "3"),
        ("if TYPE_CHECKING:\n    a = 1 + 2", NUMBER, "2"),
        ("@dataclass(frozen=True)\nclass A: ...", "ReplaceTrueWithFalse", "True"),
        ("@dataclass(eq=False, slots=True)\nclass A: ...", "ReplaceTrueWithFalse", "True"),
        ("for a, b in zip(c, d, strict=True): ...", "ReplaceTrueWithFalse", "True"),
        ("if a is None: ...", f"{COMPARISON}_Is_Eq", "is"),
        ("if a == 1: ...", f"{COMPARISON}_Eq_Is", "=="),
        ("f = os.O_RDWR | os.O_CREAT | os.O_EXCL", f"{BINARY}_BitOr_Add", "| os.O_EXCL"),
        ("f = how | fcntl.LOCK_NB", f"{BINARY}_BitOr_BitXor", "|"),
        ("MAX_TEXT_BYTES = 4 * 1024 * 1025", NUMBER, "1025"),
        ("MAX_TEXT_BYTES = 4 * 1024 * 1025", NUMBER, "4 * 1024 * 1"),
        ("_LEFT_S = 3600.0", NUMBER, "3600.0"),
        ("é = 'é'; _LEFT_S = 3600.0", NUMBER, "3600.0"),
        ("def f(a, patience_s=10.0): ...", NUMBER, "10.0"),
        ("def f(a, *, b=None, patience_s: float = 10.0): ...", NUMBER, "10.0"),
        ("class A:\n    timeout_s: float = 600.0", NUMBER, "600.0"),
        ("run(argv, timeout=60)", NUMBER, "60"),
        ("LAST, PATIENCE_S = 'x', 30.0", NUMBER, "30.0"),
        ("def rows(limit: int = 1000): ...", NUMBER, "1000"),
        ("time.sleep(0.005)", NUMBER, "0.005"),
        ("wait_for(f, 2.0, pause_s=0.1)", NUMBER, "0.1"),
        ("wait_s = min(2 * wait_s, 0.05)", f"{BINARY}_Mul_Div", "*"),
        ("name = os.urandom(8).hex()", NUMBER, "8"),
        ("text = json.dumps(x, indent=1)", NUMBER, "1"),
        ("usd = round(a * 7, 6)", NUMBER, "6"),
    ],
)
def test_what_says_nothing_is_left_out(source: str, operator: str, piece: str) -> None:
    assert left_out(source, operator, piece)


@pytest.mark.parametrize(
    ("source", "operator", "piece"),
    [
        ("if spent + usd > cap + 1e-9: ...", f"{COMPARISON}_Gt_GtE", ">"),
        ("if spent + usd > cap + 1e-9: ...", NUMBER, "1e-9"),
        ("if len(data) > MAX_BYTES: ...", f"{COMPARISON}_Gt_GtE", ">"),
        ("if len(data) > MAX_BYTES: ...", "AddNot", "if"),
        ("data = file.read(MAX_BYTES + 1)", NUMBER, "1)"),
        ("MAX_TEXT_BYTES = 4 * 1024", f"{BINARY}_Mul_Mod", "*"),
        ("SLIGHT_S = 1.0", NUMBER, "1.0"),
        ("RESERVE_S = min(180.0, cap_s)", NUMBER, "180.0"),
        ("DAY_S = 86400.0", NUMBER, "86400.0"),
        ("MINIMUM_BILLED_S = 60.0", NUMBER, "60.0"),
        ("EGRESS_USD_PER_GIB = 12.0", NUMBER, "12.0"),
        ("WIRE_VERSION = 5", NUMBER, "5"),
        ("RUNS_BEFORE = 10", NUMBER, "10"),
        ("def f(retries=5): ...", NUMBER, "5"),
        ("def f(a=5, timeout_s=1.0): ...", NUMBER, "1.0"),
        ("@dataclass(eq=False, slots=True)\nclass A: ...", "ReplaceFalseWithTrue", "False"),
        ("@cache(maxsize=100)\ndef f(): ...", NUMBER, "100"),
        ("class A:\n    last: bool = True", "ReplaceTrueWithFalse", "True"),
        ("if a is None: ...", f"{COMPARISON}_Is_IsNot", "is"),
        ("f = os.O_RDWR | os.O_CREAT", f"{BINARY}_BitOr_Mod", "|"),
        ("f = os.O_CREAT | os.O_CREAT", f"{BINARY}_BitOr_Add", "|"),
        ("all_ = ours | theirs", f"{BINARY}_BitOr_BitXor", "|"),
        ("usd = round(a * 7, 6)", NUMBER, "7"),
        ("sleep(60 - age)", f"{BINARY}_Sub_Add", "-"),
        ("waiting, wait_s = 5, 1", NUMBER, "5"),
        ("MAX_A, TIMES = 5, 7", NUMBER, "7"),
        ("for number in range(3): ...", "ZeroIterationForLoop", "range"),
        ("try: ...\nexcept OSError: ...", "ExceptionReplacer", "OSError"),
    ],
)
def test_nothing_else_is(source: str, operator: str, piece: str) -> None:
    assert not left_out(source, operator, piece)


def test_the_nearest_are_asked_then_the_quick_then_of_long_ones_the_quickest_tests() -> None:
    far = {"near.py": 1, "slow.py": 2, "quick.py": 3, "long.py": 2, "last.py": 4, "without.py": 1}
    tests = {"near.py::a": 15.0, "near.py::b": 5.0, "slow.py::a": 29.0, "quick.py::a": 1.5, "quick.py::b": 0.5,
             "long.py::x": 5.0, "long.py::y": 1.0, "long.py::z": 31.0, "longer.py::a": 0.1,
             "last.py::a": 20.0}  # fmt: skip
    first = ["near.py", "quick.py", "slow.py", "long.py::y", "long.py::x"]
    assert chosen(far, tests) == [*first, "last.py"]
    assert chosen(far, {**tests, "near.py::b": 14.0, "last.py::a": 25.0}) == first
