"""Let a machine go: stop it, leave it on for a while, or delete it, and see that it happened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from fcctl_remote import wire
from orchestrator.base import run_id as run_ids
from orchestrator.base.errors import AuthError, CloudError, FcctlError, HostError
from orchestrator.machines.cloud import MANAGED_LABEL, QUEUED, RUN_LABEL, Machine, Operation, Power, Remedy
from orchestrator.machines.cloud_api import Cloud
from orchestrator.machines.parts import MachineParts
from orchestrator.machines.power_history import last_of, off_at, times_on
from orchestrator.machines.provision.find import STOP_LIMIT_S, Changes, Log, find_machines
from orchestrator.machines.targets import GcpTarget

#: Between two looks at a machine that is going down, seconds.
POLL_S = 1.0
#: Between two requests that the cloud refuses for now, seconds.
AGAIN_S = 5.0

Policy = Literal["stop", "keep", "delete"]


@dataclass(frozen=True)
class Released:
    """What became of the machine."""

    how: Literal["stopped", "deleted", "off", "gone"]
    zone: str
    reason: str = ""
    #: By the cloud's clock, epoch seconds, as far as it says.
    started: float | None = None
    stopped: float | None = None
    #: Which machine it was; None if none was found.
    project: str | None = None
    name: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True)
class ReleaseRequest:
    """A machine that was, or may have been, turned on for somebody."""

    zone: str
    #: None: it was asked for, and never seen to answer.
    instance_id: str | None = None
    made_here: bool = False
    #: When the cloud was asked to turn it on, epoch seconds, if that is all that is known.
    asked: float | None = None


class InUse(Exception):
    """The machine is on for somebody else, and was left as it was."""

    def __init__(self, by: str) -> None:
        super().__init__(by)
        self.by = by


def release(
    parts: MachineParts,
    target: GcpTarget,
    holds: list[ReleaseRequest],
    policy: Policy,
    log: Log,
    wanted_by: Callable[[Machine], str | None] = lambda _: None,
) -> list[Released]:
    """Stop (or delete) what was turned on, and wait until it is off.

    ``delete`` deletes only what fcctl made; anything else is stopped. A machine that is another one by now is left
    alone.

    Args:
        wanted_by: who else is about to use a machine, as it shows itself just before it would be turned off.

    Raises:
        CloudError, AuthError: it is not known to be off. Its fences still hold.
        StillWanted: ``wanted_by`` named somebody.
    """
    return _Releasing(parts, target, log).carry_out(holds, policy, wanted_by)


#: What two computers' clocks may differ by, seconds.
_SKEW_S = 60.0


def _was_never_on(hold: ReleaseRequest, machine: Machine) -> bool:
    """Whether a start that was asked for came to nothing: it is off, and was not on since."""
    if hold.instance_id is not None or hold.asked is None or machine.power is not Power.STOPPED:
        return False
    return machine.started is None or machine.started < hold.asked - _SKEW_S


class _Releasing:
    def __init__(self, parts: MachineParts, target: GcpTarget, log: Log) -> None:
        self._parts = parts
        self._target = target
        self._cloud: Cloud = parts.clouds.open(target)
        self._changes = Changes(self._cloud, parts.clock, log, target.instance)

    def carry_out(
        self, holds: list[ReleaseRequest], policy: Policy, wanted_by: Callable[[Machine], str | None]
    ) -> list[Released]:
        seen = {machine.zone: machine for machine in self._look(holds)}
        done = []
        for hold in holds:
            machine = seen.get(hold.zone)
            if machine is None:
                done.append(self._gone(hold, "there is no such machine (any more)"))
            elif hold.instance_id is not None and machine.id != hold.instance_id:
                done.append(self._gone(hold, "it was deleted, and another machine has its name"))
            elif _was_never_on(hold, machine):
                done.append(self._as_it_was(hold, machine, policy))
            elif (user := wanted_by(machine)) is not None:
                raise InUse(user)
            elif machine.status == QUEUED and MANAGED_LABEL in machine.labels:
                done.append(self._withdraw(hold, machine))
            elif policy == "delete" and MANAGED_LABEL in machine.labels:
                done.append(self._delete(machine))
            else:
                done.append(self._stop(machine))
        return done

    def _as_it_was(self, hold: ReleaseRequest, machine: Machine, policy: Policy) -> Released:
        """One that was not turned on; if it was made all the same, and only to be deleted, it goes again."""
        made = machine.created is not None and hold.asked is not None and machine.created > hold.asked - _SKEW_S
        if policy != "delete" or not made or MANAGED_LABEL not in machine.labels:
            return Released("off", hold.zone, "it was not turned on")
        self._delete(machine)
        return Released("off", hold.zone, "it was made, not turned on, and deleted again")

    def _withdraw(self, hold: ReleaseRequest, machine: Machine) -> Released:
        """One that waits in the cloud's queue: it cannot be stopped, would start by itself, and has nothing on it."""
        self._delete(machine)
        return Released("off", hold.zone, "it was queued, never turned on, and deleted again")

    def _gone(self, hold: ReleaseRequest, reason: str) -> Released:
        """One that somebody deleted; the cloud's list of what was done still says when it was on."""
        history = self._history(hold.zone)
        instance_id = hold.instance_id or (last_of(history, hold.asked - _SKEW_S) if hold.asked is not None else None)
        times = times_on(history, instance_id) if instance_id is not None else []
        if not times:
            return Released("gone", hold.zone, reason)
        return Released(
            "gone", hold.zone, reason, times[-1].started, times[-1].stopped, self._target.project,
            self._target.instance, instance_id,
        )  # fmt: skip

    def _history(self, zone: str) -> list[Operation]:
        try:
            return self._cloud.operations(zone, self._target.instance)
        except FcctlError:
            return []  # the bill is then what is known without

    def _look(self, holds: list[ReleaseRequest]) -> list[Machine]:
        """What is there; a creation whose reply was never read is given a moment to show."""
        found = find_machines(self._cloud, self._target)
        zones = {machine.zone for machine in found}
        if any(hold.instance_id is None and hold.made_here and hold.zone not in zones for hold in holds):
            self._parts.clock.sleep(POLL_S)
            found = find_machines(self._cloud, self._target)
        return found

    # -------------------------------------------------------------------------------------------------------- one way
    def _stop(self, machine: Machine) -> Released:
        clock = self._parts.clock
        deadline = clock.monotonic() + STOP_LIMIT_S
        now: Machine | None = machine
        self._say(f"stopping {machine.name}")
        while now is not None and now.id == machine.id and now.power not in (Power.STOPPED, Power.SUSPENDED):
            left = deadline - clock.monotonic()
            if left <= 0:
                raise CloudError(
                    f"{machine.name} is still {now.status} {STOP_LIMIT_S / 60:.0f} minutes after it was told to stop",
                    hint="fcctl hosts audit shows what runs, and stops it",
                )
            if now.power not in (Power.STOPPING, Power.SUSPENDING):
                self._ask_to_stop(now, left)
            now = self._cloud.machine(machine.zone, machine.name)
            if now is not None and now.power not in (Power.STOPPED, Power.SUSPENDED):
                clock.sleep(POLL_S)
                now = self._cloud.machine(machine.zone, machine.name)
        stopped = now.stopped if now is not None and now.id == machine.id else None
        return _released("stopped", machine, stopped)

    def _ask_to_stop(self, machine: Machine, limit_s: float) -> None:
        operation = self._changes.make(
            "stop", machine.zone, lambda request: self._cloud.stop(machine, request), limit_s
        )
        self._heed(machine, operation)
        if operation.refusal is not None:
            self._parts.clock.sleep(AGAIN_S)
            return
        book, known = self._parts.book, self._parts.book.known(machine.project, machine.name)
        if known is not None:  # its host keys stay known; that it is up does not
            with suppress(FcctlError):  # on a full disk the next login finds nobody there
                book.remember(replace(known, deadline=None, our_stop=operation.name), instead_of=known)

    def _delete(self, machine: Machine) -> Released:
        clock = self._parts.clock
        deadline = clock.monotonic() + STOP_LIMIT_S
        self._say(f"deleting {machine.name}")
        while True:
            operation = self._changes.make(
                "delete", machine.zone, lambda request: self._cloud.delete(machine, request), STOP_LIMIT_S
            )
            self._heed(machine, operation)
            seen = self._cloud.machine(machine.zone, machine.name)
            if seen is None or seen.id != machine.id:
                break
            if clock.monotonic() > deadline:
                raise CloudError(
                    f"{machine.name} is still there {STOP_LIMIT_S / 60:.0f} minutes after it was to be deleted",
                    hint="fcctl hosts audit shows what is left, and stops it",
                )
            clock.sleep(AGAIN_S)
        with suppress(FcctlError):
            self._parts.book.forget(machine.project, machine.name)
        return _released("deleted", machine, self._off_since(machine, operation))

    def _off_since(self, machine: Machine, deletion: Operation) -> float | None:
        """One that had stopped before, by itself too, was not on until it was deleted."""
        if machine.power is Power.STOPPED:
            return machine.stopped
        told = off_at(self._history(machine.zone), machine.id, machine.started) if machine.started else None
        return told if told is not None else deletion.finished

    def _heed(self, machine: Machine, operation: Operation) -> None:
        """Raise what no waiting cures."""
        refusal = operation.refusal
        if refusal is None or refusal.remedy is not Remedy.FATAL:
            return
        kind = AuthError if refusal.http_status in (401, 403) else CloudError
        raise kind(
            f"{machine.name} cannot be stopped: {refusal.code}",
            cause=refusal.message,
            hint=f"stop it by hand: gcloud compute instances stop {machine.name} --zone {machine.zone}"
            f" --project {machine.project}",
        )

    def _say(self, text: str) -> None:
        self._parts.observer.phase("release", text)


