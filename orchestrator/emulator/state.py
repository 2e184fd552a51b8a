"""The state of an emulator in its folder: what a world holds, its time, and the secret of its URL."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from orchestrator.emulator.world import BilledTime, Machine, Operation, Step, World

_VERSION = 1


def save(world: World, folder: Path, secret: str) -> None:
    """Writes it atomically."""
    state = {
        "version": _VERSION,
        "now": world.now(),
        "secret": secret,
        "machines": [asdict(machine) for machine in world.machines.values()],
        "disks": world.disks,
        "snapshots": world.snapshots,
        "addresses": world.addresses,
        "operations": [asdict(operation) for operation in world.operations.values()],
        "requests": world.requests,
        "billed": [asdict(time) for time in world.billed],
    }
    fresh = folder / "state.json.new"
    fresh.write_text(json.dumps(state), encoding="utf-8")
    fresh.chmod(0o600)
    fresh.replace(folder / "state.json")


def load(world: World, folder: Path) -> tuple[float, str] | None:
    """Loads the state of an earlier emulator; returns its time and its secret, or None if there was none. Raises
    ValueError: an invalid file."""
    try:
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        raise ValueError(f"{folder / 'state.json'} was written by another version of the emulator")
    for value in state["machines"]:
        machine = Machine(**value)
        world.machines[machine.path] = machine
    for value in state["operations"]:
        steps = [Step(**step) for step in value.pop("steps")]
        operation = Operation(**value, steps=steps)
        world.operations[operation.path] = operation
    world.disks, world.snapshots = state["disks"], state["snapshots"]
    world.addresses = state.get("addresses", {})
    world.requests = {key: (digest, answer) for key, (digest, answer) in state["requests"].items()}
    world.billed = [BilledTime(**value) for value in state.get("billed", [])]
    return float(state["now"]), str(state["secret"])
