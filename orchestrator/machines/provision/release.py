"""Releases a machine: stops or deletes it, and waits for that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from fcctl_remote import wire
from orchestrator.base import run_id as run_ids
from orchestrator.base.errors import AuthError, CloudError, FcctlError, HostError
from orchestrator.machines.cloud import (
    IN_FLIGHT_S,
    MANAGED_LABEL,
    RUN_LABEL,
    STALE_S,
    Machine,
    Operation,
    Power,
    Remedy,
    shows,
)
from orchestrator.machines.interfaces import Cloud, MachineParts
from orchestrator.machines.power_history import ends, last_of, off_at, times_on
from orchestrator.machines.provision.ready import STOP_LIMIT_S, Changes, Log, find_machines
from orchestrator.machines.targets import CloudTarget

#: The interval between reads of a machine that is stopping, seconds.
POLL_S = 1.0
#: The same of one whose start is pending.
PENDING_POLL_S = 5.0
#: The interval between requests after a transient refusal, seconds.
AGAIN_S = 5.0
#: How many stops that the cloud accepted may fail, whatever it calls that, before one is an error.
MOST_FAILED = 3
#: The interval between looks for it, seconds.
ARRIVAL_POLL_S = 2.0

Policy = Literal["stop", "keep", "delete"]
_OFF = (Power.STOPPED, Power.SUSPENDED)


@dataclass(frozen=True)
class Released:
    """The result of a release."""

    how: Literal["stopped", "deleted", "off", "gone"]
    zone: str
    reason: str = ""
    #: By the cloud's clock, epoch seconds; None: unknown.
    started: float | None = None
    stopped: float | None = None
    #: Which machine it was; None if none was found.
    project: str | None = None
    name: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True)
class ReleaseRequest:
    """A machine that was, or may have been, started."""

    zone: str
    #: None: requested, and never seen.
    instance_id: str | None = None
    made_here: bool = False
    #: When its start was requested, epoch seconds, if nothing else is known.
    asked: float | None = None
    #: The id of that request, which its operation has.
    request_id: str = ""
    #: Whether it was refused at once, without an operation.
    refused: bool = False


class InUse(Exception):
    """The machine is in use by another owner, and was not changed."""

    def __init__(self, by: str) -> None:
        super().__init__(by)
        self.by = by


def release(
    parts: MachineParts,
    target: CloudTarget,
    requests: list[ReleaseRequest],
    policy: Policy,
    log: Log,
    wanted_by: Callable[[Machine], str | None] = lambda _: None,
) -> list[Released]:
    """Stops (or deletes) what was started, and waits until it is off.

    ``delete`` deletes only what fcctl created and may delete; other machines are stopped. A machine that has been
    replaced is not changed.

    Args:
        wanted_by: returns another owner that is about to use the machine, asked just before the stop.

    Raises CloudError, AuthError: it could not be confirmed as off; its time limits still apply; InUse: ``wanted_by``
    returned an owner.
    """
    # Zones that do not answer keep no machine on in another one.
    target = target.model_copy(update={"zones": [one.zone for one in requests]})
    process = _Release(parts, target, policy, log, wanted_by)
    machines = {machine.zone: machine for machine in process.find(requests)}
    return [process.release(request, machines.get(request.zone)) for request in requests]


#: The tolerance between two computers' clocks, seconds.
_SKEW_S = 60.0


def _was_created_for(request: ReleaseRequest, machine: Machine) -> bool:
    created, asked = machine.created, request.asked
    return created is not None and asked is not None and created > asked - _SKEW_S


def find_settled(parts: MachineParts, target: CloudTarget, zones: Collection[str]) -> list[Machine]:
    """As :func:`find_machines`. First waits for each start or creation in ``zones`` that the cloud has accepted and
    does not show: before it begins, and for moments after it is done, a machine to be created is not listed, and one to
    be started is listed as stopped.

    Raises CloudError, too, if it is still pending after :data:`STOP_LIMIT_S`.
    """
    cloud, clock = parts.clouds.open(target), parts.clock
    began = clock.monotonic()
    while True:
        machines = {machine.zone: machine for machine in find_machines(cloud, target)}
        # One that is on is stopped, whatever the cloud lists of its starts.
        off = [zone for zone in zones if zone not in machines or machines[zone].power is Power.STOPPED]
        starts = [start for zone in off if (start := _last_start(cloud, zone, target.instance))]
        waiting = next((start for start in starts if not _has_begun(machines.get(start.zone or ""), start)), None)
        waited = clock.monotonic() - began
        if waiting is None or (waiting.done and waited > STALE_S):
            return list(machines.values())
        if waited > STOP_LIMIT_S:
            raise CloudError(
                f"the cloud has not carried out the {waiting.type} of {target.instance} in {waiting.zone} yet, so it "
                f"may still start",
                cause=f"{waiting.name} is {waiting.state}",
                hint="check later whether it runs: fcctl hosts audit; stop it: fcctl hosts audit --stop",
            )
        if waiting.done:
            clock.sleep(POLL_S)
            continue
        parts.observer.phase("release", f"the {waiting.type} of {target.instance} has not begun: waiting for it")
        cloud.wait(waiting, PENDING_POLL_S)


def _last_start(cloud: Cloud, zone: str, name: str) -> Operation | None:
    """The start or creation that is pending, or after which nothing has ended the machine."""
    try:
        history = [one for one in cloud.operations(zone, name) if one.refusal is None]
    except AuthError:  # operations may not be listed
        return None
    starts = [one for one in history if one.type in ("insert", "start")]
    pending = next((one for one in starts if not one.done), None)
    last = next((one for one in history if one in starts or ends(one)), None)
    return pending or (last if last in starts else None)


def _has_begun(machine: Machine | None, start: Operation) -> bool:
    """Whether the machine shows the effect of ``start``, or was stopped after it began, though it never is DONE."""
    if start.done:
        return shows(machine, start)
    if machine is None:
        return False
    stopped_since = start.state == "RUNNING" and (machine.stopped or 0.0) > (start.started or 0.0)
    return stopped_since or machine.power is not Power.STOPPED


class _Release:
    def __init__(
        self, parts: MachineParts, target: CloudTarget, policy: Policy, log: Log,
        used_by: Callable[[Machine], str | None],
    ) -> None:  # fmt: skip
        self._parts, self._clock, self._target, self._policy = parts, parts.clock, target, policy
        self._used_by = used_by
        self._cloud: Cloud = parts.clouds.open(target)
        self._changes = Changes(self._cloud, parts.clock, log, target.instance)
        self._failed = 0

    def release(self, request: ReleaseRequest, machine: Machine | None) -> Released:
        if machine is None:
            return self._gone(request, "the machine does not exist, or no longer exists")
        if request.instance_id is not None and machine.id != request.instance_id:
            return self._gone(request, "it was deleted, and another machine has its name now")
        is_ours = MANAGED_LABEL in machine.labels
        if self._was_never_on(request, machine):
            if self._policy != "delete" or not is_ours or not _was_created_for(request, machine):
                return Released("off", request.zone, "it was not started")
            self._delete(machine)
            return Released("off", request.zone, "it was created, never started, and deleted again")
        if (user := self._used_by(machine)) is not None:
            raise InUse(user)
        if self._policy == "delete" and is_ours:
            try:
                return self._delete(machine)
            except (AuthError, CloudError) as refused:
                why = f"fcctl stops {machine.name} instead of deleting it: {refused.message}"
                self._parts.observer.note(f"{why}; its disks cost money until they are deleted")
        return self._stop(machine)

    def _was_never_on(self, request: ReleaseRequest, machine: Machine) -> bool:
        """Whether a requested start had no effect: the machine is off, and was not on since, by the cloud's clock if it
        lists the request."""
        if request.instance_id is not None or request.asked is None or machine.power is not Power.STOPPED:
            return False
        history = self._history(request.zone) if request.request_id else []
        operation = next((o for o in history if o.request_id == request.request_id), None)
        if history and operation is None:  # refused at once
            return True
        asked = operation.started if operation is not None else request.asked - _SKEW_S
        return machine.started is None or (asked is not None and machine.started < asked)

    def _gone(self, request: ReleaseRequest, reason: str) -> Released:
        """The result for a deleted machine; the cloud's list of operations still has when it was on."""
        history, asked = self._history(request.zone), request.asked
        instance_id = request.instance_id or (last_of(history, asked - _SKEW_S) if asked is not None else None)
        times = times_on(history, instance_id) if instance_id is not None else []
        if not times:
            return Released("gone", request.zone, reason)
        return Released(
            "gone", request.zone, reason, times[-1].started, times[-1].stopped, self._target.project,
            self._target.instance, instance_id,
        )  # fmt: skip

    def _history(self, zone: str) -> list[Operation]:
        try:
            return self._cloud.operations(zone, self._target.instance)
        except FcctlError:
            return []  # the cost is then estimated without it

    def find(self, requests: list[ReleaseRequest]) -> list[Machine]:
        """The machines; a creation whose reply was lost may take a moment to appear."""
        for one in requests:
            self._await_arrival(one)
        machines = find_settled(self._parts, self._target, {one.zone for one in requests})
        zones = {machine.zone for machine in machines}
        if any(one.instance_id is None and one.made_here and one.zone not in zones for one in requests):
            self._clock.sleep(POLL_S)
            machines = find_machines(self._cloud, self._target)
        return machines

    def _await_arrival(self, request: ReleaseRequest) -> None:
        """Waits while a requested start may be on its way to the cloud: whoever requested it was killed just then."""
        asked, until = request.asked, self._clock.monotonic() + IN_FLIGHT_S
        if asked is None or not request.request_id or request.refused:
            return
        while abs(self._clock.now() - asked) < IN_FLIGHT_S and self._clock.monotonic() < until:
            if any(one.request_id == request.request_id for one in self._history(request.zone)):
                return
            self._show(f"waiting to see whether the cloud received the request to start {self._target.instance}")
            self._clock.sleep(ARRIVAL_POLL_S)

    def _stop(self, machine: Machine) -> Released:
        deadline = self._clock.monotonic() + STOP_LIMIT_S
        now: Machine | None = machine
        self._show(f"stopping {machine.name}")
        while now is not None and now.id == machine.id and now.power not in _OFF:
            left = deadline - self._clock.monotonic()
            if left <= 0:
                raise CloudError(
                    f"{machine.name} is still {now.status} {STOP_LIMIT_S / 60:.0f} minutes after the stop request",
                    hint="see what runs: fcctl hosts audit; stop it: fcctl hosts audit --stop",
                )
            if now.power not in (Power.STOPPING, Power.SUSPENDING):
                self._request_stop(machine, left)
            now = self._cloud.machine(machine.zone, machine.name)
            if now is not None and now.power not in _OFF:
                self._clock.sleep(POLL_S)
                now = self._cloud.machine(machine.zone, machine.name)
        if now is None or now.id != machine.id:
            return _released("stopped", machine, None)
        if machine.power is Power.STARTING and now.started == machine.started:  # which is the time of an earlier start
            return Released("off", machine.zone, "it was stopped before it ran")
        stopped = now.stopped
        if now.power is Power.SUSPENDED and now.started is not None:  # that is the time of an earlier stop
            stopped = off_at(self._history(now.zone), now.id, now.started)
        return _released("stopped", now, stopped)

    def _request_stop(self, machine: Machine, limit_s: float) -> None:
        self._remember(machine)
        operation = self._changes.make("stop", machine.zone, partial(self._cloud.stop, machine), limit_s)
        if not operation.name or self._failed >= MOST_FAILED:
            _raise_if_fatal(self._target, machine, operation)
        if operation.refusal is not None:
            self._failed += 1
            self._clock.sleep(AGAIN_S)
            return
        self._remember(machine, our_stop=operation.name)

    def _remember(self, machine: Machine, our_stop: str | None = None) -> None:
        """Stores the machine's cached entry without its deadline; the host keys stay. The next run then asks the cloud
        before it logs in: a machine that is about to stop still answers SSH for a moment."""
        book, known = self._parts.book, self._parts.book.known(machine.project, machine.name)
        if known is not None:
            with suppress(FcctlError):  # on a full disk the next login fails once
                stop = known.our_stop if our_stop is None else our_stop
                book.remember(replace(known, deadline=None, our_stop=stop), instead_of=known)

    def _delete(self, machine: Machine) -> Released:
        deadline = self._clock.monotonic() + STOP_LIMIT_S
        self._show(f"deleting {machine.name}")
        self._remember(machine)
        operation = self._request_deletion(machine)
        while (seen := self._cloud.machine(machine.zone, machine.name)) is not None and seen.id == machine.id:
            if self._clock.monotonic() > deadline:
                raise CloudError(
                    f"{machine.name} still exists {STOP_LIMIT_S / 60:.0f} minutes after the delete request",
                    hint="see what is left: fcctl hosts audit; stop it: fcctl hosts audit --stop",
                )
            self._clock.sleep(AGAIN_S)
            if seen.power is not Power.STOPPING:  # another deletion may be in progress, which a request would end
                operation = self._request_deletion(machine)
        with suppress(FcctlError):
            self._parts.book.forget(machine.project, machine.name)
        if machine.power is Power.STARTING:
            history = self._history(machine.zone)
            if history and not times_on(history, machine.id):
                return Released("off", machine.zone, "it was deleted before it ran")
            machine = replace(machine, started=None)  # the time of an earlier start
        return _released("deleted", machine, self._off_since(machine, operation))

    def _request_deletion(self, machine: Machine) -> Operation:
        operation = self._changes.make("delete", machine.zone, partial(self._cloud.delete, machine), STOP_LIMIT_S)
        _raise_if_fatal(self._target, machine, operation, "deleted")
        return operation

    def _off_since(self, machine: Machine, deletion: Operation) -> float | None:
        """When the machine stopped: one that had stopped earlier was not on until its deletion."""
        if machine.power is Power.STOPPED:
            return machine.stopped
        off = off_at(self._history(machine.zone), machine.id, machine.started) if machine.started else None
        return off if off is not None else deletion.finished

    def _show(self, text: str) -> None:
        self._parts.observer.phase("release", text)


