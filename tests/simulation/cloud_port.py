"""What one controller sees of the simulated cloud, and the book that its computer keeps of machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from orchestrator.machines.cloud import (
    BillableResource,
    Disk,
    Endpoint,
    Machine,
    MachineSpec,
    Operation,
    Power,
    Quota,
    Remedy,
)
from orchestrator.machines.cloud_api import Login
from orchestrator.machines.targets import GcpTarget, SandboxTarget
from tests.simulation.cloud import Instance, SimulatedCloud
from tests.simulation.world import Actor, Violation, World

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ3pPfbhJ7qjWtT0bBkTLLNwZ0oDDvVDyzYn8WrRmgfh"


class _Gone(Exception):
    """Somebody deleted the machine that a request is about."""

    def __init__(self, zone: str, name: str) -> None:
        super().__init__(name)
        self.zone, self.name = zone, name


class CloudPort:
    """:class:`orchestrator.machines.cloud_api.Cloud` for one controller."""

    def __init__(self, truth: SimulatedCloud, actor: Actor) -> None:
        self._truth = truth
        self._world = truth.world
        self._actor = actor

    def _do(self, name: str, action: Callable[[], object]) -> object:
        return self._world.effect(self._actor, f"cloud.{name}", action, via="cloud")

    def machine(self, zone: str, name: str) -> Machine | None:
        found = self._do("machine", lambda: self._truth.instances.get((zone, name)))
        return found.view if isinstance(found, Instance) else None

    def machines(self, labels: Mapping[str, str | None]) -> tuple[list[Machine], list[str]]:
        def find() -> list[Machine]:
            return [
                i.view
                for i in self._truth.instances.values()
                if all(k in i.view.labels and v in (None, i.view.labels[k]) for k, v in labels.items())
            ]

        return self._do("machines", find), []  # type: ignore[return-value]

    def create(self, zone: str, spec: MachineSpec, request_id: str) -> Operation:
        return self._request("create", request_id, lambda: self._create(zone, spec))

    def _create(self, zone: str, spec: MachineSpec) -> Operation:
        truth, world = self._truth, self._world
        if (zone, spec.name) in truth.instances:
            return truth.refused("insert", zone, spec.name, "RESOURCE_ALREADY_EXISTS", Remedy.LOOK_AGAIN)
        if not world.has_stock(zone):
            return truth.refused("insert", zone, spec.name, "ZONE_RESOURCE_POOL_EXHAUSTED", Remedy.NEXT_ZONE)
        # Two computers cannot know of each other; they find out once both machines are there.
        own = [i for i in truth.instances.values() if i.made_on in ("", self._actor.computer)]
        if spec.snapshot is not None:  # what a copy is made of stays, off
            own = [i for i in own if i.view.power is not Power.STOPPED]
        if any(i.view.name == spec.name for i in own):
            raise Violation(f"a second {spec.name} is being created, in {zone}")
        view = Machine(
            "sim-project", zone, spec.name, str(next(truth._numbers)), "STAGING", spec.target.machine_type,
            labels=dict(spec.labels), metadata=dict(spec.metadata), spot=spec.spot, created=world.now,
            max_run_s=spec.max_run_s, termination_action="STOP",
            disks=(Disk(spec.name, "d", True, spec.target.disk_gb, True),),
        )  # fmt: skip
        if spec.snapshot is not None and spec.snapshot not in truth.snapshots:
            return truth.refused("insert", zone, spec.name, "resourceNotFound", Remedy.FATAL)
        instance = Instance(view, made_on=self._actor.computer, made_of=spec.snapshot or "")
        truth.instances[zone, spec.name] = instance
        world.on["made"]()
        on = partial(truth.power_on, instance, "fcctl", self._actor.name)
        return truth.operation("insert", zone, spec.name, 12.0, on, view.id)

    def start(self, machine: Machine, request_id: str) -> Operation:
        def make() -> Operation:
            instance, truth, world = self._of(machine), self._truth, self._world
            if instance.view.power is not Power.STOPPED:
                return truth.refused("start", machine.zone, machine.name, "resourceNotReady", Remedy.NOT_READY)
            if not world.has_stock(machine.zone):
                return truth.refused(
                    "start", machine.zone, machine.name, "ZONE_RESOURCE_POOL_EXHAUSTED", Remedy.NEXT_ZONE
                )
            truth.change(instance, status="STAGING")
            on = partial(truth.power_on, instance, "fcctl", self._actor.name)
            return truth.operation("start", machine.zone, machine.name, 8.0, on, instance.view.id)

        return self._request("start", request_id, make)

    def stop(self, machine: Machine, request_id: str) -> Operation:
        def make() -> Operation:
            instance, truth = self._of(machine), self._truth
            if instance.view.power is Power.STOPPED:
                return truth.operation("stop", machine.zone, machine.name, 0.5, lambda: None, instance.view.id)
            truth.go_down(instance)
            off = partial(truth.off, instance)
            return truth.operation("stop", machine.zone, machine.name, self._world.stop_seconds, off, instance.view.id)

        return self._request("stop", request_id, make)

    def delete(self, machine: Machine, request_id: str) -> Operation:
        def make() -> Operation:
            if (machine.zone, machine.name) not in self._truth.instances:
                return self._truth.refused("delete", machine.zone, machine.name, "notFound", Remedy.FATAL)
            instance, truth = self._of(machine), self._truth
            truth.before_delete(instance)
            truth.go_down(instance)

            def gone() -> None:
                truth.off(instance)
                if truth.instances.pop((machine.zone, machine.name), None) is not None:
                    truth.deleted.append(instance)

            return truth.operation("delete", machine.zone, machine.name, 15.0, gone, instance.view.id)

        return self._request("delete", request_id, make)

    def set_max_run(self, machine: Machine, seconds: int, request_id: str) -> Operation:
        def make() -> Operation:
            instance, truth = self._of(machine), self._truth
            if instance.view.power is not Power.STOPPED:
                return truth.refused("setScheduling", machine.zone, machine.name, "invalid", Remedy.FATAL)
            truth.change(instance, max_run_s=seconds, termination_action="STOP")
            return truth.operation("setScheduling", machine.zone, machine.name, 0.5, lambda: None, instance.view.id)

        return self._request("set_max_run", request_id, make)

    def set_labels(self, machine: Machine, labels: Mapping[str, str], request_id: str) -> Operation:
        return self._merge("set_labels", machine, "labels", labels, request_id)

    def set_metadata(self, machine: Machine, items: Mapping[str, str], request_id: str) -> Operation:
        return self._merge("set_metadata", machine, "metadata", items, request_id)

    def _merge(self, name: str, machine: Machine, key: str, items: Mapping[str, str], request_id: str) -> Operation:
        def make() -> Operation:
            instance, truth = self._of(machine), self._truth
            truth.change(instance, **{key: {**getattr(instance.view, key), **items}})
            return truth.operation(name, machine.zone, machine.name, 0.5, lambda: None, instance.view.id)

        return self._request(name, request_id, make)

    def wait(self, operation: Operation, timeout_s: float) -> Operation:
        def look() -> Operation:
            until = self._world.now + min(timeout_s, 110.0)
            while not self._truth.operations[operation.name].done and self._world.now < until:
                self._world.advance(1.0)
            return self._truth.operations[operation.name]

        return self._do("wait", look)  # type: ignore[return-value]

    def operations(self, zone: str, name: str) -> list[Operation]:
        def find() -> list[Operation]:
            return [self._truth.operations.get(o.name, o) for o in reversed(self._truth.history) if o.target == name]

        return self._do("operations", find)  # type: ignore[return-value]

    def guest_attributes(self, machine: Machine, path: str) -> dict[str, str]:
        kind, key = HOST_KEY.split()

        def published() -> dict[str, str]:
            there = self._truth.instances.get((machine.zone, machine.name))
            return {kind: key} if there is not None and there.boots else {}

        return self._do("guest_attributes", published)  # type: ignore[return-value]

    def serial_output(self, machine: Machine) -> str:
        return ""

    def snapshot(self, machine: Machine, name: str, request_id: str) -> Operation:
        def make() -> Operation:
            take = partial(self._truth.take_snapshot, self._of(machine), name)
            return self._truth.operation("snapshot", None, name, 30.0, take)

        return self._request("snapshot", request_id, make)

    def delete_snapshot(self, name: str, request_id: str) -> Operation:
        def make() -> Operation:
            truth = self._truth
            if name in truth.snapshots:
                truth.before_delete_snapshot(truth.snapshots[name])
            return truth.operation("delete", None, name, 3.0, lambda: truth.snapshots.pop(name, None))

        return self._request("delete_snapshot", request_id, make)

    def has_snapshot(self, name: str) -> bool:
        return bool(self._do("has_snapshot", lambda: name in self._truth.snapshots))

    def disks(self, machine: Machine) -> list[BillableResource]:
        """Takes no time, so that it is no place for a fault."""
        names = {disk.name for disk in machine.disks}
        return [one for one in self._truth.resources() if one.place == machine.zone and one.name in names]

    def billable_resources(self) -> tuple[list[BillableResource], list[str]]:
        return self._do("leftovers", self._truth.resources), []  # type: ignore[return-value]

    def quotas(self, region: str) -> list[Quota]:
        return []

    def firewall_allows_iap(self, network: str) -> bool | None:
        return None

    def _request(self, name: str, request_id: str, make: Callable[[], Operation]) -> Operation:
        def ask() -> Operation:
            try:
                return self._truth.request(request_id, make)
            except _Gone as gone:
                return self._truth.refused(name, gone.zone, gone.name, "notFound", Remedy.LOOK_AGAIN)

        return self._do(name, ask)  # type: ignore[return-value]

    def _of(self, machine: Machine) -> Instance:
        found = self._truth.instances.get((machine.zone, machine.name))
        if found is None:
            raise _Gone(machine.zone, machine.name)
        return found


class CloudsPort:
    """:class:`orchestrator.machines.cloud_api.Clouds`."""

    def __init__(self, truth: SimulatedCloud, actor: Actor, identity: Login) -> None:
        self._truth, self._actor, self._identity = truth, actor, identity

    def if_there(self, target: GcpTarget | SandboxTarget) -> GcpTarget | None:
        return target if isinstance(target, GcpTarget) else None

    def resolve(self, target: GcpTarget | SandboxTarget) -> GcpTarget:
        assert isinstance(target, GcpTarget)
        return target

    def open(self, target: GcpTarget) -> CloudPort:
        return CloudPort(self._truth, self._actor)

    def login(self, target: GcpTarget) -> Login:
        return self._identity


class Book:
    """``MachineBook``: a file of this computer's, so a killed process leaves it whole."""

    def __init__(
        self, world: World, actor: Actor, pages: dict[tuple[str, str], Endpoint], locks: dict[tuple[str, str], Actor]
    ) -> None:
        self._world, self._actor, self._pages, self._locks = world, actor, pages, locks

    @contextmanager
    def turning_on(self, project: str, name: str) -> Iterator[bool]:
        """A lock of the kernel's: whoever is dead has none."""
        owner = self._locks.get((project, name))
        alone = owner is None or not owner.alive
        if alone:
            self._locks[project, name] = self._actor
        try:
            yield alone
        finally:
            if alone and self._locks.get((project, name)) is self._actor:
                del self._locks[project, name]

    def known(self, project: str, name: str) -> Endpoint | None:
        return self._pages.get((project, name))

    def remember(self, endpoint: Endpoint, *, instead_of: Endpoint | None = None) -> None:
        if instead_of is not None and self.known(endpoint.project, endpoint.name) != instead_of:
            return
        self._world.effect(
            self._actor, "book.remember",
            lambda: self._pages.__setitem__((endpoint.project, endpoint.name), endpoint), via="disk",
        )  # fmt: skip

    def forget(self, project: str, name: str) -> None:
        self._world.effect(self._actor, "book.forget", lambda: self._pages.pop((project, name), None), via="disk")

    def pinned_elsewhere(self, instance_id: str) -> tuple[str, ...]:
        return ()
