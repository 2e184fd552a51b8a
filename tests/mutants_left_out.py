"""Which mutants :mod:`tests.mutation` leaves out, by rule: what they change, no user meets and no test should ask for.

* What only a type checker reads: annotations, and the imports for them.
* ``frozen``, ``slots``, ``repr`` and ``kw_only`` of a dataclass, and ``strict`` of :func:`zip`: they refuse what the
  code does not do.
* ``==`` for ``is`` and back: which object it is, and not which value.
* A bit that is added to flags by ``+`` or ``^`` instead of ``|``: the same number.
* A limit of size or time (a constant ``MAX_...``, ``..._BYTES`` or ``..._S``, a parameter of such a name, ``limit``,
  or an argument) by at most a quarter, but not what a calendar or a cloud says (:data:`NO_LIMITS`). Its
  comparisons stay in, and so do smaller numbers, prices, counts and versions.
* How long a poll pauses, how many random bytes a name has, how far JSON is indented, to how many digits is rounded.

Nothing else: comparisons, signs, conditions, loops, exceptions and all other numbers stay in, wherever they are.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

ANY = ""
NUMBER, BINARY, COMPARISON = "NumberReplacer", "ReplaceBinaryOperator", "ReplaceComparisonOperator"
IDENTITY = tuple(f"{COMPARISON}_{pair}" for pair in ("Is_Eq", "IsNot_NotEq", "Eq_Is", "NotEq_IsNot"))
SAME_BITS = (f"{BINARY}_BitOr_Add", f"{BINARY}_BitOr_BitXor")
OF_DATACLASSES = ("frozen", "slots", "repr", "kw_only")
LIMIT = re.compile(r"_?(?:(?:MAX|MOST)_\w+|\w+_(?:S|NS|BYTES))|[a-z_]+_(?:s|bytes)|limit|seconds|timeout")
NO_LIMITS = ("DAY_S", "FENCE_LATENESS_S", "MINIMUM_BILLED_S")
PAUSE = ("pause_s", "wait_s")
#: One more or less of it is at most a quarter.
LEAST_OF_A_LIMIT = 4
Place = tuple[int, int]


@dataclass(frozen=True)
class Part:
    """A piece of a source, from ``start`` up to ``end`` (line from 1, column from 0), and which operators say nothing
    there, by the beginnings of their names."""

    start: Place
    end: Place
    operators: tuple[str, ...]

    def has(self, operator: str, place: Place) -> bool:
        return self.start <= place < self.end and operator.startswith(self.operators)


def says_nothing(operator: str, place: Place, parts: list[Part]) -> bool:
    """Whether the mutant by ``operator`` (``NumberReplacer``) at ``place`` is left out."""
    return operator in IDENTITY or any(part.has(operator, place) for part in parts)


def parts_of(source: str) -> list[Part]:
    """What the rules leave out of one source."""
    lines = source.split("\n")
    return [
        Part(_column(lines, start), _column(lines, end), operators)
        for node in ast.walk(ast.parse(source))
        for rule in (_types, _dataclass, _flags, _limit, _pause, _detail)
        for start, end, operators in rule(node)
    ]


Found = Iterator[tuple[Place, Place, tuple[str, ...]]]


def _types(node: ast.AST) -> Found:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
        yield *_ends(node.returns), (ANY,)
    elif isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
        yield *_ends(node.annotation), (ANY,)
    elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
        yield *_ends(node), (ANY,)


def _dataclass(node: ast.AST) -> Found:
    for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
        if isinstance(decorator, ast.Call) and _name(decorator.func) == "dataclass":
            for keyword in decorator.keywords:
                if keyword.arg in OF_DATACLASSES:
                    yield *_ends(keyword), (ANY,)


def _flags(node: ast.AST) -> Found:
    """``os.O_CREAT`` and its like, where it is not among the flags yet."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and isinstance(node.right, ast.Attribute)):
        return
    if node.right.attr.isupper() and node.right.attr not in ast.dump(node.left):
        yield _ends(node.left)[1], _ends(node.right)[0], SAME_BITS


def _limit(node: ast.AST) -> Found:
    """Defaults of parameters and fields, and constants of modules, that are limits by their names."""
    named: list[tuple[str, ast.expr | None]] = []
    if isinstance(node, ast.Assign):
        for target in node.targets:
            several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=False) if several else [(target, node.value)]  # type: ignore[attr-defined]
            named += [(_name(one), value) for one, value in pairs]
    elif isinstance(node, ast.AnnAssign):
        named = [(_name(node.target), node.value)]
    elif isinstance(node, ast.arguments):
        with_default = [*node.posonlyargs, *node.args][len(node.posonlyargs + node.args) - len(node.defaults) :]
        named = [(one.arg, value) for one, value in zip(with_default, node.defaults, strict=True)]
        named += [(one.arg, value) for one, value in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
    elif isinstance(node, ast.keyword):
        named = [(node.arg or "", node.value)]
    for name, value in named:
        if value is None or not LIMIT.fullmatch(name) or name in NO_LIMITS:
            continue
        if not _computes(value):
            yield from ((*_ends(number), (NUMBER,)) for number in _numbers(value) if number.value >= LEAST_OF_A_LIMIT)


def _pause(node: ast.AST) -> Found:
    if isinstance(node, ast.Assign) and [_name(target) for target in node.targets] in [[name] for name in PAUSE]:
        yield *_ends(node.value), (NUMBER, BINARY)
    if isinstance(node, ast.keyword) and node.arg in PAUSE:
        yield *_ends(node.value), (NUMBER,)
    if isinstance(node, ast.Call) and _name(node.func) == "sleep":
        yield *_ends(node.args[0]), (NUMBER,)


def _detail(node: ast.AST) -> Found:
    if isinstance(node, ast.keyword) and node.arg == "strict":
        yield *_ends(node.value), ("ReplaceTrueWithFalse", "ReplaceFalseWithTrue")
    if isinstance(node, ast.keyword) and node.arg == "indent":
        yield *_ends(node.value), (NUMBER,)
    if isinstance(node, ast.Call) and _name(node.func) in ("urandom", "token_hex"):
        yield *_ends(node.args[0]), (NUMBER,)
    if isinstance(node, ast.Call) and _name(node.func) in ("round", "rounded") and len(node.args) > 1:
        yield *_ends(node.args[1]), (NUMBER,)


def _computes(value: ast.expr) -> bool:
    """Whether more than numbers is in it: then it is no constant."""
    return any(isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Compare) for node in ast.walk(value))


def _numbers(value: ast.expr) -> Iterator[ast.Constant]:
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            yield node


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _ends(node: ast.expr | ast.If | ast.keyword) -> tuple[Place, Place]:
    return (node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)


def _column(lines: list[str], place: Place) -> Place:
    """Python counts the bytes before a place, and Cosmic Ray its characters."""
    line, column = place
    return line, len(lines[line - 1].encode()[:column].decode())
