"""Clouds whose machines are written into the ledger whenever anybody looks at them.

Whoever waits for a machine, wakes, stops, lists or audits it, or asks what was done to it, gets the cloud's own words
on when it was started and stopped. They are noted here, in one place, so that no workflow has to think of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from orchestrator.machines.cloud import Leftover, Machine, Operation
    from orchestrator.machines.cloud_api import Cloud, Clouds, Login
    from orchestrator.machines.targets import GcpTarget, SandboxTarget


class Witness(Protocol):
    """Is told of what a cloud shows."""

    def see(self, target: GcpTarget, machine: Machine) -> None:
        """The machine that ``target`` means, as it is now."""

    def see_disks(self, target: GcpTarget, machine: Machine, found: list[Leftover]) -> None:
        """The disks of that machine, as their own entries have them."""

    def hear(self, target: GcpTarget, zone: str, operations: list[Operation]) -> None:
        """All that the cloud remembers to have happened to what has its name there."""


class WatchedClouds:
    """Any :class:`~orchestrator.machines.cloud_api.Clouds`, with a witness told of the machine that a target means.

    Both are asked for when there is something to see: many commands look at no machine.
    """

    def __init__(self, clouds: Callable[[], Clouds], witness: Callable[[], Witness]) -> None:
        self._clouds = cache(clouds)
        self._witness = witness

    def resolve(self, target: GcpTarget | SandboxTarget) -> GcpTarget:
        return self._clouds().resolve(target)

    def if_there(self, target: GcpTarget | SandboxTarget) -> GcpTarget | None:
        return self._clouds().if_there(target)

    def open(self, target: GcpTarget) -> Cloud:
        return cast("Cloud", _Watched(self._clouds().open(target), target, self._witness))

    def login(self, target: GcpTarget) -> Login:
        return self._clouds().login(target)


class _Watched:
    """A cloud: four of its methods are listened to, the others are its own."""

    def __init__(self, cloud: Cloud, target: GcpTarget, witness: Callable[[], Witness]) -> None:
        self._cloud = cloud
        self._target = target
        self._witness = witness

    def machine(self, zone: str, name: str) -> Machine | None:
        found = self._cloud.machine(zone, name)
        self._see([found] if found is not None else [])
        return found

    def machines(self, labels: Mapping[str, str | None]) -> tuple[list[Machine], list[str]]:
        found, unasked = self._cloud.machines(labels)
        self._see(found)
        return found, unasked

    def disks(self, machine: Machine) -> list[Leftover]:
        found = self._cloud.disks(machine)
        if machine.name == self._target.instance:
            self._witness().see_disks(self._target, machine, found)
        return found

    def operations(self, zone: str, name: str) -> list[Operation]:
        found = self._cloud.operations(zone, name)
        if name == self._target.instance:
            self._witness().hear(self._target, zone, found)
        return found

    def _see(self, machines: list[Machine]) -> None:
        for machine in machines:
            if machine.name == self._target.instance:
                self._witness().see(self._target, machine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cloud, name)
