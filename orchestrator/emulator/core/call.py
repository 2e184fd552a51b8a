"""One request: its method, path and body, and the scripted fault that applies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.emulator.core import quota
from orchestrator.emulator.core.faults import Fault
from orchestrator.emulator.core.operations import Plan, begin
from orchestrator.emulator.core.refusals import OperationError, not_found, quota_exceeded
from orchestrator.emulator.core.world import Machine, World


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
            if path == f"{place}/{name}" or (path.startswith(f"{place}/") and machine.resource["id"] == name):
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
        fault = self.fault
        if fault is None:
            return None
        if fault.kind == "stockout" and machine is not None:
            given = fault.value if isinstance(fault.value, dict) else {}
            return quota.no_stock(self.world, machine, given.get("zones"), detailed=given.get("detailed", True))
        if fault.kind == "quota" and machine is not None:
            region = None if fault.value == "GPUS_ALL_REGIONS" else machine.zone.rsplit("-", 1)[0]
            return quota_exceeded(str(fault.value), 0.0, region)
        return fault.operation_error()
