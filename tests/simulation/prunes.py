"""``fcctl hosts prune`` in an episode: what it must not delete, and what the rest costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.hosts.audit import audit
from orchestrator.hosts.prune import plan_pruning, prune
from orchestrator.machines.cloud import BillableResource
from orchestrator.money.usage_recorder import ResourceRecorder
from orchestrator.runs.services import Services
from tests.simulation.cloud import Instance, Snapshot
from tests.simulation.cloud_port import CoreCloud
from tests.simulation.laptop import VirtualClock
from tests.simulation.world import Actor, Violation

if TYPE_CHECKING:
    from tests.simulation.episode import Episode, Workspace

#: What a GiB costs a month in the zones of an episode, dollars.
USD_PER_GB = {"disk": 0.10, "snapshot": 0.05, "address": 0.0}


def prune_all(episode: Episode, workspace: Workspace, services: Services) -> None:
    """The plan and what it deletes; then the audit is held against the cloud's own list."""
    targets, before = episode.targets, _given_up(episode)
    planned = plan_pruning(services, targets, workspace=workspace.root.name)
    problems = prune(services, targets, planned)
    there = _resources(episode)
    found = audit(services, targets, workspace=workspace.root.name)
    if problems or found.unanswered or _resources(episode) != there or _given_up(episode) != before:
        return
    unused = sum(one.gb * USD_PER_GB[one.kind] for one in there if not one.users)
    told = sum(orphan.usd_per_month or 0.0 for orphan in found.leftovers)
    if abs(told - unused) > 1e-6:
        raise Violation(f"the audit has ${told:.2f} a month of what nothing uses, the cloud ${unused:.2f}")
    recorded = {life.last.key for life in ResourceRecorder(services.spending, services.clock).standing()}
    if recorded != {(one.project, one.kind, one.place, one.name) for one in there}:
        raise Violation(f"the ledger has {sorted(recorded)}, the cloud {sorted(one.name for one in there)}")


def _given_up(episode: Episode) -> int:
    return sum(instance.given_up for instance in episode.cloud.known.values())


def _resources(episode: Episode) -> list[BillableResource]:
    judge = Actor("judge")
    return CoreCloud(episode.cloud, VirtualClock(episode.world, judge)).billable_resources()[0]


def check_delete_snapshot(episode: Episode, snapshot: Snapshot) -> None:
    """It is not what a machine is just made of, and no results that are not collected are on it alone."""
    for instance in episode.cloud.instances.values():
        if instance.made_of == snapshot.name and instance.status in ("PROVISIONING", "STAGING"):
            raise Violation(f"snapshot {snapshot.name} is deleted while a machine is made of it")
    if episode.cloud.deleted_at == episode.world.now:
        return  # a person deleted the machine at this very moment, which no look before it can tell
    for run_id, run in snapshot.runs.items():
        if run.results and not is_collected(episode, run_id) and not is_elsewhere(episode, run_id, snapshot=snapshot):
            raise Violation(f"snapshot {snapshot.name} is deleted, and {run_id} is on nothing else")


def check_delete(episode: Episode, instance: Instance) -> None:
    """A disk that is deleted has no results that are nowhere else, unless the user gave them up."""
    if len(episode.workspaces) > 1:
        return
    for run_id, run in episode.guests[instance.id].runs.items():
        if run.results and not is_collected(episode, run_id) and not is_elsewhere(episode, run_id, instance=instance):
            raise Violation(f"{run_id} is not collected, and {instance.name} is deleted with its results")


def is_collected(episode: Episode, run_id: str) -> bool:
    """Or given up."""
    for store in episode.stores():
        if store.is_complete(run_id):
            return True
        if run_id in store.active():
            return bool({"collected", "lost"} & {entry.kind for entry in store.journal_of(run_id)})
    return False


def is_elsewhere(
    episode: Episode, run_id: str, *, snapshot: Snapshot | None = None, instance: Instance | None = None
) -> bool:
    """Whether another disk or snapshot has the run."""
    others = [one for one in episode.cloud.instances.values() if one is not instance]
    disks = [run_id in episode.guests[one.id].runs for one in others]
    return any(disks) or any(
        run_id in one.runs for one in episode.cloud.snapshots.values() if snapshot is None or one.name != snapshot.name
    )
