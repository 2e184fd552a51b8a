"""Machines that a search created like a target (``--hosts N``): ``l4-2`` and ``l4-3`` of ``l4``."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.machines.targets import CloudTarget, Target
from orchestrator.runs.services import Services
from orchestrator.tune.fleet.rules import further


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
