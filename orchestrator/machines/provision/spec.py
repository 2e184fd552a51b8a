"""The labels of a started machine, and the hardware of a created one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.base.run_id import slug
from orchestrator.machines.cloud import RUN_LABEL, WORKSPACE_LABEL, Hardware, Machine, Power
from orchestrator.machines.targets import CloudTarget

#: The prefix of the label of a machine started by ``fcctl hosts up``, which its max run duration ends.
UP_PREFIX = "up-"


@dataclass(frozen=True)
class Purpose:
    """Who uses a machine, as its labels say."""

    #: A run's id, or another word of at most 63 characters of [a-z0-9-].
    label: str
    workspace: str = ""

    def labels(self) -> dict[str, str]:
        """The labels of a machine that was started for this purpose."""
        workspace = {WORKSPACE_LABEL: slug(self.workspace)[:63]} if self.workspace else {}
        return {RUN_LABEL: slug(self.label)[:63], **workspace}

    def labels_on(self, present: Mapping[str, str]) -> dict[str, str]:
        """The same for a machine that was already on: one that ``hosts up`` started for longer keeps its labels."""
        labels = self.labels()
        if present.get(RUN_LABEL, "").startswith(UP_PREFIX) and not self.label.startswith(UP_PREFIX):
            del labels[RUN_LABEL]
        return labels


def started_by_hosts_up(machine: Machine, now: float) -> bool:
    """Whether ``fcctl hosts up`` started it, and the cloud will stop it later."""
    if not machine.labels.get(RUN_LABEL, "").startswith(UP_PREFIX):
        return False
    if machine.power is Power.STARTING:
        return machine.max_run_s is not None and machine.termination_action == "STOP"
    return machine.power is Power.RUNNING and (machine.deadline or 0.0) > now


def hardware(target: CloudTarget, zone: str, *, spot: bool) -> Hardware:
    """The hardware of a machine created for ``target`` in ``zone``."""
    accelerators, disks = tuple(sorted(target.accelerators.items())), ((target.disk_type, target.disk_gb),)
    return Hardware(zone, target.machine_type, spot, accelerators, disks, address=target.has_address)
