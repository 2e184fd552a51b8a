"""The projects of clouds in which fcctl has, or had, machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.machines import sandbox_target as sandbox
from orchestrator.machines.cloud import Machine
from orchestrator.machines.provision.endpoint import on_loopback
from orchestrator.machines.targets import GcpTarget, SandboxTarget, Target
from orchestrator.money.ledger import UsageRecord, latest
from orchestrator.money.usage_recorder import ResourceRecorder
from orchestrator.runs.services import Services

_TARGET: TypeAdapter[Target] = TypeAdapter(Target)
#: The real service forgets what was done after two weeks; a machine that is gone for longer is not asked after again.
REMEMBERED_S = 21 * 86400.0


@dataclass
class AuditedProject:
    """One project of one cloud, and the names that fcctl knows there."""

    project: str
    api_endpoint: str | None
    #: Configured targets; those of runs whose target is configured no more; machines that only the ledger knows.
    targets: list[GcpTarget] = field(default_factory=list)

    def target_of(self, machine: Machine) -> GcpTarget | None:
        return next((t for t in self.targets if t.instance == machine.name), None)

    @property
    def names(self) -> set[str]:
        return {target.instance for target in self.targets}


def places_of(services: Services, targets: Mapping[str, Target]) -> Iterator[AuditedProject]:
    """The projects to ask. The sandbox is asked if it is awake; one that sleeps runs nothing."""
    places: dict[tuple[str, str | None], AuditedProject] = {}
    for target in [*targets.values(), *_recorded(services)]:
        machine = services.clouds.if_there(target) if isinstance(target, SandboxTarget) else target
        if not isinstance(machine, GcpTarget):
            continue
        known = any(t.api_endpoint == machine.api_endpoint for place in places.values() for t in place.targets)
        if target not in targets.values() and on_loopback(machine.api_endpoint) and not known:
            continue  # an emulator of yesterday
        key = (machine.project, machine.api_endpoint)
        place = places.setdefault(key, AuditedProject(*key))
        if machine.instance not in place.names:
            place.targets.append(machine)
    yield from places.values()


def _recorded(services: Services) -> Iterator[GcpTarget]:
    """The targets of active runs and of those whose machine could not be stopped, and the machines that the ledger
    has, whatever the configuration says by now."""
    plans = [services.store.plan_of(run_id) for run_id in services.store.active()]
    for plan in [*plans, *services.store.owed().values()]:
        target = target_of_plan(plan)
        if isinstance(target, GcpTarget):
            yield target
    for word in may_be_there(services):
        facts = {"project": word.project, "instance": word.name, "zones": [word.zone]}
        with suppress(ValidationError):
            target = GcpTarget.model_validate({**facts, "name": word.target, "api_endpoint": word.api_endpoint})
            if not word.emulated:
                yield target


def may_be_there(services: Services) -> list[UsageRecord]:
    """The ledger's last word on each start of a machine that is not known to be gone for long."""
    has_disks = {life.last.machine_id for life in ResourceRecorder(services.spending, services.clock).standing()}
    now = services.clock.now()
    return [
        word
        for word in latest(services.spending.usage())
        if now - word.seen < REMEMBERED_S or word.stopped is None or word.instance_id in has_disks
    ]


def target_of_plan(plan: Mapping[str, Any] | None) -> Target | None:
    """The target that a plan was made for; None if it cannot be read."""
    try:
        return _TARGET.validate_python((plan or {}).get("target"))
    except ValidationError:
        return None


def is_target(target: Target | None, machine: Machine) -> bool:
    """Whether ``machine`` is the target's."""
    if isinstance(target, SandboxTarget):
        return (machine.project, machine.name) == (sandbox.PROJECT, sandbox.INSTANCE)
    found = (machine.project, machine.name)
    return isinstance(target, GcpTarget) and (target.project, target.instance) == found
