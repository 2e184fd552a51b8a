"""The emulator as one object: ``with Emulator() as cloud: ... cloud.url``."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from pydantic import TypeAdapter

from orchestrator.base.errors import ConflictError
from orchestrator.base.files import write_atomic
from orchestrator.base.journal import OwnerLock
from orchestrator.emulator import guest, power
from orchestrator.emulator.clock import EmulatedClock, Timeline, parse_timestamp
from orchestrator.emulator.guest import end_orphan
from orchestrator.emulator.hypervisor import ProcessHypervisor
from orchestrator.emulator.refusals import ApiError, path_of
from orchestrator.emulator.scenario import Faults, Scenario
from orchestrator.emulator.server import LostReply, Server, Service
from orchestrator.emulator.world import BilledTime, Machine, Operation, World, schedule, supersede

#: Events of a running machine, by their operation.
EVENTS = ("preempted", "hostError", "deferredStop", "guestTerminate", "terminateOnHostMaintenance")


class Control:
    """Events and settings. Machines are named; an ambiguous name is given as a path."""

    def __init__(self, world: World, hypervisor: ProcessHypervisor, timeline: Timeline, faults: Faults) -> None:
        self._world, self._hypervisor, self._timeline = world, hypervisor, timeline
        self._faults = faults

    def machine(self, name: str) -> Machine:
        """Raises LookupError: none, or several."""
        with self._world.lock:
            machines = [m for path, m in self._world.machines.items() if name in (path, path.rsplit("/", 1)[-1])]
        if len(machines) != 1:
            raise LookupError(f"{len(machines)} instances have the name {name}")
        return machines[0]

    def happen(self, name: str, what: str) -> dict[str, Any]:
        """``what`` is one of :data:`EVENTS`; returns its operation. Raises LookupError: no such machine, or it does
        not run; ValueError: no such event."""
        if what not in EVENTS:
            raise ValueError(f"unknown event '{what}'; known: {', '.join(EVENTS)}")
        with self._world.lock:
            machine = self.machine(name)
            if machine.status != "RUNNING":
                raise LookupError(f"{name} is {machine.status}")
            return dict(power.happen(self._world, machine, f"compute.instances.{what}").resource)

    def rotate_host_keys(self, name: str) -> None:
        """New host keys, as of another host; sshd restarts with them, and they are not published."""
        with self._world.lock:
            machine = self.machine(name)
            disk = self._world.disks[path_of(machine.resource["disks"][0]["source"])]
            guest.new_host_keys(self._hypervisor.folder_of(disk))
            if machine.path in self._hypervisor.running:
                self._hypervisor.power_off(machine)
                power.boot(self._world, machine.path, machine.life)

    def switch_all_off(self) -> None:
        """Sets every instance to TERMINATED, so that none is started with the next emulator of this state."""
        with self._world.lock:
            for machine in self._world.machines.values():
                if machine.status != "TERMINATED":
                    supersede(self._world, machine.path)
                    power.power_off(self._world, machine)
            self._world.changed()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """``status``, ``instances/NAME/EVENT`` and ``/rotateHostKeys``, ``clock``, ``stock``, ``quotas``, ``faults``.
        Raises ApiError: unknown, or an invalid body."""
        try:
            return self._post(path.split("/"), body)
        except (LookupError, ValueError, TypeError) as error:
            raise ApiError("invalid", str(error)) from None

    def _post(self, parts: list[str], body: dict[str, Any]) -> dict[str, Any]:
        if parts[0] == "instances" and len(parts) == 3:
            if parts[2] == "rotateHostKeys":
                self.rotate_host_keys(parts[1])
                return {}
            return self.happen(parts[1], parts[2])
        if parts == ["status"]:
            with self._world.lock:
                return {"instances": {path: machine.status for path, machine in self._world.machines.items()}}
        if parts == ["clock"]:
            self._timeline.advance(float(body.get("advance", 0)))
            return {"now": self._world.now()}
        if parts == ["stock"]:
            self._world.scenario.stock.update({zone: int(count) for zone, count in body.items()})
            return {"stock": self._world.scenario.stock}
        if parts == ["quotas"]:
            for region, limits in body.items():
                self._world.scenario.quotas.setdefault(region, {}).update(limits)
            return {"quotas": self._world.scenario.quotas}
        if parts == ["faults"]:
            self._faults.clear()
            for entry in body.get("faults", []):
                self._faults.add(**entry)
            return {}
        raise ApiError("notFound", f"unknown control of the emulator '{'/'.join(parts)}'")


def guest_power(world: World, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Handles ``shutdown`` and similar commands inside an instance. Raises ApiError: there is none at ``path``."""
    with world.lock:
        machine = world.machines.get(path)
        if machine is None:
            raise ApiError("notFound", "unknown guest")
        unit, do = str(body.get("unit", "shutdown")), body.get("do")
        if do == "show":
            due = [moment - world.now() for moment in machine.timers.values()]
            return {"text": f"Shutdown scheduled in {min(due):.0f} s" if due else "No scheduled shutdown."}
        if do == "cancel":
            machine.timers.pop(unit, None)
        elif do in ("off", "reboot"):
            after = max(0.0, float(body.get("after_s", 0)))
            power.set_timer(world, machine, unit, world.now() + after, reboot=do == "reboot")
        world.changed()
        return {}


