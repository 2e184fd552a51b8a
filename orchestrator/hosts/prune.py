"""``fcctl hosts prune``: deletes snapshots of rebuilds in another zone that nothing needs any more; with ``--on`` the
workspace's cache on a machine, ``$FCCTL_CACHE``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from orchestrator.base.clock import Clock
from orchestrator.base.errors import AuthError, CloudError, ConflictError, FcctlError, HostUnusable
from orchestrator.base.sanitize import clean
from orchestrator.hosts.audit import audit, log_change
from orchestrator.hosts.claims import projects_of
from orchestrator.hosts.prepare import Preparation
from orchestrator.machines.cloud import BillableResource
from orchestrator.machines.interfaces import Cloud
from orchestrator.machines.provision.ready import STOP_LIMIT_S, Changes
from orchestrator.machines.targets import Target
from orchestrator.money.billable import Orphan, made_by_rebuild
from orchestrator.money.usage_recorder import ResourceRecorder
from orchestrator.runs.services import Services

#: A younger snapshot may be in use by a creation, seconds.
YOUNG_S = 3600.0


@dataclass(frozen=True)
class KeptSnapshot:
    """A snapshot that is kept, and the reason."""

    orphan: Orphan
    why: str


@dataclass(frozen=True)
class Pruning:
    """The snapshots to delete, those to keep, and the parts of a cloud that could not be queried."""

    doomed: tuple[Orphan, ...]
    kept: tuple[KeptSnapshot, ...]
    unanswered: tuple[str, ...]


def plan_pruning(services: Services, targets: Mapping[str, Target], *, workspace: str) -> Pruning:
    """Lists the snapshots of the targets' machines. A snapshot is kept if it is the only copy of a disk: if neither the
    source disk nor a disk created from it exists."""
    audited = audit(services, targets, workspace=workspace)
    disks = _disks(services, targets)
    now = services.clock.now()
    doomed: list[Orphan] = []
    kept: list[KeptSnapshot] = []
    for orphan in audited.leftovers:
        thing = orphan.thing
        if not made_by_rebuild(thing):
            continue
        if not any(_has_content(disk, thing) for disk in disks):
            kept.append(
                KeptSnapshot(
                    orphan, "it may be the only copy: its source disk is deleted, and no disk was created from it"
                )
            )
        elif thing.created is None or now - thing.created < YOUNG_S:
            kept.append(KeptSnapshot(orphan, "less than an hour old: fcctl may be creating a machine from it"))
        else:
            doomed.append(orphan)
    unanswered = tuple(f"{one.what} of {one.project}: {one.why}" for one in audited.unanswered)
    return Pruning(tuple(doomed), tuple(kept), unanswered)


def prune(services: Services, targets: Mapping[str, Target], pruning: Pruning) -> list[str]:
    """Deletes the planned snapshots; returns one line for each that could not be deleted. A missing one counts as
    deleted."""
    clouds = {place.project: services.clouds.open(place.targets[0]) for place in projects_of(services, targets)}
    problems = []
    disks = _disks(services, targets)  # read again: the plan may be old
    for orphan in pruning.doomed:
        if not any(_has_content(disk, orphan.thing) for disk in disks):
            problems.append(f"snapshot {orphan.thing.name} is kept: its source disk was deleted in the meantime")
            continue
        try:
            _delete(clouds[orphan.thing.project], services.clock, orphan.thing.name)
        except FcctlError as error:
            problems.append(error.one_line)
        else:
            ResourceRecorder(services.spending, services.clock).record_deleted(orphan.thing, services.clock.now())
    return problems


def _delete(cloud: Cloud, clock: Clock, name: str) -> None:
    changes = Changes(cloud, clock, log_change, name)
    done = changes.make("delete_snapshot", "global", partial(cloud.delete_snapshot, name), STOP_LIMIT_S)
    if done.refusal is not None:
        kind = AuthError if done.refusal.http_status in (401, 403) else CloudError
        raise kind(f"snapshot {name} could not be deleted", cause=done.refusal.message)
    if not done.done:
        raise CloudError(
            f"snapshot {name} is still being deleted", hint="to see whether it is deleted: fcctl hosts prune"
        )


def _disks(services: Services, targets: Mapping[str, Target]) -> list[BillableResource]:
    """All disks of all projects."""
    disks: list[BillableResource] = []
    for place in projects_of(services, targets):
        things, _unasked = services.clouds.open(place.targets[0]).billable_resources()
        disks += [thing for thing in things if thing.kind == "disk"]
    return disks


def _has_content(disk: BillableResource, snapshot: BillableResource) -> bool:
    """Whether the disk has the snapshot's content: a younger disk of the same name is another disk."""
    if disk.project != snapshot.project:
        return False
    is_older = disk.created is None or snapshot.created is None or disk.created <= snapshot.created
    return disk.source == snapshot.name or (disk.name == snapshot.source and is_older)


#: What reading and deleting a cache may take, seconds: it may have millions of files.
LIMIT_S = 600.0
_LINE = re.compile(r"(\d{1,15})\s+.*/cache/([a-z0-9._-]{1,64})")


def cache_sizes(machine: Preparation) -> dict[str, int]:
    """The caches on the machine, bytes by workspace. Raises LinkLost."""
    script = 'for d in "$FCCTL_ROOT"/cache/*; do [ ! -d "$d" ] || du -sk "$d"; done'
    _, output, _ = machine.run(script, LIMIT_S)
    found = map(_LINE.fullmatch, output.splitlines())
    return {match[2]: int(match[1]) * 1024 for match in found if match is not None}


def delete_cache(machine: Preparation, workspace: str) -> None:
    """Deletes the cache of a workspace. Raises ConflictError: a run is on the machine; HostUnusable: it stays."""
    if not machine.is_free():
        raise ConflictError("a run uses the machine", hint="wait until it ends: fcctl ps")
    status, _, errors = machine.run(f'rm -rf "$FCCTL_ROOT"/cache/{shlex.quote(workspace)}', LIMIT_S)
    if status:
        hint = "log in to the machine, and delete the rest there: fcctl hosts ssh TARGET"
        raise HostUnusable("the cache could not be deleted", cause=clean(errors), hint=hint)
