"""Finds a target's machine in its cloud, and changes it.

Every change is written to the journal, with its request id, before the request, and waited for within bounded time. A
refusal is returned in the operation, for :func:`orchestrator.machines.provision.decide.next_action`.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator.base.clock import Clock, in_thread
from orchestrator.base.errors import AuthError
from orchestrator.machines.cloud import MANAGED_LABEL, Machine, Operation
from orchestrator.machines.host_api import Cloud, MachineParts
from orchestrator.machines.provision.actions import Action
from orchestrator.machines.targets import CloudTarget, SandboxTarget, Target

#: The limit of a stop, after which the time limits have to end the machine; a shutdown that hangs takes minutes.
STOP_LIMIT_S = 600.0
#: Labels, metadata, limits: they take a second or two.
CHANGE_LIMIT_S = 120.0


class Log(Protocol):
    """Appends a line to a journal; synced before it returns, unless it is about a stop and the disk is full."""

    def __call__(self, kind: str, **data: object) -> object: ...


def find_machine(parts: MachineParts, target: Target) -> CloudTarget | None:
    """The cloud machine of ``target``; None if the target is no cloud machine."""
    return parts.clouds.resolve(target) if isinstance(target, CloudTarget | SandboxTarget) else None


def find_machines(cloud: Cloud, target: CloudTarget, *, everywhere: bool = False) -> list[Machine]:
    """Every machine of the target's name: in its zones, and any that fcctl made in another one.

    Args:
        everywhere: look into other zones even if one is found in the target's own.

    Raises CloudError: a zone could not be asked; then nobody knows whether there is a machine.
    """
    machines = [machine for zone in dict.fromkeys(target.zones) if (machine := cloud.machine(zone, target.instance))]
    if everywhere or not machines:
        labelled, _unanswered = cloud.machines({MANAGED_LABEL: None})
        places = {machine.zone for machine in machines}
        machines += [m for m in labelled if m.name == target.instance and m.zone not in places]
    return machines


def with_disk_types(cloud: Cloud, machine: Machine) -> Machine:
    """The same machine with the types of its disks, as far as the cloud says them in the disks' own entries."""
    types = {disk.name: disk.type for disk in cloud.disks(machine)} if machine.disks else {}
    disks = tuple(replace(disk, type=disk.type or types.get(disk.name, "")) for disk in machine.disks)
    return replace(machine, disks=disks)


def query_in_thread(parts: MachineParts, target: CloudTarget, zone: str) -> Future[Machine | None]:
    """Queries the machine in the background, because importing the cloud's library takes seconds."""
    return in_thread(lambda: parts.clouds.open(target).machine(zone, target.instance), "fcctl-cloud")


@dataclass
class Changes:
    """The cloud's mutations on one target's machine."""

    cloud: Cloud
    clock: Clock
    log: Log
    name: str
    #: How much the cloud's clock is ahead of this one, once an operation has shown it.
    cloud_ahead_s: float | None = None

    def make(self, action: Action | str, zone: str, change: Callable[[str], Operation], limit_s: float) -> Operation:
        """Requests a change and waits for it; the operation may be refused, or not done after ``limit_s``."""
        request_id = new_request_id()
        self.log("cloud", action=str(action), zone=zone, name=self.name, request_id=request_id)
        requested = self.clock.now()
        try:
            operation = change(request_id)
        except AuthError:
            self.log("refused", request_id=request_id)
            raise
        if operation.refusal is not None and not operation.name:  # else the cloud lists it, perhaps not at once
            self.log("refused", request_id=request_id)
        if operation.started is not None:
            self.cloud_ahead_s = operation.started - requested
        deadline = self.clock.monotonic() + limit_s
        while not operation.done and self.clock.monotonic() < deadline:
            operation = self.cloud.wait(operation, max(1.0, deadline - self.clock.monotonic()))
        return operation


# -------------------------------------------------------------------------------------------------------- request ids
# Compute Engine shows a request's ``requestId`` as its operation's ``clientOperationId``: so the list of operations
# tells whether an fcctl, of any workspace and computer, or a person requested it.
def new_request_id() -> str:
    """A random UUID whose second half is a digest of its first."""
    return _completed(uuid.uuid4().bytes[:8])


def is_fcctls(request_id: str) -> bool:
    """Whether an fcctl created it. Another UUID passes once in 2^62."""
    try:
        return request_id.lower() == _completed(uuid.UUID(request_id).bytes[:8])
    except ValueError:
        return False


def _completed(half: bytes) -> str:
    digest = hashlib.sha256(b"fcctl request\0" + half).digest()[:8]
    return str(uuid.UUID(bytes=half + digest, version=4))
