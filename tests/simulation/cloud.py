"""A cloud with one project: its operations take time, its machines cost money, its fence holds (up to 30 s late)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from orchestrator.machines.cloud import (
    SNAPSHOT_LABEL,
    BillableResource,
    Disk,
    Machine,
    Operation,
    Power,
    Refusal,
    Remedy,
)
from tests.simulation.world import Violation, World

BOOT_S = 25.0
LATENESS_S = 30.0
#: What a snapshot stores.
SNAPSHOT_GB = 20


@dataclass(frozen=True)
class Snapshot:
    """A copy of a machine's disk, with the runs that were on it."""

    name: str
    zone: str
    #: The disk it was made of; the machine's id.
    source: str
    source_id: str
    created: float
    labels: Mapping[str, str]
    runs: Mapping[str, Any]


@dataclass
class Instance:
    """One machine's truth."""

    view: Machine
    #: Whether the guest's system is up; it dies with the power.
    up: bool = False
    boots: int = 0
    #: (from RUNNING, to TERMINATED), epoch seconds.
    billed: list[tuple[float, float | None]] = field(default_factory=list)
    #: Which process asked for each of these starts; empty: a person did, in the console.
    started_by: list[str] = field(default_factory=list)
    #: Whose fcctl made it.
    made_on: str = ""
    #: The snapshot that its disk is a copy of.
    made_of: str = ""
    #: Whether a person deleted it.
    given_up: bool = False
    on_power: Callable[[bool], None] = lambda on: None

    def cost(self, usd_per_hour: float, now: float) -> float:
        """Dollars, with the one-minute minimum of each start."""
        spans = [(end if end is not None else now) - start for start, end in self.billed]
        return sum(max(60.0, span) for span in spans) * usd_per_hour / 3600


