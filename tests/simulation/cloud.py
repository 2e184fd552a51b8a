"""The simulated cloud: the emulator's core in virtual time, with guests that are not processes, and whatever people and
the cloud do to machines on their own."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from orchestrator.emulator import power
from orchestrator.emulator.clock import timestamp
from orchestrator.emulator.refusals import last, path_of
from orchestrator.emulator.scenario import Faults, Latency, Scenario
from orchestrator.emulator.server import Service
from orchestrator.emulator.world import BilledTime, begin, supersede
from orchestrator.emulator.world import Machine as Emulated
from orchestrator.emulator.world import World as Core
from tests.simulation.world import World

PROJECT = "sim-project"
LATENESS_S = 30.0
#: What a snapshot stores.
SNAPSHOT_GB = 20
LATENCY = Latency(pending=0, provisioning=0, staging=10, boot=25, delete=15, disk=30, change=0.5)
HOST_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJ3pPfbhJ7qjWtT0bBkTLLNwZ0oDDvVDyzYn8WrRmgfh"
_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2204-nvidia-580"


@dataclass(eq=False)
class Instance:
    """One machine's truth."""

    #: As the cloud describes it, or did last.
    resource: dict[str, Any]
    #: Whether the guest's system is up; it dies with the power.
    up: bool = False
    boots: int = 0
    #: Whose fcctl made it.
    made_on: str = ""
    #: The snapshot that its disk is a copy of.
    made_of: str = ""
    #: Whether a person deleted it.
    given_up: bool = False
    on_power: Callable[[bool], None] = lambda on: None

    @property
    def id(self) -> str:
        return str(self.resource["id"])

    @property
    def name(self) -> str:
        return str(self.resource["name"])

    @property
    def status(self) -> str:
        return str(self.resource["status"])

    @property
    def zone(self) -> str:
        return last(self.resource["zone"])

    @property
    def is_billed(self) -> bool:
        return self.status not in ("TERMINATED", "SUSPENDED")

    @property
    def limit_s(self) -> int | None:
        """After which the cloud stops it, and keeps it."""
        scheduling = self.resource["scheduling"]
        stops = scheduling.get("instanceTerminationAction") == "STOP"
        return int(scheduling["maxRunDuration"]["seconds"]) if stops and "maxRunDuration" in scheduling else None


@dataclass(frozen=True)
class Snapshot:
    """The runs on a copy of a machine's disk."""

    name: str
    runs: Mapping[str, Any]


