"""What a machine that fcctl makes is like. Pure: a target, a login and a purpose give the same machine every time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.base.run_id import slug
from orchestrator.machines.cloud import (
    MANAGED_LABEL,
    RUN_LABEL,
    WORKSPACE_LABEL,
    Hardware,
    Machine,
    MachineSpec,
    Power,
)
from orchestrator.machines.targets import GcpTarget, Provisioning

#: How the label of a machine begins that ``fcctl hosts up`` woke; its fence is its end.
UP_PREFIX = "up-"


@dataclass(frozen=True)
class Purpose:
    """Who wants a machine, as its labels tell whoever finds it."""

    #: A run's id, or another word of at most 63 characters of [a-z0-9-].
    label: str
    workspace: str = ""

    def labels(self) -> dict[str, str]:
        """The labels of a machine that was started for this, whoever made it."""
        workspace = {WORKSPACE_LABEL: slug(self.workspace)[:63]} if self.workspace else {}
        return {RUN_LABEL: slug(self.label)[:63], **workspace}

    def labels_on(self, present: Mapping[str, str]) -> dict[str, str]:
        """The same for a machine that was on already: one that a person woke for longer stays that person's."""
        labels = self.labels()
        if present.get(RUN_LABEL, "").startswith(UP_PREFIX) and not self.label.startswith(UP_PREFIX):
            del labels[RUN_LABEL]
        return labels


def woken_by_hand(machine: Machine, now: float) -> bool:
    """Whether ``fcctl hosts up`` woke it, and the cloud ends that by itself at a moment to come.

    One that is just starting has no such moment yet, but a limit.
    """
    if not machine.labels.get(RUN_LABEL, "").startswith(UP_PREFIX):
        return False
    if machine.power is Power.STARTING:
        return machine.max_run_s is not None and machine.termination_action == "STOP"
    return machine.power is Power.RUNNING and (machine.deadline or 0.0) > now


def hardware(target: GcpTarget, zone: str, *, spot: bool) -> Hardware:
    """What a machine that is made for ``target`` in ``zone`` consists of."""
    accelerators, disks = tuple(sorted(target.accelerators.items())), ((target.disk_type, target.disk_gb),)
    return Hardware(zone, target.machine_type, spot, accelerators, disks, address=not target.iap)


def machine_spec(
    target: GcpTarget,
    purpose: Purpose,
    metadata: Mapping[str, str],
    *,
    way: Provisioning,
    max_run_s: int,
    snapshot: str | None = None,
) -> MachineSpec:
    """The machine to be created.

    Args:
        metadata: what lets the user in (:func:`orchestrator.machines.provision.endpoint.login_items`).
        max_run_s: fence 1, counted from the first entry into RUNNING.
        snapshot: boot from a copy of this instead of the image.
    """
    return MachineSpec(
        name=target.instance,
        machine_type=target.machine_type,
        image_project=target.image_project,
        image_family=target.image_family,
        disk_gb=target.disk_gb,
        disk_type=target.disk_type,
        way=way,
        max_run_s=max_run_s,
        labels={**target.labels, MANAGED_LABEL: "yes", **purpose.labels()},
        metadata=metadata,
        accelerators=dict(target.accelerators),
        network=target.network,
        subnetwork=target.subnetwork,
        external_ip=not target.iap,
        service_account=target.service_account,
        snapshot=snapshot,
        flex_wait_s=target.flex_wait_s,
        reservation=target.reservation,
    )
