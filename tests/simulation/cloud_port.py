"""What one controller sees of the simulated cloud, and the book that its computer keeps of machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from orchestrator.base.clock import Clock
from orchestrator.machines.cloud import IN_FLIGHT_S, Endpoint, Machine, MachineSpec, Operation
from orchestrator.machines.interfaces import Login
from orchestrator.machines.targets import GcpTarget, SandboxTarget
from orchestrator.providers.gcp.cloud import GcpCloud
from tests.simulation.cloud import PROJECT, SimulatedCloud
from tests.simulation.core_api import CoreApi
from tests.simulation.laptop import VirtualClock
from tests.simulation.world import Actor, Violation, World

T = TypeVar("T")


class CoreCloud(GcpCloud):
    """Google's cloud, whose requests the core answers."""

    def __init__(self, truth: SimulatedCloud, clock: Clock) -> None:
        super().__init__(PROJECT, None, clock)
        self._api = CoreApi(truth, PROJECT, clock)


def _effect(name: str) -> Any:
    """A method of the cloud, at whose call a fault may strike."""
    return lambda self, *args: self._do(name, lambda: getattr(self._cloud, name)(*args))


class CloudPort:
    """:class:`orchestrator.machines.interfaces.Cloud` for one controller."""

    def __init__(self, truth: SimulatedCloud, actor: Actor) -> None:
        self._truth = truth
        self._world = truth.world
        self._actor = actor
        self._cloud = CoreCloud(truth, VirtualClock(truth.world, actor))

    def _do(self, name: str, action: Callable[[], T]) -> T:
        return self._world.effect(self._actor, f"cloud.{name}", action, via="cloud")

    machine, machines, operations = map(_effect, ("machine", "machines", "operations"))
    stop, snapshot, has_snapshot = map(_effect, ("stop", "snapshot", "has_snapshot"))
    set_max_run, set_labels, set_metadata = map(_effect, ("set_max_run", "set_labels", "set_metadata"))
    guest_attributes, billable_resources = map(_effect, ("guest_attributes", "billable_resources"))

    def __getattr__(self, name: str) -> Any:
        """The others take no time, so that they are no place for a fault."""
        return getattr(self._cloud, name)

    def create(self, zone: str, spec: MachineSpec, request_id: str) -> Operation:
        return self._do("create", lambda: self._create(zone, spec, request_id))

    def _create(self, zone: str, spec: MachineSpec, request_id: str) -> Operation:
        truth = self._truth
        # Two computers cannot know of each other; they find out once both machines are there.
        own = [i for i in truth.instances.values() if i.made_on in ("", self._actor.computer)]
        if spec.snapshot is not None:  # what a copy is made of stays, off
            own = [i for i in own if i.status != "TERMINATED"]
        before = set(truth.known)
        operation = self._started(self._cloud.create(zone, spec, request_id), zone, spec.name)
        for instance in truth.instances.values():
            if instance.id in before:
                continue
            instance.made_on = self._actor.computer
            if any(i.name == spec.name for i in own):
                raise Violation(f"a second {spec.name} is being created, in {zone}")
        return operation

    def start(self, machine: Machine, request_id: str) -> Operation:
        def ask() -> Operation:
            return self._started(self._cloud.start(machine, request_id), machine.zone, machine.name)

        return self._do("start", ask)

    def _started(self, operation: Operation, zone: str, name: str) -> Operation:
        instance = self._truth.instances.get((zone, name))
        if operation.refusal is None and instance is not None:
            if instance.limit_s is None:
                raise Violation(f"{name} was started (fcctl) without a time limit of the cloud's")
            self._truth.asked.setdefault(operation.name, self._actor.name)
        return operation

    def delete(self, machine: Machine, request_id: str) -> Operation:
        def ask() -> Operation:
            instance = self._truth.instances.get((machine.zone, machine.name))
            if instance is not None:
                self._truth.before_delete(instance)
            return self._cloud.delete(machine, request_id)

        return self._do("delete", ask)

    def wait(self, operation: Operation, timeout_s: float) -> Operation:
        return self._do("wait", lambda: self._cloud.wait(operation, min(timeout_s, 110.0)))

    def delete_snapshot(self, name: str, request_id: str) -> Operation:
        def ask() -> Operation:
            if name in self._truth.snapshots:
                self._truth.before_delete_snapshot(self._truth.snapshots[name])
            return self._cloud.delete_snapshot(name, request_id)

        return self._do("delete_snapshot", ask)


class CloudsPort:
    """:class:`orchestrator.machines.interfaces.Clouds`."""

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
        asked = self._world.asked.get((self._actor.computer, name))
        if asked is not None and self._world.now - asked < IN_FLIGHT_S:
            yield False
            return
        if alone:
            self._locks[project, name] = self._actor
        try:
            yield alone
        finally:
            if alone and self._locks.get((project, name)) is self._actor:
                del self._locks[project, name]

    @contextmanager
    def asking(self, project: str, name: str) -> Iterator[None]:
        """A file that stays if its process is killed."""
        del project
        self._world.asked[self._actor.computer, name] = self._world.now
        try:
            yield
        finally:
            if self._actor.alive:
                self._world.asked.pop((self._actor.computer, name), None)

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
