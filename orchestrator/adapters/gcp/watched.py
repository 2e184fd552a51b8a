"""Clouds whose machines are written into the ledger whenever anybody looks at them.

Whoever waits for a machine, wakes, stops, lists or audits it gets the cloud's own words on when it was started and
stopped. They are noted here, in one place, so that no workflow has to think of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from orchestrator.domain.cloud import Machine
from orchestrator.domain.target import GcpTarget, SandboxTarget
from orchestrator.ports import Cloud, Clouds, Login

Seen = Callable[[GcpTarget, Machine], None]


class WatchedClouds:
    """Any :class:`~orchestrator.ports.Clouds`, with ``seen`` told of the machine that a target means."""

    def __init__(self, clouds: Clouds, seen: Seen) -> None:
        self._clouds = clouds
        self._seen = seen

    def resolve(self, target: GcpTarget | SandboxTarget) -> GcpTarget:
        return self._clouds.resolve(target)

    def if_there(self, target: GcpTarget | SandboxTarget) -> GcpTarget | None:
        return self._clouds.if_there(target)

    def open(self, target: GcpTarget) -> Cloud:
        return cast("Cloud", _Watched(self._clouds.open(target), target, self._seen))

    def login(self, target: GcpTarget) -> Login:
        return self._clouds.login(target)


class _Watched:
    """A cloud: two of its methods show machines, the others are its own."""

    def __init__(self, cloud: Cloud, target: GcpTarget, seen: Seen) -> None:
        self._cloud = cloud
        self._target = target
        self._tell = seen

    def machine(self, zone: str, name: str) -> Machine | None:
        found = self._cloud.machine(zone, name)
        self._see([found] if found is not None else [])
        return found

    def machines(self, labels: Mapping[str, str | None]) -> tuple[list[Machine], list[str]]:
        found, unasked = self._cloud.machines(labels)
        self._see(found)
        return found, unasked

    def _see(self, machines: list[Machine]) -> None:
        for machine in machines:
            if machine.name == self._target.instance:
                self._tell(self._target, machine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cloud, name)
