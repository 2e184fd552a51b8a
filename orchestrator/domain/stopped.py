"""Why a machine that a run was on does not run any more, from what the cloud says happened to it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.domain.cloud import Machine, Operation, Power
from orchestrator.domain.records import RunStatus

How = Literal["preempted", "fence", "timer", "guest", "console", "host_error", "deleted", "replaced", "unknown"]

#: A timer of the machine's own is kept to the minute by some systems.
TIMER_SLACK_S = 90.0


@dataclass(frozen=True)
class Stopped:
    """What became of the machine, and what that makes of the run."""

    how: How
    status: RunStatus
    reason: str
    #: When, by the cloud's clock, epoch seconds.
    at: float | None = None
    #: Whether there is a disk with what the run left on it.
    disk: bool = True


def why_stopped(
    name: str, instance_id: str, seen: Machine | None, operations: Sequence[Operation], timer: float | None
) -> Stopped | None:
    """What happened to the machine; None if it runs, or is about to run again.

    Args:
        instance_id: of the machine that the run was on.
        seen: what has its name and zone now.
        operations: what happened there, newest first.
        timer: when its own shutdown timer was to end it, epoch seconds.
    """
    last = next((op for op in operations if _ends_a_run(op)), None)
    at = (last.finished or last.started) if last else None
    if seen is None:
        if last is not None and last.type.endswith("preempted"):
            return Stopped("preempted", "preempted", f"{name} was preempted, and its disk is gone", at, disk=False)
        return Stopped("deleted", "lost", f"{name} was deleted, and its disk is gone", at, disk=False)
    if seen.id != instance_id:
        return Stopped("replaced", "lost", f"{name} was deleted, and another machine has its name now", at, disk=False)
    if seen.power in (Power.RUNNING, Power.STARTING, Power.REPAIRING, Power.UNKNOWN):
        return None
    if last is None:
        return Stopped("unknown", "lost", f"{name} was stopped, and the cloud does not say by whom", seen.stopped)
    return _because(name, last, at or seen.stopped, timer)


_ENDS = ("preempted", "guestTerminate", "deferredStop", "hostError", "terminateOnHostMaintenance", "stop", "suspend")


def _ends_a_run(operation: Operation) -> bool:
    kind = operation.type.rpartition(".")[2]
    return operation.refusal is None and (kind in _ENDS or kind in ("delete", "deferredDelete"))


def _because(name: str, operation: Operation, at: float | None, timer: float | None) -> Stopped:
    kind = operation.type.rpartition(".")[2]
    if kind == "preempted":
        return Stopped("preempted", "preempted", f"{name} was preempted: the cloud took it back", at)
    if kind in ("deferredStop", "deferredDelete"):
        return Stopped("fence", "over_budget", f"{name} reached its time limit, and the cloud stopped it", at)
    if kind == "guestTerminate":
        if timer is not None and at is not None and at >= timer - TIMER_SLACK_S:
            return Stopped("timer", "over_budget", f"{name} reached the end of its shutdown timer", at)
        return Stopped("guest", "lost", f"{name} was shut down from inside", at)
    if kind in ("hostError", "terminateOnHostMaintenance"):
        return Stopped("host_error", "lost", f"the computer under {name} failed ({kind})", at)
    what = "suspended" if kind == "suspend" else "stopped"
    return Stopped("console", "lost", f"{name} was {what} by a user of the project, not by fcctl", at)
