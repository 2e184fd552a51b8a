"""When a machine was on, and why it stopped, according to the cloud's list of operations, which outlives the machine by
about two weeks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.base.errors import MachineStopped
from orchestrator.machines.cloud import Machine, Operation, Power
from orchestrator.machines.interfaces import MachineCache
from orchestrator.machines.provision.ready import is_fcctls

_STARTS = frozenset({"insert", "bulkInsert", "start", "startWithEncryptionKey", "resume", "automaticRestart"})
_DELETES = frozenset({"delete", "deferredDelete"})
_ENDS = _DELETES | {
    "preempted", "guestTerminate", "deferredStop", "hostError", "terminateOnHostMaintenance", "stop", "suspend",
}  # fmt: skip
#: The largest difference between the end of a start's operation and the machine's start time, seconds.
NEAR_START_S = 120.0


@dataclass(frozen=True)
class PowerInterval:
    """One interval of being on, epoch seconds of the cloud's clock."""

    started: float
    #: None: the list does not have its end.
    stopped: float | None = None
    #: Who requested the start, as the cloud names them.
    user: str = ""


def kind(operation: Operation) -> str:
    """``preempted`` of ``compute.instances.preempted``."""
    return operation.type.rpartition(".")[2]


def ends(operation: Operation) -> bool:
    """Whether the machine was off after this operation, and it was not refused."""
    return operation.refusal is None and operation.collection == "instances" and kind(operation) in _ENDS


def is_a_start(operation: Operation) -> bool:
    """Whether the machine may have been turned on by it, even if it is reported as refused."""
    return operation.collection == "instances" and kind(operation) in _STARTS


def _happened(operations: Iterable[Operation], instance_id: str) -> Iterable[tuple[float, Operation]]:
    """The operations that changed the machine, with their times. One without an instance id counts for each machine of
    that name."""
    for op in operations:
        ours = op.collection == "instances" and op.target_id in ("", instance_id)
        if ours and op.refusal is None and op.finished is not None:
            yield op.finished, op


def off_at(operations: Iterable[Operation], instance_id: str, started: float) -> float | None:
    """When the machine that was started at ``started`` stopped; None if the list does not say."""
    moments = (at for at, op in _happened(operations, instance_id) if ends(op) and at >= started)
    return min(moments, default=None)


def deleted_at(operations: Iterable[Operation], instance_id: str) -> float | None:
    """When the machine was deleted; None if the list does not say. Not the deletion of another one of its name."""
    happened = ((at, op) for at, op in _happened(operations, instance_id) if op.done and op.target_id == instance_id)
    return max((at for at, op in happened if kind(op) in _DELETES), default=None)


def times_on(operations: Iterable[Operation], instance_id: str, machine: Machine | None = None) -> list[PowerInterval]:
    """Every interval of being on whose start the list has, oldest first. The last start is ``machine``'s, the current
    state, if it exists."""
    intervals: list[PowerInterval] = []
    began: PowerInterval | None = None
    for at, op in sorted(_happened(operations, instance_id), key=lambda pair: pair[0]):
        if op.done and kind(op) in _STARTS and began is None:
            began = PowerInterval(at, user=op.user)
        elif op.done and ends(op) and began is not None:
            intervals.append(PowerInterval(began.started, at, began.user))
            began = None
    if began is not None:
        intervals.append(began)
    return _with(intervals, machine)


def _with(intervals: list[PowerInterval], machine: Machine | None) -> list[PowerInterval]:
    """Takes the last start and stop from the machine itself."""
    if machine is None or machine.started is None:
        return intervals
    stopped = machine.stopped if machine.stopped is not None and machine.stopped >= machine.started else None
    stopped = None if machine.billed else stopped
    at = machine.started
    near = min((one for one in intervals if abs(one.started - at) <= NEAR_START_S),
               key=lambda one: abs(one.started - at), default=None)  # fmt: skip
    user = near.user if near is not None else ""
    if near is not None and near.stopped is not None and stopped is not None:
        stopped = min(stopped, near.stopped)  # the machine's own may be that of a later start, at which it never ran
    others = [one for one in intervals if one is not near and one.started < at]
    before = [
        one if one.stopped is not None else PowerInterval(one.started, machine.started, one.user) for one in others
    ]
    return [*before, PowerInterval(machine.started, stopped, user)]


def last_start(operations: Iterable[Operation], instance_id: str) -> Operation | None:
    """The newest start of the machine, even one in progress; not an automatic restart by the cloud."""
    ours = [op for op in operations if op.collection == "instances" and op.target_id in ("", instance_id)]
    starts = [op for op in ours if op.refusal is None and kind(op) in _STARTS - {"automaticRestart"}]
    return max(starts, key=lambda op: op.finished or op.started or 0.0, default=None)


