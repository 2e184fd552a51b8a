"""When a machine was on, as the cloud's own list of operations tells it. Pure.

The list outlives the machine: it says when one that is gone was deleted, and what was started and stopped while nobody
of ours was looking. The real service keeps it for about two weeks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.machines.cloud import Machine, Operation

_STARTS = frozenset({"insert", "bulkInsert", "start", "startWithEncryptionKey", "resume", "automaticRestart"})
_DELETES = frozenset({"delete", "deferredDelete"})
_ENDS = _DELETES | {
    "preempted", "guestTerminate", "deferredStop", "hostError", "terminateOnHostMaintenance", "stop", "suspend",
}  # fmt: skip
#: How far the end of a start's operation may be from the machine's own word on when it started, seconds.
NEAR_START_S = 120.0


@dataclass(frozen=True)
class PowerInterval:
    """One time of being on, epoch seconds of the cloud's clock."""

    started: float
    #: None: the list has no end of it.
    stopped: float | None = None
    #: Who asked for the start, as the cloud names them.
    user: str = ""


def kind(operation: Operation) -> str:
    """``preempted`` of ``compute.instances.preempted``."""
    return operation.type.rpartition(".")[2]


def ends(operation: Operation) -> bool:
    """Whether a machine was off after this one, and nothing had refused it."""
    return operation.refusal is None and operation.collection == "instances" and kind(operation) in _ENDS


def off_at(operations: Iterable[Operation], instance_id: str, started: float) -> float | None:
    """When the machine that was started at ``started`` went off; None if the list does not say."""
    moments = [
        op.finished
        for op in _of(operations, instance_id)
        if ends(op) and op.finished is not None and op.finished >= started
    ]
    return min(moments, default=None)


def deleted_at(operations: Iterable[Operation], instance_id: str) -> float | None:
    """When the machine was deleted; None if the list does not say. Never the deletion of another of its name."""
    moments = [
        op.finished
        for op in operations
        if ends(op) and kind(op) in _DELETES and op.done and op.finished is not None and op.target_id == instance_id
    ]
    return max(moments, default=None)


def times_on(operations: Iterable[Operation], instance_id: str, machine: Machine | None = None) -> list[PowerInterval]:
    """Every time of being on that the list has a start of, the oldest first.

    Args:
        machine: as it is now, if it is there: what it says of its last start is stronger than the list.
    """
    found: list[PowerInterval] = []
    began: PowerInterval | None = None
    for op in sorted(_of(operations, instance_id), key=lambda op: op.finished or 0.0):
        at = op.finished
        if not op.done or op.refusal is not None or at is None or op.collection != "instances":
            continue
        if kind(op) in _STARTS and began is None:
            began = PowerInterval(at, user=op.user)
        elif ends(op) and began is not None:
            found.append(PowerInterval(began.started, at, began.user))
            began = None
    if began is not None:
        found.append(began)
    return _with(found, machine)


def _with(found: list[PowerInterval], machine: Machine | None) -> list[PowerInterval]:
    """The machine's own words on its last start and stop."""
    if machine is None or machine.started is None:
        return found
    stopped = machine.stopped if machine.stopped is not None and machine.stopped >= machine.started else None
    stopped = None if machine.billed else stopped
    at = machine.started
    near = min((one for one in found if abs(one.started - at) <= NEAR_START_S),
               key=lambda one: abs(one.started - at), default=None)  # fmt: skip
    user = near.user if near is not None else ""
    others = [one for one in found if one is not near and one.started < at]
    before = [
        one if one.stopped is not None else PowerInterval(one.started, machine.started, one.user) for one in others
    ]
    return [*before, PowerInterval(machine.started, stopped, user)]


def last_start(operations: Iterable[Operation], instance_id: str) -> Operation | None:
    """The newest start of the machine, one that is under way too; a restart of the cloud's own is none."""
    found = [op for op in _of(operations, instance_id) if kind(op) in _STARTS and kind(op) != "automaticRestart"]
    found = [op for op in found if op.refusal is None and op.collection == "instances"]
    return max(found, key=lambda op: op.finished or op.started or 0.0, default=None)


def last_of(operations: Sequence[Operation], asked: float) -> str | None:
    """The id of the machine whose start was asked for at ``asked`` or later; None if the list has none."""
    starts = [op for op in operations if kind(op) in _STARTS and op.collection == "instances" and op.target_id]
    later = [op for op in starts if (op.finished or op.started or 0.0) >= asked]
    return max(later, key=lambda op: op.started or 0.0).target_id if later else None


def _of(operations: Iterable[Operation], instance_id: str) -> Iterable[Operation]:
    """Those of the machine; an operation that names no id is of whatever has the name."""
    return (op for op in operations if op.target_id in ("", instance_id))


def disk_deleted_at(operations: Iterable[Operation], name: str, since: float) -> float | None:
    """When the disk ``name`` was deleted by itself, ``since`` or later; None if the list does not say."""
    moments = [
        op.finished
        for op in operations
        if (op.collection, op.target, kind(op)) == ("disks", name, "delete")
        and op.done
        and op.refusal is None
        and op.finished is not None
        and op.finished >= since
    ]
    return max(moments, default=None)
