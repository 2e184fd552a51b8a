"""The filter language of list requests: comparisons joined by AND, OR, NOT and parentheses.

``labels.fcctl=yes``, ``labels.fcctl:*``, ``name eq "vm-.*"``, ``(status = RUNNING) AND name != box``; comparisons that
merely stand beside each other are joined by AND."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.emulator import catalog
from orchestrator.emulator.call import Call
from orchestrator.emulator.refusals import ApiError, invalid, last, link, path_of

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


MAX_PAGE = 500


def page(call: Call, kind: str, resources: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One page of the list at the path of ``call``. ``kind`` is what a single one is called: ``instance``."""
    rows, token = chosen(call, resources)
    answer: dict[str, Any] = {"kind": f"compute#{kind}List", "id": call.path, "selfLink": link(call.path)}
    if rows:
        answer["items"] = rows
    return {**answer, "nextPageToken": token} if token else answer


def aggregated(
    call: Call, kind: str, key: str, resources: Iterable[dict[str, Any]], *, regional: bool
) -> dict[str, Any]:
    """One page of an aggregated list: every zone (or region) is named, those without a resource with a warning."""
    unreachable, zones = call.world.scenario.unreachable, call.world.scenario.zones
    listed = (one for one in resources if kind != "instance" or one["name"] not in call.world.scenario.unlisted)
    rows, token = chosen(call, (resource for resource in listed if last(_scope(resource)) not in unreachable))
    scopes = [f"regions/{name}" for name in catalog.regions(zones)] if regional else [f"zones/{name}" for name in zones]
    items: dict[str, Any] = {}
    for scope in dict.fromkeys([*scopes, *sorted(map(_scope, rows))]):
        here = [resource for resource in rows if _scope(resource) == scope]
        items[scope] = {key: here} if here else {"warning": _warning(scope, reached=last(scope) not in unreachable)}
    answer: dict[str, Any] = {
        "kind": f"compute#{kind}AggregatedList", "id": call.path, "items": items, "selfLink": link(call.path),
    }  # fmt: skip
    if unreachable and not regional:
        answer["unreachables"] = [link(f"{call.project}/zones/{zone}") for zone in unreachable]
    return {**answer, "nextPageToken": token} if token else answer


def _scope(resource: dict[str, Any]) -> str:
    """``zones/Z``, ``regions/R`` or ``global``."""
    parts = path_of(resource["selfLink"]).split("/")
    return "/".join(parts[2:4]) if parts[2] in ("zones", "regions") else parts[2]


def chosen(call: Call, resources: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], str | None]:
    """The resources of the requested page, and the token of the next page; None on the last.

    A page begins after the last name of the page before, so a change of the list skips nothing.
    """
    matches = compiled(call.query.get("filter", ""))
    rows = sorted((resource for resource in resources if matches(resource)), key=_order)
    after = _decode(call.query["pageToken"]) if call.query.get("pageToken") else ""
    rows = [row for row in rows if _order(row) > after]
    size = _size(call.query.get("maxResults", ""))
    return rows[:size], _encode(_order(rows[size - 1])) if len(rows) > size else None


def _warning(scope: str, *, reached: bool) -> dict[str, Any]:
    code = "NO_RESULTS_ON_PAGE" if reached else "UNREACHABLE"
    message = f"There are no results for scope '{scope}' on this page."
    if not reached:
        message = f"The scope '{scope}' is currently unreachable."
    return {"code": code, "message": message, "data": [{"key": "scope", "value": scope}]}


def _order(resource: dict[str, Any]) -> str:
    return f"{resource.get('name', '')} {resource.get('selfLink', '')}"


def _size(text: str) -> int:
    try:
        size = int(text or MAX_PAGE)
    except ValueError:
        raise invalid("maxResults", text, "Must be a number.") from None
    if not 0 <= size <= MAX_PAGE:
        raise invalid("maxResults", text, f"Must be between 0 and {MAX_PAGE}.")
    return size or MAX_PAGE


def _encode(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


def _decode(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except ValueError:
        raise invalid("pageToken", token, "The page token does not belong to this list.") from None
