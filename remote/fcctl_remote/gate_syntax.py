"""The syntax of gate expressions: tokens, nodes and a parser by Pratt's method. :mod:`fcctl_remote.gates` evaluates."""

import difflib
import re
from dataclasses import dataclass
from typing import Any, List, Optional, Tuple, Union

MAX_EXPRESSION = 2000  # characters
MAX_DEPTH = 40

FUNCTIONS = ("abs", "all", "any", "has", "len", "max", "min", "sum")
KEYWORDS = ("and", "or", "not", "in", "true", "false", "null")


class GateError(ValueError):
    """The expression is not in the language. ``column`` counts characters from 1."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__("%s (column %d)" % (message, column))
        self.message = message
        self.column = column

    def caret(self, expr: str) -> str:
        """The expression with a ``^`` under the place that is wrong."""
        return "%s\n%s^" % (expr.replace("\n", " ").replace("\t", " "), " " * (self.column - 1))


# ------------------------------------------------------------------------------------------------ nodes
@dataclass(frozen=True)
class Literal:
    value: Any
    column: int


@dataclass(frozen=True)
class ListOf:
    items: Tuple["Node", ...]
    column: int


@dataclass(frozen=True)
class Key:
    """``.name`` or ``["name"]``."""

    name: str


@dataclass(frozen=True)
class Index:
    number: int


@dataclass(frozen=True)
class Every:
    """``[*]``: from here on, each element."""


@dataclass(frozen=True)
class Where:
    """``[name="x", shape.S>=512]``: the elements for which all conditions hold."""

    conditions: Tuple[Tuple[Tuple[str, ...], str, Any], ...]


Part = Union[Key, Index, Every, Where]


@dataclass(frozen=True)
class Path:
    root: str
    parts: Tuple[Part, ...]
    text: str
    column: int


@dataclass(frozen=True)
class Call:
    function: str
    args: Tuple["Node", ...]
    column: int


@dataclass(frozen=True)
class Unary:
    op: str
    operand: "Node"
    column: int


@dataclass(frozen=True)
class Binary:
    op: str
    left: "Node"
    right: "Node"
    column: int


@dataclass(frozen=True)
class Comparison:
    """``a < b <= c``: each neighbouring pair must hold."""

    operands: Tuple["Node", ...]
    ops: Tuple[str, ...]
    column: int


Node = Union[Literal, ListOf, Path, Call, Unary, Binary, Comparison]


# ------------------------------------------------------------------------------------------------ tokens
@dataclass(frozen=True)
class Token:
    kind: str  # number, string, name, op, end
    text: str
    value: Any
    column: int


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,4})?(?![0-9A-Za-z_]))
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<string>"(?:[^"\\]|\\["\\nt])*"|'(?:[^'\\]|\\['\\nt])*')
      | (?P<op>==|!=|<=|>=|//|[-+*/%<>=()\[\],.])
    )""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t"}
_OTHER_LANGUAGES = {"&&": "and", "||": "or", "!": "not", "&": "and", "|": "or", "**": "* (there is no power)"}


def _tokens(expr: str) -> List[Token]:
    if len(expr) > MAX_EXPRESSION:
        raise GateError("the expression has %d characters; at most %d" % (len(expr), MAX_EXPRESSION), 1)
    found: List[Token] = []
    at = 0
    end = len(expr.rstrip())
    while at < end:
        match = _TOKEN.match(expr, at)
        if match is None:
            raise _bad_character(expr, at)
        kind = str(match.lastgroup)
        text = match.group(kind)
        found.append(Token(kind, text, _token_value(kind, text), match.start(kind) + 1))
        at = match.end()
    found.append(Token("end", "", None, end + 1))
    return found


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
            return GateError("'%s' is not an operator here; use '%s'" % (wrong, _OTHER_LANGUAGES[wrong]), at + 1)
    if expr[at] in "\"'":
        return GateError("the string does not end", at + 1)
    if expr[at].isdigit():
        return GateError("not a number", at + 1)
    return GateError("unexpected character %r" % expr[at], at + 1)


# ------------------------------------------------------------------------------------------------ the parser
_COMPARE = ("==", "!=", "<", "<=", ">", ">=", "in", "not in")
_BINDING = {"or": 10, "and": 20, "+": 50, "-": 50, "*": 60, "/": 60, "//": 60, "%": 60}
_COMPARE_BINDING = 40
_NOT_BINDING = 30
_SIGN_BINDING = 70


class _Parser:
    def __init__(self, expr: str) -> None:
        self.expr = expr
        self.tokens = _tokens(expr)
        self.at = 0
        self.depth = 0

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
            raise GateError("'=' does not compare; use '=='", self.next.column)
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
            left = Binary(token.text, left, self.expression(power), token.column)
        self.depth -= 1
        return left

    def comparison_op(self) -> Optional[str]:
        if self.next.kind not in ("op", "name"):
            return None
        if self.next.text == "not" and self.tokens[self.at + 1].text == "in":
            return "not in"
        return self.next.text if self.next.text in _COMPARE else None

    def comparison(self, first: Node) -> Node:
        column = self.next.column
        operands = [first]
        ops: List[str] = []
        op = self.comparison_op()
        while op is not None:
            for _word in op.split():
                self.take()
            ops.append(op)
            operands.append(self.expression(_COMPARE_BINDING))
            op = self.comparison_op()
        return Comparison(tuple(operands), tuple(ops), column)

    def prefix(self) -> Node:
        token = self.take()
        if token.kind in ("number", "string"):
            return Literal(token.value, token.column)
        if token.kind == "name":
            return self.named(token)
        if token.text in ("-", "+") and token.kind == "op":
            return Unary(token.text, self.expression(_SIGN_BINDING), token.column)
        if token.text == "(":
            node = self.expression(0)
            self.expect(")", "to close the bracket")
            return node
        if token.text == "[":
            return ListOf(self.arguments("]"), token.column)
        raise GateError("expected a value, found %s" % _shown(token), token.column)

    def named(self, token: Token) -> Node:
        if token.text == "not":
            return Unary("not", self.expression(_NOT_BINDING), token.column)
        if token.text in ("true", "false", "null"):
            return Literal({"true": True, "false": False, "null": None}[token.text], token.column)
        if token.text in KEYWORDS:
            raise GateError("expected a value, found '%s'" % token.text, token.column)
        if self.is_op("("):
            return self.call(token)
        return self.path(token)

    def call(self, token: Token) -> Node:
        if token.text not in FUNCTIONS:
            near = difflib.get_close_matches(token.text, FUNCTIONS, n=1, cutoff=0.5)
            known = "did you mean '%s'?" % near[0] if near else "known: %s" % ", ".join(FUNCTIONS)
            raise GateError("unknown function '%s'; %s" % (token.text, known), token.column)
        self.take()
        args = self.arguments(")")
        if not args or (len(args) > 1 and token.text not in ("min", "max")):
            raise GateError("%s() takes %s" % (token.text, "one value" if args else "a value"), token.column)
        if token.text == "has" and not isinstance(args[0], Path):
            raise GateError("has() takes a path, such as has(profile.kernels)", token.column)
        return Call(token.text, args, token.column)

    def arguments(self, close: str) -> Tuple[Node, ...]:
        args: List[Node] = []
        while not self.is_op(close):
            args.append(self.expression(0))
            if not self.is_op(","):
                break
            self.take()
        self.expect(close, "or ','")
        return tuple(args)

    def path(self, token: Token) -> Node:
        parts: List[Part] = []
        while self.is_op(".") or self.is_op("["):
            if self.take().text == ".":
                parts.append(Key(self.key_name("after '.'")))
            else:
                parts.append(self.bracket())
        last = self.tokens[self.at - 1]
        text = self.expr[token.column - 1 : last.column - 1 + len(last.text)]
        return Path(token.text, tuple(parts), text, token.column)

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
                raise GateError("an index is a whole number", number.column)
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
        if sign == 1 and token.kind == "name" and token.text in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[token.text]
        raise GateError("a filter compares with a number or a quoted string, found %s" % _shown(token), token.column)


def _shown(token: Token) -> str:
    return "the end" if token.kind == "end" else "'%s'" % token.text[:40]


def parse(expr: str) -> Node:
    """The expression as nodes.

    Raises:
        GateError: it is not in the language; the message names the nearest valid function where that helps.
    """
    if not isinstance(expr, str):
        raise GateError("a gate is a string, not %s" % type(expr).__name__, 1)
    return _Parser(expr).whole()


def names(expr: str) -> List[str]:
    """Top-level names the expression reads (``build``, ``host``, ..), in order of appearance."""
    found: List[str] = []
    _collect_names(parse(expr), found)
    return found


def mentions_document(node: Node) -> bool:
    """Whether any part of the expression comes from a document, rather than being written out in it."""
    found: List[str] = []
    _collect_names(node, found)
    return bool(found)


def _collect_names(node: Node, found: List[str]) -> None:
    if isinstance(node, Path) and node.root not in found:
        found.append(node.root)
    for child in _children(node):
        _collect_names(child, found)


def _children(node: Node) -> Tuple[Node, ...]:
    if isinstance(node, ListOf):
        return node.items
    if isinstance(node, Call):
        return node.args
    if isinstance(node, Unary):
        return (node.operand,)
    if isinstance(node, Binary):
        return (node.left, node.right)
    return node.operands if isinstance(node, Comparison) else ()
