"""The core of the emulated cloud: its resources, the operations that change them, and what it bills."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from orchestrator.emulator.clock import timestamp
from orchestrator.emulator.refusals import ApiError, OperationError, check_name, labelled, last, link, new_id
from orchestrator.emulator.scenario import Fault, Scenario

#: The status of an instance whose creation is pending: clients do not see it.
REQUESTED = "REQUESTED"


@dataclass
class Machine:
    """One instance: the resource that clients see, and the emulator's own data."""

    path: str
    resource: dict[str, Any]
    #: Incremented with every change of power, so that an event of an earlier life is ignored.
    life: int = 0
    port: int | None = None
    #: Whether its system has been up once.
    booted: bool = False
    guest_attributes: dict[str, str] = field(default_factory=dict)
    #: The guest's timers: unit -> when it powers off, emulated seconds since the epoch.
    timers: dict[str, float] = field(default_factory=dict)
    #: The folder of the running sshd; deleted with the power.
    volatile: str | None = None
    #: Why its system has not booted; its serial output.
    boot_error: str = ""

    @property
    def status(self) -> str:
        return str(self.resource["status"])

    @property
    def zone(self) -> str:
        return self.path.split("/")[3]

    def metadata(self) -> dict[str, str]:
        return {item["key"]: item["value"] for item in self.resource["metadata"].get("items", [])}


@dataclass
class Step:
    """A step of an operation, at a time."""

    due: float
    name: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class Operation:
    """``target`` is the path of the resource; ``steps`` are still to be executed."""

    path: str
    resource: dict[str, Any]
    target: str
    steps: list[Step] = field(default_factory=list)
    #: The instance before it, if reads are to be late; None: it did not exist.
    before: dict[str, Any] | None = None

    @property
    def done(self) -> bool:
        return bool(self.resource["status"] == "DONE")


class Time(Protocol):
    """The time of a world, real or virtual, and what happens later in it."""

    @property
    def lock(self) -> AbstractContextManager[object]:
        """Held by whatever changes the world."""

    def now(self) -> float:
        """Seconds since the epoch."""

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Calls ``event`` once at ``when``, with the lock held. The event itself checks whether it still applies."""

    def wait(self, until: float, done: Callable[[], bool], *, real_limit_s: float) -> None:
        """Blocks until ``done()``, the moment ``until``, or ``real_limit_s`` real seconds have passed."""


class Hypervisor(Protocol):
    """Runs the machines' operating systems and stores the contents of disks. Callers hold the world's lock."""

    def boot(self, machine: Machine, disk: dict[str, Any]) -> None:
        """From its boot disk. Raises OSError: its system does not boot."""

    def shut_down(self, machine: Machine) -> None:
        """Ends its system; the power is still on."""

    def power_off(self, machine: Machine) -> None:
        """Ends its system at once; the contents of its memory are lost. Does nothing if the machine is off."""

    def freeze(self, machine: Machine) -> None: ...

    def thaw(self, machine: Machine) -> bool:
        """False if its memory was lost."""

    def authorize(self, machine: Machine) -> None:
        """Gives its system the SSH keys of the metadata, if it is up."""

    def host_keys(self, machine: Machine) -> dict[str, str]:
        """Key type (``ssh-ed25519``) -> base64 key."""

    def login(self, machine: Machine) -> tuple[int, str] | None:
        """The port of its SSH server on this computer, and the user name; None if it accepts no login."""

    def serial_output(self, machine: Machine) -> str: ...

    def fill_disk(self, disk: dict[str, Any]) -> None:
        """From the disk's snapshot, if it has one."""

    def delete_disk(self, disk: dict[str, Any]) -> None: ...

    def take_snapshot(self, snapshot: dict[str, Any], disk: dict[str, Any]) -> int:
        """Copies the disk; returns the bytes stored."""

    def delete_snapshot(self, snapshot: dict[str, Any]) -> None: ...


@dataclass
class BilledTime:
    """A time that the cloud bills a machine for: from RUNNING until its power is off."""

    machine_id: str
    name: str
    #: The operation that turned it on; empty: none.
    operation: str
    since: float
    until: float | None = None


