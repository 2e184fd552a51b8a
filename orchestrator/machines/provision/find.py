"""A target's machine in its cloud: finding it, and changing it so that a killed controller leaves no riddle.

Every change is written to the journal, with its request id, before the cloud is asked for it, and seen through within
bounded time. What the cloud refuses comes back as the operation's refusal, for
:func:`orchestrator.machines.provision.decide.next_move` to judge.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from orchestrator.base.clock import Clock
from orchestrator.machines.cloud import MANAGED_LABEL, Machine, Operation
from orchestrator.machines.cloud_api import Cloud
from orchestrator.machines.parts import MachineParts
from orchestrator.machines.provision.actions import Action
from orchestrator.machines.request_id import new_request_id
from orchestrator.machines.targets import GcpTarget, SandboxTarget, Target

#: How long a stop may take before it is left to the fences; systems that hang on the way down take minutes.
STOP_LIMIT_S = 600.0
#: Labels, metadata, limits: they take a second or two.
CHANGE_LIMIT_S = 120.0


class Log(Protocol):
    """Appends a line to a journal; on disk before it returns, unless it is about a stop and the disk is full."""

    def __call__(self, kind: str, **data: object) -> object: ...


def find_machine(parts: MachineParts, target: Target) -> GcpTarget | None:
    """The machine of a cloud that ``target`` means; None if it is a machine that is simply there."""
    return parts.clouds.resolve(target) if isinstance(target, GcpTarget | SandboxTarget) else None


def find_machines(cloud: Cloud, target: GcpTarget, *, everywhere: bool = False) -> list[Machine]:
    """Every machine of the target's name: in its zones, and any that fcctl made in another one.

    Args:
        everywhere: look into other zones even if one is found in the target's own.

    Raises:
        CloudError: a zone could not be asked; then nobody knows whether there is a machine.
    """
    found = [machine for zone in dict.fromkeys(target.zones) if (machine := cloud.machine(zone, target.instance))]
    if everywhere or not found:
        labelled, _unanswered = cloud.machines({MANAGED_LABEL: None})
        places = {machine.zone for machine in found}
        found += [m for m in labelled if m.name == target.instance and m.zone not in places]
    return found


def with_disk_types(cloud: Cloud, machine: Machine) -> Machine:
    """The same machine with the types of its disks, as far as the cloud says them in the disks' own entries."""
    types = {disk.name: disk.type for disk in cloud.disks(machine)} if machine.disks else {}
    disks = tuple(replace(disk, type=disk.type or types.get(disk.name, "")) for disk in machine.disks)
    return replace(machine, disks=disks)


def query_in_thread(parts: MachineParts, target: GcpTarget, zone: str) -> Future[Machine | None]:
    """The machine as the cloud shows it; asked in the background, because loading the cloud's library takes seconds."""
    answer: Future[Machine | None] = Future()

    def ask() -> None:
        try:
            answer.set_result(parts.clouds.open(target).machine(zone, target.instance))
        except BaseException as error:  # noqa: BLE001 - handed to whoever looks at the answer
            answer.set_exception(error)

    threading.Thread(target=ask, name="fcctl-cloud", daemon=True).start()
    return answer


@dataclass
class Changes:
    """The cloud's mutations on one target's machine."""

    cloud: Cloud
    clock: Clock
    log: Log
    name: str
    #: How much the cloud's clock is ahead of this one, once an operation has told.
    cloud_ahead_s: float | None = None

    def make(self, action: Action | str, zone: str, change: Callable[[str], Operation], limit_s: float) -> Operation:
        """Ask for a change and see it through; the operation may be refused, or not done after ``limit_s``."""
        request_id = new_request_id()
        self.log("cloud", action=str(action), zone=zone, name=self.name, request_id=request_id)
        asked = self.clock.now()
        operation = change(request_id)
        if operation.started is not None:
            self.cloud_ahead_s = operation.started - asked
        return self._wait(operation, limit_s)

    def _wait(self, operation: Operation, limit_s: float) -> Operation:
        deadline = self.clock.monotonic() + limit_s
        while not operation.done and self.clock.monotonic() < deadline:
            operation = self.cloud.wait(operation, max(1.0, deadline - self.clock.monotonic()))
        return operation
