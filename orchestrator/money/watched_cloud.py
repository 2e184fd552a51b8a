"""Clouds that record usage: whatever a workflow sees of a target's machine is written into the book. If the book cannot
be written, machines can be looked at and stopped, but not started."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast

from orchestrator.base.errors import DiskError

if TYPE_CHECKING:
    from orchestrator.machines.cloud import BillableResource, Machine, MachineSpec, Operation
    from orchestrator.machines.cloud_api import Cloud, Clouds, Login
    from orchestrator.machines.targets import GcpTarget, SandboxTarget


class Witness(Protocol):
    """Is told of what a cloud shows."""

    def see(self, target: GcpTarget, machine: Machine) -> None:
        """The machine that ``target`` means, as it is now."""

    def see_disks(self, target: GcpTarget, machine: Machine, found: list[BillableResource]) -> None:
        """The disks of that machine, as their own entries have them."""

    def hear(self, target: GcpTarget, zone: str, operations: list[Operation]) -> None:
        """All that the cloud remembers to have happened to what has its name there."""


class _Ledger:
    """The witness, and whether it could write."""

    def __init__(self, witness: Callable[[], Witness], note: Callable[[str], None]) -> None:
        self._witness = witness
        self._note = note
        self._failure: DiskError | None = None

    def see(self, target: GcpTarget, machine: Machine) -> None:
        with self._writing() as witness:
            witness.see(target, machine)
            self._failure = None

    def see_disks(self, target: GcpTarget, machine: Machine, found: list[BillableResource]) -> None:
        with self._writing() as witness:
            witness.see_disks(target, machine, found)

    def hear(self, target: GcpTarget, zone: str, operations: list[Operation]) -> None:
        with self._writing() as witness:
            witness.hear(target, zone, operations)

    @contextmanager
    def _writing(self) -> Iterator[Witness]:
        try:
            yield self._witness()
        except DiskError as error:
            if self._failure is None:
                self._note(f"the ledger cannot be written ({error.cause}): fcctl hosts audit adds what it lacks")
            self._failure = error

    def check(self) -> None:
        """Raises DiskError before a start if the last record could not be written."""
        if self._failure is not None:
            raise self._failure


class WatchedClouds:
    """Any :class:`~orchestrator.machines.cloud_api.Clouds` that records usage. Clouds and recorder are made on first
    use; ``note`` is told once if the book cannot be written."""

    def __init__(
        self, clouds: Callable[[], Clouds], witness: Callable[[], Witness], note: Callable[[str], None] = lambda _: None
    ) -> None:
        self._clouds = cache(clouds)
        self._ledger = _Ledger(witness, note)

    def resolve(self, target: GcpTarget | SandboxTarget) -> GcpTarget:
        return self._clouds().resolve(target)

    def if_there(self, target: GcpTarget | SandboxTarget) -> GcpTarget | None:
        return self._clouds().if_there(target)

    def open(self, target: GcpTarget) -> Cloud:
        return cast("Cloud", _Watched(self._clouds().open(target), target, self._ledger))

    def login(self, target: GcpTarget) -> Login:
        return self._clouds().login(target)


class _Watched:
    """A cloud that records what it shows and refuses to start a machine whose usage cannot be recorded."""

    def __init__(self, cloud: Cloud, target: GcpTarget, ledger: _Ledger) -> None:
        self._cloud = cloud
        self._target = target
        self._ledger = ledger

    def machine(self, zone: str, name: str) -> Machine | None:
        found = self._cloud.machine(zone, name)
        self._see([found] if found is not None else [])
        return found

    def machines(self, labels: Mapping[str, str | None]) -> tuple[list[Machine], list[str]]:
        found, unasked = self._cloud.machines(labels)
        self._see(found)
        return found, unasked

    def disks(self, machine: Machine) -> list[BillableResource]:
        found = self._cloud.disks(machine)
        if machine.name == self._target.instance:
            self._ledger.see_disks(self._target, machine, found)
        return found

    def operations(self, zone: str, name: str) -> list[Operation]:
        found = self._cloud.operations(zone, name)
        if name == self._target.instance:
            self._ledger.hear(self._target, zone, found)
        return found

    def create(self, zone: str, spec: MachineSpec, request_id: str) -> Operation:
        self._ledger.check()
        return self._cloud.create(zone, spec, request_id)

    def start(self, machine: Machine, request_id: str) -> Operation:
        self._ledger.check()
        return self._cloud.start(machine, request_id)

    def resume(self, machine: Machine, request_id: str) -> Operation:
        self._ledger.check()
        return self._cloud.resume(machine, request_id)

    def _see(self, machines: list[Machine]) -> None:
        for machine in machines:
            if machine.name == self._target.instance:
                self._ledger.see(self._target, machine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cloud, name)
