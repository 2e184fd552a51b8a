"""What the emulator holds, and the operations that change it."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.emulator.clock import EmulatedClock, Timeline, timestamp
from orchestrator.emulator.processes import Guardian
from orchestrator.emulator.refusals import ApiError, OperationError, check_name, labelled, last, link, new_id
from orchestrator.emulator.scenario import Fault, Scenario

STATE_VERSION = 1


@dataclass
class Machine:
    """One instance: the resource that clients see, and the emulator's own data."""

    path: str
    resource: dict[str, Any]
    #: Incremented with every change of power, so that an event of an earlier life is ignored.
    life: int = 0
    port: int | None = None
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

    @property
    def done(self) -> bool:
        return bool(self.resource["status"] == "DONE")


class World:
    """The resources by path (``projects/P/zones/Z/instances/I``), the clock, the lock.

    Functions of other modules that change a world hold :attr:`lock`.
    """

    def __init__(self, folder: Path, clock: EmulatedClock, scenario: Scenario) -> None:
        self.folder = folder
        self.clock = clock
        self.scenario = scenario
        self.lock = threading.RLock()
        self.timeline = Timeline(clock, self.lock)
        self.machines: dict[str, Machine] = {}
        self.disks: dict[str, dict[str, Any]] = {}
        self.snapshots: dict[str, dict[str, Any]] = {}
        self.addresses: dict[str, dict[str, Any]] = {}
        self.operations: dict[str, Operation] = {}
        #: project and requestId -> digest of the request, path of its operation
        self.requests: dict[str, tuple[str, str]] = {}
        #: Guest token -> machine path, while the power is on.
        self.guests: dict[str, str] = {}
        #: How an sshd reaches this emulator; known once it listens.
        self.url = ""
        #: machine path -> its running guest
        self.running: dict[str, Any] = {}
        self.secret = ""
        #: Ends the machines if this process is killed.
        self.guardian = Guardian()
        #: Makes what is on the disk of a machine that boots; None: this computer's programs are the machine's.
        self.make_disk: Callable[[Path], object] | None = None

    def now(self) -> float:
        return self.clock.now()

    def later(self, delay: float, event: Callable[[], None]) -> None:
        self.timeline.at(self.now() + delay, event)

    # ------------------------------------------------------------------------------------------------ on disk
    def save(self) -> None:
        """Writes the state atomically."""
        with self.lock:
            state = {
                "version": STATE_VERSION,
                "now": self.now(),
                "secret": self.secret,
                "machines": [asdict(machine) for machine in self.machines.values()],
                "disks": self.disks,
                "snapshots": self.snapshots,
                "addresses": self.addresses,
                "operations": [asdict(operation) for operation in self.operations.values()],
                "requests": self.requests,
            }
            target = self.folder / "state.json"
            fresh = self.folder / "state.json.new"
            fresh.write_text(json.dumps(state), encoding="utf-8")
            fresh.chmod(0o600)
            fresh.replace(target)

    def load(self) -> float | None:
        """Loads the state of an earlier emulator; returns its time, or None if there was none. Raises ValueError: an
        invalid file."""
        try:
            state = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
            raise ValueError(f"{self.folder / 'state.json'} was written by another version of the emulator")
        for value in state["machines"]:
            machine = Machine(**value)
            self.machines[machine.path] = machine
        for value in state["operations"]:
            steps = [Step(**step) for step in value.pop("steps")]
            operation = Operation(**value, steps=steps)
            self.operations[operation.path] = operation
        self.disks, self.snapshots = state["disks"], state["snapshots"]
        self.addresses = state.get("addresses", {})
        self.requests = {key: (digest, answer) for key, (digest, answer) in state["requests"].items()}
        self.secret = state["secret"]
        return float(state["now"])


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
        "id": new_id(),
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
    path = f"{_parent(target)}/operations/operation-{int(now * 1000)}-{secrets.token_hex(8)}"
    resource: dict[str, Any] = {
        "kind": "compute#operation",
        "id": new_id(),
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
    due = now
    for delay, name, args in _with_fault(world, plan, undo, fault, error):
        due += delay
        operation.steps.append(Step(due, name, args))
    _forget_old(world)
    world.operations[path] = operation
    schedule(world, operation)
    world.save()
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
    world.save()


@step
def run(world: World, operation: Operation) -> None:
    operation.resource.update(status="RUNNING", startTime=timestamp(world.now()))


@step
def finish(world: World, operation: Operation) -> None:
    now = timestamp(world.now())
    operation.resource.setdefault("startTime", now)
    operation.resource.update(status="DONE", progress=100, endTime=now)
    operation.steps.clear()


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
