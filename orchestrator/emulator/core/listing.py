"""Lists: filtered, sorted by name, in pages; and the aggregated list over all zones."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from orchestrator.emulator.core import filters
from orchestrator.emulator.core.call import Call
from orchestrator.emulator.core.refusals import invalid
from orchestrator.emulator.core.resources import last, link, path_of

MAX_PAGE = 500


def page(call: Call, kind: str, path: str, resources: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One page of a list. ``kind`` is what a single one is called: ``compute#instance``."""
    rows, token = chosen(call, resources)
    answer: dict[str, Any] = {"kind": f"{kind}List", "id": path, "selfLink": link(path)}
    if rows:
        answer["items"] = rows
    if token:
        answer["nextPageToken"] = token
    return answer


def aggregated(call: Call, kind: str, key: str, resources: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One page of an aggregated list: every zone is named, those without a resource on this page with a warning."""
    dark = call.world.scenario.unreachable
    rows, token = chosen(call, (resource for resource in resources if last(_scope(resource)) not in dark))
    items: dict[str, Any] = {}
    for scope in [f"zones/{zone}" for zone in call.world.scenario.zones] + sorted({_scope(row) for row in rows}):
        here = [resource for resource in rows if _scope(resource) == scope]
        items[scope] = {key: here} if here else {"warning": _unreached(scope) if last(scope) in dark else empty(scope)}
    path = f"{call.project}/aggregated/{key}"
    answer: dict[str, Any] = {"kind": f"{kind}AggregatedList", "id": path, "items": items, "selfLink": link(path)}
    if dark:
        answer["unreachables"] = [link(f"{call.project}/zones/{zone}") for zone in dark]
    if token:
        answer["nextPageToken"] = token
    return answer


def _scope(resource: dict[str, Any]) -> str:
    """``zones/Z``, ``regions/R`` or ``global``."""
    parts = path_of(resource["selfLink"]).split("/")
    return "/".join(parts[2:4]) if parts[2] in ("zones", "regions") else parts[2]


def chosen(call: Call, resources: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], str | None]:
    """What is on the page that is asked for, and the token of the next one.

    Pages go on after the last name of the page before, so that nothing is skipped when the list changes.
    """
    wanted = filters.compiled(call.query.get("filter", ""))
    rows = sorted((r for r in resources if wanted(r)), key=_order)
    after = _decode(call.query["pageToken"]) if call.query.get("pageToken") else ""
    rows = [row for row in rows if _order(row) > after]
    size = _size(call.query.get("maxResults", ""))
    return rows[:size], _encode(_order(rows[size - 1])) if len(rows) > size else None


def _unreached(scope: str) -> dict[str, Any]:
    message = f"The scope '{scope}' is currently unreachable."
    return {"code": "UNREACHABLE", "message": message, "data": [{"key": "scope", "value": scope}]}


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
        raise invalid("pageToken", token, "The page token is not one of this list.") from None


def empty(scope: str) -> dict[str, Any]:
    return {
        "code": "NO_RESULTS_ON_PAGE",
        "message": f"There are no results for scope '{scope}' on this page.",
        "data": [{"key": "scope", "value": scope}],
    }