def _raise_if_fatal(target: CloudTarget, machine: Machine, operation: Operation, done: str = "stopped") -> None:
    """Raise the refusal that no waiting cures; 412 is the answer for a machine that is protected against deletion."""
    refusal = operation.refusal
    if refusal is not None and (refusal.remedy is Remedy.FATAL or (done == "deleted" and refusal.http_status == 412)):
        kind = AuthError if refusal.http_status in (401, 403) else CloudError
        raise kind(
            f"{machine.name} cannot be {done}: {refusal.code}",
            cause=refusal.message,
            hint=f"stop it by hand: {target.by_hand('stop', machine.name, machine.zone)}",
        )


def _released(how: Literal["stopped", "deleted"], machine: Machine, stopped: float | None) -> Released:
    return Released(how, machine.zone, "", machine.started, stopped, machine.project, machine.name, machine.id)


def runs_on_host(parts: MachineParts, target: CloudTarget) -> list[wire.RunSummary] | None:
    """The runs that the machine lists; None if it does not answer."""
    try:
        session = parts.hosts.connect(target)
        try:
            return session.status(None)
        finally:
            session.close()
    except HostError:
        return None


def active_run(runs: Sequence[wire.RunSummary], own: str) -> str | None:
    """An active or queued run among ``runs``."""
    return next((r.run_id for r in runs if r.run_id != own and r.status not in wire.RUN_ENDINGS), None)


def others_on_host(parts: MachineParts, target: CloudTarget, own: str) -> str | None:
    """An active or queued run on the machine; None if there is none, or it does not answer."""
    return active_run(runs_on_host(parts, target) or (), own)


def waiting_runs(machine: Machine, known: Collection[str], is_over: Callable[[str], bool]) -> str | None:
    """A run of another workspace or computer that found the machine on and is about to use it: the machine has its
    label, it is none of the ``known`` runs, and not ``is_over``: a label may be older than the last start."""
    label = machine.labels.get(RUN_LABEL, "")
    return label if run_ids.is_valid(label) and label not in known and not is_over(label) else None
