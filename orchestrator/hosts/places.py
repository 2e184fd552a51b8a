"""The cloud projects in which fcctl has, or had, machines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from orchestrator.machines.cloud import Machine
from orchestrator.machines.provision.endpoint import on_loopback
from orchestrator.machines.targets import KINDS, CloudTarget, SandboxTarget, Target, read_target
from orchestrator.money.ledger import UsageRecord, latest
from orchestrator.money.usage_recorder import ResourceRecorder
from orchestrator.runs.services import Services
from orchestrator.tune.fleet_rules import further

#: The real service forgets operations after two weeks; a machine deleted earlier is not queried again.
REMEMBERED_S = 21 * 86400.0


@dataclass
class AuditedProject:
    """One project of one cloud, and the machine names that fcctl knows there."""

    project: str
    api_endpoint: str | None
    #: Configured targets; targets of runs; machines that only the ledger has.
    targets: list[CloudTarget] = field(default_factory=list)

    def target_of(self, machine: Machine) -> CloudTarget | None:
        return next((t for t in self.targets if t.instance == machine.name), None)

    @property
    def names(self) -> set[str]:
        return {target.instance for target in self.targets}


def projects_of(services: Services, targets: Mapping[str, Target]) -> Iterator[AuditedProject]:
    """The projects to query. A sandbox that is not running has no machines and is left out."""
    places: dict[tuple[str, str | None], AuditedProject] = {}
    for target in [*targets.values(), *_recorded(services, targets)]:
        machine = services.clouds.if_there(target) if isinstance(target, SandboxTarget) else target
        if not isinstance(machine, CloudTarget):
            continue
        known = any(t.api_endpoint == machine.api_endpoint for place in places.values() for t in place.targets)
        if target not in targets.values() and on_loopback(machine.api_endpoint) and not known:
            continue  # an earlier emulator
        key = (machine.project, machine.api_endpoint)
        place = places.setdefault(key, AuditedProject(*key))
        if machine.instance not in place.names:
            place.targets.append(machine)
    yield from places.values()


def _recorded(services: Services, targets: Mapping[str, Target]) -> Iterator[CloudTarget]:
    """The targets of active runs, of pending releases, and of machines in the ledger, whether configured or not."""
    plans = [services.store.plan_of(run_id) for run_id in services.store.active()]
    for plan in [*plans, *services.store.pending_releases().values()]:
        target = target_of_plan(plan)
        if isinstance(target, CloudTarget):
            yield target
    by_project = {target.project: target for target in targets.values() if isinstance(target, CloudTarget)}
    for record in recent_records(services):
        if record.emulated:
            continue
        facts: dict[str, Any] = {"name": record.target, "instance": record.name, "zones": [record.zone]}
        facts["api_endpoint"] = record.api_endpoint
        if (alike := by_project.get(record.project)) is not None:
            yield alike.model_copy(update=facts)
            continue
        kind = KINDS.get(record.target_kind)
        if kind is not None and issubclass(kind, CloudTarget):
            with suppress(ValueError):
                yield kind.model_validate({**facts, "project": record.project})


def recent_records(services: Services) -> list[UsageRecord]:
    """The newest usage record of each start, except of machines that were deleted long ago."""
    has_disks = {life.last.machine_id for life in ResourceRecorder(services.spending, services.clock).standing()}
    now = services.clock.now()
    return [
        record
        for record in latest(services.spending.usage())
        if now - record.seen < REMEMBERED_S or record.stopped is None or record.instance_id in has_disks
    ]


def target_of_plan(plan: Mapping[str, Any] | None) -> Target | None:
    """The target that a plan was made for; None if it cannot be read."""
    try:
        return read_target((plan or {}).get("target"))
    except ValueError:
        return None


def is_target(target: Target | None, machine: Machine) -> bool:
    """Whether ``machine`` belongs to the target."""
    own = target.cloud if target is not None else None
    return own is not None and (own.project, own.instance) == (machine.project, machine.name)


# ------------------------------------------------------------------------------------ machines that a search created
def with_members(services: Services, targets: Mapping[str, Target]) -> dict[str, Target]:
    """``targets``, each followed by the machines like it that this computer has logged in to, or has a run of.

    Sends no request, so that a machine that was deleted since may be among them.
    """
    store, all_targets = services.store, dict[str, Target]()
    at_work = {((store.plan_of(run_id) or {}).get("target") or {}).get("name") for run_id in store.active()}
    for name, target in targets.items():
        all_targets[name] = target
        for machine in further(targets, name):
            if machine.name in at_work or _is_known(services, machine):
                all_targets[machine.name] = machine
    return all_targets


def _is_known(services: Services, machine: CloudTarget) -> bool:
    if services.book.known(machine.project, machine.instance) is not None:
        return True
    return bool(services.store.rows(target=machine.name, limit=1))


def member_of(targets: Mapping[str, Target], name: str) -> str | None:
    """The target that the machine ``name`` of :func:`with_members` was created like; None if it is a target."""
    return None if name in targets else name.rpartition("-")[0]
