"""The filter language of list requests: comparisons joined by AND, OR, NOT and parentheses.

``labels.fcctl=yes``, ``labels.fcctl:*``, ``name eq "vm-.*"``, ``(status = RUNNING) AND name != box``; comparisons that
merely stand beside each other are joined by AND.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from orchestrator.emulator.core.refusals import ApiError

Predicate = Callable[[dict[str, Any]], bool]
_TOKEN = re.compile(r'\s*(?:(\()|(\))|("(?:[^"\\]|\\.)*")|(!=|<=|>=|=|:|<|>)|([^\s()=:<>!"]+))')
_WORDS = {"eq", "ne"}
_MAX_LENGTH = 2048


def compiled(text: str) -> Predicate:
    """A predicate on resources. Raises ApiError: the filter is not one."""
    if not text.strip():
        return lambda _: True
    parser = _Parser(_tokens(text), text)
    predicate = parser.any_of()
    if parser.tokens:
        raise _bad(text)
    return predicate


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    text = text.rstrip()
    if len(text) > _MAX_LENGTH:
        raise _bad(text[:80])
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _bad(text)
        tokens.append(match.group().strip())
        position = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str], text: str) -> None:
        self.tokens, self.text = tokens, text

    def any_of(self) -> Predicate:
        parts = [self.all_of()]
        while self.tokens and self.tokens[0] == "OR":
            self.tokens.pop(0)
            parts.append(self.all_of())
        return lambda resource: any(part(resource) for part in parts)

    def all_of(self) -> Predicate:
        parts = [self.one()]
        while self.tokens and self.tokens[0] not in ("OR", ")"):
            if self.tokens[0] == "AND":
                self.tokens.pop(0)
            parts.append(self.one())
        return lambda resource: all(part(resource) for part in parts)

    def one(self) -> Predicate:
        token = self._next()
        if token in ("NOT", "-"):
            inner = self.one()
            return lambda resource: not inner(resource)
        if token == "(":  # noqa: S105 - a parenthesis, not a password
            inner = self.any_of()
            if self._next() != ")":
                raise _bad(self.text)
            return inner
        return self._comparison(token)

    def _comparison(self, name: str) -> Predicate:
        operator, value = self._next(), self._next()
        if operator not in ("=", "!=", ":", "<", ">", "<=", ">=", *_WORDS):
            raise _bad(self.text)
        if value.startswith('"'):
            # eq and ne take a regular expression, whose own backslashes stay: gcloud sends ".*\\bus\\-west1\\b.*".
            value = re.sub(r'\\(")' if operator in _WORDS else r"\\(.)", r"\1", value[1:-1])
        try:
            test = _test(operator, value)
        except re.error:
            raise _bad(self.text) from None
        return lambda resource: test(field_of(resource, name))

    def _next(self) -> str:
        if not self.tokens:
            raise _bad(self.text)
        return self.tokens.pop(0)


def _test(operator: str, value: str) -> Callable[[Any], bool]:
    if operator in _WORDS:
        pattern = re.compile(value)
        return lambda actual: (actual is not None and bool(pattern.fullmatch(_text(actual)))) == (operator == "eq")
    if operator == ":":
        if value == "*":
            return lambda actual: actual is not None
        return lambda actual: actual is not None and value.lower() in _text(actual).lower()
    if operator in ("=", "!="):
        wanted = re.compile(".*".join(re.escape(part) for part in value.split("*")))
        return lambda actual: (actual is not None and bool(wanted.fullmatch(_text(actual)))) == (operator == "=")
    return lambda actual: actual is not None and _ordered(operator, _text(actual), value)


def _ordered(operator: str, text: str, value: str) -> bool:
    try:
        left, right = float(text), float(value)
        less, equal = left < right, left == right
    except ValueError:
        less, equal = text < value, text == value
    return {"<": less, "<=": less or equal, ">": not (less or equal), ">=": not less}[operator]


def field_of(resource: dict[str, Any], name: str) -> Any:
    """The value at a dotted path; the last part of a URL stands for the whole; None where there is nothing."""
    value: Any = resource
    for part in name.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    if isinstance(value, str) and value.startswith("https://"):
        return value.rsplit("/", 1)[-1]
    return value


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bad(text: str) -> ApiError:
    return ApiError("invalid", f"Invalid value for field 'filter': '{text}'. Invalid list filter expression.")
