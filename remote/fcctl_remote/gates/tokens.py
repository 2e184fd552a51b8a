"""Gate expressions as tokens, and the error that says where one is not in the language."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

MAX_EXPRESSION = 2000  # characters


class GateError(ValueError):
    """The expression is not in the language. ``column`` counts characters from 1."""

    def __init__(self, message: str, column: int) -> None:
        super().__init__("%s (column %d)" % (message, column))
        self.message = message
        self.column = column

    def caret(self, expr: str) -> str:
        """The expression with a ``^`` under the place that is wrong."""
        return "%s\n%s^" % (expr.replace("\n", " ").replace("\t", " "), " " * (self.column - 1))


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
      | (?P<op>==|!=|<=|>=|//|\*(?!\*)|[-+/%<>=()\[\],.])
    )""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "t": "\t"}
_OTHER_LANGUAGES = {"&&": "and", "||": "or", "!": "not", "&": "and", "|": "or", "**": "*"}


def tokens(expr: str) -> list[Token]:
    """The expression's tokens; the last one is of kind ``end``.

    Raises:
        GateError: it is too long, or a character has no place in the language.
    """
    if len(expr) > MAX_EXPRESSION:
        raise GateError("the expression has %d characters; at most %d" % (len(expr), MAX_EXPRESSION), 1)
    found: list[Token] = []
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
