"""Operations: PENDING, RUNNING, DONE, and their steps.

An operation is a list of steps, each with a time. Steps are named functions, so that an unfinished operation can be
saved and continued by a restarted emulator.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from orchestrator.emulator.core.clock import timestamp
from orchestrator.emulator.core.faults import Fault
from orchestrator.emulator.core.refusals import OperationError
from orchestrator.emulator.core.resources import last, link, new_id
from orchestrator.emulator.core.world import Operation, Step, World

Effect = Callable[..., None]
#: name -> ``effect(world, operation, **args)``, called with the world locked; may raise OperationError.
STEPS: dict[str, Effect] = {}
#: The step with an intermediate status. An operation that never finishes stops before it.
MARK = "mark"
Plan = Sequence[tuple[float, str, dict[str, Any]]]
#: The limit of finished operations; beyond it the oldest half is deleted. The real service keeps them two weeks.
KEPT = 2000


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
    if fault is not None and fault.kind == "never_finish":
        return steps[:marks]
    if error is None:
        return [*steps, (0.0, "finish", {})]
    ending = (0.0, "fail", {"fields": error.fields()})
    if fault is not None and fault.applied:
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