#: An emulator that ends holds the folder's lock to the last; a start waits so long for it, seconds.
_ENDING_S = 1.0


class Emulator:
    """An emulator of Compute Engine on loopback.

    Args:
        state: the folder of the state; if None a temporary one, deleted by :meth:`stop`.
        port: of the API; any free one, if 0.
        scenario: latencies, stock, quotas; may be changed while it runs.
        faults: scripted faults, in addition to the scenario's.
        clock: the time; by default real time multiplied by the scenario's speed.
        fresh_secret: a new secret in the URL at every start, even with a saved state, so that a program that took over
            the port of an earlier emulator does not learn the secret of the next.
    """

    def __init__(
        self,
        state: Path | None = None,
        *,
        port: int = 0,
        scenario: Scenario | None = None,
        faults: Iterable[Mapping[str, Any]] = (),
        clock: EmulatedClock | None = None,
        fresh_secret: bool = False,
    ) -> None:
        self.scenario = scenario or Scenario()
        self.clock = clock or EmulatedClock(speed=self.scenario.speed)
        self.faults = Faults([*self.scenario.faults, *faults])
        self._temporary = state is None
        # Made by start(): an emulator that never starts leaves nothing behind.
        self._folder = state or Path(tempfile.gettempdir()) / f"fcctl-emulator-{secrets.token_hex(8)}"
        self._port = port
        self._owned: OwnerLock | None = None
        self._server: Server | None = None
        self._fresh_secret = fresh_secret
        self._asked = time.monotonic()
        #: Set when a client requests the end.
        self.ended = threading.Event()
        self.timeline = Timeline(self.clock)
        self.hypervisor = ProcessHypervisor(self._folder.resolve(), self.scenario, temporary=self._temporary)
        self.world = World(self.scenario, self.timeline, self.hypervisor)
        self.world.changed = self._save
        self._secret = ""
        self.control = Control(self.world, self.hypervisor, self.timeline, self.faults)
        self._service = Service(self.world, self.faults)

    # ------------------------------------------------------------------------------------------------ start and stop
    def start(self) -> Self:
        """Listens, and continues with the saved state. Raises ConflictError: another emulator uses the folder, or the
        port is taken."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock()
        world = self.world
        before, secret = _load(world, self._folder) or (0.0, "")
        self._secret = secrets.token_urlsafe(16) if self._fresh_secret or not secret else secret
        if before > self.clock.now():
            self.clock.advance(before - self.clock.now())
        try:
            self._server = Server(self._port, self._secret, self._answer)
        except OSError as error:
            self._unlock()
            self._remove_if_temporary()
            raise ConflictError(
                f"port {self._port} of 127.0.0.1 cannot be used",
                cause=str(error),
                hint="let the system choose a port: fcctl emulator --port 0",
            ) from None
        self.hypervisor.url = self.url
        with world.lock:
            self._resume()
            self._save()
        self.timeline.start()
        serve = {"poll_interval": 0.05}
        threading.Thread(target=self._server.serve_forever, kwargs=serve, name="emulator-http", daemon=True).start()
        return self

    def stop(self) -> None:
        """Stops listening and ends every process; with a state folder the instances are started again with the next
        emulator."""
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        self.timeline.stop()
        with self.world.lock:
            with contextlib.suppress(FileNotFoundError):  # the folder was deleted
                self._save()
            self.hypervisor.stop()
        self._unlock()
        self._remove_if_temporary()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---------------------------------------------------------------------------------------------------- for clients
    @property
    def url(self) -> str:
        """``api_endpoint`` for Google's library; gcloud wants it with ``/compute/v1/`` appended."""
        if self._server is None:
            raise RuntimeError("the emulator is not started")
        return f"http://127.0.0.1:{self._server.server_port}/{self._secret}"

    def all_done(self) -> bool:
        """Whether all operations are done."""
        with self.world.lock:
            return all(operation.done for operation in self.world.operations.values())

    def idle_s(self) -> float:
        """Real seconds since the last request; 0 while an instance has power or an operation is in progress."""
        with self.world.lock:
            still = all(machine.status in ("TERMINATED", "SUSPENDED") for machine in self.world.machines.values())
        return time.monotonic() - self._asked if still and self.all_done() else 0.0

    def request(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request for ``path`` below ``/compute/v1/``. Raises ApiError: it is refused."""
        return self._service.answer(method, path, {}, body)

    def advance(self, seconds: float) -> None:
        """Advances the emulated time and executes everything due."""
        self.timeline.advance(seconds)

    def preempt(self, name: str) -> None:
        self.control.happen(name, "preempted")

    def host_error(self, name: str) -> None:
        self.control.happen(name, "hostError")

    def machine(self, name: str) -> Machine:
        """The emulator's own data of an instance, for tests."""
        return self.control.machine(name)

    def home(self, name: str) -> Path:
        """The home on the boot disk of an instance."""
        with self.world.lock:
            disk = self.world.disks[path_of(self.machine(name).resource["disks"][0]["source"])]
            return self.hypervisor.folder_of(disk) / "home"

    # ------------------------------------------------------------------------------------------------------- requests
    def _answer(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        if self._server is None:
            raise LostReply  # a connection that is older than the stop
        self._asked = time.monotonic()
        if path.startswith("/compute/v1/"):
            return self._service.answer(method, path.removeprefix("/compute/v1/"), query, body)
        if (method, path) == ("POST", "/emulator/end"):
            self.control.switch_all_off()
            self.ended.set()
            return {}
        if method == "POST" and path.startswith("/emulator/"):
            return self.control.post(path.removeprefix("/emulator/"), body)
        if method == "POST" and path.startswith("/guest/") and path.endswith("/power"):
            return guest_power(self.world, self.hypervisor.path_of_guest(path.split("/")[2]), body)
        raise ApiError("notFound", "Not Found")

    # -------------------------------------------------------------------------------------------------------- restart
    def _resume(self) -> None:
        """Kills what a killed emulator left, then starts the instances that were running.

        Deadlines are kept: a machine whose deadline has passed stops now.
        """
        for machine in self.world.machines.values():
            disk = self.world.disks.get(path_of(machine.resource["disks"][0]["source"]))
            if disk is not None:
                end_orphan(self.hypervisor.folder_of(disk), machine.volatile)
            machine.volatile = None
            if machine.status == "RUNNING":
                self._power_back(machine)
        for operation in self.world.operations.values():
            schedule(self.world, operation)

    def _power_back(self, machine: Machine) -> None:
        limit = machine.resource.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp")
        timers = dict(machine.timers)
        power.boot(self.world, machine.path, machine.life)
        power.arm(self.world, machine, parse_timestamp(limit) if limit else None)
        for unit, due in timers.items():
            power.set_timer(self.world, machine, unit, due)

    # ----------------------------------------------------------------------------------------------------- the folder
    def _save(self) -> None:
        _store(self.world, self._folder, self._secret)

    def _lock(self) -> None:
        self._owned = OwnerLock.within(self._folder / "lock", _ENDING_S)
        if self._owned is None:
            raise ConflictError(
                f"another emulator uses {self._folder}",
                hint="stop that emulator, or choose another folder: --state DIR",
            )

    def _remove_if_temporary(self) -> None:
        if self._temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _unlock(self) -> None:
        if self._owned is not None:
            self._owned.release()


_Resources = dict[str, dict[str, Any]]


@dataclass
class _State:
    """``state.json``: what a world holds, its time, and the secret of its URL."""

    now: float
    secret: str
    machines: list[Machine]
    operations: list[Operation]
    requests: dict[str, tuple[str, str]]
    disks: _Resources
    snapshots: _Resources
    addresses: _Resources = field(default_factory=dict)
    billed: list[BilledTime] = field(default_factory=list)
    version: Literal[1] = 1


@cache
def _format() -> TypeAdapter[_State]:
    return TypeAdapter(_State)


def _store(world: World, folder: Path, secret: str) -> None:
    machines, operations = list(world.machines.values()), list(world.operations.values())
    state = _State(
        world.now(), secret, machines, operations, world.requests, world.disks, world.snapshots, world.addresses,
        world.billed,
    )  # fmt: skip
    write_atomic(folder, "state.json", _format().dump_json(state), mode=0o600, durable=False)


def _load(world: World, folder: Path) -> tuple[float, str] | None:
    """Loads the state of an earlier emulator; returns its time and its secret, or None if there was none. Raises
    ValueError: an invalid file, or another version's."""
    try:
        state = _format().validate_json((folder / "state.json").read_bytes())
    except FileNotFoundError:
        return None
    world.machines = {machine.path: machine for machine in state.machines}
    world.operations = {operation.path: operation for operation in state.operations}
    world.requests, world.disks, world.snapshots = state.requests, state.disks, state.snapshots
    world.addresses, world.billed = state.addresses, state.billed
    return state.now, state.secret
