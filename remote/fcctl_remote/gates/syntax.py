"""The syntax of gate expressions: tokens, nodes, and a parser by Pratt's method."""

from __future__ import annotations

import difflib
import re
from typing import Any, NamedTuple, Tuple, Union

MAX_DEPTH = 40

FUNCTIONS = ("abs", "all", "any", "has", "len", "max", "min", "sum")
CONSTANTS = {"true": True, "false": False, "null": None}
KEYWORDS = ("and", "or", "not", "in", *CONSTANTS)

_COMPARE = ("==", "!=", "<", "<=", ">", ">=", "in", "not in")
#: The later, the more tightly it binds.
_OR, _AND, _NOT_BINDING, _COMPARE_BINDING, _SUM, _PRODUCT, _SIGN_BINDING = range(1, 8)
_BINDING = {
    "or": _OR, "and": _AND, "+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT,
}  # fmt: skip
MAX_EXPRESSION = 2000  # characters


class GateError(ValueError):
    """The expression is not in the language. ``column`` counts characters from 1."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__("%s (column %d)" % (message, column))
        self.message = message
        self.column = column


class Token(NamedTuple):
    kind: str  # number, string, name, op, end
    text: str
    value: Any
    column: int


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,4})?(?![0-9A-Za-z_]))
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<string>"(?:[^"\\]|\\["\\nt])*"|'(?:[^'\\]|\\['\\nt])*')
      | (?P<op>==|!=|<=|>=|//|\*(?!\*)|[-+/%<>=()\[\],.])
    )""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t"}
_OTHER_LANGUAGES = {"&&": "and", "||": "or", "!": "not", "&": "and", "|": "or", "**": "*"}


def tokens(expr: str) -> list[Token]:
    """The expression's tokens; the last one is of kind ``end``. Raises GateError: it is too long, or a character has no
    place in the language."""
    if len(expr) > MAX_EXPRESSION:
        raise GateError("the expression has %d characters; at most %d" % (len(expr), MAX_EXPRESSION), 1)
    parsed: list[Token] = []
    at = 0
    end = len(expr.rstrip())
    while at < end:
        match = _TOKEN.match(expr, at)
        if match is None:
            raise _bad_character(expr, at)
        kind = str(match.lastgroup)
        text = match.group(kind)
        parsed.append(Token(kind, text, _token_value(kind, text), match.start(kind) + 1))
        at = match.end()
    parsed.append(Token("end", "", None, end + 1))
    return parsed


def _token_value(kind: str, text: str) -> Any:
    if kind == "number":
        return int(text) if text.isdigit() else float(text)
    if kind == "string":
        return re.sub(r"\\(.)", lambda m: _ESCAPES.get(m.group(1), m.group(1)), text[1:-1])
    return text


def _bad_character(expr: str, at: int) -> GateError:
    at += len(expr[at:]) - len(expr[at:].lstrip())
    for wrong in (expr[at : at + 2], expr[at]):
        if wrong in _OTHER_LANGUAGES:
            return GateError("'%s' is not an operator of gates; use '%s'" % (wrong, _OTHER_LANGUAGES[wrong]), at + 1)
    if expr[at] in "\"'":
        return GateError("the string has no closing quote", at + 1)
    if expr[at].isdigit():
        return GateError("not a number", at + 1)
    return GateError("unexpected character %r" % expr[at], at + 1)


class Literal(NamedTuple):
    value: Any


class ListOf(NamedTuple):
    items: Tuple[Any, ...]


class Key(NamedTuple):
    """``.name`` or ``["name"]``."""

    name: str


class Index(NamedTuple):
    number: int


class Every(NamedTuple):
    """``[*]``: from here on, each element."""


class Where(NamedTuple):
    """``[name="x", shape.S>=512]``: the elements for which all conditions (keys, operator, literal) hold."""

    conditions: Tuple[Tuple[Tuple[str, ...], str, Any], ...]


Part = Union[Key, Index, Every, Where]


class Path(NamedTuple):
    root: str
    parts: Tuple[Part, ...]
    text: str


class Call(NamedTuple):
    function: str
    args: Tuple[Any, ...]


class Unary(NamedTuple):
    op: str
    operand: Any


class Binary(NamedTuple):
    op: str
    left: Any
    right: Any


class Comparison(NamedTuple):
    """``a < b <= c``: each neighbouring pair must hold."""

    operands: Tuple[Any, ...]
    ops: Tuple[str, ...]


Node = Union[Literal, ListOf, Path, Call, Unary, Binary, Comparison]


def mentions_document(node: Any) -> bool:
    """Whether any part of the expression comes from a document, rather than being written out in it."""
    return isinstance(node, Path) or (isinstance(node, tuple) and any(map(mentions_document, node)))


class _Parser:
    def __init__(self, expr: str) -> None:
        self.expr = expr
        self.tokens = tokens(expr)
        self.at = 0
        self.depth = 0
        self.names: list[str] = []  # of documents, in order of appearance

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def take(self) -> Token:
        token = self.next
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def is_op(self, text: str) -> bool:
        return self.next.kind in ("op", "name") and self.next.text == text

    def expect(self, text: str, why: str) -> Token:
        if not self.is_op(text):
            raise GateError("expected '%s' %s, found %s" % (text, why, _shown(self.next)), self.next.column)
        return self.take()

    def whole(self) -> Node:
        if self.next.kind == "end":
            raise GateError("the expression is empty", 1)
        node = self.expression(0)
        if self.is_op("="):
            raise GateError("'=' is not a comparison; use '=='", self.next.column)
        if self.next.kind != "end":
            raise GateError("expected an operator, found %s" % _shown(self.next), self.next.column)
        return node

    def expression(self, binding: int) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise GateError("nested more than %d deep" % MAX_DEPTH, self.next.column)
        left = self.prefix()
        while True:
            if self.comparison_op() is not None and binding < _COMPARE_BINDING:
                left = self.comparison(left)
                continue
            token = self.next
            power = _BINDING.get(token.text, 0) if token.kind in ("op", "name") else 0
            if power <= binding:
                break
            self.take()
            left = Binary(token.text, left, self.expression(power))
        self.depth -= 1
        return left

    def comparison_op(self) -> str | None:
        if self.next.kind not in ("op", "name"):
            return None
        if self.next.text == "not" and self.tokens[self.at + 1].text == "in":
            return "not in"
        return self.next.text if self.next.text in _COMPARE else None

    def comparison(self, first: Node) -> Node:
        operands = [first]
        ops: list[str] = []
        op = self.comparison_op()
        while op is not None:
            for _word in op.split():
                self.take()
            ops.append(op)
            operands.append(self.expression(_COMPARE_BINDING))
            op = self.comparison_op()
        return Comparison(tuple(operands), tuple(ops))

    def prefix(self) -> Node:
        token = self.take()
        if token.kind in ("number", "string"):
            return Literal(token.value)
        if token.kind == "name":
            return self.named(token)
        if token.text in ("-", "+") and token.kind == "op":
            return Unary(token.text, self.expression(_SIGN_BINDING))
        if token.text == "(":
            node = self.expression(0)
            self.expect(")", "to close the bracket")
            return node
        if token.text == "[":
            return ListOf(self.arguments("]"))
        raise GateError("expected a value, found %s" % _shown(token), token.column)

    def named(self, token: Token) -> Node:
        if token.text == "not":
            return Unary("not", self.expression(_NOT_BINDING))
        if token.text in CONSTANTS:
            return Literal(CONSTANTS[token.text])
        if token.text in KEYWORDS:
            raise GateError("expected a value, found '%s'" % token.text, token.column)
        if self.is_op("("):
            return self.call(token)
        return self.path(token)

    def call(self, token: Token) -> Node:
        if token.text not in FUNCTIONS:
            near = difflib.get_close_matches(token.text, FUNCTIONS, cutoff=0.5)
            known = "did you mean '%s'?" % near[0] if near else "known: %s" % ", ".join(FUNCTIONS)
            raise GateError("unknown function '%s'; %s" % (token.text, known), token.column)
        self.take()
        args = self.arguments(")")
        if not args or (len(args) > 1 and token.text not in ("min", "max")):
            raise GateError("%s() takes %s" % (token.text, "one value" if args else "a value"), token.column)
        if token.text == "has" and not isinstance(args[0], Path):
            raise GateError("has() takes a path, such as has(profile.kernels)", token.column)
        return Call(token.text, args)

    def arguments(self, close: str) -> tuple[Node, ...]:
        args: list[Node] = []
        while not self.is_op(close):
            args.append(self.expression(0))
            if not self.is_op(","):
                break
            self.take()
        self.expect(close, "or ','")
        return tuple(args)

    def path(self, token: Token) -> Node:
        if token.text not in self.names:
            self.names.append(token.text)
        parts: list[Part] = []
        while self.is_op(".") or self.is_op("["):
            if self.take().text == ".":
                parts.append(Key(self.key_name("after '.'")))
            else:
                parts.append(self.bracket())
        last = self.tokens[self.at - 1]
        text = self.expr[token.column - 1 : last.column - 1 + len(last.text)]
        return Path(token.text, tuple(parts), text)

    def key_name(self, where: str) -> str:
        if self.next.kind != "name":
            raise GateError('expected a name %s (or ["name"]), found %s' % (where, _shown(self.next)), self.next.column)
        return self.take().text

    def bracket(self) -> Part:
        token = self.next
        part: Part
        if self.is_op("*"):
            self.take()
            part = Every()
        elif token.kind == "string":
            part = Key(self.take().value)
        elif token.kind == "number" or self.is_op("-"):
            sign = -1 if self.is_op("-") and self.take() else 1
            number = self.take()
            if not isinstance(number.value, int):
                raise GateError("an index must be a whole number", number.column)
            part = Index(sign * number.value)
        else:
            part = self.where()
        self.expect("]", "to close the bracket")
        return part

    def where(self) -> Where:
        conditions = []
        while True:
            names = [self.key_name('in [..]: use [*], [0], ["key"] or [name="value"]')]
            while self.is_op("."):
                self.take()
                names.append(self.key_name("after '.'"))
            op = self.take()
            if op.text not in ("=", "==", "!=", "<", "<=", ">", ">="):
                raise GateError("expected a comparison in [..], found %s" % _shown(op), op.column)
            value = self.prefix_literal()
            conditions.append((tuple(names), "==" if op.text == "=" else op.text, value))
            if not self.is_op(","):
                return Where(tuple(conditions))
            self.take()

    def prefix_literal(self) -> Any:
        sign = -1 if self.is_op("-") and self.take() else 1
        token = self.take()
        if token.kind == "number":
            return sign * token.value
        if sign == 1 and token.kind == "string":
            return token.value
        if sign == 1 and token.kind == "name" and token.text in CONSTANTS:
            return CONSTANTS[token.text]
        raise GateError("a filter needs a number or a quoted string, found %s" % _shown(token), token.column)


def _shown(token: Token) -> str:
    return "the end" if token.kind == "end" else "'%s'" % token.text[:40]


def parse(expr: str) -> Node:
    """The expression as nodes. Raises GateError: it is not in the language; the message names the nearest valid
    function where that helps."""
    return _parser(expr).whole()


def names(expr: str) -> list[str]:
    """Top-level names the expression reads (``build``, ``host``, ..), in order of appearance."""
    parser = _parser(expr)
    parser.whole()
    return parser.names


def _parser(expr: str) -> _Parser:
    if not isinstance(expr, str):
        raise GateError("a gate is a string, not %s" % type(expr).__name__, 1)
    return _Parser(expr)
