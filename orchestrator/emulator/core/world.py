"""The state of the emulated cloud, behind one lock, and its file."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.emulator.core.clock import EmulatedClock, Timeline
from orchestrator.emulator.core.guardian import Guardian
from orchestrator.emulator.core.scenario import Scenario

STATE_VERSION = 1


@dataclass
class Machine:
    """One instance: the resource that clients see, and the emulator's own data."""

    path: str
    resource: dict[str, Any]
    #: Incremented with every change of power, so that an event of an earlier life is ignored.
    life: int = 0
    port: int | None = None
    booted: bool = False
    guest_attributes: dict[str, str] = field(default_factory=dict)
    #: The guest's timers: unit -> when it powers off, emulated seconds since the epoch.
    timers: dict[str, float] = field(default_factory=dict)
    #: The folder of the running sshd; deleted with the power.
    volatile: str | None = None
    #: The reservation that it uses while it has power.
    reservation: str | None = None

    @property
    def status(self) -> str:
        return str(self.resource["status"])

    @property
    def zone(self) -> str:
        return self.path.split("/")[3]

    def metadata(self) -> dict[str, str]:
        return {item["key"]: item["value"] for item in self.resource["metadata"].get("items", [])}


@dataclass
class Step:
    """A step of an operation, at a time."""

    due: float
    name: str
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class Operation:
    """``target`` is the path of the resource; ``steps`` are still to be executed."""

    path: str
    resource: dict[str, Any]
    target: str
    steps: list[Step] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return bool(self.resource["status"] == "DONE")


class World:
    """The resources by path (``projects/P/zones/Z/instances/I``), the clock, the lock.

    Functions of other modules that change a world hold :attr:`lock`.
    """

    def __init__(self, folder: Path, clock: EmulatedClock, scenario: Scenario) -> None:
        self.folder = folder
        self.clock = clock
        self.scenario = scenario
        self.lock = threading.RLock()
        self.timeline = Timeline(clock, self.lock)
        self.machines: dict[str, Machine] = {}
        self.disks: dict[str, dict[str, Any]] = {}
        self.snapshots: dict[str, dict[str, Any]] = {}
        self.addresses: dict[str, dict[str, Any]] = {}
        self.operations: dict[str, Operation] = {}
        #: project and requestId -> digest of the request, path of its operation
        self.requests: dict[str, tuple[str, str]] = {}
        #: Guest token -> machine path, while the power is on.
        self.guests: dict[str, str] = {}
        #: How an sshd reaches this emulator; known once it listens.
        self.url = ""
        #: machine path -> its running guest
        self.running: dict[str, Any] = {}
        self.secret = ""
        #: Ends the machines if this process is killed.
        self.guardian = Guardian()

    def now(self) -> float:
        return self.clock.now()

    def later(self, delay: float, event: Callable[[], None]) -> None:
        self.timeline.at(self.now() + delay, event)

    # ------------------------------------------------------------------------------------------------ on disk
    def save(self) -> None:
        """Writes the state atomically."""
        with self.lock:
            state = {
                "version": STATE_VERSION,
                "now": self.now(),
                "secret": self.secret,
                "machines": [asdict(machine) for machine in self.machines.values()],
                "disks": self.disks,
                "snapshots": self.snapshots,
                "addresses": self.addresses,
                "operations": [asdict(operation) for operation in self.operations.values()],
                "requests": self.requests,
            }
            target = self.folder / "state.json"
            fresh = self.folder / "state.json.new"
            fresh.write_text(json.dumps(state), encoding="utf-8")
            fresh.chmod(0o600)
            fresh.replace(target)

    def load(self) -> float | None:
        """Loads the state of an earlier emulator; returns its time, or None if there was none. Raises ValueError: an
        invalid file."""
        try:
            state = json.loads((self.folder / "state.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if not isinstance(state, dict) or state.get("version") != STATE_VERSION:
            raise ValueError(f"{self.folder / 'state.json'} was not written by this version of the emulator")
        for value in state["machines"]:
            machine = Machine(**value)
            self.machines[machine.path] = machine
        for value in state["operations"]:
            steps = [Step(**step) for step in value.pop("steps")]
            operation = Operation(**value, steps=steps)
            self.operations[operation.path] = operation
        self.disks, self.snapshots = state["disks"], state["snapshots"]
        self.addresses = state.get("addresses", {})
        self.requests = {key: (digest, answer) for key, (digest, answer) in state["requests"].items()}
        self.secret = state["secret"]
        return float(state["now"])