def _released(how: Literal["stopped", "deleted"], machine: Machine, stopped: float | None) -> Released:
    return Released(
        how, machine.zone, started=machine.started, stopped=stopped, project=machine.project, name=machine.name,
        instance_id=machine.id,
    )  # fmt: skip


def runs_on_host(parts: MachineParts, target: GcpTarget) -> list[wire.RunSummary]:
    """The runs that the machine knows; none, if nobody answers there."""
    try:
        session = parts.hosts.connect(target)
    except HostError:
        return []
    try:
        return session.status(None)
    except HostError:
        return []
    finally:
        session.close()


def at_work(runs: Sequence[wire.RunSummary], own: str) -> str | None:
    """One of the ``runs`` that is at work, or waits."""
    return next((r.run_id for r in runs if r.run_id != own and r.status not in wire.RUN_ENDINGS), None)


def others_on_host(parts: MachineParts, target: GcpTarget, own: str) -> str | None:
    """A run that is at work, or waits, on the machine; None if there is none, or nobody answers there."""
    return at_work(runs_on_host(parts, target), own)


def waiting_runs(machine: Machine, known: Collection[str]) -> str | None:
    """A run of another workspace, or another computer, that has found the machine on and has not come to it yet: it
    has put its label on the machine, where it is none of the ``known`` runs."""
    label = machine.labels.get(RUN_LABEL, "")
    return label if run_ids.is_valid(label) and label not in known else None
