"""The rows of a list request: its filter and its page.

A filter is conditions beside each other, which all must hold: ``(labels.K:*)``, ``(labels.K="V")``, and with a regular
expression ``FIELD eq "REGEX"``: those that fcctl sends."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from typing import Any

from orchestrator.emulator import catalog
from orchestrator.emulator.call import Call
from orchestrator.emulator.refusals import ApiError, invalid, last, link, path_of

_CONDITION = re.compile(r'\s*\(?([\w.-]+)(?::\*|="([^"]*)"| eq "([^"]*)")\)?\s*')


def compiled(text: str) -> Callable[[dict[str, Any]], bool]:
    """A predicate on resources. Raises ApiError: the filter is not one."""
    conditions: list[tuple[str, str | None, str | None]] = []
    position = 0
    while position < len(text):
        match = _CONDITION.match(text, position)
        if match is None:
            raise ApiError("invalid", f"Invalid value for field 'filter': '{text}'. Invalid list filter expression.")
        conditions.append((match[1], match[2], match[3]))
        position = match.end()
    return lambda resource: all(_holds(resource, *one) for one in conditions)


def _holds(resource: dict[str, Any], name: str, value: str | None, pattern: str | None) -> bool:
    actual: Any = resource
    for part in name.split("."):
        actual = actual.get(part) if isinstance(actual, dict) else None
    if actual is None or value is not None:
        return bool(actual == value is not None)
    return pattern is None or re.fullmatch(pattern, str(actual)) is not None


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
    rows, token = chosen(call, (resource for resource in resources if last(_scope(resource)) not in unreachable))
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
