"""One request on its way: what was asked, where, and the scripted fault it meets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.emulator.core import quota
from orchestrator.emulator.core.faults import Fault
from orchestrator.emulator.core.operations import Plan, begin
from orchestrator.emulator.core.refusals import OperationError, invalid, not_found, quota_exceeded
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
        """``projects/P/zones/Z``. Raises ApiError for a zone nobody has heard of."""
        name = self.at["zone"]
        if name not in self.world.scenario.zones:
            raise invalid("zone", name, "Unknown zone.") if not name else not_found(f"{self.project}/zones/{name}")
        return f"{self.project}/zones/{name}"

    def machine(self) -> Machine:
        """The instance the path names. Raises ApiError (404)."""
        path = f"{self.zone}/instances/{self.at['name']}"
        found = self.world.machines.get(path)
        if found is None:  # the API takes the id in place of the name
            same_zone = (m for m in self.world.machines.values() if m.path.startswith(f"{self.zone}/"))
            found = next((m for m in same_zone if m.resource["id"] == self.at["name"]), None)
        if found is None:
            raise not_found(path)
        return found

    def begin(self, kind: str, target: str, plan: Plan, *, target_id: str = "", undo: Plan = ()) -> dict[str, Any]:
        """Start the operation that answers this request, with the fault in its way, and return it for the client."""
        error = self._error(self.world.machines.get(target))
        operation = begin(self.world, kind, target, plan, target_id=target_id, undo=undo, fault=self.fault, error=error)
        if self.query.get("requestId"):
            operation.resource["clientOperationId"] = self.query["requestId"]
        return dict(operation.resource)

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
