"""The state of an emulator in its folder: what a world holds, its time, and the secret of its URL."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from orchestrator.emulator.world import BilledTime, Machine, Operation, World

_Resources = dict[str, dict[str, Any]]


@dataclass
class _State:
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


def save(world: World, folder: Path, secret: str) -> None:
    """Writes it atomically."""
    machines, operations = list(world.machines.values()), list(world.operations.values())
    state = _State(
        world.now(), secret, machines, operations, world.requests, world.disks, world.snapshots, world.addresses,
        world.billed,
    )  # fmt: skip
    fresh = folder / "state.json.new"
    fresh.write_bytes(_format().dump_json(state))
    fresh.chmod(0o600)
    fresh.replace(folder / "state.json")


def load(world: World, folder: Path) -> tuple[float, str] | None:
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