class SimulatedCloud:
    """The truth. What a controller sees of it is :class:`CloudPort`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.instances: dict[tuple[str, str], Instance] = {}
        self.operations: dict[str, Operation] = {}
        self.requests: dict[str, Operation] = {}
        self.history: list[Operation] = []
        self.snapshots: dict[str, Snapshot] = {}
        #: What is on the disk of a machine, by run; and who is asked before something is deleted.
        self.content_of: Callable[[Instance], dict[str, Any]] = lambda instance: {}
        #: How many copies of disks were ever made.
        self.copies = 0
        self.before_delete_snapshot: Callable[[Snapshot], None] = lambda snapshot: None
        self._asked = ""  # the id of the request that is just answered
        self.starts: list[str] = []  # who asked for each start: fcctl, console
        self.console_limits: list[float] = []  # of the machines started there, which may be deleted by now, seconds
        self.deleted: list[Instance] = []  # what they cost stays
        self.before_delete: Callable[[Instance], None] = lambda instance: None
        self._numbers = iter(range(1, 10**9))
        world.on["preempt"] = lambda: self._all_running(lambda i: self._power_off(i, "compute.instances.preempted"))
        #: When a person last deleted machines.
        self.deleted_at: float | None = None
        world.on["deleted"] = self._deleted_by_a_person
        world.on["console"] = lambda: self._all_running(self._console)

    # --------------------------------------------------------------------------------------------------- what happens
    def add_stopped(self, project: str, zone: str, name: str) -> Instance:
        view = Machine(
            project, zone, name, str(next(self._numbers)), "TERMINATED", "g2-standard-4",
            metadata={"enable-guest-attributes": "TRUE"},
            labels={"fcctl": "sim"},
            disks=(Disk(name, "d", True, 100, False),), created=self.world.now - 86400, stopped=self.world.now - 3600,
        )  # fmt: skip
        found = self.instances[zone, name] = Instance(view)
        return found

    def request(self, request_id: str, make: Callable[[], Operation]) -> Operation:
        """The same request id is one change."""
        if request_id not in self.requests:
            self._asked = request_id
            operation = make()
            self._asked = ""
            self.requests[request_id] = operation
        return self.operations[self.requests[request_id].name]

    def operation(
        self, kind: str, zone: str | None, target: str, seconds: float, then: Callable[[], None], target_id: str = ""
    ) -> Operation:
        """One that ends by itself."""
        now = self.world.now
        collection = "instances" if target_id else "snapshots"
        op = Operation(
            f"op-{next(self._numbers)}", zone, kind, target, "RUNNING", started=now, target_id=target_id,
            collection=collection, request_id=self._asked,
        )  # fmt: skip
        self.operations[op.name] = op

        def finish() -> None:
            then()
            self.operations[op.name] = replace(self.operations[op.name], state="DONE", finished=self.world.now)

        self.history.append(op)
        self.world.at(now + seconds, finish)
        return op

    def refused(self, kind: str, zone: str, target: str, code: str, remedy: Remedy) -> Operation:
        op = Operation(
            f"op-{next(self._numbers)}", zone, kind, target, "DONE",
            Refusal(code, f"{code} (simulated)", remedy), started=self.world.now, finished=self.world.now,
        )  # fmt: skip
        self.operations[op.name] = op
        return op

    def change(self, instance: Instance, **values: object) -> None:
        instance.view = replace(instance.view, **values)  # type: ignore[arg-type]

    def power_on(self, instance: Instance, who: str, by: str = "") -> None:
        """Into RUNNING; the fence counts from here."""
        if instance.view.max_run_s is None or instance.view.termination_action != "STOP":
            raise Violation(f"{instance.view.name} was started ({who}) without a time limit of the cloud's")
        now = self.world.now
        deadline = now + instance.view.max_run_s
        self.change(instance, status="RUNNING", started=now, deadline=deadline, external_ip="127.0.0.1")
        instance.billed.append((now, None))
        instance.started_by.append(by)
        self.starts.append(who)
        late = self.world.rng.uniform(0, LATENESS_S)
        boot = len(instance.billed)
        self.world.at(deadline + late, lambda: self._fence(instance, boot))
        self.world.at(now + BOOT_S, lambda: self._booted(instance, boot))

    def _booted(self, instance: Instance, boot: int) -> None:
        if instance.view.status == "RUNNING" and len(instance.billed) == boot and not instance.up:
            instance.up = True
            instance.boots += 1
            instance.on_power(True)

    def _fence(self, instance: Instance, boot: int) -> None:
        if instance.view.power is Power.RUNNING and len(instance.billed) == boot:
            self._power_off(instance, "compute.instances.deferredStop")

    def _power_off(self, instance: Instance, kind: str) -> None:
        self.history.append(
            Operation(f"op-{next(self._numbers)}", instance.view.zone, kind, instance.view.name, "DONE",
                      started=self.world.now, finished=self.world.now, target_id=instance.view.id)
        )  # fmt: skip
        self.go_down(instance)
        self.off(instance)

    def go_down(self, instance: Instance) -> None:
        """The system dies; the power is still on."""
        if instance.up:
            instance.up = False
            instance.on_power(False)
        self.change(instance, status="STOPPING")

    def off(self, instance: Instance) -> None:
        if instance.view.status == "TERMINATED":
            return
        if instance.billed and instance.billed[-1][1] is None:
            instance.billed[-1] = (instance.billed[-1][0], self.world.now)
        self.change(instance, status="TERMINATED", stopped=self.world.now, deadline=None, external_ip=None)

    def guest_shutdown(self, instance: Instance) -> None:
        if instance.view.status == "RUNNING":
            self._power_off(instance, "compute.instances.guestTerminate")

    def crash(self, instance: Instance) -> None:
        """The guest's system dies and boots again by itself; nothing of the cloud's changes."""
        if instance.up:
            instance.up = False
            instance.on_power(False)
            boot = len(instance.billed)
            self.world.at(self.world.now + BOOT_S, lambda: self._booted(instance, boot))

    def _console(self, instance: Instance) -> None:
        self._power_off(instance, "stop")
        if instance.view.max_run_s is not None:
            self.operation("start", instance.view.zone, instance.view.name, 0.0, lambda: None, instance.view.id)
            self.console_limits.append(instance.view.max_run_s)
            self.power_on(instance, "console")

    def _deleted_by_a_person(self) -> None:
        self.deleted_at = self.world.now
        for place, instance in list(self.instances.items()):
            if instance.view.power is Power.STOPPED:
                instance.given_up = True
                self.deleted.append(self.instances.pop(place))

    def take_snapshot(self, instance: Instance, name: str) -> None:
        view = instance.view
        self.copies += 1
        self.snapshots[name] = Snapshot(
            name, view.zone, view.name, view.id, self.world.now, {**view.labels, SNAPSHOT_LABEL: "yes"},
            self.content_of(instance),
        )  # fmt: skip

    def resources(self) -> list[BillableResource]:
        """The disks and snapshots that there are, with what uses them."""
        disks = [
            BillableResource(
                "disk",
                i.view.project,
                i.view.zone,
                disk.name,
                disk.gb,
                "pd-balanced",
                users=(i.view.name,),
                source=i.made_of,
                created=i.view.created,
            )
            for i in self.instances.values()
            for disk in i.view.disks
        ]
        disks += [
            BillableResource(
                "disk",
                i.view.project,
                i.view.zone,
                disk.name,
                disk.gb,
                "pd-balanced",
                source=i.made_of,
                created=i.view.created,
            )
            for i in self.deleted
            for disk in i.view.disks
            if not disk.auto_delete and not i.given_up
        ]
        snapshots = [
            BillableResource("snapshot", "sim-project", s.zone.rpartition("-")[0], s.name, SNAPSHOT_GB, labels=s.labels,
                     source=s.source, created=s.created)
            for s in self.snapshots.values()
        ]  # fmt: skip
        return [*disks, *snapshots]

    def _all_running(self, action: Callable[[Instance], None]) -> None:
        for instance in list(self.instances.values()):
            if instance.view.status == "RUNNING":
                action(instance)

    def older(self, instance: Instance) -> Instance | None:
        """One that is on, has the name of ``instance``, and was made before it."""
        own, on = instance.view, ("STAGING", "RUNNING")
        same = [i for i in self.instances.values() if i.view.name == own.name and i.view.status in on]
        return next((i for i in same if (i.view.created or 0.0) < (own.created or 0.0)), None)

    def running(self) -> list[Instance]:
        return [i for i in self.instances.values() if i.view.billed]

    def spent(self, usd_per_hour: float) -> float:
        everything = [*self.instances.values(), *self.deleted]
        return sum(i.cost(usd_per_hour, self.world.now) for i in everything)

    def billed_to(self) -> list[tuple[tuple[float, float | None], str]]:
        """The same, with the process that asked for each start."""
        everything = [*self.instances.values(), *self.deleted]
        return [pair for i in everything for pair in zip(i.billed, i.started_by, strict=True)]

    def billed(self) -> list[tuple[float, float | None]]:
        """Every time that a machine was on."""
        return [span for i in [*self.instances.values(), *self.deleted] for span in i.billed]
