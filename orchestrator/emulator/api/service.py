"""Serves a request of the emulated API: permissions, rate limit, scripted faults, requestId, the method itself."""

from __future__ import annotations

import copy
import hashlib
import json
import time
import uuid
from collections import deque
from fnmatch import fnmatchcase
from typing import Any

from orchestrator.emulator.api import routes
from orchestrator.emulator.core.call import Call
from orchestrator.emulator.core.faults import Faults
from orchestrator.emulator.core.refusals import ApiError, invalid
from orchestrator.emulator.core.world import World

_POLL_S = 0.005


class LostReply(Exception):
    """The connection breaks in place of an answer."""


class Service:
    """Answers requests; thread-safe."""

    def __init__(self, world: World, faults: Faults) -> None:
        self._world = world
        self._faults = faults
        self._recent: deque[float] = deque()

    def answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        """The JSON answer with status 200.

        Args:
            path: below ``/compute/v1/``.

        Raises ApiError: every other status; LostReply: a scripted fault says that no answer arrives.
        """
        match = routes.find(method, path)
        if match is None:
            raise ApiError("notFound", f"The requested URL /compute/v1/{path} was not found on this server.")
        route, at = match
        self._admit(route.action, at["project"])
        below = path.split("/", 2)[2] if path.count("/") > 1 else ""
        fault = self._faults.for_request(route.action, method, below, self._world.now())
        call = Call(self._world, route.action, path, at, query, body, fault)
        if fault is not None and fault.kind == "delay":
            self._sleep(float(fault.value))
        if fault is not None and (error := fault.http_error()) is not None:
            raise error
        if fault is not None and (fault.kind, fault.value) == ("drop", "before"):
            raise LostReply
        waited = route.handler(call) if route.action.endswith(".wait") else None  # without the lock: it blocks
        with self._world.lock:
            answer = waited or (self._once(call, route) if method != "GET" else route.handler(call))
            answer = copy.deepcopy(answer)
        if fault is not None and fault.kind == "drop":
            raise LostReply
        return answer

    def _once(self, call: Call, route: routes.Route) -> dict[str, Any]:
        """A repeated requestId gets the first operation. A refused request is not recorded."""
        request_id = call.query.get("requestId")
        if not request_id:
            return route.handler(call)
        _check_uuid(request_id)
        key = f"{call.at['project']}/{request_id.lower()}"
        digest = hashlib.sha256(json.dumps([call.action, call.path, call.body], sort_keys=True).encode()).hexdigest()
        before = self._world.requests.get(key)
        if before is not None:
            if before[0] != digest:
                raise ApiError("conflict", f"requestId '{request_id}' was used for a different request.")
            return self._world.operations[before[1]].resource
        answer = route.handler(call)
        self._world.requests[key] = (digest, answer["selfLink"][answer["selfLink"].index("projects/") :])
        self._world.save()
        return answer

    def _admit(self, action: str, project: str) -> None:
        scenario = self._world.scenario
        if any(fnmatchcase(action, denied) for denied in scenario.denied):
            raise ApiError("forbidden", f"Required 'compute.{action}' permission for 'projects/{project}'")
        public = action.startswith("image")
        if scenario.projects is not None and project not in scenario.projects and not public:
            raise ApiError("notFound", f"The resource 'projects/{project}' was not found")
        if scenario.requests_per_minute is None:
            return
        with self._world.lock:
            now = self._world.now()
            while self._recent and self._recent[0] <= now - 60:
                self._recent.popleft()
            if len(self._recent) >= scenario.requests_per_minute:
                raise ApiError("rateLimitExceeded", "Quota exceeded for quota metric 'Queries' of service compute.")
            self._recent.append(now)

    def _sleep(self, seconds: float) -> None:
        """Waits emulated seconds."""
        until = self._world.now() + seconds
        while self._world.now() < until:
            time.sleep(_POLL_S)


def _check_uuid(text: str) -> None:
    try:
        zero = uuid.UUID(text).int == 0
    except ValueError:
        zero = True
    if zero:
        raise invalid("requestId", text, "Must be a valid, non-zero UUID.")
