"""Why a machine that a run was on does not run any more, from what the cloud says happened to it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from orchestrator.machines.cloud import Machine, Operation, Power
from orchestrator.machines.power_history import ends, kind, off_at
from orchestrator.results.records import RunStatus

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
    name: str,
    instance_id: str,
    seen: Machine | None,
    operations: Sequence[Operation],
    timer: float | None,
    started: float | None = None,
    money_until: float | None = None,
) -> Stopped | None:
    """What happened to the machine; None if it runs, or is about to run again.

    Args:
        instance_id: of the machine that the run was on.
        seen: what has its name and zone now.
        operations: what happened there, newest first.
        timer: when its own shutdown timer was to end it, epoch seconds.
        started: when it went on, by the cloud's clock: one that was off for long when it was deleted was on no longer.
        money_until: when the money for the run was spent, epoch seconds; None: it had no budget to stop at.
    """
    last = next((op for op in operations if ends(op) and op.target_id in ("", instance_id)), None)
    at = (last.finished or last.started) if last else None
    if started is not None and (seen is None or seen.id != instance_id):
        first = off_at(operations, instance_id, started)
        at = at if first is None else first
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
    return _because(name, last, at or seen.stopped, timer, money_until)


def _because(
    name: str, operation: Operation, at: float | None, timer: float | None, money_until: float | None
) -> Stopped:
    what = kind(operation)
    if what == "preempted":
        return Stopped("preempted", "preempted", f"{name} was preempted: the cloud took it back", at)
    if what in ("deferredStop", "deferredDelete"):
        return Stopped("fence", "over_budget", f"{name} reached its time limit, and the cloud stopped it", at)
    if what == "guestTerminate":
        if timer is not None and at is not None and at >= timer - TIMER_SLACK_S:
            return Stopped("timer", "over_budget", f"{name} reached the end of its shutdown timer", at)
        if money_until is not None and at is not None and at >= money_until:
            # The host program ended the run then, and idled for a moment.
            return Stopped("timer", "over_budget", f"{name} turned itself off: the money for the run was spent", at)
        return Stopped("guest", "lost", f"{name} was shut down from inside", at)
    if what in ("hostError", "terminateOnHostMaintenance"):
        return Stopped("host_error", "lost", f"the computer under {name} failed ({what})", at)
    done = "suspended" if what == "suspend" else "stopped"
    return Stopped("console", "lost", f"{name} was {done} by a user of the project, not by fcctl", at)
