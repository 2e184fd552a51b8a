"""``fcctl hosts prune``: the snapshots that a rebuild in another zone made, once nobody needs them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.base.errors import AuthError, CloudError, FcctlError
from orchestrator.hosts.audit import audit
from orchestrator.hosts.places import places_of
from orchestrator.machines.cloud import BillableResource
from orchestrator.machines.cloud_api import Cloud
from orchestrator.machines.provision.find import STOP_LIMIT_S
from orchestrator.machines.request_id import new_request_id
from orchestrator.machines.targets import Target
from orchestrator.money.audit import Orphan, made_by_rebuild
from orchestrator.money.caps import Budget
from orchestrator.money.usage_recorder import ResourceRecorder
from orchestrator.runs.services import Services

_LOG = logging.getLogger(__name__)
#: A snapshot so young may be what a machine is just being made of, seconds.
YOUNG_S = 3600.0


@dataclass(frozen=True)
class KeptSnapshot:
    """A snapshot that stays, and why."""

    orphan: Orphan
    why: str


@dataclass(frozen=True)
class Pruning:
    """What would go, what stays, and the parts of a cloud that did not answer."""

    doomed: tuple[Orphan, ...]
    kept: tuple[KeptSnapshot, ...]
    unanswered: tuple[str, ...]


def plan_pruning(services: Services, targets: Mapping[str, Target], budget: Budget, *, workspace: str) -> Pruning:
    """Look at the snapshots of the targets' machines. The disk that one was made of, or one made of it, must be there:
    a snapshot that is the only copy of a disk is kept."""
    found = audit(services, targets, budget, workspace=workspace)
    disks = _disks(services, targets)
    now = services.clock.now()
    doomed: list[Orphan] = []
    kept: list[KeptSnapshot] = []
    for orphan in found.leftovers:
        thing = orphan.thing
        if not made_by_rebuild(thing):
            continue
        if not any(_has_content(disk, thing) for disk in disks):
            kept.append(KeptSnapshot(orphan, "the only copy: the disk it was made of is gone, and none was made of it"))
        elif thing.created is None or now - thing.created < YOUNG_S:
            kept.append(KeptSnapshot(orphan, "not an hour old: a machine may just be made of it"))
        else:
            doomed.append(orphan)
    unanswered = tuple(f"{one.what} of {one.project}: {one.why}" for one in found.unanswered)
    return Pruning(tuple(doomed), tuple(kept), unanswered)


def prune(services: Services, targets: Mapping[str, Target], pruning: Pruning) -> list[str]:
    """Delete what the plan dooms; what could not be deleted, one line each. One that is gone already counts as such."""
    clouds = {place.project: services.clouds.open(place.targets[0]) for place in places_of(services, targets)}
    problems = []
    disks = _disks(services, targets)  # as they are now: a person may have read the plan for long
    for orphan in pruning.doomed:
        if not any(_has_content(disk, orphan.thing) for disk in disks):
            problems.append(f"snapshot {orphan.thing.name} stays: the disk that it was made of is gone by now")
            continue
        try:
            _delete(clouds[orphan.thing.project], orphan.thing.name)
        except FcctlError as error:
            problems.append(f"{error.message}{f': {error.cause}' if error.cause else ''}")
        else:
            ResourceRecorder(services.spending, services.clock).record_deleted(orphan.thing, services.clock.now())
    return problems


def _delete(cloud: Cloud, name: str) -> None:
    request_id = new_request_id()
    _LOG.info("delete snapshot %s (%s)", name, request_id)
    done = cloud.wait(cloud.delete_snapshot(name, request_id), STOP_LIMIT_S)
    if done.refusal is not None:
        kind = AuthError if done.refusal.http_status in (401, 403) else CloudError
        raise kind(f"snapshot {name} cannot be deleted", cause=done.refusal.message)
    if not done.done:
        raise CloudError(f"snapshot {name} is still being deleted", hint="fcctl hosts prune shows whether it is gone")


def _disks(services: Services, targets: Mapping[str, Target]) -> list[BillableResource]:
    """All disks there are."""
    found: list[BillableResource] = []
    for place in places_of(services, targets):
        things, _unasked = services.clouds.open(place.targets[0]).leftovers()
        found += [thing for thing in things if thing.kind == "disk"]
    return found


def _has_content(disk: BillableResource, snapshot: BillableResource) -> bool:
    """Whether what the snapshot holds is on the disk: one that was made later under the same name is another disk."""
    if disk.project != snapshot.project:
        return False
    is_older = disk.created is None or snapshot.created is None or disk.created <= snapshot.created
    return disk.source == snapshot.name or (disk.name == snapshot.source and is_older)
