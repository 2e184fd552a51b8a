"""Why a machine that a run was on does not run any more, from what the cloud says happened to it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.base.errors import MachineStopped
from orchestrator.machines.cloud import Machine, Operation, Power
from orchestrator.machines.cloud_api import MachineCache
from orchestrator.machines.power_history import ends, kind, off_at
from orchestrator.machines.provision.find import is_fcctls

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
    return _off("host_error", f"the cloud's hardware below {name} failed ({what})", at)


#: What it makes of the run; of all other ways: ``lost``.
_STATUS = {"preempted": "preempted", "fence": "over_budget", "timer": "over_budget"}


def _off(how: str, message: str, at: float | None, **disk: Any) -> MachineStopped:
    return MachineStopped(message, how=how, status=_STATUS.get(how, "lost"), at=at, **disk)
