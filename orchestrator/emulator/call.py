"""One request: its method, path and body, the fault that applies to it, the quotas that it meets, and a page of a list.

The filter language of lists has comparisons joined by AND, OR, NOT and parentheses: ``labels.fcctl=yes``,
``labels.fcctl:*``, ``name eq "vm-.*"``, ``(status = RUNNING) AND name != box``; comparisons that merely stand beside
each other are joined by AND."""

from __future__ import annotations

import base64
import operator
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.emulator import scenario
from orchestrator.emulator.refusals import (
    ApiError,
    OperationError,
    invalid,
    last,
    link,
    not_found,
    path_of,
    quota_exceeded,
    stockout,
)
from orchestrator.emulator.scenario import Fault
from orchestrator.emulator.world import REQUESTED, Machine, Plan, World, begin

#: Only these hold a GPU.
POWERED = ("PROVISIONING", "STAGING", "RUNNING", "STOPPING", "SUSPENDING", "REPAIRING")


def gpus_of(machine: Machine) -> int:
    return sum(int(a.get("acceleratorCount", 0)) for a in machine.resource.get("guestAccelerators", []))


def is_preemptible(machine: Machine) -> bool:
    """Whether it counts against the preemptible quota."""
    scheduling = machine.resource["scheduling"]
    return bool(scheduling.get("preemptible")) or scheduling.get("provisioningModel") == "SPOT"


def used(world: World, project: str, metric: str, region: str | None) -> float:
    """How much of a quota powered machines use."""
    return sum(
        _share(machine, metric)
        for machine in world.machines.values()
        if machine.path.startswith(f"projects/{project}/")
        and machine.status in POWERED
        and region in (None, scenario.region_of(machine.zone))
    )


def _share(machine: Machine, metric: str) -> float:
    gpus = gpus_of(machine)
    if metric == "GPUS_ALL_REGIONS":
        return gpus
    if metric == "CPUS":
        return float(scenario.machine_types().get(last(machine.resource["machineType"]), {}).get("guestCpus", 1))
    return gpus if (metric == "PREEMPTIBLE_NVIDIA_L4_GPUS") == is_preemptible(machine) else 0


def quotas(world: World, project: str, region: str | None) -> list[dict[str, Any]]:
    """The ``quotas`` of a region, or with None of the project."""
    metrics = ("GPUS_ALL_REGIONS",) if region is None else ("CPUS", "NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS")
    return [
        {
            "metric": metric,
            "limit": world.scenario.quota(metric, region),
            "usage": float(used(world, project, metric, region)),
        }
        for metric in metrics
    ]


def admit(world: World, machine: Machine) -> None:
    """Raises OperationError if no machine is available. ``machine`` counts as powered already.

    A stockout is reported before a quota: that is how a quota of 0 hides behind a stockout.
    """
    gpus = gpus_of(machine)
    if not gpus:
        return
    if not in_stock(world, machine.zone, machine):
        raise no_stock(world, machine)
    project, region = machine.path.split("/")[1], scenario.region_of(machine.zone)
    regional = "PREEMPTIBLE_NVIDIA_L4_GPUS" if is_preemptible(machine) else "NVIDIA_L4_GPUS"
    for metric, where in ((regional, region), ("GPUS_ALL_REGIONS", None)):
        limit = world.scenario.quota(metric, where)
        if used(world, project, metric, where) > limit:
            raise quota_exceeded(metric, limit, where)


def in_stock(world: World, zone: str, machine: Machine) -> bool:
    stock = world.scenario.stock.get(zone)
    if stock is None:
        return zone in world.scenario.zones
    taken = sum(gpus_of(m) for m in world.machines.values() if m.zone == zone and m.status in POWERED)
    return taken + (0 if zone == machine.zone else gpus_of(machine)) <= stock


def no_stock(
    world: World, machine: Machine, zones: list[str] | None = None, *, detailed: bool = True
) -> OperationError:
    """The stockout this machine meets; ``zones`` are those to recommend, by default those of its region with stock."""
    region = scenario.region_of(machine.zone)
    if zones is None:
        near = [z for z in world.scenario.zones if scenario.region_of(z) == region and z != machine.zone]
        zones = [zone for zone in near if in_stock(world, zone, machine)]
    accelerators = machine.resource.get("guestAccelerators", [])
    first = accelerators[0] if accelerators else None
    accelerator = (last(first["acceleratorType"]), int(first["acceleratorCount"])) if first else None
    zone_path = "/".join(machine.path.split("/")[:4])
    return stockout(zone_path, last(machine.resource["machineType"]), accelerator, zones, detailed=detailed)