class World:
    """The resources by path (``projects/P/zones/Z/instances/I``), without threads, files and processes of its own.

    Functions of other modules that change a world hold :attr:`lock`.
    """

    def __init__(
        self, scenario: Scenario, timeline: Time, hypervisor: Hypervisor, rng: random.Random | None = None
    ) -> None:
        """Args: rng: makes the ids of resources; the system's, if None."""
        self.scenario = scenario
        self.timeline = timeline
        self.lock = timeline.lock
        self.hypervisor = hypervisor
        self.rng = rng or random.SystemRandom()
        self.machines: dict[str, Machine] = {}
        self.disks: dict[str, dict[str, Any]] = {}
        self.snapshots: dict[str, dict[str, Any]] = {}
        self.addresses: dict[str, dict[str, Any]] = {}
        self.operations: dict[str, Operation] = {}
        #: project and requestId -> digest of the request, path of its operation
        self.requests: dict[str, tuple[str, str]] = {}
        self.billed: list[BilledTime] = []
        #: Path of an instance -> what reads still show of it, and until when.
        self._late: dict[str, tuple[dict[str, Any] | None, float]] = {}
        #: Called after each change, with the lock held.
        self.changed: Callable[[], None] = lambda: None
        #: How late maxRunDuration is enforced, seconds.
        self.lateness: Callable[[], float] = lambda: self.scenario.latency.expiry_lateness

    def now(self) -> float:
        return self.timeline.now()

    def later(self, delay: float, event: Callable[[], None]) -> None:
        self.timeline.at(self.now() + delay, event)

    def late(self, path: str) -> tuple[bool, dict[str, Any] | None]:
        """Whether reads of an instance are late, and what they show: None if it did not exist then."""
        before, until = self._late.get(path, (None, 0.0))
        return self.now() < until, before

    def make_late(self, operation: Operation) -> None:
        """For a while, reads show the instance as it was before the operation."""
        if self.scenario.stale_s > 0 and "error" not in operation.resource and _is_power(operation):
            self._late[operation.target] = operation.before, self.now() + self.scenario.stale_s

    def end_billing(self, machine: Machine) -> None:
        for time in self.billed:
            if time.machine_id == machine.resource["id"] and time.until is None:
                time.until = self.now()


Effect = Callable[..., None]
#: name -> ``effect(world, operation, **args)``, called with the world locked; may raise OperationError.
STEPS: dict[str, Effect] = {}
#: The step with an intermediate status. An operation that never finishes stops before it.
MARK = "mark"
Plan = Sequence[tuple[float, str, dict[str, Any]]]
#: The limit of finished operations; beyond it the oldest half is deleted. The real service keeps them two weeks.
KEPT = 2000


def new_resource(world: World, kind: str, folder: str, given: dict[str, Any], among: Container[str]) -> dict[str, Any]:
    """What every resource begins with; ``given`` has its name and labels, ``folder`` is the path above the name. Raises
    ApiError: a wrong name or labels, or it exists."""
    path = f"{folder}/{check_name(given.get('name'))}"
    if path in among:
        raise ApiError("alreadyExists", f"The resource '{path}' already exists")
    return {
        "kind": f"compute#{kind}",
        "id": new_id(world.rng),
        "name": given["name"],
        "selfLink": link(path),
        "creationTimestamp": timestamp(world.now()),
        **labelled(given),
    }


def step(function: Effect) -> Effect:
    """Register a step under the function's name."""
    STEPS[function.__name__] = function
    return function


