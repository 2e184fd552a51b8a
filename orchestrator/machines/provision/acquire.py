"""Have the target's machine: awake, within its fence, and answering."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import assert_never

from fcctl_remote import wire
from orchestrator.base.errors import (
    AuthError,
    BudgetError,
    CapacityError,
    CloudError,
    ConfigError,
    ConflictError,
    FcctlError,
    HostError,
    NotFoundError,
)
from orchestrator.machines.cloud import RUN_LABEL, Disk, Hardware, Machine, Operation, Power, Remedy
from orchestrator.machines.cloud_api import HourlyPrice
from orchestrator.machines.parts import MachineParts
from orchestrator.machines.provision import actions as decision
from orchestrator.machines.provision.actions import POLL_S, Attempt, History, MachineRequest, policy
from orchestrator.machines.provision.decide import next_move
from orchestrator.machines.provision.decide_price import too_dear
from orchestrator.machines.provision.endpoint import login_items
from orchestrator.machines.provision.find import (
    CHANGE_LIMIT_S,
    STOP_LIMIT_S,
    Changes,
    Log,
    find_machines,
    with_disk_types,
)
from orchestrator.machines.provision.ready import let_in
from orchestrator.machines.provision.spec import Purpose, hardware, machine_spec
from orchestrator.machines.targets import GcpTarget, Provisioning

_ERRORS: dict[decision.Problem, type[FcctlError]] = {
    "capacity": CapacityError, "quota": CapacityError, "budget": BudgetError, "conflict": ConflictError,
    "not_found": NotFoundError, "denied": AuthError, "config": ConfigError, "timeout": CloudError,
    "preempted": CapacityError,
}  # fmt: skip

Making = (
    decision.SetDeadline
    | decision.Start
    | decision.Stop
    | decision.Resume
    | decision.Snapshot
    | decision.Create
    | decision.DeleteCreated
)


@dataclass(frozen=True)
class Acquired:
    """A machine in RUNNING whose deadline is known, or that may run without one."""

    machine: Machine
    #: Whether it was started (or made) here; else somebody's who was before.
    started: bool
    #: What an hour of it costs, as the cloud shows it.
    price: HourlyPrice
    #: How long its creation waited in the cloud's queue, where nothing is billed.
    queued_s: float = 0.0


def acquire(parts: MachineParts, target: GcpTarget, wish: MachineRequest, purpose: Purpose, log: Log) -> Acquired:
    """Bring the target's machine to RUNNING.

    Whatever it takes is in the journal before it happens: if this raises, or the process is killed, the same journal
    tells :func:`orchestrator.machines.provision.release.release` what to stop.

    Raises:
        CapacityError: no stock, a quota, or it was preempted while it woke.
        BudgetError: it runs, and its deadline is too near, or it has none; or it costs more than was planned.
        AuthError, ConfigError, ConflictError, NotFoundError, CloudError: as the cloud says.
    """
    return _Acquisition(parts, target, wish, purpose, log).carry_out()


class _Acquisition:
    def __init__(
        self, parts: MachineParts, target: GcpTarget, wish: MachineRequest, purpose: Purpose, log: Log
    ) -> None:
        self._parts = parts
        self._clock = parts.clock
        self._target = target
        self._cloud = parts.clouds.open(target)
        self._policy = policy(target, wish, purpose.labels()[RUN_LABEL])
        self._purpose = purpose
        self._changes = Changes(self._cloud, parts.clock, log, target.instance)
        self._began = parts.clock.now(), parts.clock.elapsed()
        self._history = History(self._began[0])
        self._name = (target.project, target.instance)
        #: The disks of machines, with their types.
        self._disks: dict[tuple[str, Hardware], tuple[Disk, ...]] = {}
        #: Whether no other fcctl on this computer changes the machine meanwhile.
        self._alone = False

    def carry_out(self) -> Acquired:
        self._parts.observer.phase("wake", f"looking for {self._target.instance}")
        with ExitStack() as lock:
            while True:
                move = self._next()
                if isinstance(move, decision.UseMachine):
                    return self._use(move.machine)
                if isinstance(move, decision.Fail):
                    raise _ERRORS[move.problem](move.message, cause=move.cause, hint=move.hint)
                if isinstance(move, decision.Wait):
                    if not self._under_way():
                        self._let_others(lock)
                    self._parts.observer.phase("wake", move.why)
                    self._clock.sleep(move.seconds)
                elif self._alone:
                    self._history = self._history.with_(self._make(move))
                else:
                    # What was seen is no ground for a change: another fcctl here may just be making the same one. So
                    # look again once it cannot.
                    self._alone = lock.enter_context(self._parts.book.turning_on(*self._name))
                    if not self._alone:
                        self._let_others(lock)
                        self._wait_for_the_other()

    def _let_others(self, lock: ExitStack) -> None:
        lock.close()
        self._alone = False

    def _under_way(self) -> bool:
        """Whether a change that was asked for has not ended: nobody else may see of it yet."""
        return any(not attempt.done for attempt in self._history.attempts[-1:])

    def _next(self) -> decision.Move:
        """What to do about what the cloud shows now."""
        # One that was just made is no proof that there is none elsewhere: see decision.Withdraw.
        seen = find_machines(self._cloud, self._target, everywhere=bool(self._history.of("create")))
        ahead, now = self._cloud_ahead(seen), self._now()
        # The cloud's clock was compared with the one that people set.
        move = next_move(seen, self._policy, self._history, now, ahead + self._clock.now() - now)
        return self._refuse_if_dear(move)

    def _refuse_if_dear(self, move: decision.Move) -> decision.Move:
        """The move, unless it is about a machine that costs more than was planned.

        Raises:
            ConfigError: no price of it is known.
        """
        if isinstance(move, decision.Create):
            made_of = hardware(self._target, move.zone, spot=move.way == "spot")
        elif isinstance(move, decision.Wait | decision.Fail | decision.DeleteCreated):
            return move
        else:
            made_of = self._with_disk_types(move.machine).hardware
        dear = too_dear(self._target.instance, made_of, self._parts.price(self._target, made_of), self._policy.wish)
        if dear is not None and (known := self._parts.book.known(*self._name)) is not None:
            # So that the next plan asks the cloud.
            self._parts.book.remember(replace(known, deadline=None), instead_of=known)
        return dear or move

    def _with_disk_types(self, machine: Machine) -> Machine:
        key = machine.id, machine.hardware
        if key not in self._disks:
            self._disks[key] = with_disk_types(self._cloud, machine).disks
        return replace(machine, disks=self._disks[key])

    def _now(self) -> float:
        """The time of day, as if nobody had set this computer's clock since it began: waits are to last as long."""
        time_of_day, elapsed = self._began
        return time_of_day + self._clock.elapsed() - elapsed

    def _wait_for_the_other(self) -> None:
        """Until it has the machine on, or gives up; within this one's own time.

        Raises:
            ConflictError: that is over.
        """
        waited = self._now() - self._history.began
        if waited + POLL_S >= self._policy.limit_s:
            raise ConflictError(
                f"another fcctl on this computer has been turning {self._target.instance} on for {waited:.0f} s",
                cause="two at once could make two machines",
                hint="fcctl ps shows what it is at; try again when it is done",
            )
        self._say(f"another fcctl on this computer is turning {self._target.instance} on")
        self._clock.sleep(POLL_S)

    def _use(self, machine: Machine) -> Acquired:
        started = bool(self._history.of("start", machine.zone) or self._history.of("create", machine.zone))
        labels = self._purpose.labels() if started else self._purpose.labels_on(machine.labels)
        if any(machine.labels.get(key) != value for key, value in labels.items()):
            self._mark(machine, labels)
        machine = self._with_disk_types(machine)
        price = self._parts.price(self._target, machine.hardware)
        return Acquired(machine, started, price, self._was_queued(machine))

    def _was_queued(self, machine: Machine) -> float:
        made = [a for a in self._history.of("create", machine.zone) if a.way == "flex_start"]
        if not made or machine.created is None or machine.started is None:
            return 0.0
        return max(0.0, machine.started - machine.created)

    def _cloud_ahead(self, seen: list[Machine]) -> float:
        """Of a machine that runs already the deadline counts, which is told by the cloud's clock: ask for its time.

        Only operations carry the time, so one is made that changes nothing: the labels that it has already.
        """
        running = next((m for m in seen if m.power is Power.RUNNING), None)
        if running is not None and self._changes.cloud_ahead_s is None and not self._history.attempts:
            self._changes.make("clock", running.zone, lambda request: self._cloud.set_labels(running, {}, request), 0.0)
        return self._changes.cloud_ahead_s or 0.0

    def _mark(self, machine: Machine, labels: Mapping[str, str]) -> None:
        """Say on the machine who uses it: for people, for the audit, and for who is about to turn it off."""
        operation = self._changes.make(
            "label", machine.zone, lambda request: self._cloud.set_labels(machine, labels, request), 0.0
        )
        if operation.refusal is not None and operation.refusal.remedy is Remedy.FATAL:
            self._parts.observer.note(f"{machine.name} gets no labels: {operation.refusal.message}")

    # ------------------------------------------------------------------------------------------------- making a move
    def _make(self, move: Making) -> Attempt:
        match move:
            case decision.SetDeadline(machine, seconds):
                self._say(f"{machine.name} may run for {seconds / 60:.0f} minutes from its start")
                return self._attempt("fence", machine.zone, CHANGE_LIMIT_S,
                                     lambda r: self._cloud.set_max_run(machine, seconds, r))  # fmt: skip
            case decision.Start(machine):
                self._let_in(machine)
                self._say(f"starting {machine.name} in {machine.zone}")
                return self._attempt("start", machine.zone, self._target.wake_timeout_s,
                                     lambda r: self._cloud.start(machine, r))  # fmt: skip
            case decision.Stop(machine):
                self._refuse_if_used(machine)
                self._say(f"stopping {machine.name} to give it a time limit of its own")
                return self._attempt("stop", machine.zone, STOP_LIMIT_S,
                                     lambda r: self._cloud.stop(machine, r))  # fmt: skip
            case decision.Resume(machine):
                self._say(f"resuming {machine.name}, in order to stop it")
                return self._attempt("resume", machine.zone, self._target.wake_timeout_s,
                                     lambda r: self._cloud.resume(machine, r))  # fmt: skip
            case decision.Snapshot(machine, name):
                return self._snapshot(machine, name)
            case decision.Create():
                return self._create(move)
            case decision.DeleteCreated(machine, first):
                return self._withdraw(machine, first)
        assert_never(move)

    def _attempt(
        self,
        action: decision.Action,
        zone: str,
        limit_s: float,
        change: Callable[[str], Operation],
        *,
        way: Provisioning = "on_demand",
    ) -> Attempt:
        operation = self._changes.make(action, zone, change, limit_s)
        if operation.refusal is not None:
            self._say(f"{action} in {zone}: {operation.refusal.code}")
        return Attempt(action, zone, self._now(), way, operation.refusal, operation.done)

    def _snapshot(self, machine: Machine, name: str) -> Attempt:
        if self._cloud.has_snapshot(name):
            return Attempt("snapshot", machine.zone, self._now())
        self._say(f"no stock in {machine.zone}: a snapshot of {machine.name}'s disk, for another zone")
        return self._attempt("snapshot", machine.zone, STOP_LIMIT_S,
                             lambda r: self._cloud.snapshot(machine, name, r))  # fmt: skip

    def _create(self, move: decision.Create) -> Attempt:
        login = self._parts.clouds.login(self._target)
        items = login_items({}, user=login.user, public_key=login.public_key, os_login=self._os_login)
        spec = machine_spec(
            self._target, self._purpose, items, way=move.way, max_run_s=self._policy.wish.max_run_s,
            snapshot=move.snapshot,
        )  # fmt: skip
        how = "" if move.way == "on_demand" else f" ({move.way.replace('_', ' ')})"
        self._say(f"creating {spec.name} in {move.zone}: {spec.machine_type}{how}{self._queued(move)}")
        queue_s = self._policy.flex_wait_s if move.way == "flex_start" else 0.0
        return self._attempt("create", move.zone, self._target.wake_timeout_s + queue_s,
                             lambda r: self._cloud.create(move.zone, spec, r), way=move.way)  # fmt: skip

    def _queued(self, move: decision.Create) -> str:
        wait = self._policy.flex_wait_s / 60
        return f"; it may wait {wait:g} minutes in the queue" if move.way == "flex_start" and wait else ""

    def _withdraw(self, machine: Machine, first: Machine) -> Attempt:
        self._parts.observer.note(
            f"another fcctl made {first.name} in {first.zone} at the same moment, and it is the older one: the one made"
            f" here, in {machine.zone}, is deleted again"
        )
        gone = self._attempt("delete", machine.zone, STOP_LIMIT_S, lambda r: self._cloud.delete(machine, r))
        with suppress(FcctlError):  # what it cost is in the books from when it was seen; now also until when
            self._cloud.operations(machine.zone, machine.name)
        return gone

    @property
    def _os_login(self) -> bool:
        return self._target.login == "os_login"

    def _let_in(self, machine: Machine) -> None:
        """The user's key into the machine's metadata, while it is off: then it is there when the system comes up."""
        let_in(self._parts, self._target, self._changes, machine)

    def _refuse_if_used(self, machine: Machine) -> None:
        """Raises ConflictError if a run is on the machine that is about to be stopped for another."""
        try:
            session = self._parts.hosts.connect(self._target)
        except HostError:
            return  # nobody gets in there, so nobody's fcctl follows anything there either
        try:
            busy = [r.run_id for r in session.status(None) if r.status not in wire.RUN_ENDINGS]
        except HostError:
            return
        finally:
            session.close()
        if busy:
            raise ConflictError(
                f"{machine.name} is at work on {busy[0]}, and is not restarted",
                hint=f"wait for it (fcctl ps), or end it: fcctl cancel {busy[0]}",
            )

    def _say(self, text: str) -> None:
        self._parts.observer.phase("wake", text)
