"""The syntax of gate expressions: a parser by Pratt's method. :mod:`fcctl_remote.gates.evaluate` evaluates."""

from __future__ import annotations

import difflib
from typing import Any

from fcctl_remote.gates import nodes
from fcctl_remote.gates.tokens import GateError, Token, tokens

MAX_DEPTH = 40

FUNCTIONS = ("abs", "all", "any", "has", "len", "max", "min", "sum")
KEYWORDS = ("and", "or", "not", "in", "true", "false", "null")

_COMPARE = ("==", "!=", "<", "<=", ">", ">=", "in", "not in")
_BINDING = {"or": 10, "and": 20, "+": 50, "-": 50, "*": 60, "/": 60, "//": 60, "%": 60}
_COMPARE_BINDING = 40
_NOT_BINDING = 30
_SIGN_BINDING = 70


class _Parser:
    def __init__(self, expr: str) -> None:
        self.expr = expr
        self.tokens = tokens(expr)
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

    def whole(self) -> nodes.Node:
        if self.next.kind == "end":
            raise GateError("the expression is empty", 1)
        node = self.expression(0)
        if self.is_op("="):
            raise GateError("'=' does not compare; use '=='", self.next.column)
        if self.next.kind != "end":
            raise GateError("expected an operator, found %s" % _shown(self.next), self.next.column)
        return node

    def expression(self, binding: int) -> nodes.Node:
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
            left = nodes.Binary(token.text, left, self.expression(power))
        self.depth -= 1
        return left

    def comparison_op(self) -> str | None:
        if self.next.kind not in ("op", "name"):
            return None
        if self.next.text == "not" and self.tokens[self.at + 1].text == "in":
            return "not in"
        return self.next.text if self.next.text in _COMPARE else None

    def comparison(self, first: nodes.Node) -> nodes.Node:
        operands = [first]
        ops: list[str] = []
        op = self.comparison_op()
        while op is not None:
            for _word in op.split():
                self.take()
            ops.append(op)
            operands.append(self.expression(_COMPARE_BINDING))
            op = self.comparison_op()
        return nodes.Comparison(tuple(operands), tuple(ops))

    def prefix(self) -> nodes.Node:
        token = self.take()
        if token.kind in ("number", "string"):
            return nodes.Literal(token.value)
        if token.kind == "name":
            return self.named(token)
        if token.text in ("-", "+") and token.kind == "op":
            return nodes.Unary(token.text, self.expression(_SIGN_BINDING))
        if token.text == "(":
            node = self.expression(0)
            self.expect(")", "to close the bracket")
            return node
        if token.text == "[":
            return nodes.ListOf(self.arguments("]"))
        raise GateError("expected a value, found %s" % _shown(token), token.column)

    def named(self, token: Token) -> nodes.Node:
        if token.text == "not":
            return nodes.Unary("not", self.expression(_NOT_BINDING))
        if token.text in ("true", "false", "null"):
            return nodes.Literal({"true": True, "false": False, "null": None}[token.text])
        if token.text in KEYWORDS:
            raise GateError("expected a value, found '%s'" % token.text, token.column)
        if self.is_op("("):
            return self.call(token)
        return self.path(token)

    def call(self, token: Token) -> nodes.Node:
        if token.text not in FUNCTIONS:
            near = difflib.get_close_matches(token.text, FUNCTIONS, n=1, cutoff=0.5)
            known = "did you mean '%s'?" % near[0] if near else "known: %s" % ", ".join(FUNCTIONS)
            raise GateError("unknown function '%s'; %s" % (token.text, known), token.column)
        self.take()
        args = self.arguments(")")
        if not args or (len(args) > 1 and token.text not in ("min", "max")):
            raise GateError("%s() takes %s" % (token.text, "one value" if args else "a value"), token.column)
        if token.text == "has" and not isinstance(args[0], nodes.Path):
            raise GateError("has() takes a path, such as has(profile.kernels)", token.column)
        return nodes.Call(token.text, args)

    def arguments(self, close: str) -> tuple[nodes.Node, ...]:
        args: list[nodes.Node] = []
        while not self.is_op(close):
            args.append(self.expression(0))
            if not self.is_op(","):
                break
            self.take()
        self.expect(close, "or ','")
        return tuple(args)

    def path(self, token: Token) -> nodes.Node:
        parts: list[nodes.Part] = []
        while self.is_op(".") or self.is_op("["):
            if self.take().text == ".":
                parts.append(nodes.Key(self.key_name("after '.'")))
            else:
                parts.append(self.bracket())
        last = self.tokens[self.at - 1]
        text = self.expr[token.column - 1 : last.column - 1 + len(last.text)]
        return nodes.Path(token.text, tuple(parts), text)

    def key_name(self, where: str) -> str:
        if self.next.kind != "name":
            raise GateError('expected a name %s (or ["name"]), found %s' % (where, _shown(self.next)), self.next.column)
        return self.take().text

    def bracket(self) -> nodes.Part:
        token = self.next
        part: nodes.Part
        if self.is_op("*"):
            self.take()
            part = nodes.Every()
        elif token.kind == "string":
            part = nodes.Key(self.take().value)
        elif token.kind == "number" or self.is_op("-"):
            sign = -1 if self.is_op("-") and self.take() else 1
            number = self.take()
            if not isinstance(number.value, int):
                raise GateError("an index is a whole number", number.column)
            part = nodes.Index(sign * number.value)
        else:
            part = self.where()
        self.expect("]", "to close the bracket")
        return part

    def where(self) -> nodes.Where:
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
                return nodes.Where(tuple(conditions))
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


def parse(expr: str) -> nodes.Node:
    """The expression as nodes.

    Raises:
        GateError: it is not in the language; the message names the nearest valid function where that helps.
    """
    if not isinstance(expr, str):
        raise GateError("a gate is a string, not %s" % type(expr).__name__, 1)
    return _Parser(expr).whole()


def names(expr: str) -> list[str]:
    """Top-level names the expression reads (``build``, ``host``, ..), in order of appearance."""
    found: list[str] = []
    nodes.collect_names(parse(expr), found)
    return found
