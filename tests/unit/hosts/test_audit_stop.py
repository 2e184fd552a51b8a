"""``hosts audit --stop`` stops a machine in the cloud that lists it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from orchestrator.hosts import audit
from orchestrator.hosts.claims import AuditedProject
from orchestrator.machines.cloud import Machine
from orchestrator.machines.targets import CloudTarget, GcpTarget
from orchestrator.money.audit import Finding

EMULATED = GcpTarget(
    name="emulated", project="my-project", instance="vm", zones=["us-west1-c"], api_endpoint="http://127.0.0.1:9"
)
REAL = EMULATED.model_copy(update={"name": "l4", "api_endpoint": None})
STRAY = Machine("my-project", "us-west1-c", "vm", "7", "RUNNING", labels={"fcctl": "yes"})


def test_of_two_clouds_with_one_project_each_stops_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is an emulator, which does not have the machine: it was taken for gone, and called stopped."""
    stopped: list[str] = []

    def release(_services: object, target: CloudTarget, *_: object) -> list[Any]:
        stopped.append(target.name)
        return [SimpleNamespace(reason="", how="stopped")]

    def machine_in(target: CloudTarget) -> Any:
        return SimpleNamespace(machine=lambda *_: STRAY if target is REAL else None)

    places = [AuditedProject("my-project", one.api_endpoint, [one]) for one in (EMULATED, REAL)]
    found = Finding(STRAY, "stray", "created by fcctl; no run of this workspace uses it")
    project = SimpleNamespace(machines=lambda: [STRAY], cloud=None)
    nothing = SimpleNamespace(machines=lambda: None, cloud=None)
    monkeypatch.setattr(audit, "projects_of", lambda *_: places)
    monkeypatch.setattr(audit, "finding", lambda *_: found)
    monkeypatch.setattr(audit, "release", release)
    monkeypatch.setattr(audit, "release_lost", lambda *_: None)
    monkeypatch.setattr(audit, "_ProjectAudit", lambda _s, place, _u: project if place is places[1] else nothing)
    services = MagicMock()
    services.clouds.open = machine_in
    services.store.active.return_value, services.store.pending_releases.return_value = [], {}
    services.unread.take.return_value = []
    strays = audit.audit(services, {}, workspace="w", whole=False).strays
    (ended,) = audit.stop(services, {}, strays, workspace="w")
    assert (stopped, ended.stopped) == (["l4"], True)