@dataclass
class Call:
    """``action`` is the API's method (``instances.start``), ``at`` the names in the path: project, zone, name, ..."""

    world: World
    action: str
    path: str
    at: dict[str, str]
    query: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    fault: Fault | None = None

    @property
    def project(self) -> str:
        return f"projects/{self.at['project']}"

    @property
    def zone(self) -> str:
        """``projects/P/zones/Z``. Raises ApiError if there is no such zone."""
        self.check_zone()
        return f"{self.project}/zones/{self.at['zone']}"

    def check_zone(self) -> None:
        """Raises ApiError if the path names a zone that does not exist."""
        name = self.at.get("zone")
        if name is not None and name not in self.world.scenario.zones:
            raise not_found(f"{self.project}/zones/{name}")

    def machine(self) -> Machine:
        """The instance the path names. Raises ApiError (404)."""
        place, name = f"{self.zone}/instances", self.at["name"]
        for path, machine in self.world.machines.items():  # the API takes the id in place of the name
            is_it = path == f"{place}/{name}" or (path.startswith(f"{place}/") and machine.resource["id"] == name)
            if is_it and machine.status != REQUESTED:
                return machine
        raise not_found(f"{place}/{name}")

    def begin(self, kind: str, target: str, plan: Plan, *, target_id: str = "", undo: Plan = ()) -> dict[str, Any]:
        """Start the operation that answers this request, with the fault in its way."""
        error = self._error(self.world.machines.get(target))
        operation = begin(self.world, kind, target, plan, target_id=target_id, undo=undo, fault=self.fault, error=error)
        if self.query.get("requestId"):
            operation.resource["clientOperationId"] = self.query["requestId"]
        return operation.resource

    def _error(self, machine: Machine | None) -> OperationError | None:
        if self.fault is None:
            return None
        do = self.fault.do
        if do.stockout is not None and machine is not None:
            return no_stock(self.world, machine, do.stockout.zones, detailed=do.stockout.detailed)
        if do.quota is not None and machine is not None:
            region = None if do.quota == "GPUS_ALL_REGIONS" else scenario.region_of(machine.zone)
            return quota_exceeded(do.quota, 0.0, region)
        return do.operation.error() if do.operation is not None else None


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
        sign, value = self._next(), self._next()
        if sign not in ("=", "!=", ":", *_ORDERS, *_WORDS):
            raise _bad(self.text)
        if value.startswith('"'):
            # eq and ne take a regular expression, whose own backslashes stay: gcloud sends ".*\\bus\\-west1\\b.*".
            value = re.sub(r'\\(")' if sign in _WORDS else r"\\(.)", r"\1", value[1:-1])
        try:
            test = _test(sign, value)
        except re.error:
            raise _bad(self.text) from None
        return lambda resource: test(field_of(resource, name))

    def _next(self) -> str:
        if not self.tokens:
            raise _bad(self.text)
        return self.tokens.pop(0)


_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def _test(sign: str, value: str) -> Callable[[Any], bool]:
    if sign in _ORDERS:
        return lambda actual: actual is not None and _ORDERS[sign](*_comparable(_text(actual), value))
    if sign == ":":
        wanted = f"(?is).*{'' if value == '*' else re.escape(value)}.*"
    else:
        wanted = value if sign in _WORDS else ".*".join(re.escape(part) for part in value.split("*"))
    pattern, negated = re.compile(wanted), sign in ("ne", "!=")
    return lambda actual: (actual is not None and pattern.fullmatch(_text(actual)) is not None) != negated


def _comparable(text: str, value: str) -> tuple[Any, Any]:
    """Both as numbers, if they are."""
    try:
        return float(text), float(value)
    except ValueError:
        return text, value


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
    scopes = (
        [f"regions/{name}" for name in scenario.regions(zones)] if regional else [f"zones/{name}" for name in zones]
    )
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
    token = base64.urlsafe_b64encode(_order(rows[size - 1]).encode()).decode() if len(rows) > size else None
    return rows[:size], token


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


def _decode(token: str) -> str:
    try:
        return base64.urlsafe_b64decode(token.encode()).decode()
    except ValueError:
        raise invalid("pageToken", token, "The page token does not belong to this list.") from None
