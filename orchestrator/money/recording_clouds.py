"""Clouds that record usage: whatever a workflow sees of a target's machine is written into the book. If the book cannot
be written, machines can be looked at and stopped, but not started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from orchestrator.machines.cloud import BillableResource, Machine, Operation
    from orchestrator.machines.cloud_api import Cloud, Clouds, Login
    from orchestrator.machines.targets import CloudTarget, SandboxTarget
    from orchestrator.money.usage_recorder import UsageRecorder


class RecordingClouds:
    """Any :class:`~orchestrator.machines.cloud_api.Clouds` that records usage. Both are made on first use."""

    def __init__(self, clouds: Callable[[], Clouds], recorder: Callable[[], UsageRecorder]) -> None:
        self._clouds, self._recorder = cache(clouds), cache(recorder)

    def resolve(self, target: CloudTarget | SandboxTarget) -> CloudTarget:
        return self._clouds().resolve(target)

    def if_there(self, target: CloudTarget | SandboxTarget) -> CloudTarget | None:
        return self._clouds().if_there(target)

    def open(self, target: CloudTarget) -> Cloud:
        return cast("Cloud", _RecordingCloud(self._clouds().open(target), target, self._recorder))

    def login(self, target: CloudTarget) -> Login:
        return self._clouds().login(target)


class _RecordingCloud:
    """A cloud that records what it shows of the target's machine, and starts none whose usage cannot be recorded."""

    def __init__(self, cloud: Cloud, target: CloudTarget, recorder: Callable[[], UsageRecorder]) -> None:
        self._cloud, self._target, self._recorder = cloud, target, recorder

    def machine(self, zone: str, name: str) -> Machine | None:
        machine = self._cloud.machine(zone, name)
        self._record([machine] if machine is not None else [])
        return machine

    def machines(self, labels: Mapping[str, str | None]) -> tuple[list[Machine], list[str]]:
        machines, unasked = self._cloud.machines(labels)
        self._record(machines)
        return machines, unasked

    def disks(self, machine: Machine) -> list[BillableResource]:
        disks = self._cloud.disks(machine)
        if machine.name == self._target.instance:
            self._recorder().record_disks(self._target, machine, disks)
        return disks

    def operations(self, zone: str, name: str) -> list[Operation]:
        operations = self._cloud.operations(zone, name)
        if name == self._target.instance:
            self._recorder().record_operations(self._target, zone, operations)
        return operations

    def _record(self, machines: list[Machine]) -> None:
        for machine in machines:
            if machine.name == self._target.instance:
                self._recorder().record_machine(self._target, machine)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._cloud, name)
        if name not in ("create", "start"):
            return method

        def start(*args: Any) -> Any:
            self._recorder().check()
            return method(*args)

        return start