def last_of(operations: Sequence[Operation], since: float) -> str | None:
    """The id of the machine whose start was requested at ``asked`` or later; None if the list has none."""
    starts = [op for op in operations if kind(op) in _STARTS and op.collection == "instances" and op.target_id]
    later = [op for op in starts if (op.finished or op.started or 0.0) >= since]
    return max(later, key=lambda op: op.started or 0.0).target_id if later else None


def disk_deleted_at(operations: Iterable[Operation], name: str, since: float) -> float | None:
    """When the disk ``name`` was deleted by itself, ``since`` or later; None if the list does not say."""
    deletions = [op for op in operations if (op.collection, op.target, kind(op)) == ("disks", name, "delete")]
    moments = [op.finished for op in deletions if op.done and op.refusal is None and op.finished is not None]
    return max((at for at in moments if at >= since), default=None)


#: Some systems keep the shutdown timer to the minute, seconds.
TIMER_SLACK_S = 90.0


def our_stop(book: MachineCache, project: str, name: str) -> str:
    """The operation by which an fcctl of this user stopped the machine last; empty if none is known."""
    known = book.known(project, name)
    return known.our_stop if known is not None else ""


def why_stopped(
    name: str,
    instance_id: str,
    seen: Machine | None,
    operations: Sequence[Operation],
    timer: float | None,
    started: float | None = None,
    money_until: float | None = None,
    our_stop: str = "",
) -> MachineStopped | None:
    """Returns why the machine is off; None if it runs or is about to. ``seen`` is what has its name now, ``operations``
    what happened there, newest first. ``timer``, ``started`` and ``money_until`` (end of the budget) are epoch seconds;
    ``our_stop`` is the last stop by this user's fcctl, for a cloud without request ids."""
    last = next((op for op in operations if ends(op) and op.target_id in ("", instance_id)), None)
    at = (last.finished or last.started) if last else None
    if started is not None and (seen is None or seen.id != instance_id):
        first = off_at(operations, instance_id, started)
        at = at if first is None else first
    if seen is None:
        if last is not None and last.type.endswith("preempted"):
            return _off("preempted", f"{name} was preempted, and its disk no longer exists", at, disk=False)
        return _off("deleted", f"{name} was deleted with its disk", at, disk=False)
    if seen.id != instance_id:
        return _off("replaced", f"{name} was deleted; another machine now has its name", at, disk=False)
    if seen.power in (Power.RUNNING, Power.STARTING, Power.REPAIRING, Power.UNKNOWN):
        return None
    if last is None:
        return _off("unknown", f"{name} was stopped; the cloud does not report by whom", seen.stopped)
    if kind(last) in ("stop", "suspend", "delete"):
        return _by_request(name, last, at or seen.stopped, our_stop)
    return _because(name, last, at or seen.stopped, timer, money_until)


def _by_request(name: str, operation: Operation, at: float | None, our_stop: str) -> MachineStopped:
    done = "suspended" if kind(operation) == "suspend" else "stopped"
    if is_fcctls(operation.request_id) or (our_stop and operation.name == our_stop):
        reason = f"{name} was {done} by fcctl: hosts down, hosts audit --stop, or the end of a run or session"
        return _off("fcctl", reason, at)
    return _off("console", f"{name} was {done} by a user of the project, not by fcctl", at)


def _because(
    name: str, operation: Operation, at: float | None, timer: float | None, money_until: float | None
) -> MachineStopped:
    what = kind(operation)
    if what == "preempted":
        return _off("preempted", f"{name} was preempted by the cloud", at)
    if what in ("deferredStop", "deferredDelete"):
        return _off("fence", f"{name} reached its time limit, and the cloud stopped it", at)
    if what == "guestTerminate":
        if timer is not None and at is not None and at >= timer - TIMER_SLACK_S:
            return _off("timer", f"{name} reached the end of its shutdown timer", at)
        if money_until is not None and at is not None and at >= money_until:
            # The host program ended the run then, and idled for a moment.
            return _off("timer", f"{name} turned itself off: the run's budget was spent", at)
        return _off("guest", f"{name} was shut down by a command on the machine", at)
    return _off("host_error", f"the cloud's host of {name} failed ({what})", at)


#: What it makes of the run; of all other ways: ``lost``.
_STATUS = {"preempted": "preempted", "fence": "over_budget", "timer": "over_budget"}


def _off(how: str, message: str, at: float | None, **disk: Any) -> MachineStopped:
    return MachineStopped(message, how=how, status=_STATUS.get(how, "lost"), at=at, **disk)
