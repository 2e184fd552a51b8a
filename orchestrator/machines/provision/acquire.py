"""Acquires the target's machine: starts it with a max run duration, at no more than the planned price."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import assert_never

from orchestrator.base.clock import WRONG_S, clock_command, duration_text
from orchestrator.base.errors import (
    AuthError,
    BudgetError,
    CapacityError,
    CloudError,
    ConfigError,
    ConflictError,
    FcctlError,
    NotFoundError,
)
from orchestrator.machines.cloud import (
    MANAGED_LABEL,
    RUN_LABEL,
    Hardware,
    Machine,
    MachineSpec,
    Operation,
    Power,
    Remedy,
)
from orchestrator.machines.interfaces import HourlyPrice, MachineParts
from orchestrator.machines.provision import actions
from orchestrator.machines.provision.actions import (
    POLL_S,
    Attempt,
    History,
    MachineRequest,
    Policy,
    Purpose,
    hardware,
    too_dear,
)
from orchestrator.machines.provision.decide import next_action
from orchestrator.machines.provision.endpoint import login_items
from orchestrator.machines.provision.ready import (
    CHANGE_LIMIT_S,
    STOP_LIMIT_S,
    Changes,
    Log,
    add_login_key,
    find_machines,
    with_disk_types,
)
from orchestrator.machines.provision.release import others_on_host
from orchestrator.machines.targets import CloudTarget, Provisioning

_ERRORS: dict[actions.FailedBy, type[FcctlError]] = {
    "capacity": CapacityError, "quota": CapacityError, "budget": BudgetError, "conflict": ConflictError,
    "not_found": NotFoundError, "denied": AuthError, "config": ConfigError, "timeout": CloudError,
    "preempted": CapacityError,
}  # fmt: skip

#: How often a label is requested, because another process may change the labels at the same time.
_LABEL_ATTEMPTS = 4


@dataclass(frozen=True)
class Acquired:
    """A machine in RUNNING whose deadline is known, or that is allowed to run without one."""

    machine: Machine
    #: Whether it was started (or made) here; else it was on before.
    started: bool
    #: Its price for an hour.
    price: HourlyPrice


def acquire(parts: MachineParts, target: CloudTarget, request: MachineRequest, purpose: Purpose, log: Log) -> Acquired:
    """Brings the target's machine to RUNNING.

    Every change is in the journal before it is requested: after an error or a crash the journal tells
    :func:`orchestrator.machines.provision.release.release` what to stop.

    Raises CapacityError: no stock, a quota, or a preemption during the start; BudgetError: the running machine's
    deadline is too near or missing, or it costs more than planned; AuthError, ConfigError, ConflictError,
    NotFoundError, CloudError: what the cloud reports.
    """
    return _Acquisition(parts, target, request, purpose, log).carry_out()


class _Acquisition:
    def __init__(
        self, parts: MachineParts, target: CloudTarget, request: MachineRequest, purpose: Purpose, log: Log
    ) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._target = target
        self._cloud = parts.clouds.open(target)
        self._policy = Policy(target, request, purpose.labels()[RUN_LABEL])
        self._purpose = purpose
        self._changes = Changes(self._cloud, parts.clock, log, target.instance)
        self._began = parts.clock.now(), parts.clock.elapsed()
        self._history = History(self._began[0])
        self._name = (target.project, target.instance)
        #: Machines with the types of their disks, by id and hardware.
        self._typed: dict[tuple[str, Hardware], Machine] = {}
        #: Whether this process has the machine's lock.
        self._has_lock, self._lock = False, ExitStack()

    def carry_out(self) -> Acquired:
        self._parts.observer.phase("wake", f"looking for {self._target.instance}")
        with ExitStack() as lock:
            self._lock = lock
            while True:
                action = self._next()
                if isinstance(action, actions.UseMachine):
                    return self._use(action.machine)
                if isinstance(action, actions.Fail):
                    raise _ERRORS[action.problem](action.message, cause=action.cause, hint=action.hint)
                if isinstance(action, actions.Wait):
                    if all(attempt.done for attempt in self._history.attempts[-1:]):
                        self._unlock(lock)  # else other processes may not see the last change yet
                    self._parts.observer.phase("wake", action.why)
                    self._clock.sleep(action.seconds)
                elif self._has_lock:
                    self._history = self._history.with_(self._make(action))
                else:
                    # Another fcctl here may be making the same change: decide again with the lock.
                    self._has_lock = lock.enter_context(self._parts.book.turning_on(*self._name))
                    if not self._has_lock:
                        self._unlock(lock)
                        self._wait_for_lock()

    def _unlock(self, lock: ExitStack) -> None:
        lock.close()
        self._has_lock = False

    def _next(self) -> actions.Action:
        """The next action for the machines that the cloud lists now."""
        # Another computer may have created one in another zone: see actions.DeleteCreated.
        machines = find_machines(self._cloud, self._target, everywhere=bool(self._history.of("create")))
        ahead, now = self._cloud_ahead(machines), self._now()
        # ``ahead`` is relative to this computer's clock.
        action = next_action(machines, self._policy, self._history, now, ahead + self._clock.now() - now)
        if isinstance(action, actions.SetDeadline | actions.Start | actions.Stop | actions.Create):
            self._check_clock()
        return self._refuse_if_dear(action)

    def _check_clock(self) -> None:
        """Raises ConfigError if this computer's clock is wrong."""
        if abs(self._cloud.ahead_s() or 0.0) > WRONG_S:
            find_machines(self._cloud, self._target)  # the last answer may have waited while this computer slept
        ahead = self._cloud.ahead_s() or 0.0
        if abs(ahead) > WRONG_S:
            differs = f"{duration_text(abs(ahead) // 60 * 60)} {'behind' if ahead > 0 else 'ahead of'} the cloud's"
            raise ConfigError(
                f"this computer's clock is {differs}: fcctl starts no machine",
                cause="with a wrong clock, the caps of the day and the month would start on another day",
                hint=f"set this computer's clock: {clock_command()}; then run the command again",
            )

    def _refuse_if_dear(self, action: actions.Action) -> actions.Action:
        """The action, or a failure if the machine costs more than planned. Raises ConfigError: its price is unknown."""
        if isinstance(action, actions.Wait | actions.Fail | actions.DeleteCreated):
            return action
        if isinstance(action, actions.Create):
            made_of = hardware(self._target, action.zone, spot=action.way == "spot")
        else:
            made_of = self._with_disk_types(action.machine).hardware
        price = self._parts.price(self._target, made_of)
        dear = too_dear(self._target.instance, made_of, price, self._policy.request)
        if dear is not None and (known := self._parts.book.known(*self._name)) is not None:
            # So that the next plan queries the cloud.
            self._parts.book.remember(replace(known, deadline=None), instead_of=known)
        return dear or action

    def _with_disk_types(self, machine: Machine) -> Machine:
        key = machine.id, machine.hardware
        if key not in self._typed:
            self._typed[key] = with_disk_types(self._cloud, machine)
        return replace(machine, disks=self._typed[key].disks)

    def _now(self) -> float:
        """The time of day, unaffected by clock changes since the beginning, so that waits keep their length."""
        time_of_day, elapsed = self._began
        return time_of_day + self._clock.elapsed() - elapsed

    def _wait_for_lock(self) -> None:
        """Waits, within this process's own limit, while another fcctl starts the machine. Raises ConflictError: the
        limit passed."""
        waited = self._now() - self._history.began
        if waited + POLL_S >= self._policy.limit_s:
            raise ConflictError(
                f"another fcctl on this computer has been starting {self._target.instance} for {waited:.0f} s",
                cause="fcctl does not start a machine twice at the same time: the cloud could then create two",
                hint="see what the other fcctl does: fcctl ps; run this command again when it has finished",
            )
        self._show(
            f"waiting for another fcctl on this computer, which starts {self._target.instance} or was killed just then"
        )
        self._clock.sleep(POLL_S)

    def _use(self, machine: Machine) -> Acquired:
        created = self._history.of("create", machine.zone)
        started = bool(self._history.of("start", machine.zone) or created)
        labels = self._purpose.labels() if started else self._purpose.labels_on(machine.labels)
        if any(machine.labels.get(key) != value for key, value in labels.items()):
            self._label(machine, labels)
        machine = self._with_disk_types(machine)
        return Acquired(machine, started, self._parts.price(self._target, machine.hardware))

    def _cloud_ahead(self, machines: list[Machine]) -> float:
        """How much the cloud's clock is ahead; needed to compare the deadline of a machine that is already on.

        Only operations carry the cloud's time, so this sets the labels that the machine already has.
        """
        running = next((m for m in machines if m.power is Power.RUNNING), None)
        if running is not None and self._changes.cloud_ahead_s is None and not self._history.attempts:
            self._changes.make("clock", running.zone, partial(self._cloud.set_labels, running, {}), 0.0)
        return self._changes.cloud_ahead_s or 0.0

    def _label(self, machine: Machine, labels: Mapping[str, str]) -> None:
        """Labels the machine with its user: for people, for the audit, and for a process that wants to stop it, which
        takes the label of an earlier run for one of a run that is about to use the machine."""
        for attempt in range(_LABEL_ATTEMPTS):
            change = partial(self._cloud.set_labels, machine, labels)
            refusal = self._changes.make("label", machine.zone, change, 0.0).refusal
            if refusal is None:
                return
            if refusal.remedy is Remedy.FATAL:
                self._parts.observer.note(f"{machine.name} was not labelled: {refusal.message}")
                return
            self._clock.sleep(attempt)
            machine = self._cloud.machine(machine.zone, machine.name) or machine

    # ------------------------------------------------------------------------------------------------ doing an action
    def _make(self, action: actions.Change) -> Attempt:
        cloud, wake_s = self._cloud, self._target.wake_timeout_s
        match action:
            case actions.SetDeadline(machine, seconds):
                self._show(f"setting the time limit of {machine.name}: {seconds / 60:.0f} minutes from its start")
                change = partial(cloud.set_max_run, machine, seconds)
                return self._attempt("fence", machine.zone, CHANGE_LIMIT_S, change)
            case actions.Start(machine):
                add_login_key(self._parts, self._target, self._changes, machine)
                self._show(f"starting {machine.name} in {machine.zone}")
                return self._attempt("start", machine.zone, wake_s, partial(cloud.start, machine))
            case actions.Stop(machine):
                self._refuse_if_used(machine)
                self._show(f"stopping {machine.name}, to start it again with a time limit")
                return self._attempt("stop", machine.zone, STOP_LIMIT_S, partial(cloud.stop, machine))
            case actions.Snapshot(machine, name):
                if cloud.has_snapshot(name):
                    return Attempt("snapshot", machine.zone, self._now())
                self._show(
                    f"{machine.zone} has no free machine: making a snapshot of {machine.name}'s disk for another zone"
                )
                return self._attempt("snapshot", machine.zone, STOP_LIMIT_S, partial(cloud.snapshot, machine, name))
            case actions.Create():
                return self._create(action)
            case actions.DeleteCreated(machine, first):
                return self._delete_created(machine, first)
        assert_never(action)

    def _attempt(
        self, action: actions.ActionName, zone: str, limit_s: float, change: Callable[[str], Operation],
        *, way: Provisioning = "on_demand",
    ) -> Attempt:  # fmt: skip
        turns_on = action in ("start", "create")
        operation = self._changes.make(action, zone, partial(self._ask, change) if turns_on else change, limit_s)
        if turns_on and operation.refusal is None:
            with suppress(FcctlError):  # a full disk
                self._note_start()  # the cloud may list the machine only some seconds after this moment
        if operation.refusal is not None:
            self._show(f"{action} in {zone}: {operation.refusal.code}")
        return Attempt(action, zone, self._now(), way, operation.refusal, operation.done)

    def _ask(self, change: Callable[[str], Operation], request_id: str) -> Operation:
        self._note_start()
        return change(request_id)

    def _note_start(self) -> None:
        """Until this process unlocks the machine; if it is killed before, others wait until the cloud lists it."""
        self._lock.enter_context(self._parts.book.asking(*self._name))

    def _create(self, action: actions.Create) -> Attempt:
        target, way = self._target, action.way
        login = self._parts.clouds.login(target)
        items = login_items({}, user=login.user, public_key=login.public_key, os_login=target.os_login)
        labels = {**target.labels, MANAGED_LABEL: "yes", **self._purpose.labels()}
        spec = MachineSpec(target, way, self._policy.request.max_run_s, labels, items, action.snapshot)
        how = "" if way == "on_demand" else f" ({way.replace('_', ' ')})"
        self._show(f"creating {spec.name} in {action.zone}: {target.machine_type}{how}")
        change = partial(self._cloud.create, action.zone, spec)
        return self._attempt("create", action.zone, target.wake_timeout_s, change, way=way)

    def _delete_created(self, machine: Machine, first: Machine) -> Attempt:
        self._parts.observer.note(
            f"{first.name} was created in {first.zone} at the same time, and earlier; fcctl deletes the second "
            f"machine, in {machine.zone}"
        )
        deletion = self._attempt("delete", machine.zone, STOP_LIMIT_S, partial(self._cloud.delete, machine))
        with suppress(FcctlError):  # records the end of its cost
            self._cloud.operations(machine.zone, machine.name)
        return deletion

    def _refuse_if_used(self, machine: Machine) -> None:
        """Raises ConflictError if a run is on the machine that is about to be stopped for another."""
        run_id = others_on_host(self._parts, self._target, "")
        if run_id is not None:
            raise ConflictError(
                f"{machine.name} is running {run_id}; fcctl does not restart it",
                hint=f"wait until the run ends (fcctl ps), or cancel it: fcctl cancel {run_id}",
            )

    def _show(self, text: str) -> None:
        self._parts.observer.phase("wake", text)