class VirtualTime:
    """The core's ``Time``: the world's."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lock: AbstractContextManager[object] = nullcontext()

    def now(self) -> float:
        return self.world.now

    def at(self, when: float, event: Callable[[], None]) -> None:
        self.world.at(when, event)

    def wait(self, until: float, done: Callable[[], bool], *, real_limit_s: float) -> None:
        while not done() and self.world.now < until:
            self.world.advance(1.0)


class SimulatedCloud:
    """The truth, and the core's ``Hypervisor``. What a controller sees of it is :class:`CloudPort`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.core = Core(Scenario(latency=LATENCY, wait_limit_s=110.0), VirtualTime(world), self, random.Random(0))
        self.core.lateness = lambda: world.rng.uniform(0, LATENESS_S)
        self.faults = faults = Faults()
        self.service = Service(self.core, faults)
        #: By id, the deleted ones too.
        self.known: dict[str, Instance] = {}
        #: By the id of a disk: the machine that it was made for.
        self.owners: dict[str, Instance] = {}
        #: By name.
        self.snapshots: dict[str, Snapshot] = {}
        #: What is on the disk of a machine, by run; and who is asked before something is deleted.
        self.content_of: Callable[[Instance], dict[str, Any]] = lambda instance: {}
        self.before_delete: Callable[[Instance], None] = lambda instance: None
        self.before_delete_snapshot: Callable[[Snapshot], None] = lambda snapshot: None
        #: How many copies of disks were ever made.
        self.copies = 0
        #: Which process asked for which start: its operation -> the process.
        self.asked: dict[str, str] = {}
        self.console_limits: list[float] = []  # of the machines started there, which may be deleted by now, seconds
        #: When a person last deleted machines.
        self.deleted_at: float | None = None
        world.on["struck"] = self._set_scenario
        world.on["preempt"] = lambda: [self.preempt(instance) for instance in self.running()]  # type: ignore[assignment]
        world.on["deleted"] = self._deleted_by_a_person
        error = {"operation": {"code": "INTERNAL_ERROR", "http": None, "applied": True}}
        world.on["misreported"] = lambda: faults.add(action="instances.*", method="[PD]*", nth=1, do=error)  # type: ignore[assignment]
        world.on["console"] = lambda: self._all_running(self._console)

    def ask(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        """The core's answer, after whatever takes no time has happened. ``path``: below the project."""
        self._set_scenario(self.world.pending_seconds)
        try:
            answer = self.service.answer(method, f"projects/{PROJECT}/{path}".rstrip("/"), query, body)
        finally:
            self._set_scenario()  # what the cloud itself does is not pending
        if method == "GET":
            return answer
        self.world.happen_due()
        operation = self.core.operations.get(path_of(str(answer.get("selfLink", ""))))
        return answer if operation is None else dict(operation.resource)

    def _set_scenario(self, pending_s: float = 0.0) -> None:
        world, scenario = self.world, self.core.scenario
        scenario.stale_s = world.stale_seconds
        scenario.latency = LATENCY.model_copy(update={"stop": world.stop_seconds, "pending": pending_s})
        scenario.stock = {zone: 0 for zone in scenario.zones if not world.has_stock(zone)}

    # --------------------------------------------------------------------------------------------------- what there is
    @property
    def instances(self) -> dict[tuple[str, str], Instance]:
        return {(m.zone, m.resource["name"]): self._instance(m) for m in self.core.machines.values()}

    def _instance(self, machine: Emulated) -> Instance:
        number = machine.resource["id"]
        if number not in self.known:
            disk = self.core.disks[path_of(machine.resource["disks"][0]["source"])]
            instance = Instance(machine.resource, made_of=last(disk.get("sourceSnapshot", "")))
            self.known[number] = self.owners[disk["id"]] = instance
        return self.known[number]

    def add_stopped(self, zone: str, name: str) -> Instance:
        """A machine that was there before, and its disk, which outlives it."""
        now = self.world.now
        body = {
            "name": name, "machineType": f"zones/{zone}/machineTypes/g2-standard-4", "labels": {"fcctl": "sim"},
            "metadata": {"items": [{"key": "enable-guest-attributes", "value": "TRUE"}]},
            "scheduling": {"onHostMaintenance": "TERMINATE", "automaticRestart": False},
            "networkInterfaces": [{"accessConfigs": [{"name": "External NAT"}]}],
            "disks": [{"boot": True, "initializeParams": {"sourceImage": _IMAGE, "diskType": "pd-balanced"}}],
        }  # fmt: skip
        self.ask("POST", f"zones/{zone}/instances", {}, body)
        machine = self.core.machines[f"projects/{PROJECT}/zones/{zone}/instances/{name}"]
        supersede(self.core, machine.path)
        power.power_off(self.core, machine)
        self.core.operations.clear()
        machine.booted, machine.guest_attributes = True, {"hostkeys/ssh-ed25519": HOST_KEY}
        machine.resource.update(creationTimestamp=timestamp(now - 86400), lastStopTimestamp=timestamp(now - 3600))
        return self._instance(machine)

    def _machine_of(self, instance: Instance) -> Emulated | None:
        return next((m for m in self.core.machines.values() if m.resource is instance.resource), None)

    def older(self, instance: Instance) -> Instance | None:
        """One that is on, has the name of ``instance``, and was made before it."""
        own = instance.resource.get("creationTimestamp", "")
        same = [i for i in self.running() if i.name == instance.name and i.status in ("STAGING", "RUNNING")]
        return next((i for i in same if i.resource["creationTimestamp"] < own), None)

    def running(self) -> list[Instance]:
        return [i for i in self.instances.values() if i.is_billed]

    # -------------------------------------------------------------------------------------------------- what it bills
    @property
    def billed(self) -> list[BilledTime]:
        return self.core.billed

    def seconds(self, time: BilledTime) -> float:
        """With the one-minute minimum of each start."""
        return max(60.0, (self.world.now if time.until is None else time.until) - time.since)

    def spent(self, usd_per_hour: float) -> float:
        return sum(map(self.seconds, self.billed)) * usd_per_hour / 3600

    def started_by(self, instance: Instance) -> str:
        """The process that asked for its last start; empty: a person did, in the console."""
        own = [time for time in self.billed if time.machine_id == instance.id]
        return self.asked.get(own[-1].operation, "") if own else ""

    @property
    def only_fcctl_starts(self) -> bool:
        return all(time.operation in self.asked for time in self.billed)

    # ----------------------------------------------------------------------------------------------- what just happens
    def _all_running(self, act: Callable[[Emulated], object]) -> None:
        for machine in list(self.core.machines.values()):
            if machine.status == "RUNNING":
                act(machine)

    def preempt(self, instance: Instance) -> None:
        self._happen(instance, "preempted")

    def guest_shutdown(self, instance: Instance) -> None:
        self._happen(instance, "guestTerminate")

    def _happen(self, instance: Instance, what: str) -> None:
        machine = self._machine_of(instance)
        if machine is not None and machine.status == "RUNNING":
            power.happen(self.core, machine, f"compute.instances.{what}")
            self.world.happen_due()

    def crash(self, instance: Instance) -> None:
        """The guest's system dies and boots again by itself; nothing of the cloud's changes."""
        machine = self._machine_of(instance)
        if instance.up and machine is not None:
            power.restart(self.core, machine)
        elif instance.up:  # not a machine of the cloud
            instance.up = False
            instance.on_power(False)
            self.world.at(self.world.now + LATENCY.boot, lambda: self._booted(instance))

    def _console(self, machine: Emulated) -> None:
        """A person stops the machine, and starts it again if it has a limit."""
        core, number = self.core, machine.resource["id"]
        supersede(core, machine.path)
        power.power_off(core, machine)
        begin(core, "stop", machine.path, [], target_id=number)
        limit = self._instance(machine).limit_s
        if limit is not None:
            self.console_limits.append(limit)
            begin(core, "start", machine.path, [(0.0, "enter_running", {})], target_id=number)
        self.world.happen_due()

    def _deleted_by_a_person(self) -> None:
        self.deleted_at = self.world.now
        for machine in list(self.core.machines.values()):
            if machine.status == "TERMINATED":
                self._instance(machine).given_up = True
                disks = [path_of(disk["source"]) for disk in machine.resource["disks"]]
                plan = [(0.0, "forget", {"created": disks})]
                begin(self.core, "delete", machine.path, plan, target_id=machine.resource["id"])
        self.world.happen_due()

    # ------------------------------------------------------------------------------------------------- its hypervisor
    def boot(self, machine: Emulated, disk: dict[str, Any]) -> None:
        self._booted(self._instance(machine))

    def _booted(self, instance: Instance) -> None:
        if instance.up:
            return
        instance.up = True
        instance.boots += 1
        instance.on_power(True)

    def shut_down(self, machine: Emulated) -> None:
        instance = self._instance(machine)
        if instance.up:
            instance.up = False
            instance.on_power(False)

    power_off = freeze = shut_down

    def thaw(self, machine: Emulated) -> bool:
        return False

    def authorize(self, machine: Emulated) -> None:
        pass

    def host_keys(self, machine: Emulated) -> dict[str, str]:
        return {"ssh-ed25519": HOST_KEY}

    def login(self, machine: Emulated) -> tuple[int, str] | None:
        return None

    def serial_output(self, machine: Emulated) -> str:
        return ""

    def fill_disk(self, disk: dict[str, Any]) -> None:
        self.world.on["made"]()

    def delete_disk(self, disk: dict[str, Any]) -> None:
        pass

    def take_snapshot(self, snapshot: dict[str, Any], disk: dict[str, Any]) -> int:
        self.copies += 1
        self.snapshots[snapshot["name"]] = Snapshot(snapshot["name"], self.content_of(self.owners[disk["id"]]))
        return SNAPSHOT_GB << 30

    def delete_snapshot(self, snapshot: dict[str, Any]) -> None:
        self.snapshots.pop(snapshot["name"], None)
