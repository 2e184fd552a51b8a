"""Google's library as ``GcpCloud`` uses it, on the core of the simulated cloud."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.base.clock import Clock
from orchestrator.emulator.refusals import ApiError
from orchestrator.providers.gcp.api import Api
from orchestrator.providers.gcp.failures import Answer, Calls, Refused, check_rights

if TYPE_CHECKING:
    from tests.simulation.cloud import SimulatedCloud

R = TypeVar("R")


class _Absent(str):
    """What a message has where nothing was set: empty text, 0, an empty list, an empty message."""

    __slots__ = ()

    def __getattr__(self, name: str) -> _Absent:
        if name == "keys":  # else dict() takes it for a map
            raise AttributeError(name)
        return self

    def __int__(self) -> int:
        return 0


_ABSENT = _Absent()


class Raw:
    """A message of Google's library, made of its JSON; of another one: a copy."""

    def __init__(self, json: Any) -> None:
        self.__dict__["json"] = dict(json.json if isinstance(json, Raw) else json)

    def __getattr__(self, name: str) -> Any:
        return _read(self.__dict__["json"].get(_camel(name)))

    def __setattr__(self, name: str, value: Any) -> None:
        self.json[_camel(name)] = to_json(value)

    def keys(self) -> Any:
        return self.json.keys()

    def __getitem__(self, name: str) -> Any:
        return _read(self.json[name])


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(one) for one in value]
    return _ABSENT if value is None else Raw(value) if isinstance(value, dict) else value


@cache
def _camel(name: str) -> str:
    """``networkIP`` of ``network_i_p``, ``type`` of ``type_``."""
    return re.sub("_([a-z]?)", lambda match: match[1].upper(), name)


def to_json(value: Any) -> Any:
    """The JSON of a message's fields. The names of labels are not fields."""
    if isinstance(value, Raw):
        return to_json(value.json)
    if isinstance(value, dict):
        fields = {_camel(name): dict(one) if name == "labels" else to_json(one) for name, one in value.items()}
        return {name: one for name, one in fields.items() if one is not None}
    return [to_json(one) for one in value] if isinstance(value, list) else value


class _CoreCalls(Calls):
    """A refusal of the core is one of Google's."""

    def once(self, request: Callable[[], R]) -> R:
        try:
            return request()
        except ApiError as error:
            answer = Answer(error.status, error.reason, error.message)
            check_rights(answer, self._project)
            raise Refused(answer) from None


class CoreApi(Api):
    """One project of the simulated cloud."""

    def __init__(self, cloud: SimulatedCloud, project: str, clock: Clock) -> None:
        super().__init__(project, "in this process", clock, 500)
        self.calls = _CoreCalls(clock, project, emulated=True)
        self._cloud = cloud

    def message(self, name: str, **fields: Any) -> Any:
        return SimpleNamespace(**fields)

    def send(self, service: str, method: str, request: Any, timeout_s: float = 0.0) -> Any:
        fields = vars(request)
        collection = {"Projects": "", "ZoneOperations": "operations", "GlobalOperations": "operations"}.get(
            service, f"{service[0].lower()}{service[1:]}"
        )
        body = next((to_json(value) for name, value in fields.items() if name.endswith("_request_resource")), None)
        body = body or next((to_json(value) for name, value in fields.items() if name.endswith("_resource")), {})
        query = {_camel(name): str(value) for name, value in fields.items() if name in _QUERY}
        verb, path = _route(service, method.removesuffix("_unary"), collection, fields)
        return Raw(self._cloud.ask(verb, path, query, body))

    def pages(self, service: str, method: str, request: str, what: str, **fields: Any) -> Iterator[Any]:
        page = self.read(service, method, request, what, **fields)
        items = page.items
        if isinstance(items, Raw):  # by their scope
            items = {scope: Raw(one) for scope, one in items.json.items()}
        yield SimpleNamespace(items=items, unreachables=page.unreachables, warning=page.warning)


_QUERY = ("request_id", "filter", "query_path")
#: The names in a path, by the fields that have them.
_NAMES = ("instance", "disk", "snapshot", "operation", "resource")


def _route(service: str, method: str, collection: str, fields: dict[str, Any]) -> tuple[str, str]:
    """HTTP method and path below the project."""
    if method == "aggregated_list":
        return "GET", f"aggregated/{collection}"
    if service in ("Projects", "Regions"):
        return "GET", "/".join([collection, fields["region"]] if service == "Regions" else [])
    place = f"zones/{fields['zone']}" if "zone" in fields else "global"
    if method in ("list", "insert"):
        return "GET" if method == "list" else "POST", f"{place}/{collection}"
    path = f"{place}/{collection}/{next(fields[name] for name in _NAMES if name in fields)}"
    if method in ("get", "delete"):
        return method.upper() if method == "delete" else "GET", path
    last = {"get_serial_port_output": "serialPort"}.get(method, _camel(method))
    return "GET" if method.startswith("get_") else "POST", f"{path}/{last}"