def begin(
    world: World,
    kind: str,
    target: str,
    plan: Plan,
    *,
    target_id: str = "",
    undo: Plan = (),
    fault: Fault | None = None,
    error: OperationError | None = None,
    user: str = "emulator@example.com",
) -> Operation:
    """Start an operation.

    Args:
        kind: ``operationType``: insert, start, compute.instances.preempted, ...
        target: path of the resource it works on.
        plan: (seconds after the step before, step, its arguments).
        undo: what puts things back if a scripted fault makes it fail.
        error: what it ends with, if a scripted fault says so.
    """
    now = world.now()
    path = f"{_parent(target)}/operations/operation-{int(now * 1000)}-{world.rng.getrandbits(64):016x}"
    resource: dict[str, Any] = {
        "kind": "compute#operation",
        "id": new_id(world.rng),
        "name": last(path),
        "operationType": kind,
        "targetLink": link(target),
        "targetId": target_id or "0",
        "status": "PENDING",
        "user": user,
        "progress": 0,
        "insertTime": timestamp(now),
        "selfLink": link(path),
    }
    if "/zones/" in path:
        resource["zone"] = link(_parent(path.rsplit("/", 1)[0]))
    operation = Operation(path, resource, target)
    if kind != "insert" and target in world.machines:  # for reads that show the state before this operation
        operation.before = copy.deepcopy(world.machines[target].resource)
    due = now
    for delay, name, args in _with_fault(world, plan, undo, fault, error):
        due += delay
        operation.steps.append(Step(due, name, args))
    _forget_old(world)
    world.operations[path] = operation
    schedule(world, operation)
    world.changed()
    return operation


def _forget_old(world: World) -> None:
    """Limits the number of finished operations."""
    if len(world.operations) < KEPT:
        return
    old = [path for path, operation in world.operations.items() if operation.done][: KEPT // 2]
    for path in old:
        del world.operations[path]
    forgotten = set(old)
    world.requests = {key: value for key, value in world.requests.items() if value[1] not in forgotten}


def _with_fault(
    world: World, plan: Plan, undo: Plan, fault: Fault | None, error: OperationError | None
) -> list[tuple[float, str, dict[str, Any]]]:
    steps = [(world.scenario.latency.pending, "run", {}), *plan]
    marks = 1
    while marks < len(steps) and steps[marks][1] == MARK:
        marks += 1
    if fault is not None and fault.do.never_finish:
        return steps[:marks]
    if error is None:
        return [*steps, (0.0, "finish", {})]
    ending = (0.0, "fail", {"fields": error.fields()})
    if fault is not None and fault.do.operation is not None and fault.do.operation.applied:
        return [*steps, ending]
    return [*steps[:marks], *undo, ending]


def schedule(world: World, operation: Operation) -> None:
    """Put the next step on the timeline."""
    if operation.steps and not operation.done:
        world.timeline.at(operation.steps[0].due, partial(_next_step, world, operation))


def _next_step(world: World, operation: Operation) -> None:
    if operation.done or not operation.steps:
        return
    current = operation.steps.pop(0)
    try:
        STEPS[current.name](world, operation, **current.args)
    except OperationError as error:
        fail(world, operation, error.fields())
    schedule(world, operation)
    world.changed()


@step
def run(world: World, operation: Operation) -> None:
    operation.resource.update(status="RUNNING", startTime=timestamp(world.now()))


@step
def finish(world: World, operation: Operation) -> None:
    now = timestamp(world.now())
    operation.resource.setdefault("startTime", now)
    operation.resource.update(status="DONE", progress=100, endTime=now)
    operation.steps.clear()
    world.make_late(operation)


def _is_power(operation: Operation) -> bool:
    kinds = ("insert", "start", "stop", "delete")
    return operation.resource["operationType"] in kinds and "/instances/" in operation.target


def fail(world: World, operation: Operation, fields: dict[str, Any]) -> None:
    """Ends with an error."""
    operation.resource.update(fields)
    finish(world, operation)


STEPS["fail"] = fail


def supersede(world: World, target: str, except_for: Operation | None = None) -> None:
    """Ends the other operations on ``target``: it was deleted or lost its power."""
    for other in world.operations.values():
        if other.target == target and not other.done and other is not except_for:
            error = OperationError("RESOURCE_NOT_READY", f"The resource '{target}' changed during the operation.", 400)
            fail(world, other, error.fields())


def wait(world: World, operation: Operation) -> None:
    """Block until it is DONE, or as long as one call of ``wait`` may last. The world must not be locked."""
    until = world.now() + world.scenario.wait_limit_s
    world.timeline.wait(until, lambda: operation.done, real_limit_s=world.scenario.wait_limit_s)


def _parent(target: str) -> str:
    """``projects/P/zones/Z`` or ``projects/P/global`` of a path below it."""
    parts = target.split("/")
    return "/".join(parts[:4] if parts[2] in ("zones", "regions") else parts[:3])
